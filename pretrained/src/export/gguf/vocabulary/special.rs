//! Tokens with a role: beginning, end, padding.

use serde_json::{Map, Value as Json};

use super::{File, pre_tokenizer};
use crate::export::gguf::file::Value;

/// Special tokens, by their names in configurations and in GGUF.
const ROLES: [(&str, &str); 7] = [
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("unk", "unknown_token_id"),
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("cls", "cls_token_id"),
    ("mask", "mask_token_id"),
];

/// The numbers of special tokens, by `tokenizer_config.json` or else by `config.json`, and flags
/// for adding them to texts.
pub(super) fn entries(
    tokenizer: &Json,
    of_folder: Option<&File>,
    config: &Map<String, Json>,
    token_count: usize,
) -> Vec<(&'static str, Value)> {
    let given = |name: &str| of_folder.and_then(|file| file.json.get(name));
    let mut entries = Vec::new();
    for (role, key) in ROLES {
        let text = given(&format!("{role}_token"))
            .and_then(|token| token.as_str().or(token["content"].as_str()));
        let id = text.and_then(|text| id_of(tokenizer, text)).or_else(|| {
            let id = config.get(&format!("{role}_token_id"))?;
            // A model may have several end tokens. The first is the usual one.
            id.get(0).unwrap_or(id).as_u64()
        });
        if let Some(id) = id.filter(|&id| id < token_count as u64) {
            // A table has at most 2^31 rows.
            entries.push((key, Value::Count(id as u32)));
        }
    }
    let flag = |name| given(name).and_then(Json::as_bool);
    let [first, last] = ends(tokenizer);
    let begins = flag("add_bos_token").unwrap_or(first);
    entries.push(("add_bos_token", Value::Flag(begins)));
    entries.push(("add_eos_token", Value::Flag(flag("add_eos_token").unwrap_or(last))));
    entries
}

/// The number of a token.
fn id_of(tokenizer: &Json, text: &str) -> Option<u64> {
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let added = added.filter(|token| token["content"] == text);
    let listed = || tokenizer["model"]["vocab"].get(text).and_then(Json::as_u64);
    added.filter_map(|token| token["id"].as_u64()).next().or_else(listed)
}

/// Two flags: the tokenizer adds a token before a text, and after a text.
fn ends(tokenizer: &Json) -> [bool; 2] {
    let is_special =
        |piece: Option<&Json>| piece.is_some_and(|it| it.get("SpecialToken").is_some());
    let mut ends = [false, false];
    for step in pre_tokenizer::steps(&tokenizer["post_processor"]) {
        if let Some(pieces) = step["single"].as_array().filter(|pieces| pieces.len() > 1) {
            ends[0] |= is_special(pieces.first());
            ends[1] |= is_special(pieces.last());
        }
    }
    ends
}
