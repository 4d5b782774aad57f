//! The seam to whatever has memory: a device, the operating system, or a simulation.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;

/// Where memory comes from.
///
/// An allocator reserves one segment per arena when it is made, and from then on only commits and
/// decommits whole pages of them. It calls under its own lock: a source must not call back into the
/// allocator that uses it.
pub trait MemorySource: Send + Sync {
    /// Bytes that may be committed at once, over all segments. Asked once.
    fn capacity_bytes(&self) -> usize;

    /// Granularity of commit and decommit: a power of two, at least 512. Asked once.
    fn page_bytes(&self) -> usize;

    /// Reserves address space, with nothing behind it yet. The segment starts at a multiple of 512
    /// and should hold `size_bytes`. More is room for a capacity that is raised later; less, where
    /// there are not so many addresses, is an end that no block goes beyond.
    ///
    /// # Errors
    /// There is no address range of that size. Nothing has changed.
    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError>;

    /// The segment is about to be dropped and none of its memory is in use.
    fn release(&self, segment: &Segment);

    /// Puts memory behind a range of whole pages that starts at the end of what is committed.
    /// What the memory holds is the source's business; it must be readable and writable.
    ///
    /// # Errors
    /// The source has no memory, or failed. Nothing has changed.
    fn commit(
        &self,
        segment: &Segment,
        offset_bytes: usize,
        size_bytes: usize,
    ) -> Result<(), SourceError>;

    /// Takes the memory back from a range of whole pages at the end of what was committed. No
    /// block lies in it: the range is at or beyond [`Segment::committed_bytes`].
    fn decommit(&self, segment: &Segment, offset_bytes: usize, size_bytes: usize);
}

/// A reserved address range, owned by the allocator that asked for it.
pub struct Segment {
    address: u64,
    size_bytes: usize,
    /// Blocks lie below this. It only ever covers pages that the source has committed.
    committed_bytes: AtomicUsize,
    pub(crate) host: Option<HostRange>,
}

/// Memory that the processor can read, and whoever keeps it mapped.
pub(crate) struct HostRange {
    pub(crate) pointer: HostPointer,
    pub(crate) owner: Box<dyn Any + Send + Sync>,
}

/// Start of a host segment; `host.rs` argues why it may cross threads.
#[derive(Clone, Copy)]
pub(crate) struct HostPointer(pub(crate) NonNull<u8>);

impl Segment {
    /// A range that the processor cannot read: a device's memory, or nothing at all.
    pub fn opaque(address: u64, size_bytes: usize) -> Segment {
        Segment { address, size_bytes, committed_bytes: AtomicUsize::new(0), host: None }
    }

    /// The address of offset 0, as the device sees it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length of the range.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The allocator's word on how much it uses, always whole pages from offset 0. A source that
    /// hands out host memory refuses to take pages below this away, whoever asks.
    pub fn committed_bytes(&self) -> usize {
        self.committed_bytes.load(Ordering::Acquire)
    }

    /// The pointer to offset 0, where the processor can read the segment.
    pub fn host_pointer(&self) -> Option<NonNull<u8>> {
        self.host.as_ref().map(|host| host.pointer.0)
    }

    pub(crate) fn set_committed_bytes(&self, bytes: usize) {
        self.committed_bytes.store(bytes, Ordering::Release);
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("address", &format_args!("{:#x}", self.address))
            .field("size_bytes", &self.size_bytes)
            .field("committed_bytes", &self.committed_bytes())
            .field("host", &self.host.is_some())
            .finish()
    }
}

/// Why a source could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source has less memory left than was asked for.
    #[error("the source has no {size_bytes} bytes left")]
    OutOfMemory {
        /// Bytes asked for.
        size_bytes: usize,
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
