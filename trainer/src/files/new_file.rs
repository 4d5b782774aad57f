//! A file that is written beside its place and renamed when it is whole, so that what was there
//! before stays until then.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{Result, TrainError};

/// A file to be at `path` after [`NewFile::publish`]; dropped before, it leaves nothing.
///
/// The file is as readable as any other new file of the user. Errors name `path`, never the
/// temporary file beside it.
pub struct NewFile {
    path: PathBuf,
    beside: NamedTempFile,
}

impl NewFile {
    /// Writes `text` to `path`, beside it first.
    ///
    /// # Errors
    /// `File`; what was at `path` is untouched.
    pub fn write(path: &Path, text: &str) -> Result<()> {
        let mut new = NewFile::create(path)?;
        let written = new.file().write_all(text.as_bytes());
        written.map_err(|source| TrainError::File { path: path.to_owned(), source })?;
        new.publish()
    }

    /// A file that is empty until it is written to.
    ///
    /// # Errors
    /// `File` if `path` is a folder, or no file can be made in the folder it is in.
    pub fn create(path: &Path) -> Result<Self> {
        let failed = |source| TrainError::File { path: path.to_owned(), source };
        if path.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let open = |beside: &Path| File::options().write(true).create_new(true).open(beside);
        // With a way of opening of its own, the builder neither takes away the permissions of
        // others nor puts the temporary name into an error.
        let beside = tempfile::Builder::new()
            .prefix(".lowtide-")
            .make_in(folder.unwrap_or(Path::new(".")), open)
            .map_err(failed)?;
        Ok(NewFile { path: path.to_owned(), beside })
    }

    /// Where the file will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file to write to.
    pub fn file(&mut self) -> &mut File {
        self.beside.as_file_mut()
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// `File`; what was there is untouched.
    pub fn publish(self) -> Result<()> {
        let NewFile { path, beside } = self;
        let published = beside.as_file().sync_all();
        let published = published.and_then(|()| beside.persist(&path).map_err(|e| e.error));
        published.map(drop).map_err(|source| TrainError::File { path, source })
    }
}

/// Waits until a file, or the names in a folder, are on disk. Where a folder cannot be opened as a
/// file (Windows), its names are left to the system.
pub fn sync_path(path: &Path) -> Result<()> {
    if cfg!(not(unix)) && path.is_dir() {
        return Ok(());
    }
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|source| TrainError::File { path: path.to_owned(), source })
}
