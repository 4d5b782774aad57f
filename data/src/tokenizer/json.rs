//! Tokenizers of Hugging Face's `tokenizer.json`.

use crate::dataset::SampleError;
use crate::error::{DataError, FilePlace};
use crate::tokenizer::{SpecialToken, Tokenizer, TokenizerError, guarded};
use serde::Deserialize;
use serde_json::Value;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// More bytes than any tokenizer has: the largest ones have some 30 MB.
const FILE_BYTES_MAX: u64 = 1 << 29;

/// Any tokenizer of a `tokenizer.json`, by Hugging Face's crate `tokenizers`. Truncation, padding
/// and the tokens that the file would put around every text are left out: rows and documents are
/// framed by the dataset.
#[derive(Clone)]
pub struct TokenizerJson {
    tokenizer: Box<tokenizers::Tokenizer>,
    special: Vec<SpecialToken>,
    vocabulary_len: usize,
}

impl TokenizerJson {
    /// The tokenizer of a file.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be read, [`DataError::Malformed`] for one that is
    /// no tokenizer, with the line if it is no JSON.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = |source| DataError::File { path: path.to_owned(), source };
        // A pipe is not opened: that would wait for a writer.
        if !fs::metadata(path).map_err(file)?.is_file() {
            return Err(file(io::Error::new(io::ErrorKind::InvalidData, "not a regular file")));
        }
        let mut bytes = Vec::new();
        let read = File::open(path)
            .and_then(|opened| opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
        read.map_err(file)?;
        let malformed =
            |place, source| DataError::Malformed { path: path.to_owned(), place, source };
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(malformed(FilePlace::Byte(FILE_BYTES_MAX), TooLarge.into()));
        }
        Self::from_bytes(&bytes).map_err(|source| {
            let json = source.downcast_ref::<serde_json::Error>().map(serde_json::Error::line);
            malformed(json.map_or(FilePlace::Byte(0), |line| FilePlace::Line(line as u64)), source)
        })
    }

    /// The tokenizer of the bytes of a file.
    ///
    /// # Errors
    /// What the library says of bytes that are no tokenizer, and what is wrong with those that it
    /// would take on trust.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SampleError> {
        check(bytes)?;
        let mut tokenizer = guarded(|| tokenizers::Tokenizer::from_bytes(bytes))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None)?;
        tokenizer.set_encode_special_tokens(true);
        let added = tokenizer.get_added_tokens_decoder();
        let mut special: Vec<SpecialToken> = added
            .into_iter()
            .filter(|(_, added)| added.special)
            .map(|(token, added)| SpecialToken { name: added.content, token })
            .collect();
        special.sort_unstable_by_key(|special| special.token);
        let mut tokens: Vec<(u32, String)> =
            tokenizer.get_vocab(true).into_iter().map(|(name, token)| (token, name)).collect();
        tokens.sort_unstable();
        // Which of the two a text has would differ from run to run.
        if let Some([(token, a), (_, b)]) = tokens.array_windows().find(|[(a, _), (b, _)]| a == b) {
            return Err(Mistake::Number { token: *token, names: [a, b].map(|it| short(it)) }.into());
        }
        // Not the number of tokens: a vocabulary may have gaps.
        let vocabulary_len = tokens.last().map_or(0, |(token, _)| *token as usize + 1);
        Ok(Self { tokenizer: Box::new(tokenizer), special, vocabulary_len })
    }
}

impl Tokenizer for TokenizerJson {
    fn encode_into(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let encoded = guarded(|| self.tokenizer.encode_fast(text, false));
        let encoded = encoded.map_err(|source| TokenizerError::Library { source })?;
        tokens.extend(encoded.get_ids());
        Ok(())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        let is_known = |token: u32| self.tokenizer.id_to_token(token).is_some();
        if let Some(&token) = tokens.iter().find(|&&token| !is_known(token)) {
            return Err(TokenizerError::UnknownToken { token });
        }
        guarded(|| self.tokenizer.decode(tokens, false))
            .map_err(|source| TokenizerError::Library { source })
    }

