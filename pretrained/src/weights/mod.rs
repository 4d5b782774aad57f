//! Weights in a folder: one safetensors file, or several with an index, under the names and in the
//! layouts of their family.

mod layout;
mod load;
mod map;
mod save;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{PretrainedError, Result};

pub(crate) use layout::Layout;
pub use layout::Stored;
pub(crate) use load::load_by_parts;
pub use load::{load, load_body};
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
    let partial = beside(path);
    let write = || {
        let mut file = fs::File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    // What could not be finished is of no use, and the error to report is the first one.
    let written = write().inspect_err(|_| drop(fs::remove_file(&partial)));
    written.map_err(|source| PretrainedError::File { path: path.to_owned(), source })
}
