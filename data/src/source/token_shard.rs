//! Token files: their formats, and one file mapped into memory.

use crate::error::{DataError, FilePlace};
use crate::source::map::Map;
use std::path::{Path, PathBuf};

/// Number of bytes of llm.c's header: 256 numbers of 4 bytes.
pub(super) const HEADER_BYTES: usize = 1024;
/// First number of llm.c's files of multiple-choice questions, which are not runs of tokens.
const QUESTIONS_MAGIC: i32 = 20_240_522;

/// The format of a token file. All numbers are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenFormat {
    /// Tokens of 2 bytes without a header. nanoGPT's `prepare.py` writes this format.
    RawU16,
    /// Tokens of 4 bytes without a header.
    RawU32,
    /// Tokens of 2 bytes after llm.c's header: 256 numbers of 4 bytes, which are 20240520, 1, the
    /// number of tokens, and zeros.
    LlmcU16,
    /// Tokens of 4 bytes after llm.c's header for Llama 3, which begins with 20240801 and 7.
    LlmcU32,
}

impl TokenFormat {
    /// Number of bytes of one token.
    #[must_use]
    pub fn token_bytes(self) -> usize {
        match self {
            Self::RawU16 | Self::LlmcU16 => 2,
            Self::RawU32 | Self::LlmcU32 => 4,
        }
    }

    /// The largest token that the format can store.
    #[must_use]
    pub fn token_max(self) -> u32 {
        if self.token_bytes() == 2 { u16::MAX.into() } else { u32::MAX }
    }

    /// The first two numbers of the header, if the format has one.
    pub(super) fn signature(self) -> Option<[i32; 2]> {
        match self {
            Self::RawU16 | Self::RawU32 => None,
            Self::LlmcU16 => Some([20_240_520, 1]),
            Self::LlmcU32 => Some([20_240_801, 7]),
        }
    }

    /// The format of a file that begins with `head`.
    fn detect(head: &[u8]) -> Self {
        let headed = [Self::LlmcU16, Self::LlmcU32].into_iter().find(|format| {
            format.signature().is_some_and(|[magic, _]| head.starts_with(&magic.to_le_bytes()))
        });
        headed.unwrap_or(Self::RawU16)
    }
}

/// A token file that cannot be read, or tokens that cannot be written; the cause of a
/// [`DataError::Malformed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFileError {
    /// The file ends within a token.
    #[error("the file ends within a token of {token_bytes} bytes")]
    PartOfToken {
        /// Number of bytes of a token.
        token_bytes: usize,
    },
    /// The file ends within llm.c's header.
    #[error("the file ends within the header of {HEADER_BYTES} bytes")]
    PartOfHeader,
    /// The file does not begin with the magic number of its format.
    #[error("the first number is {found}, the format has {expected}")]
    Magic {
        /// The first number of the file.
        found: i32,
        /// The magic number of the format.
        expected: i32,
    },
    /// The file has another version of its format.
    #[error("the version is {found}, only {expected} is supported")]
    Version {
        /// The version of the file.
        found: i32,
        /// The supported version.
        expected: i32,
    },
    /// The file has multiple-choice questions of llm.c.
    #[error("the file holds multiple-choice questions, not a run of tokens")]
    Questions,
    /// The header states another number of tokens than the file has.
    #[error("the header states {header} tokens, the file has {actual}")]
    TokenCount {
        /// Number of tokens in the header.
        header: i32,
        /// Number of whole tokens after the header.
        actual: usize,
    },
    /// A token is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary_len}")]
    OutsideVocabulary {
        /// Number of the token.
        token: u32,
        /// Length of the vocabulary.
        vocabulary_len: usize,
    },
    /// A token is too large for the format that is written.
    #[error("token {token} is larger than {token_max}, the format's largest")]
    TokenTooLarge {
        /// Number of the token.
        token: u32,
        /// The largest token of the format.
        token_max: u32,
    },
    /// The number of tokens is too large for the header.
    #[error("the header cannot count more than {} tokens", i32::MAX)]
    TooManyTokens,
}

