//! A file that is written under a temporary name and renamed when it is complete. Until then an
//! earlier file of the same name stays.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use lowtide_allocator::files;

use crate::error::{Result, TrainError};

/// A [file that appears](files::NewFile) at `path` with [`NewFile::publish`]. If dropped before, it
/// leaves nothing. Errors name `path`, never the temporary file.
pub struct NewFile {
    path: PathBuf,
    file: files::NewFile,
}

impl NewFile {
    /// Writes `text` as the whole file.
    ///
    /// # Errors
    /// `File`; an earlier file at `path` is untouched.
    pub fn write(path: &Path, text: &str) -> Result<()> {
        files::write_file(path, text.as_bytes())
            .map_err(|source| TrainError::File { path: path.to_owned(), source })
    }

    /// An empty file, to be written to.
    ///
    /// # Errors
    /// `File` if `path` is a folder, or if no file can be made in its parent folder.
    pub fn create(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        match files::NewFile::create(&path) {
            Ok(file) => Ok(NewFile { path, file }),
            Err(source) => Err(TrainError::File { path, source }),
        }
    }

    /// The path of the published file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file to write to.
    pub fn file(&mut self) -> &mut impl Write {
        &mut self.file
    }

    /// Moves the file to its path.
    ///
    /// # Errors
    /// `File`; an earlier file at the path is untouched.
    pub fn publish(self) -> Result<()> {
        let NewFile { path, file } = self;
        file.publish().map_err(|source| TrainError::File { path, source })
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
