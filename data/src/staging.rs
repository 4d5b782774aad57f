//! The fixed ring of staging buffers that batches are built in.
//!
//! A buffer is at any moment in the ring, in a job, in a reply or in a batch. Wherever it is
//! dropped, it goes back to the ring; a ring that is gone itself lets it go to the allocator.

use crate::error::DataError;
use crossbeam_channel::{Receiver, Sender, bounded};
use lowtide_allocator::{
    AllocError, Buffer, CachingAllocator, Category, HostSource, MemorySource, PinnedBuffer,
    PinnedCache, Stream,
};

/// More buffers than any loader needs; each takes a place in a channel before it is allocated.
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
    /// A device copies from it by itself.
    PageLocked(PinnedBuffer),
}

impl Ring {
    /// Allocates all of `slots` buffers now; there will never be another.
    pub(crate) fn new(slots: usize, slot_bytes: usize) -> Result<Self, DataError> {
        if slots > SLOTS_MAX {
            return Err(DataError::InvalidOption { option: "prefetch", value: slots });
        }
        let source = HostSource::with_capacity(ring_bytes(slots, slot_bytes).unwrap_or(usize::MAX));
        // Slots are allocated once. Views would take mappings from the allocators of devices.
        let source = source.without_virtual_memory();
        let memory = CachingAllocator::new(source).map_err(out_of_memory)?;
        let allocate = || Ok(Memory::Plain(memory.allocate_in(Category::Input, slot_bytes)?));
        Self::of(slots, slot_bytes, false, allocate)
    }

    /// A ring as this one in page-locked memory, for copies on `stream`.
    pub(crate) fn page_locked(
        &self,
        memory: &PinnedCache,
        stream: Stream,
    ) -> Result<Self, DataError> {
        let allocate = || Ok(Memory::PageLocked(memory.allocate(stream, self.slot_bytes)?));
        Self::of(self.slots, self.slot_bytes, true, allocate)
    }

    /// Bytes that the buffers take of an allocator.
    pub(crate) fn size_bytes(&self) -> usize {
        ring_bytes(self.slots, self.slot_bytes).expect("they are there")
    }

    fn of(
        slots: usize,
        slot_bytes: usize,
        is_page_locked: bool,
        allocate: impl Fn() -> Result<Memory, AllocError>,
    ) -> Result<Self, DataError> {
        let (home, free) = bounded(slots);
        for _ in 0..slots {
            let memory = allocate().map_err(out_of_memory)?;
            home.send(memory).expect("the channel holds all slots and its receiver is here");
        }
        Ok(Self { free, home, slots, slot_bytes, is_page_locked })
    }

    /// A free buffer, if there is one.
    pub(crate) fn take(&self) -> Option<Staging> {
        let memory = self.free.try_recv().ok()?;
        if let Memory::PageLocked(buffer) = &memory {
            // Its last copy may be under way. A device that cannot be waited for has failed, and
            // no step will take the batch.
            let _ = buffer.wait();
        }
        Some(Staging { memory: Some(memory), home: self.home.clone() })
    }
}

fn out_of_memory(source: AllocError) -> DataError {
    DataError::Staging { source }
}

/// Bytes of `slots` blocks, each of which is a multiple of 512, in whole pages.
fn ring_bytes(slots: usize, slot_bytes: usize) -> Option<usize> {
    let page_bytes = HostSource::with_capacity(0).page_bytes();
    let block_bytes = slot_bytes.max(1).checked_next_multiple_of(512)?;
    block_bytes.checked_mul(slots)?.checked_next_multiple_of(page_bytes)
}

/// One buffer of the ring, in use.
#[derive(Debug)]
pub(crate) struct Staging {
    /// `None` only while it is dropped.
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

    /// The block that [`bytes`](Self::bytes) are, if it is page-locked.
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
            // Never blocks: the channel has room for every buffer there is. An error says that the
            // loader is gone and hands the buffer back to be freed here.
            let _ = self.home.send(memory);
        }
    }
}
