//! System memory.
//!
//! On Linux the memory is a shared anonymous mapping. Its pages can be mapped at a second address,
//! so that free pages that lie apart serve one large block. Such memory is as fast to use: a shared
//! mapping has the same small pages as a private one, and reads, writes and first touches are
//! equally fast (within the noise of 20 % of a machine that was not quiet, 2026-11-21: 18 to 26
//! GB/s for `a[i] += b[i]` over 256 MiB, 15 to 37 ns for a random read, both kinds in turns).
//! Mapping 2 MiB elsewhere takes 4 µs a mapping and 0.5 ms for the page tables, a quarter of the
//! time to touch new memory, and only once: views stay. Huge pages made neither kind faster there.
//! On a machine with scattered free pages huge pages were faster by 18 % (6.5 against 7.9 ms for
//! the same sum over 128 MiB, which its last-level cache holds in part, 2026-11-22), but Linux
//! gives a shared mapping none unless the machine is set to. On other systems memory is a private
//! mapping, and blocks are never stitched.
#![allow(unsafe_code, reason = "turns mapped memory into pointers and gives pages back to the OS")]

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod mappings;
#[cfg(not(target_os = "linux"))]
mod portable;
mod system;

use std::any::Any;
use std::ptr::NonNull;
use std::sync::OnceLock;

#[cfg(target_os = "linux")]
use linux::Range;
#[cfg(target_os = "linux")]
pub use linux::SystemLock;
#[cfg(target_os = "linux")]
use mappings::Share;
#[cfg(not(target_os = "linux"))]
use portable::Range;
use system::{Group, System, address_space};
pub use system::{LimitOrigin, MemoryLimit, ProcessMemory, available_bytes, process_memory};

#[cfg(target_os = "linux")]
use crate::source::locked::LockedSource;
use crate::source::{
    HostKind, HostPointer, HostRange, MemorySource, PageRange, Segment, SourceError,
};
#[cfg(target_os = "linux")]
use crate::source::{Mapping, VirtualMemory};

/// A multiple of every page size in use on Linux, so that offsets do not depend on the machine.
const PAGE_BYTES: usize = 64 << 10;

/// Two such segments fit into 47 bits, the narrowest address space of a process.
const SEGMENT_BYTES_MAX: usize = 1 << 45;

/// Least length of a range of views, for any capacity: room for pages with several addresses.
#[cfg(target_os = "linux")]
const VIEW_BYTES_MIN: usize = 1 << 36;

// SAFETY: 1. the pointer is only an address into a mapping that its segment's owner keeps alive on
// whatever thread. 2. Memory behind the pointer is reached through `Buffer`, which hands out
// references under the usual borrow rules, each for bytes that no other live buffer has.
unsafe impl Send for HostPointer {}
// SAFETY: a shared `HostPointer` only yields a copy of the address; see `Send` for the memory.
unsafe impl Sync for HostPointer {}

