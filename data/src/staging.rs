//! The ring of staging buffers for batches. The number and size of the buffers are fixed.
//!
//! At any moment a buffer is in the ring, in a job, in a reply or in a batch. Dropping a buffer
//! returns it to the ring, or to the allocator if the ring is gone.

use crate::error::DataError;
use crossbeam_channel::{Receiver, Sender, bounded};
use lowtide_allocator::{
    AllocError, Buffer, CachingAllocator, Category, HostSource, MemorySource, PinnedBuffer,
    PinnedCache, Stream,
};

/// Largest number of buffers. The channel takes memory for every buffer before any buffer is
/// allocated.
const SLOTS_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Ring {
    free: Receiver<Memory>,
    home: Sender<Memory>,
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
    pub(crate) is_page_locked: bool,
}

#[derive(Debug)]
enum Memory {
    Plain(Buffer),
    /// Memory that a device can copy from asynchronously.
    PageLocked(PinnedBuffer),
}

impl Ring {
    /// Allocates `slots` buffers. The ring never allocates another buffer.
    pub(crate) fn new(slots: usize, slot_bytes: usize) -> Result<Self, DataError> {
        if slots > SLOTS_MAX {
            return Err(DataError::InvalidOption { option: "prefetch", value: slots });
        }
        let source = HostSource::with_capacity(ring_bytes(slots, slot_bytes).unwrap_or(usize::MAX));
        // Slots are allocated once and whole, so the source needs no addresses and mappings for
        // views.
        let source = source.without_virtual_memory();
        let memory = CachingAllocator::new(source).map_err(out_of_memory)?;
        let allocate = || Ok(Memory::Plain(memory.allocate_in(Category::Input, slot_bytes)?));
        let buffers = buffers(slots, allocate)?;
        Ok(Self::of(buffers, slot_bytes))
    }

    /// A ring of equal size in page-locked memory, for copies on `stream`.
    pub(crate) fn page_locked(
        &self,
        memory: &PinnedCache,
        stream: Stream,
    ) -> Result<Self, DataError> {
        let allocate = || Ok(Memory::PageLocked(memory.allocate(stream, self.slot_bytes)?));
        let buffers = buffers(self.slots, allocate)?;
        Ok(Self::of(buffers, self.slot_bytes))
    }

    /// Bytes that the buffers take from an allocator.
    pub(crate) fn size_bytes(&self) -> usize {
        ring_bytes(self.slots, self.slot_bytes).expect("the ring was allocated")
    }

    fn of(buffers: Vec<Memory>, slot_bytes: usize) -> Self {
        let slots = buffers.len();
        let is_page_locked = buffers.iter().any(|memory| matches!(memory, Memory::PageLocked(_)));
        let (home, free) = bounded(slots);
        for memory in buffers {
            home.send(memory).expect("the channel holds all slots and its receiver is here");
        }
        Self { free, home, slots, slot_bytes, is_page_locked }
    }

    /// A free buffer, if there is one.
    pub(crate) fn take(&self) -> Option<Staging> {
        let memory = self.free.try_recv().ok()?;
        if let Memory::PageLocked(buffer) = &memory {
            // A copy from the buffer may still be running. If the wait fails, the device has
            // failed, and no step will use the batch.
            let _ = buffer.wait();
        }
        Some(Staging { memory: Some(memory), home: self.home.clone() })
    }
}

fn out_of_memory(source: AllocError) -> DataError {
    DataError::Staging { source }
}

/// Allocates `slots` buffers.
fn buffers(
    slots: usize,
    allocate: impl Fn() -> Result<Memory, AllocError>,
) -> Result<Vec<Memory>, DataError> {
    (0..slots).map(|_| allocate().map_err(out_of_memory)).collect()
}

/// Bytes of `slots` blocks in whole pages. A block is a multiple of 512 bytes.
fn ring_bytes(slots: usize, slot_bytes: usize) -> Option<usize> {
    let page_bytes = HostSource::with_capacity(0).page_bytes();
    let block_bytes = slot_bytes.max(1).checked_next_multiple_of(512)?;
    block_bytes.checked_mul(slots)?.checked_next_multiple_of(page_bytes)
}

/// A buffer of the ring that is in use.
#[derive(Debug)]
pub(crate) struct Staging {
    /// `None` only during drop.
    memory: Option<Memory>,
    home: Sender<Memory>,
}

impl Staging {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.memory.as_ref().expect("not dropped") {
            Memory::Plain(buffer) => buffer.as_slice().expect("host memory can be read"),
            Memory::PageLocked(buffer) => buffer.as_slice(),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.memory.as_mut().expect("not dropped") {
            Memory::Plain(buffer) => buffer.as_mut_slice().expect("host memory can be written"),
            Memory::PageLocked(buffer) => buffer.as_mut_slice(),
        }
    }

    /// The block of [`bytes`](Self::bytes), if it is page-locked.
    pub(crate) fn page_locked(&self) -> Option<&PinnedBuffer> {
        match self.memory.as_ref()? {
            Memory::Plain(_) => None,
            Memory::PageLocked(buffer) => Some(buffer),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            // Sending never blocks: the channel has room for every buffer. Sending fails if the
            // loader is gone; the buffer is then freed here.
            let _ = self.home.send(memory);
        }
    }
}
