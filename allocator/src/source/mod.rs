//! The seam to memory: a device, the operating system, or a simulation.

#![allow(unsafe_code, reason = "declares the trait whose implementors map memory")]

pub(crate) mod adaptor;
pub(crate) mod fence;
pub(crate) mod host;
pub(crate) mod limit;
pub(crate) mod locked;
pub(crate) mod retry;
pub(crate) mod sim;
pub(crate) mod sim_streams;
#[cfg(feature = "testing")]
pub(crate) mod testing;

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::source::fence::Fence;

/// Largest number of mappings for all views of an allocator, unless its source allows fewer. Linux
/// lets a process have 65,530.
pub(crate) const MAPPINGS_MAX: usize = 1 << 14;

/// A source of memory.
///
/// An allocator reserves a segment when it is made, and from then on only commits and decommits
/// whole pages of this segment. The allocator calls under its own lock: a source must not call back
/// into the allocator. A source that can map pages at a second address has
/// [`virtual_memory`](Self::virtual_memory); a source with streams has a [`fence`](Self::fence).
pub trait MemorySource: Send + Sync {
    /// Bytes that may be committed at once, over all segments. Asked once.
    fn capacity_bytes(&self) -> usize;

    /// Granularity of commit and decommit: a power of two, at least 512. Asked once.
    fn page_bytes(&self) -> usize;

    /// Reserves address space without memory. The segment starts at a multiple of 512 and should
    /// hold `size_bytes`. A longer segment has room for a capacity that is raised later. A shorter
    /// segment, for systems with few addresses, limits where blocks can lie.
    ///
    /// # Errors
    /// There is no address range of that size. Nothing has changed.
    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError>;

    /// Tells the source that the segment is about to be dropped. No memory of the segment is in
    /// use.
    fn release(&self, segment: &Segment);

    /// Backs whole pages that have no memory. The memory may hold any bytes; the device must be
    /// able to read and write it.
    ///
    /// # Errors
    /// The source has no memory, or failed. Nothing has changed.
    fn commit(&self, segment: &Segment, pages: &PageRange) -> Result<(), SourceError>;

    /// Releases the memory of whole pages that have some. No block lies in the pages. Work that was
    /// enqueued on a stream may still use them; the source waits for that work first.
    fn decommit(&self, segment: &Segment, pages: &PageRange);

    /// Bytes of the device that are neither free nor in this source: the bytes of the driver, of
    /// libraries and of other programs. An error of a failed request reports them.
    fn outside_bytes(&self) -> usize {
        0
    }

    /// The source's second addresses of pages; `None` if it cannot map pages twice. Asked once.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }

    /// The source's order of streams; `None` if work is done when its call returns, so that no wait
    /// is needed. Asked once.
    fn fence(&self) -> Option<&dyn Fence> {
        None
    }
}

/// A source's ability to map pages of a segment at a second address.
///
/// A page may be mapped at many places at once. The allocator ensures that live blocks share no
/// byte, whatever addresses reach the byte.
///
/// Most sources need not implement this trait: an [`Adaptor`](crate::Adaptor) has it if the source
/// below does, and [`MemorySource::virtual_memory`] may return another source's.
///
/// # Safety
/// Once [`map`](Self::map) returned `Ok`, the allocator makes references to the bytes that are
/// mapped in a range of views, if the processor can read it. So for such a range:
/// 1. `map` returns `Ok` only if the pages of `segment` are now mapped in `views` at the place that
///    the mapping names, whatever was mapped there before. They stay there until the mapping is
///    unmapped or another one is mapped to the same place. `map` panics or fails if a range belongs
///    to another source.
/// 2. `map` and `unmap` change no other place. They use a [`Mapping`] only during the call.
/// 3. [`reserve_views`](Self::reserve_views) returns a range made with
///    [`Segment::views_with_host_pointer`].
///
/// ```compile_fail,E0200
/// use lowtide_allocator::{Mapping, Segment, SourceError, VirtualMemory};
///
/// struct MapsNothing;
///
/// impl VirtualMemory for MapsNothing {
///     fn reserve_views(&self, _: usize) -> Result<Segment, SourceError> {
///         Err(SourceError::OutOfMemory { size_bytes: 0 })
///     }
///
///     fn map(&self, _: &Segment, _: &Segment, _: &Mapping) -> Result<(), SourceError> {
///         Ok(())
///     }
///
///     fn unmap(&self, _: &Segment, _: &Mapping) {}
/// }
/// ```
pub unsafe trait VirtualMemory: Send + Sync {
    /// Reserves the address range for views, with nothing mapped. The range starts at a multiple of
    /// the page and should be several times `capacity_bytes` long.
    ///
    /// # Errors
    /// There is no such address range.
    fn reserve_views(&self, capacity_bytes: usize) -> Result<Segment, SourceError>;

    /// Maps committed pages of `segment` in `views`.
    ///
    /// # Errors
    /// The source failed, or has no more mappings. Nothing has changed.
    fn map(&self, segment: &Segment, views: &Segment, mapping: &Mapping)
    -> Result<(), SourceError>;

    /// Unmaps the pages from `views`. Work that was enqueued on a stream may still use the address;
    /// the source waits for that work first.
    fn unmap(&self, views: &Segment, mapping: &Mapping);
}

/// Whole pages of a segment.
///
/// Only an allocator makes a range, for its own segment, and only while no live block lies in the
/// pages. So it is safe to release their memory.
#[derive(Debug)]
pub struct PageRange {
    /// The number of the segment.
    segment: u64,
    offset: usize,
    size_bytes: usize,
}

