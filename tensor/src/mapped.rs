//! Mapped files that hold the bytes of tensors. The system reads bytes on first use and can drop
//! them at any time, so frozen weights cost no memory of a device's budget.
#![allow(unsafe_code, reason = "mapping a file is unsafe: others may change it")]

use std::io;
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lowtide_allocator::files::open_input;
use memmap2::Mmap;

/// A cheap handle to a file that is mapped for reading. The mapping ends with the last handle and
/// the last tensor in the file.
#[derive(Clone, Debug)]
pub struct MappedFile(Arc<Mmap>);

impl MappedFile {
    /// Maps all of the file.
    ///
    /// # Safety
    /// The file stays as it is while it is mapped: neither this program nor another one writes to
    /// it or shortens it. A write would change bytes behind a shared reference; bytes beyond a new
    /// end cannot be read, and the system ends the program by a signal.
    ///
    /// # Errors
    /// The error of the system; `InvalidInput` for anything but a regular file. A pipe, for
    /// example, is not opened, because opening it would wait for a writer.
    pub unsafe fn open(path: &Path) -> io::Result<Self> {
        let file = open_input(path)?;
        // SAFETY: the mapping is read only, no `&mut` to its bytes is ever made, and the caller
        // promises that the file stays as it is.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(MappedFile(Arc::new(map)))
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of one storage in a file.
pub(crate) struct MappedBytes {
    file: MappedFile,
    offset_bytes: usize,
    size_bytes: usize,
    /// The device's count of mapped bytes.
    device_count: Arc<AtomicUsize>,
}

impl MappedBytes {
    /// A range of a file, which `device_count` counts from now on.
    pub(crate) fn new(
        file: &MappedFile,
        range: Range<usize>,
        device_count: &Arc<AtomicUsize>,
    ) -> Self {
        let (file, device_count) = (file.clone(), Arc::clone(device_count));
        let (offset_bytes, size_bytes) = (range.start, range.len());
        device_count.fetch_add(size_bytes, Ordering::Relaxed);
        MappedBytes { file, offset_bytes, size_bytes, device_count }
    }

    /// A handle to these bytes for a simulated copy, which the count of its device includes.
    pub(crate) fn counted_by(&self, device_count: &Arc<AtomicUsize>) -> Self {
        let range = self.offset_bytes..self.offset_bytes + self.size_bytes;
        Self::new(&self.file, range, device_count)
    }

    /// The address of the first byte, for reading only.
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        NonNull::from(&self.file.bytes()[self.offset_bytes..][..self.size_bytes]).cast()
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        self.device_count.fetch_sub(self.size_bytes, Ordering::Relaxed);
    }
}
