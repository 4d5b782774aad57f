//! The seam to whatever has memory: a device, the operating system, or a simulation.

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

/// Mappings that the views of an allocator may have together, unless its source allows fewer. Linux
/// lets a process have 65,530.
pub(crate) const MAPPINGS_MAX: usize = 1 << 14;

/// A source of memory.
///
/// An allocator reserves a segment when it is made, and from then on only commits and decommits
/// whole pages of it. It calls under its own lock: a source must not call back into the allocator
/// that uses it. Sources that can show pages at a second address say so with
/// [`virtual_memory`](Self::virtual_memory), those with streams with [`fence`](Self::fence).
pub trait MemorySource: Send + Sync {
    /// Bytes that may be committed at once, over all segments. Asked once.
    fn capacity_bytes(&self) -> usize;

    /// Granularity of commit and decommit: a power of two, at least 512. Asked once.
    fn page_bytes(&self) -> usize;

    /// Reserves address space, with nothing behind it yet. The segment starts at a multiple of 512
    /// and should hold `size_bytes`. A longer segment has room for a capacity that is raised later;
    /// a shorter one, where addresses are few, is an end that no block goes beyond.
    ///
    /// # Errors
    /// There is no address range of that size. Nothing has changed.
    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError>;

    /// The segment is about to be dropped and none of its memory is in use.
    fn release(&self, segment: &Segment);

    /// Puts memory behind whole pages that have none. What the memory holds is the source's
    /// business; the device must be able to read and write it.
    ///
    /// # Errors
    /// The source has no memory, or failed. Nothing has changed.
    fn commit(&self, segment: &Segment, pages: &PageRange) -> Result<(), SourceError>;

    /// Takes the memory back from whole pages that have some. No block lies in them. Work that was
    /// enqueued on a stream may still use them; the source waits for that first.
    fn decommit(&self, segment: &Segment, pages: &PageRange);

    /// Bytes of the device that are neither free nor this source's: what its driver, libraries
    /// and other programs have. Asked when a request failed, for the error to say.
    fn outside_bytes(&self) -> usize {
        0
    }

    /// The way to show pages at a second address; `None` if the source cannot. Asked once.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }

    /// The way to make streams wait for each other; `None` if work is done when the call that
    /// starts it returns, so that there is nothing to wait for. Asked once.
    fn fence(&self) -> Option<&dyn Fence> {
        None
    }
}

/// A source's way to show pages of a segment at a second address.
///
/// A page may be shown in many places at once. The allocator sees to it that live blocks share no
/// byte, whatever address they are reached by.
///
/// Most sources need not implement this trait: an [`Adaptor`](crate::Adaptor) has it where the
/// source below has it, and [`MemorySource::virtual_memory`] may hand out that of another source.
///
/// # Safety
/// Once [`map`](Self::map) returned `Ok`, the allocator makes references to the bytes that are
/// shown in a range of views, where the processor can read it. So for such a range:
/// 1. `map` returns `Ok` only if the pages of `segment` are now shown in `views` at the place that
///    the mapping names, whatever was shown there before. They stay there until the mapping is
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
    /// Reserves the address range that views lie in, with nothing mapped. It starts at a multiple
    /// of the page and should be several times `capacity_bytes` long.
    ///
    /// # Errors
    /// There is no such address range.
    fn reserve_views(&self, capacity_bytes: usize) -> Result<Segment, SourceError>;

    /// Shows committed pages of `segment` in `views`.
    ///
    /// # Errors
    /// The source failed, or has no more mappings. Nothing has changed.
    fn map(&self, segment: &Segment, views: &Segment, mapping: &Mapping)
    -> Result<(), SourceError>;

    /// Shows them there no more. Work that was enqueued on a stream may still use the address; the
    /// source waits for that first.
    fn unmap(&self, views: &Segment, mapping: &Mapping);
}

