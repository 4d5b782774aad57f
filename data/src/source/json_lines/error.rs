//! Errors of lines.

use crate::source::documents::TokenTooLarge;
use crate::tokenizer::error::TokenizerError;

/// A line that does not follow its format; the cause of a
/// [`DataError::Malformed`](crate::DataError::Malformed).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// A line is longer than the reader allows.
    #[error("the line has more than {bytes_max} bytes")]
    TooLong {
        /// Maximum number of bytes of a line.
        bytes_max: usize,
    },
    /// A line is not JSON, or has a member of another type.
    #[error("column {}: {}", source.column(), reason(source))]
    Json {
        /// The parser's error, whose line is always 1.
        source: serde_json::Error,
    },
    /// The object does not have a member.
    #[error("there is no {field:?}")]
    MissingField {
        /// Name of the member.
        field: String,
    },
    /// A turn of a chat has a role that the template does not have.
    #[error("the template has no role {role:?}")]
    UnknownRole {
        /// Name of the role in the file.
        role: String,
    },
    /// A text cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tokenizer returned a token that no vocabulary has.
    #[error(transparent)]
    TokenTooLarge(#[from] TokenTooLarge),
}

/// The parser's message without the place. The error of the line names the place itself.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}
