//! System memory through anonymous mappings.
#![allow(unsafe_code, reason = "turns mapped memory into pointers and gives pages back to the OS")]

use std::any::Any;
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};

use crate::source::{HostPointer, HostRange, MemorySource, Segment, SourceError};

/// A multiple of every page size in use on Linux, so that offsets do not depend on the machine.
const PAGE_BYTES: usize = 64 << 10;

/// Two of these fit into the 47 bits of address that a process has on the narrowest machines.
const SEGMENT_BYTES_MAX: usize = 1 << 45;

/// Stands in where the machine does not tell its memory: the system's own refusal is the limit.
const UNKNOWN_PHYSICAL_BYTES: usize = 1 << 40;

// SAFETY: 1. the pointer is only an address into a mapping that its segment's owner keeps alive on
// whatever thread. 2. Memory behind it is reached through `Buffer`, which hands out references
// under the usual borrow rules, each for bytes that no other live buffer has.
unsafe impl Send for HostPointer {}
// SAFETY: a shared `HostPointer` only yields a copy of the address; see `Send` for the memory.
unsafe impl Sync for HostPointer {}

impl Segment {
    /// A range that the processor can read and write.
    ///
    /// # Safety
    /// Until `owner` is dropped, every byte of a committed range is initialised and may be read and
    /// written through `pointer`, by nobody but the allocator that gets this segment; and the
    /// source takes pages away only at or beyond [`Segment::committed_bytes`].
    pub unsafe fn with_host_pointer(
        pointer: NonNull<u8>,
        size_bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Segment {
        let mut segment = Segment::opaque(pointer.as_ptr() as u64, size_bytes);
        segment.host = Some(HostRange { pointer: HostPointer(pointer), owner });
        segment
    }
}

/// System memory with a capacity.
///
/// Pages have 64 KiB on every machine. New memory reads as zero, reused memory does not; memory
/// that went back to the system with a decommit reads as zero again on Linux.
#[derive(Clone, Copy, Debug)]
pub struct HostSource {
    capacity_bytes: usize,
}

impl HostSource {
    /// At most `bytes` at once.
    pub fn with_capacity(bytes: usize) -> HostSource {
        HostSource { capacity_bytes: bytes }
    }

    /// As much as the machine has. Where it does not say (outside Linux), the limit is 1 TiB and
    /// the system's own.
    pub fn system() -> HostSource {
        HostSource { capacity_bytes: physical_bytes() }
    }
}

impl MemorySource for HostSource {
    fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    fn page_bytes(&self) -> usize {
        PAGE_BYTES
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        let size_bytes = size_bytes.max(physical_bytes()).min(SEGMENT_BYTES_MAX);
        let size_bytes = size_bytes.next_multiple_of(PAGE_BYTES);
        let mapping =
            MmapOptions::new().len(size_bytes).no_reserve_swap().map_anon().map_err(|error| {
                let code = error.raw_os_error().unwrap_or(0);
                SourceError::System { operation: "mmap", size_bytes, code }
            })?;
        // Raw from here on: a `MmapMut` would claim every byte for itself.
        let mapping = MmapRaw::from(mapping);
        let len = mapping.len();
        let pointer = NonNull::new(mapping.as_mut_ptr()).expect("a mapping is never at address 0");
        // SAFETY: 1. an anonymous mapping is readable, writable and zero-filled on first use, all
        // of it, so committed ranges are. 2. `mapping` unmaps on drop, and is the owner. 3. Nobody
        // else has the address. 4. `decommit` asserts that it stays beyond `committed_bytes`.
        Ok(unsafe { Segment::with_host_pointer(pointer, len, Box::new(mapping)) })
    }

    fn release(&self, _segment: &Segment) {
        // The mapping goes with the segment that owns it: no caller of this can free it early.
    }

    fn commit(
        &self,
        _segment: &Segment,
        _offset_bytes: usize,
        _size_bytes: usize,
    ) -> Result<(), SourceError> {
        // The system puts pages behind the range on first touch.
        Ok(())
    }

    fn decommit(&self, segment: &Segment, offset_bytes: usize, size_bytes: usize) {
        // The system rounds the start of a range down: a part of a page would reach below it.
        assert!(
            offset_bytes.is_multiple_of(PAGE_BYTES) && size_bytes.is_multiple_of(PAGE_BYTES),
            "decommit of {size_bytes} at {offset_bytes} is not whole pages",
        );
        assert!(
            offset_bytes >= segment.committed_bytes(),
            "decommit at {offset_bytes} of a segment in use up to {}",
            segment.committed_bytes(),
        );
        assert!(
            size_bytes <= segment.size_bytes().saturating_sub(offset_bytes),
            "decommit of {size_bytes} at {offset_bytes} in a segment of {}",
            segment.size_bytes(),
        );
        let host = segment.host.as_ref().expect("a segment of a host source");
        let mapping = host.owner.downcast_ref::<MmapRaw>().expect("a segment of a host source");
        give_back(mapping, offset_bytes, size_bytes);
    }
}

/// Gives the pages to the system. It may refuse only for pages that somebody locked in memory;
/// they then stay resident and mapped, which costs memory but breaks nothing.
#[cfg(unix)]
fn give_back(mapping: &MmapRaw, offset_bytes: usize, size_bytes: usize) {
    use memmap2::UncheckedAdvice;
    // SAFETY: 1. the range lies inside the mapping and beyond every live block, as the caller
    // asserts, so no reference sees its bytes change. 2. It stays mapped, and bytes read later are
    // initialised (zero or what they were).
    let result = unsafe {
        mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, offset_bytes, size_bytes)
    };
    debug_assert!(result.is_ok(), "madvise({offset_bytes}, {size_bytes}): {result:?}");
}

/// There is no advice to give: the pages stay, and are used again.
#[cfg(not(unix))]
fn give_back(_mapping: &MmapRaw, _offset_bytes: usize, _size_bytes: usize) {}

/// Physical memory of the machine.
fn physical_bytes() -> usize {
    std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
            line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
        })
        .map_or(UNKNOWN_PHYSICAL_BYTES, |kib| kib << 10)
}