/// Whole pages of a segment.
///
/// An allocator alone makes one, for its own segment, and only while no live block lies in them:
/// that is what makes it safe to take their memory away.
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

    /// True if they are pages of this segment.
    pub fn is_of(&self, segment: &Segment) -> bool {
        self.segment == segment.number
    }
}

/// Whole pages of a segment and where a view shows them.
///
/// An allocator alone makes one, for its own segments, and only while no live block is at that
/// place of the views: that is what makes it safe to map and unmap them.
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

    /// The pages that are shown.
    pub fn pages(&self) -> &PageRange {
        &self.pages
    }

    /// Offset in the range of views at which they are shown.
    pub fn view_offset(&self) -> usize {
        self.view_offset
    }

    /// True if they are shown in this range.
    pub fn is_in(&self, views: &Segment) -> bool {
        self.views == views.number
    }
}

/// A reserved address range, owned by the allocator that asked for it.
pub struct Segment {
    /// No other segment of the process ever has it. The address is not enough: any code can make an
    /// [`opaque`](Self::opaque) segment with the address of another one.
    number: u64,
    address: u64,
    size_bytes: usize,
    /// The most mappings at once in a range of views.
    mappings_max: usize,
    pub(crate) host: Option<HostRange>,
}

/// Memory that the processor can read, and what keeps it mapped.
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

/// Start of a host segment; `host.rs` argues why it may cross threads.
#[derive(Clone, Copy)]
pub(crate) struct HostPointer(pub(crate) NonNull<u8>);

impl Segment {
    /// A range that the processor cannot read: a device's memory, or nothing at all.
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

    /// True if blocks may lie anywhere in it. The processor can read a range of views only where
    /// something is mapped.
    pub(crate) fn can_be_memory(&self) -> bool {
        self.host.as_ref().is_none_or(|host| host.kind == HostKind::Memory)
    }

    /// The mappings that there may be in this range of views at once.
    pub(crate) fn mappings_max(&self) -> usize {
        self.mappings_max
    }

    /// Sets that, to [`MAPPINGS_MAX`] at most.
    pub(crate) fn with_mappings_max(mut self, count: usize) -> Segment {
        self.mappings_max = count.min(MAPPINGS_MAX);
        self
    }

    /// The pointer to offset 0, where the processor can read the segment.
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

/// Reasons for which a source cannot serve a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source has less memory left than was asked for.
    #[error("the source has no {size_bytes} bytes left")]
    OutOfMemory {
        /// Bytes asked for.
        size_bytes: usize,
    },
    /// The allocators of the process have taken their part of the mappings that the system allows
    /// (`vm.max_map_count` on Linux).
    #[error("no mappings are left for allocators, of {limit_count} that the process may have")]
    MappingLimit {
        /// The limit for all mappings of the process.
        limit_count: usize,
    },
    /// The system locks no more memory for this process: `RLIMIT_MEMLOCK` (`ulimit -l`), or the
    /// memory of its control group.
    #[error(
        "no {size_bytes} more bytes can be locked in memory: RLIMIT_MEMLOCK allows {limit_bytes}"
    )]
    LockLimit {
        /// Bytes asked for.
        size_bytes: usize,
        /// The limit, for all that the process has locked.
        limit_bytes: u64,
    },
    /// The device is lost to this process: work on it failed (an illegal address, a timeout, a
    /// hardware error), and every later call fails too. Less memory would not have helped.
    #[error("the device is lost since {operation} at the latest, with code {code}")]
    DeviceFault {
        /// The call that told of it; the work that failed may be older.
        operation: &'static str,
        /// The driver's code.
        code: i32,
    },
    /// The operating system or the driver refused.
    #[error("{operation} of {size_bytes} bytes failed with code {code}")]
    System {
        /// The call that failed.
        operation: &'static str,
        /// Bytes it was about.
        size_bytes: usize,
        /// The system's own code, 0 where it gives none.
        code: i32,
    },
}
