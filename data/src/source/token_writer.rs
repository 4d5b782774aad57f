//! Writing of token files.

use crate::error::DataError;
use crate::source::token_shard::{HEADER_BYTES, TokenFileError, TokenFormat, malformed};
use lowtide_allocator::files::NewFile;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

/// Writes a token file, which [`TokenFile`](crate::TokenFile) reads.
///
/// The writer uses a temporary file in the same folder, which [`finish`](Self::finish) renames. So
/// an earlier file of this name stays until the new file is complete. A writer that is dropped
/// without `finish` leaves no file. A link at the path stays, and its target is replaced. A device
/// or a pipe is written in place, in a format without a header, which is written last.
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    file: BufWriter<NewFile>,
    format: TokenFormat,
    /// Number of tokens so far.
    len: u64,
}

impl TokenWriter {
    /// Begins a file without tokens.
    ///
    /// # Errors
    /// [`DataError::File`] if the folder of `path` does not allow a new file.
    pub fn create(path: impl AsRef<Path>, format: TokenFormat) -> Result<Self, DataError> {
        let path = path.as_ref().to_owned();
        let header_bytes = if format.signature().is_some() { HEADER_BYTES } else { 0 };
        let begun = NewFile::create(&path).and_then(|file| {
            let mut file = BufWriter::new(file);
            file.write_all(&[0; HEADER_BYTES][..header_bytes])?;
            Ok(file)
        });
        match begun {
            Ok(file) => Ok(Self { path, file, format, len: 0 }),
            Err(source) => Err(DataError::File { path, source }),
        }
    }

    /// Appends tokens.
    ///
    /// [`DataError::Malformed`] for a token that is too large for the format, with the byte offset
    /// that the token would have; none of `tokens` is written then. [`DataError::File`] if writing
    /// fails; the writer cannot be used after that.
    pub fn push(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        let token_max = self.format.token_max();
        if let Some(at) = tokens.iter().position(|&token| token > token_max) {
            let error = TokenFileError::TokenTooLarge { token: tokens[at], token_max };
            return Err(self.malformed(self.len + at as u64, error));
        }
        let len = self.len + tokens.len() as u64;
        if self.format.signature().is_some() && i32::try_from(len).is_err() {
            return Err(self.malformed(self.len, TokenFileError::TooManyTokens));
        }
        let token_bytes = self.format.token_bytes();
        for token in tokens {
            let written = self.file.write_all(&token.to_le_bytes()[..token_bytes]);
            written.map_err(|source| self.failed(source))?;
        }
        self.len = len;
        Ok(())
    }

    /// Completes the file, gives it its name, and returns the number of its tokens.
    ///
    /// # Errors
    /// [`DataError::File`] if writing fails; an earlier file of this name is unchanged then.
    pub fn finish(mut self) -> Result<u64, DataError> {
        let header = self.write_header();
        header.map_err(|source| self.failed(source))?;
        let Self { path, file, len, .. } = self;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error);
        match file.and_then(NewFile::publish) {
            Ok(()) => Ok(len),
            Err(source) => Err(DataError::File { path, source }),
        }
    }

    fn write_header(&mut self) -> io::Result<()> {
        if let Some([magic, version]) = self.format.signature() {
            // The cast keeps the value: `push` refuses more tokens than fit in an i32.
            let numbers = [magic, version, self.len as i32];
            self.file.rewind()?;
            self.file.write_all(&numbers.map(i32::to_le_bytes).concat())?;
        }
        self.file.flush()
    }

    fn failed(&self, source: io::Error) -> DataError {
        DataError::File { path: self.path.clone(), source }
    }

    fn malformed(&self, token: u64, error: TokenFileError) -> DataError {
        let header_bytes = if self.format.signature().is_some() { HEADER_BYTES } else { 0 };
        let byte = header_bytes + token as usize * self.format.token_bytes();
        malformed(&self.path, byte, error)
    }
}

/// Writes `tokens` as the file `path` and returns the number of tokens; see [`TokenWriter`].
///
/// # Errors
/// As for [`TokenWriter`].
pub fn write_tokens(
    path: impl AsRef<Path>,
    format: TokenFormat,
    tokens: &[u32],
) -> Result<u64, DataError> {
    let mut writer = TokenWriter::create(path, format)?;
    writer.push(tokens)?;
    writer.finish()
}