impl PageRange {
    pub(crate) fn new(segment: &Segment, offset: usize, size_bytes: usize) -> PageRange {
        PageRange { segment: segment.number, offset, size_bytes }
    }

    /// Offset of the first page in the segment.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// True if the pages belong to this segment.
    pub fn is_of(&self, segment: &Segment) -> bool {
        self.segment == segment.number
    }
}

/// Whole pages of a segment, and the place where a view maps them.
///
/// Only an allocator makes a mapping, for its own segments, and only while no live block is at that
/// place of the views. So it is safe to map and unmap the pages.
#[derive(Debug)]
pub struct Mapping {
    pages: PageRange,
    /// The number of the range of views.
    views: u64,
    view_offset: usize,
}

impl Mapping {
    pub(crate) fn new(pages: PageRange, views: &Segment, view_offset: usize) -> Mapping {
        Mapping { pages, views: views.number, view_offset }
    }

    /// The mapped pages.
    pub fn pages(&self) -> &PageRange {
        &self.pages
    }

    /// Offset in the range of views at which the pages are mapped.
    pub fn view_offset(&self) -> usize {
        self.view_offset
    }

    /// True if the pages are mapped in this range.
    pub fn is_in(&self, views: &Segment) -> bool {
        self.views == views.number
    }
}

/// A reserved address range, owned by the allocator that asked for it.
pub struct Segment {
    /// Number that no other segment of the process ever has. The address is not unique: any code
    /// can make an [`opaque`](Self::opaque) segment with the address of another one.
    number: u64,
    address: u64,
    size_bytes: usize,
    /// Largest number of mappings at once in a range of views.
    mappings_max: usize,
    pub(crate) host: Option<HostRange>,
}

/// Memory that the processor can read, with the owner that keeps it mapped.
pub(crate) struct HostRange {
    pub(crate) pointer: HostPointer,
    pub(crate) owner: Box<dyn Any + Send + Sync>,
    pub(crate) kind: HostKind,
}

/// The part of a host range that the processor may read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostKind {
    /// The whole range, at any time.
    Memory,
    /// Pages that are mapped.
    Views,
}

/// Start of a host segment. `host.rs` has the proof that it may cross threads.
#[derive(Clone, Copy)]
pub(crate) struct HostPointer(pub(crate) NonNull<u8>);

impl Segment {
    /// A range that the processor cannot read: the memory of a device, or addresses without memory.
    pub fn opaque(address: u64, size_bytes: usize) -> Segment {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Segment { number, address, size_bytes, mappings_max: MAPPINGS_MAX, host: None }
    }

    /// The address of offset 0, as the device sees it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length of the range.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// True if blocks may lie anywhere in the segment. The processor can read a range of views only
    /// where memory is mapped.
    pub(crate) fn can_be_memory(&self) -> bool {
        self.host.as_ref().is_none_or(|host| host.kind == HostKind::Memory)
    }

    /// Largest number of mappings at once in this range of views.
    pub(crate) fn mappings_max(&self) -> usize {
        self.mappings_max
    }

    /// Sets the largest number of mappings, at most [`MAPPINGS_MAX`].
    pub(crate) fn with_mappings_max(mut self, count: usize) -> Segment {
        self.mappings_max = count.min(MAPPINGS_MAX);
        self
    }

    /// The pointer to offset 0, if the processor can read the segment.
    pub fn host_pointer(&self) -> Option<NonNull<u8>> {
        self.host.as_ref().map(|host| host.pointer.0)
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("address", &format_args!("{:#x}", self.address))
            .field("size_bytes", &self.size_bytes)
            .field("host", &self.host.is_some())
            .finish()
    }
}

/// Reasons why a source cannot serve a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source has less memory left than was asked for.
    #[error("the source has no {size_bytes} bytes left")]
    OutOfMemory {
        /// Bytes asked for.
        size_bytes: usize,
    },
    /// The allocators of the process have taken their share of the mappings that the system allows
    /// (`vm.max_map_count` on Linux).
    #[error("no mappings are left for allocators, of {limit_count} that the process may have")]
    MappingLimit {
        /// The limit for all mappings of the process.
        limit_count: usize,
    },
    /// The system locks no more memory for this process. Its limit is `RLIMIT_MEMLOCK` (`ulimit
    /// -l`), or the memory of its control group.
    #[error(
        "no {size_bytes} more bytes can be locked in memory: RLIMIT_MEMLOCK allows {limit_bytes}"
    )]
    LockLimit {
        /// Bytes asked for.
        size_bytes: usize,
        /// The limit of all memory that the process locks.
        limit_bytes: u64,
    },
    /// The device is lost to this process: work on it failed (an illegal address, a timeout, a
    /// hardware error), and every later call fails too. The amount of memory is not the cause.
    #[error("the device is lost since {operation} at the latest, with code {code}")]
    DeviceFault {
        /// The call that reported the failure; the failed work may be older.
        operation: &'static str,
        /// The driver's code.
        code: i32,
    },
    /// The operating system or the driver refused.
    #[error("{operation} of {size_bytes} bytes failed with code {code}")]
    System {
        /// The call that failed.
        operation: &'static str,
        /// Bytes of the call.
        size_bytes: usize,
        /// The system's own code; 0 if it gives none.
        code: i32,
    },
}
