//! Addresses with nothing behind them: the same policy on a device that is not there.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::source::{MemorySource, Segment, SourceError};

/// Segments lie this far apart, and are at least this long: room for any capacity.
const SEGMENT_BYTES: usize = 1 << 44;

/// No simulated device is larger, whatever its capacity says.
const SEGMENT_BYTES_MAX: usize = 1 << 60;

/// The page of `HostSource`, so that both behave alike unless told otherwise.
const PAGE_BYTES: usize = 64 << 10;

/// A simulated device with a capacity and a page size. Its buffers have addresses and no memory.
#[derive(Debug)]
pub struct SimSource {
    capacity_bytes: usize,
    page_bytes: usize,
    next_address: AtomicU64,
}

impl SimSource {
    /// A device of `bytes`, with pages of 64 KiB.
    pub fn with_capacity(bytes: usize) -> SimSource {
        let next_address = AtomicU64::new(SEGMENT_BYTES as u64);
        SimSource { capacity_bytes: bytes, page_bytes: PAGE_BYTES, next_address }
    }

    /// Sets the page size: a power of two, at least 512.
    #[must_use]
    pub fn page_bytes(mut self, bytes: usize) -> SimSource {
        self.page_bytes = bytes;
        self
    }
}

impl MemorySource for SimSource {
    fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        let size_bytes = size_bytes.clamp(SEGMENT_BYTES, SEGMENT_BYTES_MAX);
        let distance = size_bytes.next_multiple_of(SEGMENT_BYTES);
        let address = self.next_address.fetch_add(distance as u64, Ordering::Relaxed);
        Ok(Segment::opaque(address, size_bytes))
    }

    fn release(&self, _segment: &Segment) {}

    fn commit(
        &self,
        _segment: &Segment,
        _offset_bytes: usize,
        _size_bytes: usize,
    ) -> Result<(), SourceError> {
        Ok(())
    }

    fn decommit(&self, _segment: &Segment, _offset_bytes: usize, _size_bytes: usize) {}
}
