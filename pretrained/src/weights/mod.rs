//! Weights in a folder: one safetensors file, or several with an index, under the names and in the
//! layouts of their family.

mod layout;
mod load;
mod pieces;
mod quantized;
mod save;

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{PretrainedError, Result};

pub(crate) use layout::Layout;
pub use layout::Stored;
pub(crate) use load::load_by_parts;
pub use load::{load, load_body};
pub(crate) use pieces::{for_each_piece, sources};
pub use save::save;

/// The file of weights that are in one.
const FILE: &str = "model.safetensors";
/// Which file each tensor is in, of weights that are in several.
const INDEX: &str = "model.safetensors.index.json";

/// Where a file is written before it is whole.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    beside.into()
}

/// Writes the contents of a file beside its place first.
pub(crate) fn write_beside(path: &Path, bytes: &[u8]) -> Result<()> {
    write_file_beside(path, |file| file.write(bytes))
}

/// A file that is being written.
pub(crate) struct Written<'a> {
    path: &'a Path,
    file: BufWriter<fs::File>,
    /// Bytes so far.
    pub(crate) size_bytes: u64,
}

impl Written<'_> {
    /// # Errors
    /// `File`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.size_bytes += bytes.len() as u64;
        let written = self.file.write_all(bytes);
        written.map_err(|source| PretrainedError::File { path: self.path.to_owned(), source })
    }

    /// Zeros up to the next multiple of `align_bytes`.
    ///
    /// # Errors
    /// `File`.
    pub(crate) fn pad(&mut self, align_bytes: u64) -> Result<()> {
        let count = self.size_bytes.next_multiple_of(align_bytes) - self.size_bytes;
        self.write(&vec![0; count as usize])
    }
}

/// Writes a file by `write` beside its place first, so that what is at its place is whole.
///
/// # Errors
/// `File`, and those of `write`; the file that was there before is then untouched.
pub(crate) fn write_file_beside(
    path: &Path,
    write: impl FnOnce(&mut Written<'_>) -> Result<()>,
) -> Result<()> {
    let partial = beside(path);
    let file_error = |source| PretrainedError::File { path: path.to_owned(), source };
    let run = || {
        let file = BufWriter::new(fs::File::create(&partial).map_err(file_error)?);
        let mut written = Written { path, file, size_bytes: 0 };
        write(&mut written)?;
        let file = written.file.into_inner().map_err(|error| file_error(error.into_error()))?;
        file.sync_all().and_then(|()| fs::rename(&partial, path)).map_err(file_error)
    };
    // What could not be finished is of no use, and the error to report is the first one.
    run().inspect_err(|_| drop(fs::remove_file(&partial)))
}
