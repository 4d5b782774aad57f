//! The split of texts before pairs are merged. GGUF has names for such splits. llama.cpp's
//! converter finds the name by running the tokenizer on a text; this module finds the name in the
//! tokenizer's own description.

use serde_json::Value as Json;

/// The split of GPT-4, with numbers of up to three digits.
const LLAMA_3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// [`LLAMA_3`] with single digits.
const QWEN_2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// The split of Mistral, with words that end where lower-case letters end.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The steps of a part of a tokenizer, which is one step or a sequence.
pub(super) fn steps(part: &Json) -> Vec<&Json> {
    let inside = ["pretokenizers", "normalizers", "decoders", "processors"]
        .into_iter()
        .find_map(|name| part.get(name).and_then(Json::as_array));
    match inside {
        Some(steps) => steps.iter().collect(),
        None if part.is_null() => Vec::new(),
        None => vec![part],
    }
}

/// GGUF's name for the split of a byte-level tokenizer.
pub(super) fn name(tokenizer: &Json) -> Option<&'static str> {
    let steps = steps(&tokenizer["pre_tokenizer"]);
    let (last, before) = steps.split_last()?;
    if last["type"] != "ByteLevel" || last["add_prefix_space"] == true {
        return None;
    }
    // Files without the entry are older than the entry.
    let cuts_itself = last["use_regex"] != false;
    let name = match before {
        [] if cuts_itself => "gpt-2",
        [digits] if cuts_itself && digits["type"] == "Digits" => {
            (digits["individual_digits"] == true).then_some("smollm")?
        }
        [split] if !cuts_itself && split["type"] == "Split" => by_pattern(split)?,
        _ => return None,
    };
    // With `ignore_merges`, a word that is a token is taken whole, even if merging would split it.
    let takes_whole = tokenizer["model"]["ignore_merges"] == true;
    (takes_whole == matches!(name, "llama-bpe" | "tekken")).then_some(name)
}

fn by_pattern(split: &Json) -> Option<&'static str> {
    if split["behavior"] != "Isolated" || split["invert"] == true {
        return None;
    }
    let pattern = split["pattern"]["Regex"].as_str()?;
    let known = [(LLAMA_3, "llama-bpe"), (QWEN_2, "qwen2"), (TEKKEN, "tekken")];
    known.into_iter().find(|(known, _)| *known == pattern).map(|(_, name)| name)
}

/// True if a tokenizer of characters puts a space before a text.
pub(super) fn adds_space(tokenizer: &Json) -> bool {
    let prepends = |step: &&Json| step["type"] == "Prepend";
    let marks = |step: &&Json| {
        let scheme = step["prepend_scheme"].as_str();
        let adds = scheme.map_or(step["add_prefix_space"] == true, |scheme| scheme != "never");
        step["type"] == "Metaspace" && adds
    };
    steps(&tokenizer["normalizer"]).iter().any(prepends)
        || steps(&tokenizer["pre_tokenizer"]).iter().any(marks)
}
