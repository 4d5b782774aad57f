//! Memory of the host that the driver keeps page-locked.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::device::CudaDevice;
use super::error::CudaError;
use crate::source::{MemorySource, PageRange, Segment, SourceError};

/// The page size of the other host sources, so that offsets are the same on each source.
const PAGE_BYTES: usize = 64 << 10;

/// `CU_MEMHOSTALLOC_PORTABLE`: page-locked for every device.
const PORTABLE: u32 = 1;

/// Host memory for asynchronous copies to and from devices; the source of a
/// [`PinnedCache`](crate::PinnedCache).
///
/// The whole range is locked when the allocator reserves it, and is freed with the last block. So
/// the source is for rings of a size that is known before the first step. A single call locks the
/// range, because a copy must not span two locked ranges.
#[derive(Clone, Debug)]
pub struct CudaHostSource {
    device: CudaDevice,
    capacity_bytes: usize,
}

impl CudaHostSource {
    /// `bytes`, rounded up to 64 KiB, for copies to and from this device and others.
    pub fn with_capacity(device: &CudaDevice, bytes: usize) -> CudaHostSource {
        let capacity_bytes = bytes.max(1).checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes);
        CudaHostSource { device: device.clone(), capacity_bytes }
    }
}

impl MemorySource for CudaHostSource {
    fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    fn page_bytes(&self) -> usize {
        PAGE_BYTES
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        // At most the capacity: an adaptor may have made the capacity smaller than the request.
        let size_bytes = size_bytes.clamp(PAGE_BYTES, self.capacity_bytes);
        let locked = Locked::new(&self.device, size_bytes);
        let locked = locked.map_err(|error| error.of_source(size_bytes))?;
        let pointer = locked.pointer;
        // SAFETY: 1. all of the range is readable, writable and initialised. 2. `locked` frees it
        // on drop and is the owner. 3. No one else has the address. 4. Commits and decommits do
        // nothing.
        Ok(unsafe { Segment::with_host_pointer(pointer, size_bytes, Box::new(locked)) })
    }

    fn release(&self, _segment: &Segment) {
        // The segment owns the memory: no caller of `release` can free it early.
    }

    fn commit(&self, _segment: &Segment, _pages: &PageRange) -> Result<(), SourceError> {
        Ok(())
    }

    fn decommit(&self, _segment: &Segment, _pages: &PageRange) {}
}

/// Page-locked memory, freed on drop.
struct Locked {
    device: CudaDevice,
    pointer: NonNull<u8>,
}

// SAFETY: the value is an address that is never changed. The memory there is reached through
// `Buffer` under the usual borrow rules, and the driver frees it from any thread.
unsafe impl Send for Locked {}
// SAFETY: a shared `Locked` has no operations.
unsafe impl Sync for Locked {}

impl Locked {
    fn new(device: &CudaDevice, size_bytes: usize) -> Result<Locked, CudaError> {
        let mut pointer: *mut c_void = std::ptr::null_mut();
        device.call("cuMemHostAlloc", |table| {
            // SAFETY: the driver writes one pointer, to a place for one pointer.
            unsafe { (table.host_allocate)(&mut pointer, size_bytes, PORTABLE) }
        })?;
        let pointer = NonNull::new(pointer.cast::<u8>());
        let pointer = pointer.expect("a driver that succeeds gives an address");
        // SAFETY: the driver gave `size_bytes` writable bytes, which have no other owner.
        unsafe { pointer.write_bytes(0, size_bytes) };
        Ok(Locked { device: device.clone(), pointer })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // If the driver refuses, the memory stays locked; there is no caller to tell.
        let _ = self.device.give_back("cuMemFreeHost", |table| {
            // SAFETY: the memory is this value's own. Segments drop it when the last buffer is
            // gone, and a pinned cache holds its buffers until no copy uses them.
            unsafe { (table.host_free)(self.pointer.as_ptr().cast()) }
        });
    }
}
