//! Files to read, which may be a stranger's: opened without waiting, and read up to a bound.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// A size larger than any text whose tokens fit into memory.
pub const TEXT_BYTES_MAX: u64 = 1 << 36;

/// Opens a regular file, or a file that this process has open already, such as `/dev/stdin`.
///
/// # Errors
/// `InvalidInput` for anything else: opening a pipe would wait for a writer, and a device such as
/// `/dev/zero` has no end. Otherwise the error of the system.
pub fn open_input(path: &Path) -> io::Result<File> {
    let metadata = fs::metadata(path)?;
    if metadata.is_file() || is_open(path) {
        return File::open(path);
    }
    let kind = if metadata.is_dir() { "a directory, " } else { "" };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("{kind}not a regular file")))
}

/// True for the name of an open file of this process, as a shell gives it to a command for a pipe.
/// Opening it does not wait. A link to such a name is not counted, because a stranger's folder may
/// have one.
pub(super) fn is_open(path: &Path) -> bool {
    let names = ["/dev/stdin", "/dev/stdout", "/dev/stderr"].map(Path::new);
    let folders = ["/dev/fd", "/proc/self/fd"].map(Path::new);
    names.contains(&path) || path.parent().is_some_and(|folder| folders.contains(&folder))
}

/// Reads a file that [`open_input`] opens.
///
/// # Errors
/// `InvalidData` for a file of more than `bytes_max` bytes; errors of [`open_input`].
pub fn read_input(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_input(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 <= bytes_max {
        return Ok(bytes);
    }
    Err(io::Error::new(ErrorKind::InvalidData, format!("more than {bytes_max} bytes")))
}

/// [`read_input`] of a text.
///
/// # Errors
/// `InvalidData` for bytes that are not UTF-8; errors of [`read_input`].
pub fn read_input_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    String::from_utf8(read_input(path, bytes_max)?).map_err(|error| {
        let byte = error.utf8_error().valid_up_to();
        io::Error::new(ErrorKind::InvalidData, format!("not UTF-8 at byte {byte}"))
    })
}
