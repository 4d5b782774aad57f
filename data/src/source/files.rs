//! The files that a list of paths stands for.

use crate::error::DataError;
use std::io;
use std::path::{Path, PathBuf};

/// The files of `paths`, of which folders stand for their files with this extension, by name.
pub(super) fn files_of(
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
        let mut inside = Vec::new();
        for entry in path.read_dir().map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|found| found == extension) {
                inside.push(file);
            }
        }
        if inside.is_empty() {
            let text = format!("no file called *.{extension} in it");
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, text)));
        }
        inside.sort_unstable();
        files.extend(inside);
    }
    Ok(files)
}
