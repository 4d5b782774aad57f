//! The fixed ring of staging buffers that batches are built in.
//!
//! A buffer is at any moment in the ring, in a job, in a reply or in a batch. Wherever it is
//! dropped, it goes back to the ring; a ring that is gone itself lets it go to the allocator.

use crate::error::DataError;
use crossbeam_channel::{Receiver, Sender, bounded};
use lowtide_allocator::{AllocError, Buffer, CachingAllocator, Category, HostSource, MemorySource};

/// More buffers than any loader needs; each takes a place in a channel before it is allocated.
const SLOTS_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Ring {
    free: Receiver<Buffer>,
    home: Sender<Buffer>,
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
}

impl Ring {
    /// Allocates all of `slots` buffers now; there will never be another.
    pub(crate) fn new(slots: usize, slot_bytes: usize) -> Result<Self, DataError> {
        if slots > SLOTS_MAX {
            return Err(DataError::InvalidOption { option: "prefetch", value: slots });
        }
        let staging = |source: AllocError| DataError::Staging { source };
        let page_bytes = HostSource::with_capacity(0).page_bytes();
        // A slot is a multiple of 512 bytes, as every block is.
        let slot_bytes_max = slot_bytes.max(1).checked_next_multiple_of(512);
        let ring_bytes = slot_bytes_max.and_then(|bytes| bytes.checked_mul(slots));
        let ring_bytes = ring_bytes.and_then(|bytes| bytes.checked_next_multiple_of(page_bytes));
        let source = HostSource::with_capacity(ring_bytes.unwrap_or(usize::MAX));
        // Slots are allocated once. Views would take mappings from the allocators of devices.
        let source = source.without_virtual_memory();
        let memory = CachingAllocator::new(source).map_err(staging)?;
        let (home, free) = bounded(slots);
        for _ in 0..slots {
            let buffer = memory.allocate_in(Category::Input, slot_bytes).map_err(staging)?;
            home.send(buffer).expect("the channel holds all slots and its receiver is here");
        }
        Ok(Self { free, home, slots, slot_bytes })
    }

    /// A free buffer, if there is one.
    pub(crate) fn take(&self) -> Option<Staging> {
        let buffer = self.free.try_recv().ok()?;
        Some(Staging { buffer: Some(buffer), home: self.home.clone() })
    }
}

/// One buffer of the ring, in use.
#[derive(Debug)]
pub(crate) struct Staging {
    /// `None` only while it is dropped.
    buffer: Option<Buffer>,
    home: Sender<Buffer>,
}

impl Staging {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().and_then(Buffer::as_slice).expect("host memory can be read")
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().and_then(Buffer::as_mut_slice).expect("host memory can be written")
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // Never blocks: the channel has room for every buffer there is. An error says that the
            // loader is gone and hands the buffer back to be freed here.
            let _ = self.home.send(buffer);
        }
    }
}
