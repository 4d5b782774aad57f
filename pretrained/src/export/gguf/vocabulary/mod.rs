//! The tokenizer of a model's folder as entries of GGUF: byte pairs of bytes, as in GPT-2, or of
//! characters with bytes for the rest, as in SentencePiece.

mod pre_tokenizer;
mod special;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::file::{Entries, Value};
use super::note::GgufNote;
use crate::config::Config;
use crate::error::{EntryProblem, PretrainedError, Result, shortened};
use crate::files::{read_bytes, read_text};

/// The kind of a token, with the numbers of llama.cpp's `llama_token_type`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// A token of the file.
struct Token {
    text: String,
    kind: Kind,
    score: f32,
}

/// The two kinds of byte pairs, by their names in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Model {
    /// Pairs of bytes, each written as a character.
    Gpt2,
    /// Pairs of characters, with a token for each byte.
    Llama,
}

/// A JSON file of the folder; `None` if the file does not exist.
pub(super) struct File {
    path: PathBuf,
    json: Json,
}

impl File {
    fn open(path: PathBuf) -> Result<Option<Self>> {
        if !path.is_file() {
            return Ok(None);
        }
        /// Maximum size of a file. The largest tokenizers have about 30 MB.
        const FILE_BYTES_MAX: u64 = 1 << 29;
        let bytes = read_bytes(&path, FILE_BYTES_MAX)?;
        match serde_json::from_slice(&bytes) {
            Ok(json) => Ok(Some(File { path, json })),
            Err(source) => Err(PretrainedError::Json { path, source }),
        }
    }

    fn error(&self, entry: &str, problem: EntryProblem) -> PretrainedError {
        PretrainedError::Entry { path: self.path.clone(), entry: entry.to_owned(), problem }
    }

    fn wrong(&self, entry: &str, expected: &'static str, found: &Json) -> PretrainedError {
        let found = shortened(&found.to_string());
        self.error(entry, EntryProblem::Wrong { expected, found })
    }
}

/// The entries for the tokenizer and the chat template of a model whose table has `rows` rows.
///
/// # Errors
/// `File`, `Json`, and `Entry` for a tokenizer of another kind.
pub(super) fn entries(config: &Config, rows: usize) -> Result<(Entries, Vec<GgufNote>)> {
    let folder = config.folder();
    let Some(file) = File::open(folder.join("tokenizer.json"))? else {
        // A reader refuses a file without this entry.
        let none = ("tokenizer.ggml.model".to_owned(), Value::Text("none".to_owned()));
        return Ok((vec![none], vec![GgufNote::NoTokenizer]));
    };
    let model = model(&file)?;
    let (tokens, outside_count) = tokens(&file, model, rows)?;
    let mut notes = Vec::new();
    if outside_count > 0 {
        notes.push(GgufNote::TokensOutside { count: outside_count });
    }
    let pre = match model {
        Model::Llama => "default",
        Model::Gpt2 => pre_tokenizer::name(&file.json).unwrap_or_else(|| {
            notes.push(GgufNote::UnknownPreTokenizer);
            "default"
        }),
    };
    let texts = tokens.iter().map(|token| token.text.clone()).collect();
    let kinds = tokens.iter().map(|token| token.kind as i32).collect();
    let mut entries = vec![
        ("model", Value::Text(if model == Model::Gpt2 { "gpt2" } else { "llama" }.to_owned())),
        ("pre", Value::Text(pre.to_owned())),
        ("tokens", Value::Texts(texts)),
        ("token_type", Value::Kinds(kinds)),
    ];
    match model {
        Model::Gpt2 => entries.push(("merges", Value::Texts(merges(&file)?))),
        Model::Llama => {
            let scores = tokens.iter().map(|token| token.score).collect();
            entries.push(("scores", Value::Numbers(scores)));
            let adds_space = Value::Flag(pre_tokenizer::adds_space(&file.json));
            entries.push(("add_space_prefix", adds_space));
        }
    }
    let of_folder = File::open(folder.join("tokenizer_config.json"))?;
    entries.extend(special::entries(
        &file.json,
        of_folder.as_ref(),
        &config.entries(),
        tokens.len(),
    ));
    let mut entries: Entries =
        entries.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect();
    if let Some(template) = chat_template(folder, of_folder.as_ref())? {
        entries.push(("tokenizer.chat_template".to_owned(), Value::Text(template)));
    }
    Ok((entries, notes))
}

fn model(file: &File) -> Result<Model> {
    let model = &file.json["model"];
    // Older files do not state their type.
    let kind = model.get("type").and_then(Json::as_str).unwrap_or("BPE");
    if kind != "BPE" {
        let found = kind.to_owned();
        return Err(file.error("model.type", EntryProblem::Unsupported { found }));
    }
    let is_of_bytes = pre_tokenizer::steps(&file.json["pre_tokenizer"])
        .iter()
        .chain(&pre_tokenizer::steps(&file.json["decoder"]))
        .any(|step| step["type"] == "ByteLevel");
    if is_of_bytes {
        return Ok(Model::Gpt2);
    }
    if model["byte_fallback"] == true {
        return Ok(Model::Llama);
    }
    let found = "byte pairs without all bytes".to_owned();
    Err(file.error("model", EntryProblem::Unsupported { found }))
}

