//! Reading of text files as documents, and writing of documents as token files.

use super::{Document, Documents};
use crate::error::{DataError, FilePlace};
use crate::source::files::expand_folders;
use crate::source::token_shard::TokenFormat;
use crate::source::token_writer::TokenWriter;
use crate::tokenizer::{SpecialRole, Tokenizer};
use lowtide_allocator::files::{TEXT_BYTES_MAX, read_input};
use std::path::Path;

impl Documents {
    /// Reads each file of `paths` as a document of learned tokens. The tokenizer's token for the
    /// end of a text follows, if there is one. A folder stands for its files `*.txt`, sorted by
    /// name. A file is read as a whole.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be read; [`DataError::Malformed`] for a file that
    /// is not UTF-8 or cannot be encoded.
    pub fn read_texts(
        paths: &[impl AsRef<Path>],
        tokenizer: &dyn Tokenizer,
    ) -> Result<Self, DataError> {
        let end = tokenizer.special(SpecialRole::EndOfText);
        let mut documents = Vec::new();
        for path in expand_folders(paths, "txt")? {
            let bytes = match read_input(&path, TEXT_BYTES_MAX) {
                Ok(bytes) => bytes,
                Err(source) => return Err(DataError::File { path, source }),
            };
            let malformed = |byte: usize, source| {
                let place = FilePlace::Byte(byte as u64);
                DataError::Malformed { path: path.clone(), place, source }
            };
            let text = str::from_utf8(&bytes)
                .map_err(|error| malformed(error.valid_up_to(), error.into()))?;
            let tokens = tokenizer.encode(text).map_err(|error| malformed(0, error.into()))?;
            let mut document = Document::new();
            for tokens in [&tokens[..], end.as_slice()] {
                document.push_learned(tokens).map_err(|error| malformed(0, error.into()))?;
            }
            documents.push(document);
        }
        Ok(documents.into_iter().collect())
    }

    /// Writes the tokens of all documents to a file for [`TokenFile`](crate::TokenFile), and
    /// returns the number of tokens. The file does not mark the learned tokens.
    ///
    /// # Errors
    /// As for [`TokenWriter`].
    pub fn write_tokens(
        &self,
        path: impl AsRef<Path>,
        format: TokenFormat,
    ) -> Result<u64, DataError> {
        let mut writer = TokenWriter::create(path, format)?;
        for index in 0..self.len() {
            let tokens: Vec<u32> = self.tokens(index).collect();
            writer.push(&tokens)?;
        }
        writer.finish()
    }
}