    fn vocabulary_len(&self) -> usize {
        self.vocabulary_len
    }

    fn special_tokens(&self) -> &[SpecialToken] {
        &self.special
    }
}

impl fmt::Debug for TokenizerJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenizerJson")
            .field("vocabulary_len", &self.vocabulary_len)
            .field("special", &self.special)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the file is larger than any tokenizer")]
struct TooLarge;

/// What the library does not find, or panics at.
#[derive(Debug, thiserror::Error)]
enum Mistake {
    #[error("{names:?} are both token {token}")]
    Number { token: u32, names: [String; 2] },
    #[error(
        "precompiled_charsmap has {} characters, too few for a table of {table_bytes} bytes",
        len
    )]
    Table { table_bytes: u32, len: usize },
    #[error("precompiled_charsmap does not begin with the size of a table")]
    NoTable,
    #[error("merges: {name:?} does not begin with continuing_subword_prefix, {prefix:?}")]
    Prefix { name: String, prefix: String },
}

/// The parts of a file beside its tokens.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    // Not looked at, but parsed: the library panics where one is no JSON.
    #[serde(default, rename = "pre_tokenizer")]
    _pre_tokenizer: Value,
    #[serde(default, rename = "decoder")]
    _decoder: Value,
    #[serde(default, rename = "post_processor")]
    _post_processor: Value,
    model: ModelParts,
}

#[derive(Deserialize)]
struct ModelParts {
    continuing_subword_prefix: Option<String>,
}

/// Pairs of tokens to merge.
#[derive(Deserialize)]
struct Merging {
    #[serde(default)]
    model: Merges,
}

#[derive(Default, Deserialize)]
struct Merges {
    #[serde(default)]
    merges: Vec<Value>,
}

/// Checks what the library takes on trust.
fn check(bytes: &[u8]) -> Result<(), SampleError> {
    let parts: Parts = serde_json::from_slice(bytes)?;
    check_tables(&parts.normalizer)?;
    let Some(prefix) = parts.model.continuing_subword_prefix.filter(|it| !it.is_empty()) else {
        return Ok(());
    };
    // The library cuts as many bytes off, whatever they are.
    let Merging { model } = serde_json::from_slice(bytes)?;
    let second = |merge: &Value| match merge {
        Value::String(text) => text.split_once(' ').map(|(_, second)| second.to_owned()),
        other => other[1].as_str().map(str::to_owned),
    };
    let wrong = model.merges.iter().filter_map(second).find(|name| !name.starts_with(&prefix));
    match wrong {
        None => Ok(()),
        Some(name) => Err(Mistake::Prefix { name: short(&name), prefix: short(&prefix) }.into()),
    }
}

/// Checks that tables of characters are as large as they say: the library allocates what they say.
fn check_tables(normalizer: &Value) -> Result<(), Mistake> {
    match normalizer {
        Value::Array(parts) => parts.iter().try_for_each(check_tables),
        Value::Object(parts) => {
            if let Some(table) = parts.get("precompiled_charsmap").and_then(Value::as_str) {
                let table_bytes = table_bytes(table).ok_or(Mistake::NoTable)?;
                // Four characters of base64 are three bytes.
                if table_bytes as usize > table.len() / 4 * 3 {
                    return Err(Mistake::Table { table_bytes, len: table.len() });
                }
            }
            parts.values().try_for_each(check_tables)
        }
        _ => Ok(()),
    }
}

/// The size that a table in base64 begins with, if it is there and of at least one number.
fn table_bytes(base64: &str) -> Option<u32> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let first = base64.as_bytes().get(..6)?;
    let value = first.iter().try_fold(0_u64, |value, byte| {
        let digit = DIGITS.iter().position(|digit| digit == byte)?;
        Some(value << 6 | digit as u64)
    })?;
    // The first 32 of 36 bits, little-endian.
    let size = ((value >> 4) as u32).swap_bytes();
    (size >= 4).then_some(size)
}

/// A text of a file as it is in a message.
fn short(text: &str) -> String {
    text.chars().take(60).collect()
}
