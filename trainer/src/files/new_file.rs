//! A file that is written under a temporary name and renamed when it is complete. Until then an
//! earlier file of the same name stays.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{Result, TrainError};

/// A file that appears at `path` with [`NewFile::publish`]. If dropped before, it leaves nothing.
///
/// The file has the permissions of any other new file of the user. Errors name `path`, never the
/// temporary file.
pub struct NewFile {
    path: PathBuf,
    beside: NamedTempFile,
}

impl NewFile {
    /// Writes `text` to a temporary file, and then moves the file to `path`.
    ///
    /// # Errors
    /// `File`; an earlier file at `path` is untouched.
    pub fn write(path: &Path, text: &str) -> Result<()> {
        let mut new = NewFile::create(path)?;
        let written = new.file().write_all(text.as_bytes());
        written.map_err(|source| TrainError::File { path: path.to_owned(), source })?;
        new.publish()
    }

    /// An empty file, to be written to.
    ///
    /// # Errors
    /// `File` if `path` is a folder, or if no file can be made in its parent folder.
    pub fn create(path: &Path) -> Result<Self> {
        let failed = |source| TrainError::File { path: path.to_owned(), source };
        if path.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let open = |beside: &Path| File::options().write(true).create_new(true).open(beside);
        // `open` is passed to the builder for two reasons: the file keeps the usual permissions,
        // and errors do not contain the temporary name.
        let beside = tempfile::Builder::new()
            .prefix(".lowtide-")
            .make_in(folder.unwrap_or(Path::new(".")), open)
            .map_err(failed)?;
        Ok(NewFile { path: path.to_owned(), beside })
    }

    /// The path of the published file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file to write to.
    pub fn file(&mut self) -> &mut File {
        self.beside.as_file_mut()
    }

    /// Moves the file to its path.
    ///
    /// # Errors
    /// `File`; an earlier file at the path is untouched.
    pub fn publish(self) -> Result<()> {
        let NewFile { path, beside } = self;
        let published = beside.as_file().sync_all();
        let published = published.and_then(|()| beside.persist(&path).map_err(|e| e.error));
        published.map(drop).map_err(|source| TrainError::File { path, source })
    }
}

/// Waits until the contents of a file, or the names in a folder, are on disk. On Windows a folder
/// cannot be opened as a file, and the system decides when its names are written.
pub fn sync_path(path: &Path) -> Result<()> {
    if cfg!(not(unix)) && path.is_dir() {
        return Ok(());
    }
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|source| TrainError::File { path: path.to_owned(), source })
}
