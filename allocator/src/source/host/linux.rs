//! Shared anonymous mappings, whose pages `mremap` can map at a second address.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MremapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::source::SourceError;
use crate::source::locked::PageLock;

/// A mapped address range, unmapped on drop.
#[derive(Debug)]
pub(super) struct Range {
    pointer: NonNull<u8>,
    len: usize,
}

// SAFETY: the range is an address and a length that are never changed. The memory there is reached
// through `Buffer` under the usual borrow rules.
unsafe impl Send for Range {}
// SAFETY: every method is a system call on a part of the range that its caller vouches for. The
// kernel orders such calls itself.
unsafe impl Sync for Range {}

impl Range {
    /// Memory that reads as zero until it is written, without reserved swap.
    pub(super) fn memory(len: usize) -> Result<Range, SourceError> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        Range::new(len, ProtFlags::READ | ProtFlags::WRITE, flags)
    }

    /// Addresses without memory.
    pub(super) fn views(len: usize) -> Result<Range, SourceError> {
        Range::new(len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn new(len: usize, protection: ProtFlags, flags: MapFlags) -> Result<Range, SourceError> {
        // SAFETY: a new mapping at an address of the system's choice changes no other memory.
        let mapped = unsafe { mm::mmap_anonymous(null_mut(), len, protection, flags) };
        let pointer = mapped.map_err(|error| failure("mmap", len, error))?;
        let pointer = NonNull::new(pointer.cast()).expect("a mapping is never at address 0");
        Ok(Range { pointer, len })
    }

    pub(super) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Backs a part of a memory range with pages now, not at the first touch.
    ///
    /// # Errors
    /// `OutOfMemory` if the system reports it. Nothing has changed.
    pub(super) fn populate(&self, offset: usize, size_bytes: usize) -> Result<(), SourceError> {
        let start = self.at(offset, size_bytes);
        // SAFETY: 1. the range lies inside the mapping. 2. Populating changes no byte.
        let populated = unsafe { mm::madvise(start, size_bytes, Advice::LinuxPopulateWrite) };
        match populated {
            // Kernels before 5.14 do not know the advice: there a page comes with its first touch.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(_) => {
                self.give_back(offset, size_bytes);
                Err(SourceError::OutOfMemory { size_bytes })
            }
        }
    }

    /// Gives pages of a memory range to the system, at whatever addresses they are mapped.
    pub(super) fn give_back(&self, offset: usize, size_bytes: usize) {
        let start = self.at(offset, size_bytes);
        // SAFETY: 1. the range lies inside the mapping, and no live block lies in the range: the
        // caller's `PageRange` says so. So no reference sees its bytes change. 2. The range stays
        // mapped and reads as zero.
        let result = unsafe { mm::madvise(start, size_bytes, Advice::LinuxRemove) };
        // The system may refuse pages that are locked in memory: they stay resident, which costs
        // memory but breaks nothing.
        debug_assert!(result.is_ok(), "madvise({offset}, {size_bytes}): {result:?}");
    }

    /// Maps a part of `memory` in this range of views.
    pub(super) fn show(
        &self,
        memory: &Range,
        offset: usize,
        view_offset: usize,
        size_bytes: usize,
    ) -> Result<(), SourceError> {
        let (from, to) = (memory.at(offset, size_bytes), self.at(view_offset, size_bytes));
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: 1. an old length of 0 leaves the shared mapping at `from` as it is and maps its
        // pages a second time. 2. The mapping replaces a part of this range without a live block:
        // the `Mapping` that the caller got says so.
        let shown = unsafe { mm::mremap_fixed(from, 0, size_bytes, flags, to) };
        shown.map_err(|error| failure("mremap", size_bytes, error))?;
        // Fills page tables now, in one call, instead of with a fault for each small page. Kernels
        // before 5.14 do not know the advice; they take the faults.
        // SAFETY: populating changes no byte, and `show` has just mapped the range.
        let _ = unsafe { mm::madvise(to, size_bytes, Advice::LinuxPopulateWrite) };
        Ok(())
    }

    /// Unmaps a part of this range of views.
    pub(super) fn hide(&self, view_offset: usize, size_bytes: usize) {
        let at = self.at(view_offset, size_bytes);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the new mapping replaces a part of this range of views without a live block: the
        // `Mapping` that the caller got says so.
        let result = unsafe { mm::mmap_anonymous(at, size_bytes, ProtFlags::empty(), flags) };
        // A view that stays costs addresses but breaks nothing: mapping over it replaces it.
        debug_assert!(result.is_ok(), "mmap({view_offset}, {size_bytes}): {result:?}");
    }

    /// # Panics
    /// If the part is not inside the range.
    fn at(&self, offset: usize, size_bytes: usize) -> *mut c_void {
        let is_inside = offset <= self.len && size_bytes <= self.len - offset;
        assert!(is_inside, "{size_bytes} at {offset} in a range of {}", self.len);
        // SAFETY: the offset is at most the length of the mapping.
        unsafe { self.pointer.add(offset) }.as_ptr().cast()
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and segments drop it when the last buffer is gone.
        let result = unsafe { mm::munmap(self.pointer.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "munmap of {}: {result:?}", self.len);
    }
}

/// Locks pages in memory with `mlock`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemLock;

impl PageLock for SystemLock {
    fn lock(&self, address: u64, size_bytes: usize) -> Result<(), SourceError> {
        // SAFETY: locking changes no byte and no mapping, wherever the range is. The system refuses
        // a range without a mapping.
        let locked = unsafe { mm::mlock(pointer_to(address), size_bytes) };
        locked.map_err(|error| {
            // A part may be locked. There is nothing to do if that fails too.
            // SAFETY: unlocking changes no byte and no mapping, wherever the range is.
            let _ = unsafe { mm::munlock(pointer_to(address), size_bytes) };
            let limit_bytes = getrlimit(Resource::Memlock).current;
            match (error, limit_bytes) {
                (Errno::NOMEM | Errno::PERM | Errno::AGAIN, Some(limit_bytes)) => {
                    SourceError::LockLimit { size_bytes, limit_bytes }
                }
                _ => failure("mlock", size_bytes, error),
            }
        })
    }

    fn unlock(&self, address: u64, size_bytes: usize) {
        // SAFETY: unlocking changes no byte and no mapping, wherever the range is.
        let result = unsafe { mm::munlock(pointer_to(address), size_bytes) };
        // Pages that stay locked cost memory but break nothing.
        debug_assert!(result.is_ok(), "munlock of {size_bytes}: {result:?}");
    }
}

fn pointer_to(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn failure(operation: &'static str, size_bytes: usize, error: Errno) -> SourceError {
    SourceError::System { operation, size_bytes, code: error.raw_os_error() }
}
