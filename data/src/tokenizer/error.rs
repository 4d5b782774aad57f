//! Errors of tokenizers.

use crate::error::SampleError;

/// An error of a [`Tokenizer`](crate::Tokenizer).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The vocabulary has no token for a character.
    #[error("the vocabulary has no {character:?}, which is at byte {byte} of the text")]
    UnknownCharacter {
        /// The first character without a token.
        character: char,
        /// Byte offset of the character in the text.
        byte: usize,
    },
    /// A token is not in the vocabulary.
    #[error("the vocabulary has no token {token}")]
    UnknownToken {
        /// Number of the token.
        token: u32,
    },
    /// The tokenizer's library failed.
    #[error("the text cannot be encoded")]
    Library {
        /// The library's own error.
        source: SampleError,
    },
}
