//! A file mapped into memory, read only.
#![allow(unsafe_code, reason = "mapping a file is unsafe: others may change it")]

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::error::{PretrainedError, Result};

/// The bytes of a file, which come from the disk when they are looked at and can be dropped from
/// memory again by the system.
#[derive(Debug)]
pub(super) struct Map(Mmap);

impl Map {
    /// # Errors
    /// `File`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let map = File::open(path).and_then(|file| {
            // SAFETY: 1. The mapping is private to this value and read only. 2. Bytes are only ever
            // copied out of it, as plain numbers that may have any value, except for the header,
            // which is checked when it is parsed: a process that writes to the file at the same
            // time gives wrong weights, as it would with `read`. 3. A process that shortens the
            // file makes reading fail by a signal, which ends the program; the README says so.
            unsafe { Mmap::map(&file) }
        });
        map.map(Self).map_err(|source| PretrainedError::File { path: path.to_owned(), source })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
