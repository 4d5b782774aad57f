//! The byte-pair encodings of OpenAI's models.

use crate::tokenizer::{SpecialToken, Tokenizer, TokenizerError, catch_panic};
use std::fmt;
use tiktoken_rs::CoreBPE;

/// The byte-pair encodings of OpenAI's models, from the crate `tiktoken-rs`, which contains the
/// vocabularies. A vocabulary is parsed at its first use and stays in memory.
#[derive(Clone)]
pub struct Tiktoken {
    encoding: &'static CoreBPE,
    name: &'static str,
    special: Vec<SpecialToken>,
    vocabulary_len: usize,
}

impl Tiktoken {
    /// The encoding `r50k_base` of GPT-2 and GPT-3, with 50257 tokens.
    #[must_use]
    pub fn gpt2() -> Self {
        Self::new("r50k_base", tiktoken_rs::r50k_base_singleton())
    }

    /// The encoding `cl100k_base` of GPT-3.5 and GPT-4, with 100277 tokens.
    #[must_use]
    pub fn cl100k() -> Self {
        Self::new("cl100k_base", tiktoken_rs::cl100k_base_singleton())
    }

    /// The encoding `o200k_base` of GPT-4o and later models, with 200019 tokens.
    #[must_use]
    pub fn o200k() -> Self {
        Self::new("o200k_base", tiktoken_rs::o200k_base_singleton())
    }

    fn new(name: &'static str, encoding: &'static CoreBPE) -> Self {
        let token = |name: &str| encoding.encode_with_special_tokens(name).first().copied();
        let mut special: Vec<SpecialToken> = encoding
            .special_tokens()
            .into_iter()
            .filter_map(|name| Some(SpecialToken { name: name.to_owned(), token: token(name)? }))
            .collect();
        special.sort_unstable_by_key(|special| special.token);
        // Special tokens are the last tokens of each of the three vocabularies.
        let vocabulary_len = special.last().map_or(0, |special| special.token as usize + 1);
        Self { encoding, name, special, vocabulary_len }
    }
}

impl Tokenizer for Tiktoken {
    fn encode_into(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let encoded = catch_panic(|| Ok(self.encoding.encode_ordinary(text)));
        tokens.extend(encoded.map_err(|source| TokenizerError::Library { source })?);
        Ok(())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        let mut bytes = Vec::new();
        for token in tokens {
            let text = self.encoding.decode_bytes(std::slice::from_ref(token));
            bytes.extend(text.map_err(|_| TokenizerError::UnknownToken { token: *token })?);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn vocabulary_len(&self) -> usize {
        self.vocabulary_len
    }

    fn special_tokens(&self) -> &[SpecialToken] {
        &self.special
    }
}

impl fmt::Debug for Tiktoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tiktoken").field(&self.name).finish()
    }
}
