//! A file mapped into memory, read only.
#![allow(unsafe_code, reason = "mapping a file is unsafe: others may change it")]

use crate::error::DataError;
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;

/// The bytes of a file, which come from the disk when they are looked at and can be dropped from
/// memory again by the system.
#[derive(Debug)]
pub(crate) struct Map(Mmap);

impl Map {
    /// # Errors
    /// [`DataError::File`].
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let map = File::open(path).and_then(|file| {
            // SAFETY: 1. The mapping is private to this value and read only. 2. Bytes are only ever
            // copied out of it, as plain numbers that may have any value, or checked anew when they
            // are used: a process that writes to the file at the same time gives wrong samples, as
            // it would with `read`. 3. A process that shortens the file makes reading fail by a
            // signal, which ends the program; the documentation of the datasets says so.
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
