//! Tokenizers, which encode text as tokens and decode tokens to text.

mod bytes;
mod characters;
pub(crate) mod error;
#[cfg(feature = "tokenizers")]
mod json;
#[cfg(feature = "tiktoken")]
mod tiktoken;

pub use bytes::Bytes;
pub use characters::Characters;
pub use error::TokenizerError;
#[cfg(feature = "tokenizers")]
pub use json::TokenizerJson;
#[cfg(feature = "tiktoken")]
pub use tiktoken::Tiktoken;

#[cfg(any(feature = "tiktoken", feature = "tokenizers"))]
use crate::error::SampleError;
#[cfg(any(feature = "tiktoken", feature = "tokenizers"))]
use crate::panics::message_of;

/// A tokenizer encodes text as tokens and decodes tokens to text.
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
    /// Appends the tokens of `text` to `tokens`. The name of a special token in `text` is encoded
    /// as ordinary text, so a document can neither end itself nor take another role in a chat.
    ///
    /// # Errors
    /// [`TokenizerError`] for text that cannot be encoded; `tokens` is unchanged then.
    fn encode_into(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError>;

    /// The text of `tokens`, with special tokens as their names. Bytes that are not UTF-8, such as
    /// a part of a character, become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] for a token that the vocabulary does not have.
    fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError>;

    /// The length of the vocabulary, which is above every token.
    fn vocabulary_len(&self) -> usize;

    /// The tokens that stand for no text, in any order.
    fn special_tokens(&self) -> &[SpecialToken] {
        &[]
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// As for [`encode_into`](Self::encode_into).
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut tokens = Vec::new();
        self.encode_into(text, &mut tokens)?;
        Ok(tokens)
    }

    /// The tokens of `text`. The name of a special token is encoded as the special token. Call this
    /// method for markup of the program, such as a chat template, and not for documents.
    ///
    /// # Errors
    /// As for [`encode_into`](Self::encode_into).
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
        let mut tokens = self.special_tokens().iter();
        tokens.find(|special| special.name == name).map(|special| special.token)
    }

    /// The special token of a role, found by the usual names of the role.
    fn special(&self, role: SpecialRole) -> Option<u32> {
        role.names().iter().find_map(|name| self.special_named(name))
    }
}

/// A token that stands for no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialToken {
    /// Name of the token, such as `<|endoftext|>`.
    pub name: String,
    /// Number of the token in the vocabulary.
    pub token: u32,
}

/// The role of a special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialRole {
    /// The token before a document.
    BeginOfText,
    /// The token after a document.
    EndOfText,
    /// The token that fills the rest of a row.
    Padding,
}

impl SpecialRole {
    /// The names of tokens with this role in widespread vocabularies, in order of preference.
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

/// The first name of a special token in `text`: its byte offset and its token. If several names
/// begin at this offset, the longest wins.
fn first_special<'a>(text: &str, special: &'a [SpecialToken]) -> Option<(usize, &'a SpecialToken)> {
    let found = special.iter().filter(|special| !special.name.is_empty());
    let found = found.filter_map(|special| Some((text.find(&special.name)?, special)));
    found.min_by_key(|(at, special)| (*at, usize::MAX - special.name.len()))
}

/// Calls a library and turns its panic into an error. Some libraries panic on long runs of one
/// character.
#[cfg(any(feature = "tiktoken", feature = "tokenizers"))]
fn catch_panic<T>(call: impl FnOnce() -> Result<T, SampleError>) -> Result<T, SampleError> {
    // Unwind safety: encoding changes only the caches of a library.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(payload) => Err(LibraryPanicked { message: message_of(payload) }.into()),
    }
}

#[cfg(any(feature = "tiktoken", feature = "tokenizers"))]
#[derive(Debug, thiserror::Error)]
#[error("the library panicked: {message}")]
struct LibraryPanicked {
    message: String,
}
