//! Files of other programs: read whole up to a maximum size, and written so that a file is complete
//! or absent.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use lowtide_allocator::files::{NewFile, read_input, read_input_text};

use crate::error::{PretrainedError, Result};

/// The path of a file until the file is complete.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    beside.into()
}

/// Reads a file of another program, of at most `bytes_max` bytes.
///
/// # Errors
/// `File`, also for a path that is no regular file. A pipe is not opened, because opening would
/// wait for a writer.
pub(crate) fn read_bytes(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    read_input(path, bytes_max)
        .map_err(|source| PretrainedError::File { path: path.to_owned(), source })
}

/// [`read_bytes`] of a text.
///
/// # Errors
/// `File`.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    read_input_text(path, bytes_max)
        .map_err(|source| PretrainedError::File { path: path.to_owned(), source })
}

/// Writes a file of a folder under a temporary name first, then renames it. A link of this name is
/// replaced: in a hub's cache, its target belongs to other folders too.
pub(crate) fn write_beside(path: &Path, bytes: &[u8]) -> Result<()> {
    Partial::write(path, |file| file.write(bytes))?.publish()
}

/// A file that is being written.
pub(crate) struct Written<'a> {
    path: &'a Path,
    file: BufWriter<&'a mut dyn Write>,
    /// Number of bytes so far.
    pub(crate) size_bytes: u64,
}

impl<'a> Written<'a> {
    /// Writes into `file` by `write`. Errors name `path`.
    ///
    /// # Errors
    /// `File`, and the errors of `write`.
    fn whole(
        path: &'a Path,
        file: &'a mut dyn Write,
        write: impl FnOnce(&mut Written<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut written = Written { path, file: BufWriter::new(file), size_bytes: 0 };
        write(&mut written)?;
        let flushed = written.file.flush();
        flushed.map_err(|source| PretrainedError::File { path: path.to_owned(), source })
    }

    /// # Errors
    /// `File`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.size_bytes += bytes.len() as u64;
        let written = self.file.write_all(bytes);
        written.map_err(|source| PretrainedError::File { path: self.path.to_owned(), source })
    }

    /// Writes zeros up to the next multiple of `align_bytes`.
    ///
    /// # Errors
    /// `File`.
    pub(crate) fn pad(&mut self, align_bytes: u64) -> Result<()> {
        let count = self.size_bytes.next_multiple_of(align_bytes) - self.size_bytes;
        self.write(&vec![0; count as usize])
    }
}

/// A file with a temporary name, so that a file with the final name is always complete. Dropping
/// the value before it is published removes the file.
pub(crate) struct Partial<'a> {
    path: &'a Path,
}

impl<'a> Partial<'a> {
    /// Writes a file by `write`.
    ///
    /// # Errors
    /// `File`, and the errors of `write`.
    pub(crate) fn write(
        path: &'a Path,
        write: impl FnOnce(&mut Written<'_>) -> Result<()>,
    ) -> Result<Self> {
        let partial = Partial { path };
        let mut file = fs::File::create(beside(path)).map_err(|source| partial.error(source))?;
        Written::whole(path, &mut file, write)?;
        file.sync_all().map_err(|source| partial.error(source))?;
        Ok(partial)
    }

    fn error(&self, source: io::Error) -> PretrainedError {
        PretrainedError::File { path: self.path.to_owned(), source }
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// `File`; an earlier file is then untouched.
    pub(crate) fn publish(self) -> Result<()> {
        fs::rename(beside(self.path), self.path).map_err(|source| self.error(source))
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        // After publishing there is no such file.
        drop(fs::remove_file(beside(self.path)));
    }
}

/// Writes the [new file](NewFile) that a user names, by `write`.
///
/// # Errors
/// `File`, and the errors of `write`; an earlier file is then untouched.
pub(crate) fn write_new_file(
    path: &Path,
    write: impl FnOnce(&mut Written<'_>) -> Result<()>,
) -> Result<()> {
    let error = |source| PretrainedError::File { path: path.to_owned(), source };
    let mut new = NewFile::create(path).map_err(error)?;
    Written::whole(path, &mut new, write)?;
    new.publish().map_err(error)
}

/// Runs `work`, which writes into `folder`. The folder is made if it does not exist, and removed
/// again if `work` fails.
///
/// # Errors
/// `File`, and the errors of `work`.
pub(crate) fn in_folder(folder: &Path, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let is_new = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let new: Vec<&Path> = folder.ancestors().take_while(is_new).collect();
    let made = fs::create_dir_all(folder);
    made.map_err(|source| PretrainedError::File { path: folder.to_owned(), source })?;
    // A folder with files of another process stays.
    work().inspect_err(|_| new.iter().for_each(|path| drop(fs::remove_dir(path))))
}

/// Removes a file, if it exists.
///
/// # Errors
/// `File`.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(PretrainedError::File { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
