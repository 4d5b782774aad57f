//! Private anonymous mappings, for systems that cannot map pages twice.

use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};

use crate::source::SourceError;

/// A mapped address range, unmapped on drop.
#[derive(Debug)]
pub(super) struct Range(MmapRaw);

impl Range {
    /// Memory that reads as zero until it is written, without reserved swap.
    pub(super) fn memory(len: usize) -> Result<Range, SourceError> {
        let mapping = MmapOptions::new().len(len).no_reserve_swap().map_anon();
        let mapping = mapping.map_err(|error| {
            let code = error.raw_os_error().unwrap_or(0);
            SourceError::System { operation: "mmap", size_bytes: len, code }
        })?;
        // Raw from here on: a `MmapMut` would claim exclusive access to every byte.
        Ok(Range(MmapRaw::from(mapping)))
    }

    pub(super) fn pointer(&self) -> NonNull<u8> {
        NonNull::new(self.0.as_mut_ptr()).expect("a mapping is never at address 0")
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Does nothing: a page comes with its first touch.
    pub(super) fn populate(&self, _offset: usize, _size_bytes: usize) -> Result<(), SourceError> {
        Ok(())
    }

    /// Gives pages to the system, if the system takes the advice.
    pub(super) fn give_back(&self, offset: usize, size_bytes: usize) {
        // SAFETY: 1. the range lies inside the mapping (which is checked), and no live block lies
        // in the range: the `PageRange` that the caller got says so. So no reference sees its bytes
        // change. 2. The range stays mapped, and bytes read later are initialised (zero or the old
        // values).
        let result =
            unsafe { self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, size_bytes) };
        debug_assert!(result.is_ok(), "madvise({offset}, {size_bytes}): {result:?}");
    }
}
