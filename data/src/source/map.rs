//! A file mapped into memory, read only.
#![allow(unsafe_code, reason = "mapping a file is unsafe: other processes may change it")]

use crate::error::DataError;
use lowtide_allocator::files::open_input;
use memmap2::Mmap;
use std::path::Path;

/// The bytes of a file. The system reads a page from disk when it is first accessed, and may drop
/// it from memory later.
#[derive(Debug)]
pub(crate) struct Map(Mmap);

impl Map {
    /// Maps the whole file.
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be opened or mapped.
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let map = open_input(path).and_then(|file| {
            // SAFETY: 1. The mapping is private to this value and read only. 2. Users copy bytes
            // out of it as plain numbers, for which every value is valid, or check bytes again at
            // each use. So a process that writes to the file at the same time causes wrong samples,
            // as it would with `read`, but nothing undefined. 3. If a process truncates the file,
            // an access ends the program with a signal; the documentation of the datasets says so.
            unsafe { Mmap::map(&file) }
        });
        map.map(Self).map_err(|source| DataError::File { path: path.to_owned(), source })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(feature = "parquet")]
impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}