impl Segment {
    /// A range that the processor can read and write.
    ///
    /// # Safety
    /// From now on and until `owner` is dropped:
    /// 1. Every byte of the range is initialised and may be read and written through `pointer`,
    ///    whether it was committed or not. [`MemorySource::commit`] is safe to implement, so an
    ///    answer of `Ok` proves nothing.
    /// 2. Only the allocator that gets this segment reads or writes the range.
    /// 3. The source takes memory away only where a [`PageRange`] of this segment allows it, and
    ///    changes no byte outside that range.
    pub unsafe fn with_host_pointer(
        pointer: NonNull<u8>,
        size_bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Segment {
        Segment::of_host(pointer, size_bytes, owner, HostKind::Memory)
    }

    /// A range of views. The processor can read and write the mapped parts. There are at most
    /// `mappings_max` mappings at once.
    ///
    /// # Safety
    /// Until `owner` is dropped:
    /// 1. Only the allocator that gets this segment reads or writes the range.
    /// 2. Only a [`VirtualMemory::map`](crate::VirtualMemory::map) that keeps its obligations maps
    ///    memory there. Mapped memory is initialised and may be read and written.
    pub unsafe fn views_with_host_pointer(
        pointer: NonNull<u8>,
        size_bytes: usize,
        mappings_max: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Segment {
        Segment::of_host(pointer, size_bytes, owner, HostKind::Views)
            .with_mappings_max(mappings_max)
    }

    fn of_host(
        pointer: NonNull<u8>,
        size_bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
        kind: HostKind,
    ) -> Segment {
        let mut segment = Segment::opaque(pointer.as_ptr() as u64, size_bytes);
        segment.host = Some(HostRange { pointer: HostPointer(pointer), owner, kind });
        segment
    }

    /// The mapping behind a segment of a host source.
    fn range(&self) -> &Range {
        let host = self.host.as_ref().expect("a segment of a host source");
        host.owner.downcast_ref().expect("a segment of a host source")
    }

    /// The addresses of a range of views of a host source.
    #[cfg(target_os = "linux")]
    fn views(&self) -> &Range {
        let host = self.host.as_ref().expect("views of a host source");
        let views: &HostViews = host.owner.downcast_ref().expect("views of a host source");
        &views.range
    }
}

/// The resources of a range of views. Fields are dropped in this order: the addresses are unmapped
/// before another allocator can take the share of mappings.
#[cfg(target_os = "linux")]
struct HostViews {
    range: Range,
    _share: Share,
}

/// System memory with a capacity.
///
/// Pages have 64 KiB on every machine. New memory reads as zero, reused memory does not. Memory
/// that was decommitted reads as zero again on Linux. There a process that forks shares the memory
/// with its child.
#[derive(Clone, Copy, Debug)]
pub struct HostSource {
    capacity_bytes: usize,
    maps_pages: bool,
}

impl HostSource {
    /// A source of at most `bytes` at once.
    pub fn with_capacity(bytes: usize) -> HostSource {
        HostSource { capacity_bytes: bytes, maps_pages: cfg!(target_os = "linux") }
    }

    /// A source with the [`MemoryLimit`] of this process. If the system does not tell (outside
    /// Linux), the capacity is 1 TiB, and the system may refuse earlier.
    pub fn system() -> HostSource {
        HostSource::with_capacity(MemoryLimit::of_this_process().bytes)
    }

    /// Removes the ability to map pages at a second address, and so the need for its addresses and
    /// mappings. For memory that is allocated once and whole.
    #[must_use]
    pub fn without_virtual_memory(mut self) -> HostSource {
        self.maps_pages = false;
        self
    }

    /// A source whose committed pages the operating system locks: they are never swapped out.
    ///
    /// # Errors
    /// Commits fail with [`SourceError::LockLimit`] if the system locks no more memory.
    #[cfg(target_os = "linux")]
    pub fn locked(self) -> LockedSource<HostSource, SystemLock> {
        LockedSource::new(self, SystemLock)
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
        let range = reserve_some(size_bytes)?;
        let (pointer, len) = (range.pointer(), range.len());
        // SAFETY: 1. all of the mapping is readable, writable and zero-filled on first use, until
        // `range` unmaps it on drop, and `range` is the owner. 2. The address is not given to
        // anything else. 3. `decommit` takes only whole pages that a `PageRange` of the segment
        // names.
        Ok(unsafe { Segment::with_host_pointer(pointer, len, Box::new(range)) })
    }

    fn release(&self, _segment: &Segment) {
        // The segment owns the mapping: no caller of `release` can free it early.
    }

    fn commit(&self, segment: &Segment, pages: &PageRange) -> Result<(), SourceError> {
        assert_whole_pages(pages, segment);
        // The system backs the range with pages on first touch, and cannot refuse then: it ends a
        // process whose control group is full. So pages are requested now if a control group sets a
        // limit.
        if limiting_groups().is_empty() {
            return Ok(());
        }
        check_room(pages.size_bytes())?;
        segment.range().populate(pages.offset(), pages.size_bytes())
    }

    fn decommit(&self, segment: &Segment, pages: &PageRange) {
        assert_whole_pages(pages, segment);
        segment.range().give_back(pages.offset(), pages.size_bytes());
    }

    #[cfg(target_os = "linux")]
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.maps_pages.then_some(self)
    }
}

// SAFETY: 1. `map` maps the pages with one system call that replaces the old mapping, or fails. It
// downcasts both segments to types of this module, so it panics for segments of another source. 2.
// `map` and `unmap` change only the pages that the mapping names. They check that these are whole
// pages of the system. 3. `reserve_views` uses `views_with_host_pointer`.
#[cfg(target_os = "linux")]
unsafe impl VirtualMemory for HostSource {
    fn reserve_views(&self, capacity_bytes: usize) -> Result<Segment, SourceError> {
        // Room for every page in a few views at once, and for gaps between idle views.
        let size_bytes = capacity_bytes.saturating_mul(4).clamp(VIEW_BYTES_MIN, SEGMENT_BYTES_MAX);
        let size_bytes = size_bytes.next_multiple_of(PAGE_BYTES);
        if address_quota().is_some_and(|quota_bytes| size_bytes > quota_bytes) {
            return Err(SourceError::OutOfMemory { size_bytes });
        }
        let share = Share::take()?;
        let range = Range::views(size_bytes)?;
        let (pointer, len, mappings_max) = (range.pointer(), range.len(), share.mapping_count());
        let owner = Box::new(HostViews { range, _share: share });
        // SAFETY: 1. the address is not given to anything else, and `owner` unmaps the range on
        // drop. 2. Only `map` below maps memory there: pages of a memory range, which are readable,
        // writable and initialised.
        Ok(unsafe { Segment::views_with_host_pointer(pointer, len, mappings_max, owner) })
    }

