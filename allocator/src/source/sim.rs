//! Simulated memory: addresses without memory, for a device that is not there.
#![allow(unsafe_code, reason = "promises that the processor reads nothing here")]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::source::fence::Fence;
use crate::source::sim_streams::SimStreams;
use crate::source::{
    MAPPINGS_MAX, Mapping, MemorySource, PageRange, Segment, SourceError, VirtualMemory,
};

/// Distance between segments, and their least length: room for any capacity.
const SEGMENT_BYTES: usize = 1 << 44;

/// Largest size of a simulated device, whatever its capacity.
const SEGMENT_BYTES_MAX: usize = 1 << 60;

/// The page size of `HostSource`, so that both place blocks alike by default.
const PAGE_BYTES: usize = 64 << 10;

/// A simulated device with a capacity and a page size. Its buffers have addresses and no memory.
///
/// The source can map pages at a second address, as CUDA devices and the host on Linux can. It has
/// no streams unless [`streams`](Self::streams) adds them.
#[derive(Debug)]
pub struct SimSource {
    capacity_bytes: usize,
    page_bytes: usize,
    outside_bytes: usize,
    mappings_max: usize,
    next_address: AtomicU64,
    streams: Option<SimStreams>,
}

impl SimSource {
    /// A device of `bytes`, with pages of 64 KiB.
    pub fn with_capacity(bytes: usize) -> SimSource {
        SimSource {
            capacity_bytes: bytes,
            page_bytes: PAGE_BYTES,
            outside_bytes: 0,
            mappings_max: MAPPINGS_MAX,
            next_address: AtomicU64::new(SEGMENT_BYTES as u64),
            streams: None,
        }
    }

    /// Sets the page size: a power of two, at least 512.
    #[must_use]
    pub fn page_bytes(mut self, bytes: usize) -> SimSource {
        self.page_bytes = bytes;
        self
    }

    /// Sets the bytes of the device beyond the capacity, for the texts of errors.
    #[must_use]
    pub fn outside_bytes(mut self, bytes: usize) -> SimSource {
        self.outside_bytes = bytes;
        self
    }

    /// Gives the device streams. The same handle checks their order.
    #[must_use]
    pub fn streams(mut self, streams: &SimStreams) -> SimSource {
        self.streams = Some(streams.clone());
        self
    }

    /// Removes the ability to map pages at a second address.
    #[must_use]
    pub fn without_virtual_memory(self) -> SimSource {
        self.mappings_max(0)
    }

    /// Sets the largest number of mappings at second addresses. 0 removes the ability. Default and
    /// maximum are 16,384.
    #[must_use]
    pub fn mappings_max(mut self, count: usize) -> SimSource {
        self.mappings_max = count;
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

    fn outside_bytes(&self) -> usize {
        self.outside_bytes
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        let size_bytes = size_bytes.clamp(SEGMENT_BYTES, SEGMENT_BYTES_MAX);
        let distance = size_bytes.next_multiple_of(SEGMENT_BYTES);
        let address = self.next_address.fetch_add(distance as u64, Ordering::Relaxed);
        Ok(Segment::opaque(address, size_bytes))
    }

    fn release(&self, _segment: &Segment) {}

    fn commit(&self, _segment: &Segment, _pages: &PageRange) -> Result<(), SourceError> {
        Ok(())
    }

    fn decommit(&self, _segment: &Segment, _pages: &PageRange) {}

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        (self.mappings_max > 0).then_some(self)
    }

    fn fence(&self) -> Option<&dyn Fence> {
        self.streams.as_ref().map(|streams| streams as &dyn Fence)
    }
}

// SAFETY: the processor reads no range of this source: all ranges are opaque, and `map` refuses a
// range that the processor could read.
unsafe impl VirtualMemory for SimSource {
    fn reserve_views(&self, _capacity_bytes: usize) -> Result<Segment, SourceError> {
        Ok(self.reserve(SEGMENT_BYTES)?.with_mappings_max(self.mappings_max))
    }

    fn map(&self, _: &Segment, views: &Segment, _: &Mapping) -> Result<(), SourceError> {
        assert!(views.host_pointer().is_none(), "{views:?} is not simulated");
        Ok(())
    }

    fn unmap(&self, _: &Segment, _: &Mapping) {}
}