/// One token file, mapped into memory.
#[derive(Debug)]
pub(super) struct Shard {
    path: PathBuf,
    map: Map,
    format: TokenFormat,
    /// Byte offset of the first token.
    start_bytes: usize,
    /// Number of tokens.
    pub(super) len: usize,
}

impl Shard {
    /// Opens `path` as `format`, or as the format that its first number states.
    pub(super) fn open(path: &Path, format: Option<TokenFormat>) -> Result<Self, DataError> {
        let map = Map::open(path)?;
        let format = format.unwrap_or_else(|| TokenFormat::detect(map.bytes()));
        let start_bytes = if format.signature().is_some() { HEADER_BYTES } else { 0 };
        let len = token_count(map.bytes(), format)
            .map_err(|(byte, error)| malformed(path, byte, error))?;
        Ok(Self { path: path.to_owned(), map, format, start_bytes, len })
    }

    /// Fills `tokens` with the tokens from number `first` on.
    pub(super) fn copy(
        &self,
        first: usize,
        tokens: &mut [i64],
        vocabulary_len: Option<usize>,
    ) -> Result<(), DataError> {
        let bytes = &self.map.bytes()[self.byte_of(first)..self.byte_of(first + tokens.len())];
        if self.format.token_bytes() == 2 {
            for (token, &bytes) in tokens.iter_mut().zip(bytes.as_chunks().0) {
                *token = u16::from_le_bytes(bytes).into();
            }
        } else {
            for (token, &bytes) in tokens.iter_mut().zip(bytes.as_chunks().0) {
                *token = u32::from_le_bytes(bytes).into();
            }
        }
        let Some(vocabulary_len) = vocabulary_len else { return Ok(()) };
        match tokens.iter().position(|&token| token as usize >= vocabulary_len) {
            None => Ok(()),
            Some(at) => {
                let token = tokens[at] as u32;
                let error = TokenFileError::OutsideVocabulary { token, vocabulary_len };
                Err(malformed(&self.path, self.byte_of(first + at), error))
            }
        }
    }

    /// The largest token. Reads the whole file.
    pub(super) fn token_max(&self) -> Option<u32> {
        let bytes = &self.map.bytes()[self.start_bytes..];
        if self.format.token_bytes() == 2 {
            bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes).into()).max()
        } else {
            bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).max()
        }
    }

    fn byte_of(&self, token: usize) -> usize {
        self.start_bytes + token * self.format.token_bytes()
    }
}

/// The error of a byte in a file.
pub(super) fn malformed(path: &Path, byte: usize, error: TokenFileError) -> DataError {
    let place = FilePlace::Byte(byte as u64);
    DataError::Malformed { path: path.to_owned(), place, source: error.into() }
}

/// The number of tokens of a file, or the byte and the kind of its fault.
fn token_count(bytes: &[u8], format: TokenFormat) -> Result<usize, (usize, TokenFileError)> {
    let token_bytes = format.token_bytes();
    if bytes.starts_with(&QUESTIONS_MAGIC.to_le_bytes()) {
        return Err((0, TokenFileError::Questions));
    }
    let mut body = bytes;
    let mut header_count = None;
    if let Some([magic, version]) = format.signature() {
        let Some((header, tokens)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err((bytes.len(), TokenFileError::PartOfHeader));
        };
        let number = |at: usize| i32::from_le_bytes(header.as_chunks().0[at]);
        if number(0) != magic {
            return Err((0, TokenFileError::Magic { found: number(0), expected: magic }));
        }
        if number(1) != version {
            return Err((4, TokenFileError::Version { found: number(1), expected: version }));
        }
        (body, header_count) = (tokens, Some(number(2)));
    }
    let len = body.len() / token_bytes;
    if let Some(header) = header_count
        && usize::try_from(header) != Ok(len)
    {
        return Err((8, TokenFileError::TokenCount { header, actual: len }));
    }
    if !body.len().is_multiple_of(token_bytes) {
        let part = bytes.len() - body.len() % token_bytes;
        return Err((part, TokenFileError::PartOfToken { token_bytes }));
    }
    Ok(len)
}
