//! Memory of the host that the driver keeps page-locked.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::device::CudaDevice;
use super::error::CudaError;
use crate::source::{MemorySource, PageRange, Segment, SourceError};

/// The page of the other host sources, so that offsets are the same on each.
const PAGE_BYTES: usize = 64 << 10;

/// `CU_MEMHOSTALLOC_PORTABLE`: page-locked for every device.
const PORTABLE: u32 = 1;

/// Host memory that copies to and from devices read and write by themselves, for a
/// [`PinnedCache`](crate::PinnedCache).
///
/// All of it is locked when the allocator reserves it and goes back with the last block: it is for
/// rings of a size that is known before the first step. A single call makes it, as a copy must not
/// span two.
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
        // Not more than the capacity, which an adaptor may have made smaller than the request.
        let size_bytes = size_bytes.clamp(PAGE_BYTES, self.capacity_bytes);
        let locked = Locked::new(&self.device, size_bytes);
        let locked = locked.map_err(|error| error.of_source(size_bytes))?;
        let pointer = locked.pointer;
        // SAFETY: 1. all of it is readable, writable and initialised. 2. `locked` frees it on drop
        // and is the owner. 3. No one else has the address. 4. Commits and decommits do nothing.
        Ok(unsafe { Segment::with_host_pointer(pointer, size_bytes, Box::new(locked)) })
    }

    fn release(&self, _segment: &Segment) {
        // The memory goes with the segment that owns it: no caller of this can free it early.
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

// SAFETY: the value is an address that is never changed; what lies there is reached through
// `Buffer` under the usual borrow rules, and the driver frees it from any thread.
unsafe impl Send for Locked {}
// SAFETY: nothing can be done with a shared `Locked`.
unsafe impl Sync for Locked {}

impl Locked {
    fn new(device: &CudaDevice, size_bytes: usize) -> Result<Locked, CudaError> {
        let mut pointer: *mut c_void = std::ptr::null_mut();
        device.call("cuMemHostAlloc", |table| {
            // SAFETY: the driver writes one pointer, to a place for one.
            unsafe { (table.host_allocate)(&mut pointer, size_bytes, PORTABLE) }
        })?;
        let pointer = NonNull::new(pointer.cast::<u8>());
        let pointer = pointer.expect("a driver that succeeds gives an address");
        // SAFETY: the driver gave that many writable bytes, which have no other owner.
        unsafe { pointer.write_bytes(0, size_bytes) };
        Ok(Locked { device: device.clone(), pointer })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Memory that the driver keeps stays locked; there is no caller to tell.
        let _ = self.device.give_back("cuMemFreeHost", |table| {
            // SAFETY: the memory is this value's own, and segments drop it when the last buffer is
            // gone, which a pinned cache holds until no copy uses it.
            unsafe { (table.host_free)(self.pointer.as_ptr().cast()) }
        });
    }
}
