//! Tokenizers of Hugging Face's `tokenizer.json`.

use crate::error::{DataError, FilePlace, SampleError};
use crate::tokenizer::{SpecialToken, Tokenizer, TokenizerError, catch_panic};
use lowtide_allocator::files::open_input;
use serde::Deserialize;
use serde_json::Value;
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Maximum number of bytes of a file. The largest tokenizers have about 30 MB.
const FILE_BYTES_MAX: u64 = 1 << 29;

/// A tokenizer from a `tokenizer.json` file, run by Hugging Face's crate `tokenizers`. Truncation,
/// padding and tokens around every text are switched off, because the datasets add these.
#[derive(Clone)]
pub struct TokenizerJson {
    tokenizer: Box<tokenizers::Tokenizer>,
    special: Vec<SpecialToken>,
    vocabulary_len: usize,
}

impl TokenizerJson {
    /// Reads a tokenizer from a file.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be read; [`DataError::Malformed`] for a file that
    /// is not a tokenizer, with the line if it is not JSON.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = |source| DataError::File { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let read = open_input(path)
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

    /// Parses a tokenizer from the bytes of a file.
    ///
    /// # Errors
    /// The library's error for bytes that are not a tokenizer, and faults that the library does not
    /// check.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SampleError> {
        check(bytes)?;
        let mut tokenizer = catch_panic(|| tokenizers::Tokenizer::from_bytes(bytes))?;
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
        // With two names for one token, decoding would differ from run to run.
        if let Some([(token, a), (_, b)]) = tokens.array_windows().find(|[(a, _), (b, _)]| a == b) {
            let names = [a, b].map(|name| shorten(name));
            return Err(TokenizerFault::Number { token: *token, names }.into());
        }
        // The vocabulary may have gaps, so its length is not the number of tokens.
        let vocabulary_len = tokens.last().map_or(0, |(token, _)| *token as usize + 1);
        Ok(Self { tokenizer: Box::new(tokenizer), special, vocabulary_len })
    }
}

impl Tokenizer for TokenizerJson {
    fn encode_into(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let encoded = catch_panic(|| self.tokenizer.encode_fast(text, false));
        let encoded = encoded.map_err(|source| TokenizerError::Library { source })?;
        tokens.extend(encoded.get_ids());
        Ok(())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        let is_known = |token: u32| self.tokenizer.id_to_token(token).is_some();
        if let Some(&token) = tokens.iter().find(|&&token| !is_known(token)) {
            return Err(TokenizerError::UnknownToken { token });
        }
        catch_panic(|| self.tokenizer.decode(tokens, false))
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

/// A fault that the library does not report, or panics at.
#[derive(Debug, thiserror::Error)]
enum TokenizerFault {
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

/// The parts of a file other than its tokens.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    // These parts are parsed only because the library panics if a part is not JSON.
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

/// The part of a file with the pairs of tokens to merge.
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

/// Checks for faults that the library does not check.
fn check(bytes: &[u8]) -> Result<(), SampleError> {
    let parts: Parts = serde_json::from_slice(bytes)?;
    check_tables(&parts.normalizer)?;
    let prefix = parts.model.continuing_subword_prefix.filter(|prefix| !prefix.is_empty());
    let Some(prefix) = prefix else { return Ok(()) };
    // The library cuts the length of the prefix off each name, even if the name lacks the prefix.
    let Merging { model } = serde_json::from_slice(bytes)?;
    let second = |merge: &Value| match merge {
        Value::String(text) => text.split_once(' ').map(|(_, second)| second.to_owned()),
        other => other[1].as_str().map(str::to_owned),
    };
    let wrong = model.merges.iter().filter_map(second).find(|name| !name.starts_with(&prefix));
    match wrong {
        None => Ok(()),
        Some(name) => {
            let [name, prefix] = [name, prefix].map(|text| shorten(&text));
            Err(TokenizerFault::Prefix { name, prefix }.into())
        }
    }
}

/// Checks that no table of characters states a size above its length. The library allocates the
/// stated size.
fn check_tables(normalizer: &Value) -> Result<(), TokenizerFault> {
    match normalizer {
        Value::Array(parts) => parts.iter().try_for_each(check_tables),
        Value::Object(parts) => {
            if let Some(table) = parts.get("precompiled_charsmap").and_then(Value::as_str) {
                let table_bytes = table_bytes(table).ok_or(TokenizerFault::NoTable)?;
                // Four characters of base64 are three bytes.
                if table_bytes as usize > table.len() / 4 * 3 {
                    return Err(TokenizerFault::Table { table_bytes, len: table.len() });
                }
            }
            parts.values().try_for_each(check_tables)
        }
        _ => Ok(()),
    }
}

/// The size at the beginning of a table in base64; `None` if there is no size, or the size is less
/// than one number.
fn table_bytes(base64: &str) -> Option<u32> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let first = base64.as_bytes().get(..6)?;
    let value = first.iter().try_fold(0_u64, |value, byte| {
        let digit = DIGITS.iter().position(|digit| digit == byte)?;
        Some(value << 6 | digit as u64)
    })?;
    // The size is the first 32 of these 36 bits, little-endian.
    let size = ((value >> 4) as u32).swap_bytes();
    (size >= 4).then_some(size)
}

/// The beginning of a text, for an error message.
fn shorten(text: &str) -> String {
    text.chars().take(60).collect()
}
