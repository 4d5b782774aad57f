//! Text to tokens and back.

mod bytes;
mod characters;
#[cfg(feature = "tokenizers")]
mod json;
#[cfg(feature = "tiktoken")]
mod tiktoken;

pub use bytes::Bytes;
pub use characters::Characters;
#[cfg(feature = "tokenizers")]
pub use json::TokenizerJson;
#[cfg(feature = "tiktoken")]
pub use tiktoken::Tiktoken;

use crate::dataset::SampleError;
#[cfg(any(feature = "tiktoken", feature = "tokenizers"))]
use crate::job::message_of;

/// Text to tokens and back.
///
/// # Examples
/// ```
/// use lowtide_data::{Bytes, SpecialRole, Tokenizer};
/// let bytes = Bytes::new().with_special("<|endoftext|>");
/// assert_eq!(bytes.encode("ab")?, [97, 98]);
/// assert_eq!(bytes.encode_markup("ab<|endoftext|>")?, [97, 98, 256]);
/// assert_eq!(bytes.special(SpecialRole::EndOfText), Some(256));
/// # Ok::<(), lowtide_data::TokenizerError>(())
/// ```
pub trait Tokenizer: Send + Sync {
    /// Adds the tokens of `text` to `tokens`. The name of a special token in the text is text as
    /// any other, so a document cannot end itself or take another role in a chat.
    ///
    /// # Errors
    /// [`TokenizerError`] for text without tokens; `tokens` is as before then.
    fn encode_into(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError>;

    /// The text of `tokens`, with special tokens by their names. Bytes that are no UTF-8, such as
    /// those of a character whose other tokens are not there, become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] for a token that the vocabulary does not have.
    fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError>;

    /// The number that every token is below.
    fn vocabulary_len(&self) -> usize;

    /// The tokens that stand for no text, in any order.
    fn special_tokens(&self) -> &[SpecialToken] {
        &[]
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// As [`encode_into`](Self::encode_into).
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut tokens = Vec::new();
        self.encode_into(text, &mut tokens)?;
        Ok(tokens)
    }

    /// The tokens of `text`, in which the name of a special token is that token: for texts of the
    /// program, such as the frame of a chat, not for texts of documents.
    ///
    /// # Errors
    /// As [`encode_into`](Self::encode_into).
    fn encode_markup(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some((at, special)) = first_special(rest, self.special_tokens()) {
            self.encode_into(&rest[..at], &mut tokens)?;
            tokens.push(special.token);
            rest = &rest[at + special.name.len()..];
        }
        self.encode_into(rest, &mut tokens)?;
        Ok(tokens)
    }

    /// The special token called `name`.
    fn special_named(&self, name: &str) -> Option<u32> {
        self.special_tokens().iter().find(|special| special.name == name).map(|it| it.token)
    }

    /// The special token that has a role, by the names that are usual for the role.
    fn special(&self, role: SpecialRole) -> Option<u32> {
        role.names().iter().find_map(|name| self.special_named(name))
    }
}

/// A token that stands for no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialToken {
    /// Its name, such as `<|endoftext|>`.
    pub name: String,
    /// Number of the token in the vocabulary.
    pub token: u32,
}

/// What special tokens are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialRole {
    /// Stands before a document.
    BeginOfText,
    /// Stands after a document.
    EndOfText,
    /// Fills a row that its document does not fill.
    Padding,
}

impl SpecialRole {
    /// The names of tokens with this role in widespread vocabularies. The first that a vocabulary
    /// has is taken.
    #[must_use]
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::BeginOfText => &["<|begin_of_text|>", "<|startoftext|>", "<bos>", "<s>"],
            Self::EndOfText => &["<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>"],
            Self::Padding => {
                &["<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>", "<pad>", "[PAD]"]
            }
        }
    }
}

/// The special token whose name comes first in `text`, and where; of several, the longest.
fn first_special<'a>(text: &str, special: &'a [SpecialToken]) -> Option<(usize, &'a SpecialToken)> {
    let found = special.iter().filter(|special| !special.name.is_empty());
    let found = found.filter_map(|special| Some((text.find(&special.name)?, special)));
    found.min_by_key(|(at, special)| (*at, usize::MAX - special.name.len()))
}

/// What a tokenizer cannot do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The vocabulary has no token for a character.
    #[error("the vocabulary has no {character:?}, which is at byte {byte} of the text")]
    UnknownCharacter {
        /// The first character without a token.
        character: char,
        /// Its place in the text, in bytes.
        byte: usize,
    },
    /// The vocabulary has no such token.
    #[error("the vocabulary has no token {token}")]
    UnknownToken {
        /// Number of the token.
        token: u32,
    },
    /// The library that encodes has failed.
    #[error("the text cannot be encoded")]
    Library {
        /// The library's own error.
        source: SampleError,
    },
}

/// Calls a library that may panic on text, as some do on long runs of one character.
#[cfg(any(feature = "tiktoken", feature = "tokenizers"))]
fn guarded<T>(call: impl FnOnce() -> Result<T, SampleError>) -> Result<T, SampleError> {
    // Unwind safety: the libraries change nothing but caches while they encode.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(panic) => Err(LibraryPanicked { message: message_of(panic) }.into()),
    }
}

#[cfg(any(feature = "tiktoken", feature = "tokenizers"))]
#[derive(Debug, thiserror::Error)]
#[error("the library panicked: {message}")]
struct LibraryPanicked {
    message: String,
}