    fn map(
        &self,
        segment: &Segment,
        views: &Segment,
        mapping: &Mapping,
    ) -> Result<(), SourceError> {
        let pages = mapping.pages();
        assert_whole_pages(pages, segment);
        assert_whole_view(mapping, views);
        let view = views.views();
        view.show(segment.range(), pages.offset(), mapping.view_offset(), pages.size_bytes())
    }

    fn unmap(&self, views: &Segment, mapping: &Mapping) {
        assert_whole_view(mapping, views);
        views.views().hide(mapping.view_offset(), mapping.pages().size_bytes());
    }
}

/// # Panics
/// If the pages are not whole pages of the segment. The system rounds a length up, so a part of a
/// page would change the bytes of another block.
fn assert_whole_pages(pages: &PageRange, segment: &Segment) {
    assert!(pages.is_of(segment), "{pages:?} are pages of another segment than {segment:?}");
    assert!(is_whole(pages.offset(), pages.size_bytes()), "{pages:?} are parts of pages");
}

/// # Panics
/// If the mapping does not lie at whole pages of this range of views, see [`assert_whole_pages`].
#[cfg(target_os = "linux")]
fn assert_whole_view(mapping: &Mapping, views: &Segment) {
    assert!(mapping.is_in(views), "{mapping:?} is of another range than {views:?}");
    let is_whole = is_whole(mapping.view_offset(), mapping.pages().size_bytes());
    assert!(is_whole, "{mapping:?} shows parts of pages");
}

fn is_whole(offset: usize, size_bytes: usize) -> bool {
    offset.is_multiple_of(PAGE_BYTES) && size_bytes.is_multiple_of(PAGE_BYTES)
}

/// Reserves addresses for at least `size_bytes`. Tries a longer range first, as room for a larger
/// capacity and for blocks that lie apart: the memory of the machine, but at most a quarter of the
/// addresses that a limit leaves. If the system refuses the longer range (as with strict
/// overcommit), reserves `size_bytes`.
fn reserve_some(size_bytes: usize) -> Result<Range, SourceError> {
    let wanted_bytes = address_quota().unwrap_or_else(|| System::here().physical_bytes());
    let size_bytes = size_bytes.min(SEGMENT_BYTES_MAX).next_multiple_of(PAGE_BYTES);
    let wanted_bytes = wanted_bytes.min(SEGMENT_BYTES_MAX) / PAGE_BYTES * PAGE_BYTES;
    if wanted_bytes > size_bytes
        && let Ok(range) = Range::memory(wanted_bytes)
    {
        return Ok(range);
    }
    Range::memory(size_bytes)
}

/// Bytes of addresses that one allocator may take without need, if addresses are limited: a quarter
/// of the addresses that are left.
fn address_quota() -> Option<usize> {
    let (used_bytes, limit_bytes) = address_space()?;
    Some(limit_bytes.saturating_sub(used_bytes) / 4)
}

/// The control groups that limit this process, as they were at the first call.
fn limiting_groups() -> &'static [Group] {
    static GROUPS: OnceLock<Vec<Group>> = OnceLock::new();
    GROUPS.get_or_init(|| System::here().groups())
}

/// # Errors
/// `OutOfMemory` if `size_bytes` more would fill a control group, except for a small reserve for
/// the rest of the process.
fn check_room(size_bytes: usize) -> Result<(), SourceError> {
    const LEFT_BYTES: usize = 8 << 20;
    let is_enough = |room_bytes: usize| room_bytes >= size_bytes.saturating_add(LEFT_BYTES);
    let mut rooms = limiting_groups().iter().filter_map(Group::room_bytes);
    if rooms.all(is_enough) { Ok(()) } else { Err(SourceError::OutOfMemory { size_bytes }) }
}