/// A token for each row of the table, and the number of tokens without a row.
fn tokens(file: &File, model: Model, vocabulary: usize) -> Result<(Vec<Token>, usize)> {
    let unused = |index| Token { text: format!("[PAD{index}]"), kind: Kind::Unused, score: 0.0 };
    let mut tokens: Vec<Token> = (0..vocabulary).map(unused).collect();
    let mut outside_count = 0;
    let mut set = |id: &Json, token: Token| -> Result<Option<Token>> {
        let index = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let index = index.ok_or_else(|| file.wrong("model.vocab", "the number of a token", id))?;
        let before = tokens.get_mut(index).map(|place| std::mem::replace(place, token));
        outside_count += usize::from(before.is_none());
        Ok(before)
    };
    let Some(listed) = file.json["model"]["vocab"].as_object() else {
        return Err(file.error("model.vocab", EntryProblem::Missing));
    };
    let scores = scores(file, model)?;
    let unknown = file.json["model"]["unk_token"].as_str();
    for (text, id) in listed {
        let kind = match model {
            Model::Llama if Some(text.as_str()) == unknown => Kind::Unknown,
            Model::Llama if is_byte(text) => Kind::Byte,
            _ => Kind::Normal,
        };
        let score = scores.get(text.as_str()).copied().unwrap_or(0.0);
        let before = set(id, Token { text: text.clone(), kind, score })?;
        if before.is_some_and(|before| before.kind != Kind::Unused) {
            return Err(file.wrong("model.vocab", "a number that no other token has", id));
        }
    }
    let mut added_ids = BTreeSet::new();
    for added in file.json["added_tokens"].as_array().into_iter().flatten() {
        let Some(text) = added["content"].as_str() else {
            return Err(file.wrong("added_tokens", "tokens with a content", added));
        };
        let (text, kind) = if model == Model::Llama && Some(text) == unknown {
            (text.to_owned(), Kind::Unknown)
        } else if added["special"] == true || looks_special(text) {
            (text.to_owned(), Kind::Control)
        } else {
            // Readers search for these tokens in the original text.
            (text.replace('\u{2581}', " "), Kind::UserDefined)
        };
        let is_listed = listed.contains_key(added["content"].as_str().unwrap_or_default());
        match added["id"].as_u64() {
            // The token was counted in the loop over the listed tokens.
            Some(id) if is_listed && id >= vocabulary as u64 => {}
            _ => drop(set(&added["id"], Token { text, kind, score: 0.0 })?),
        }
        if !added_ids.insert(added["id"].as_u64()) {
            let expected = "a number that no other token has";
            return Err(file.wrong("added_tokens", expected, &added["id"]));
        }
    }
    Ok((tokens, outside_count))
}

/// True for a token of one byte, such as `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|text| text.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// True for tokens that some files do not call special, by the rules of llama.cpp's converter.
fn looks_special(text: &str) -> bool {
    let is_between = |start, end| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || is_between("<|", "|>")
        || is_between("<\u{ff5c}", "\u{ff5c}>")
        || is_between("<unused", ">")
}

/// Scores in the order of the pairs to merge. SentencePiece merges the pair with the highest score
/// first, and the file lists the pair to merge first at the top.
fn scores(file: &File, model: Model) -> Result<BTreeMap<String, f32>> {
    let mut scores = BTreeMap::new();
    if model == Model::Llama {
        for (index, pair) in pairs(file)?.into_iter().enumerate() {
            let merged = pair.concat();
            scores.entry(merged).or_insert(-(index as f32) - 1.0);
        }
    }
    Ok(scores)
}

/// The pairs to merge, in the order of priority.
fn pairs(file: &File) -> Result<Vec<[&str; 2]>> {
    let entry = "model.merges";
    let Some(merges) = file.json["model"]["merges"].as_array() else {
        return Err(file.error(entry, EntryProblem::Missing));
    };
    let pairs = merges.iter().map(|merge| {
        let parts = match merge {
            Json::String(text) => text.split_once(' '),
            other => other[0].as_str().zip(other[1].as_str()),
        };
        let (left, right) = parts.ok_or_else(|| file.wrong(entry, "pairs of texts", merge))?;
        let is_token = |text: &str| file.json["model"]["vocab"].get(text).is_some();
        if is_token(left) && is_token(right) && is_token(&[left, right].concat()) {
            Ok([left, right])
        } else {
            Err(file.wrong(entry, "two tokens that make a token", merge))
        }
    });
    pairs.collect()
}

/// The pairs to merge, as texts for GGUF. A space inside a part is written as U+0120.
fn merges(file: &File) -> Result<Vec<String>> {
    let text = |part: &str| part.replace(' ', "\u{120}");
    Ok(pairs(file)?.into_iter().map(|[a, b]| format!("{} {}", text(a), text(b))).collect())
}

/// The chat template, if the folder has one.
fn chat_template(folder: &Path, of_folder: Option<&File>) -> Result<Option<String>> {
    let given = of_folder.and_then(|file| file.json.get("chat_template"));
    let of_name = |named: &Vec<Json>| {
        let default = named.iter().find(|template| template["name"] == "default");
        default.and_then(|template| template["template"].as_str()).map(str::to_owned)
    };
    let given = match given {
        Some(Json::String(text)) => Some(text.clone()),
        Some(Json::Array(named)) => of_name(named),
        _ => None,
    };
    let path = folder.join("chat_template.jinja");
    if given.is_some() || !path.is_file() {
        return Ok(given);
    }
    /// Maximum size of a file, far above any template.
    const TEMPLATE_BYTES_MAX: u64 = 1 << 24;
    read_text(&path, TEMPLATE_BYTES_MAX).map(Some)
}
