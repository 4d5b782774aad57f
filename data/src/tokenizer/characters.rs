//! Characters as tokens.

use crate::tokenizer::{SpecialToken, Tokenizer, TokenizerError};
use std::collections::BTreeSet;

/// The characters of a text as tokens, in Unicode order, and special tokens after them.
#[derive(Debug, Clone)]
pub struct Characters {
    characters: Vec<char>,
    special: Vec<SpecialToken>,
}

impl Characters {
    /// The vocabulary of the characters in `text`.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let characters = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
        Self { characters, special: Vec::new() }
    }

    /// Adds a special token with the next number.
    #[must_use]
    pub fn with_special(mut self, name: impl Into<String>) -> Self {
        let token = self.vocabulary_len() as u32;
        self.special.push(SpecialToken { name: name.into(), token });
        self
    }

    /// The characters in the order of their tokens.
    #[must_use]
    pub fn characters(&self) -> &[char] {
        &self.characters
    }

    /// The token of a character; `None` if the vocabulary does not have it.
    #[must_use]
    pub fn token(&self, character: char) -> Option<u32> {
        // The cast keeps the value: Unicode has fewer than 2^21 characters.
        self.characters.binary_search(&character).ok().map(|position| position as u32)
    }
}

impl Tokenizer for Characters {
    fn encode_into(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let len = tokens.len();
        for (byte, character) in text.char_indices() {
            match self.token(character) {
                Some(token) => tokens.push(token),
                None => {
                    tokens.truncate(len);
                    return Err(TokenizerError::UnknownCharacter { character, byte });
                }
            }
        }
        Ok(())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        let mut text = String::new();
        for &token in tokens {
            let at = token as usize;
            match (self.characters.get(at), at.checked_sub(self.characters.len())) {
                (Some(&character), _) => text.push(character),
                (None, Some(at)) if at < self.special.len() => text += &self.special[at].name,
                _ => return Err(TokenizerError::UnknownToken { token }),
            }
        }
        Ok(text)
    }

    fn vocabulary_len(&self) -> usize {
        self.characters.len() + self.special.len()
    }

    fn special_tokens(&self) -> &[SpecialToken] {
        &self.special
    }
}
