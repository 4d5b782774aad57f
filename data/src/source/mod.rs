//! Datasets, one per file.

mod digits;
mod documents;
mod files;
mod images;
mod json_lines;
mod memory;
mod random;
mod text;
mod token_file;
mod token_rows;
mod token_shard;
mod token_writer;

pub use digits::Digits;
pub use documents::{
    Document, DocumentRows, Documents, IGNORED_LABEL, PackedRows, RowFit, TokenTooLarge,
};
pub use images::Images;
pub use json_lines::{
    ChatRole, ChatTemplate, JsonLines, JsonLinesStream, LineError, LineFormat, ReadProgress,
};
pub use memory::InMemory;
pub use random::Random;
pub use text::Text;
pub use token_file::TokenFile;
pub use token_shard::{TokenFileError, TokenFormat};
pub use token_writer::{TokenWriter, write_tokens};
