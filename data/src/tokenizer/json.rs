//! Tokenizers of Hugging Face's `tokenizer.json`.

use crate::dataset::SampleError;
use crate::error::{DataError, FilePlace};
use crate::tokenizer::{SpecialToken, Tokenizer, TokenizerError, guarded};
use std::fmt;
use std::fs::File;
use std::io::Read;
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
        let mut bytes = Vec::new();
        let read =
            File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
        read.map_err(|source| DataError::File { path: path.to_owned(), source })?;
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
    /// What the library says of bytes that are no tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SampleError> {
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
        // Not the number of tokens: a vocabulary may have gaps.
        let last = tokenizer.get_vocab(true).into_values().max();
        let vocabulary_len = last.map_or(0, |token| token as usize + 1);
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
