//! Text files as documents, and documents as files of tokens.

use super::{Document, Documents};
use crate::error::{DataError, FilePlace};
use crate::source::files::files_of;
use crate::source::token_shard::TokenFormat;
use crate::source::token_writer::TokenWriter;
use crate::tokenizer::{SpecialRole, Tokenizer};
use std::path::Path;

impl Documents {
    /// Each file of `paths` as a document, all of which is learned, with the tokenizer's token for
    /// the end of a text after it, if there is one. Folders stand for their files called `*.txt`,
    /// in the order of their names. A file is read as a whole.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be read, [`DataError::Malformed`] for one that is
    /// not UTF-8 or that the tokenizer refuses.
    pub fn read_texts(
        paths: &[impl AsRef<Path>],
        tokenizer: &dyn Tokenizer,
    ) -> Result<Self, DataError> {
        let end = tokenizer.special(SpecialRole::EndOfText);
        let mut documents = Vec::new();
        for path in files_of(paths, "txt")? {
            let bytes = match std::fs::read(&path) {
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

    /// Writes the tokens of all documents into a file for [`TokenFile`](crate::TokenFile), one
    /// document after the other; the number of tokens. What is to be learned is not in the file.
    ///
    /// # Errors
    /// Those of [`TokenWriter`].
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
