//! Bytes as tokens.

use crate::tokenizer::{SpecialToken, Tokenizer, TokenizerError};

/// The 256 bytes of UTF-8 as tokens, and special tokens after them. Every text can be encoded.
#[derive(Debug, Clone, Default)]
pub struct Bytes {
    special: Vec<SpecialToken>,
}

impl Bytes {
    /// The 256 bytes without special tokens.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a special token with the next number.
    #[must_use]
    pub fn with_special(mut self, name: impl Into<String>) -> Self {
        let token = 256 + self.special.len() as u32;
        self.special.push(SpecialToken { name: name.into(), token });
        self
    }
}

impl Tokenizer for Bytes {
    fn encode_into(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
        tokens.extend(text.bytes().map(u32::from));
        Ok(())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        let mut bytes = Vec::with_capacity(tokens.len());
        for &token in tokens {
            match u8::try_from(token) {
                Ok(byte) => bytes.push(byte),
                Err(_) => {
                    let special = self.special.get(token as usize - 256);
                    let special = special.ok_or(TokenizerError::UnknownToken { token })?;
                    bytes.extend(special.name.bytes());
                }
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn vocabulary_len(&self) -> usize {
        256 + self.special.len()
    }

    fn special_tokens(&self) -> &[SpecialToken] {
        &self.special
    }
}
