//! Expansion of folders to the files in them.

use crate::error::DataError;
use std::io;
use std::path::{Path, PathBuf};

/// Replaces each folder in `paths` by its files with this extension, sorted by name.
pub(super) fn expand_folders(
    paths: &[impl AsRef<Path>],
    extension: &str,
) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for path in paths {
        let path = path.as_ref();
        if !path.is_dir() {
            files.push(path.to_owned());
            continue;
        }
        let failed = |source| DataError::File { path: path.to_owned(), source };
        let mut found = Vec::new();
        for entry in path.read_dir().map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|suffix| suffix == extension) {
                found.push(file);
            }
        }
        if found.is_empty() {
            let text = format!("the folder contains no file called *.{extension}");
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, text)));
        }
        found.sort_unstable();
        files.extend(found);
    }
    Ok(files)
}
