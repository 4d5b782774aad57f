//! Writes files of tokens.

use crate::error::DataError;
use crate::source::token_shard::{HEADER_BYTES, TokenFileError, TokenFormat, malformed};
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Writes tokens one run after the other into a file for [`TokenFile`](crate::TokenFile).
///
/// The file is written beside its place and renamed by [`finish`](Self::finish), so that what was
/// there before stays until the new file is whole. A writer that is dropped earlier leaves nothing.
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    beside: BufWriter<NamedTempFile>,
    format: TokenFormat,
    /// Tokens so far.
    len: u64,
}

impl TokenWriter {
    /// A file of no tokens yet.
    ///
    /// # Errors
    /// [`DataError::File`] if no file can be made in the folder of `path`.
    pub fn create(path: impl AsRef<Path>, format: TokenFormat) -> Result<Self, DataError> {
        let path = path.as_ref().to_owned();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // A way of opening of its own keeps the permissions of a new file.
        let open = |beside: &Path| File::options().write(true).create_new(true).open(beside);
        let made = tempfile::Builder::new()
            .prefix(".lowtide-")
            .make_in(folder.unwrap_or(Path::new(".")), open);
        let header_bytes = if format.signature().is_some() { HEADER_BYTES } else { 0 };
        let begun = made.and_then(|file| {
            let mut beside = BufWriter::new(file);
            beside.write_all(&[0; HEADER_BYTES][..header_bytes])?;
            Ok(beside)
        });
        match begun {
            Ok(beside) => Ok(Self { path, beside, format, len: 0 }),
            Err(source) => Err(DataError::File { path, source }),
        }
    }

    /// Adds tokens at the end.
    ///
    /// # Errors
    /// [`DataError::Malformed`] for a token that is too large for the format, with the byte where
    /// it would have been; none of `tokens` is written then. [`DataError::File`] if the disk does
    /// not take them: the file is of no use after that.
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
            let written = self.beside.write_all(&token.to_le_bytes()[..token_bytes]);
            written.map_err(|source| self.failed(source))?;
        }
        self.len = len;
        Ok(())
    }

    /// Puts the file in its place; the number of its tokens.
    ///
    /// # Errors
    /// [`DataError::File`]; what was there before is untouched.
    pub fn finish(mut self) -> Result<u64, DataError> {
        let header = self.write_header();
        header.map_err(|source| self.failed(source))?;
        let Self { path, beside, len, .. } = self;
        let beside = beside.into_inner().map_err(io::IntoInnerError::into_error);
        let published = beside.and_then(|file| {
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)
        });
        match published {
            Ok(_) => Ok(len),
            Err(source) => Err(DataError::File { path, source }),
        }
    }

    fn write_header(&mut self) -> io::Result<()> {
        if let Some([magic, version]) = self.format.signature() {
            // `push` keeps the number within an i32.
            let numbers = [magic, version, self.len as i32];
            self.beside.rewind()?;
            self.beside.write_all(&numbers.map(i32::to_le_bytes).concat())?;
        }
        self.beside.flush()
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

/// Writes all of `tokens` into the file `path`, as [`TokenWriter`] does.
///
/// # Errors
/// Those of [`TokenWriter`].
pub fn write_tokens(
    path: impl AsRef<Path>,
    format: TokenFormat,
    tokens: &[u32],
) -> Result<u64, DataError> {
    let mut writer = TokenWriter::create(path, format)?;
    writer.push(tokens)?;
    writer.finish()
}
