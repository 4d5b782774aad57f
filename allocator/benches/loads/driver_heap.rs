//! The baseline: nothing is cached, every request goes to the source.
//!
//! The source is a model of a driver's heap: one lock, free ranges by address, and the first range
//! that fits is taken. It stands for `cudaMalloc` and `cudaFree` without their costly parts: a real
//! call enters the kernel, changes page tables and, to free, waits for the device, which takes
//! microseconds to milliseconds. So a ratio to this baseline says nothing about a real device. It
//! only shows the cost of the bookkeeping without a cache.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::subject::Subject;

/// Granularity of ranges, as in the allocators.
const GRAIN_BYTES: u64 = 512;

#[derive(Clone)]
pub(crate) struct Direct(Arc<Mutex<Heap>>);

struct Heap {
    /// Free ranges, start to length. No two ranges touch.
    free: BTreeMap<u64, u64>,
    /// Taken ranges, start to length.
    taken: BTreeMap<u64, u64>,
}

impl Direct {
    pub(crate) fn new() -> Direct {
        let free = BTreeMap::from([(1 << 40, 1 << 42)]);
        Direct(Arc::new(Mutex::new(Heap { free, taken: BTreeMap::new() })))
    }
}

impl Heap {
    fn allocate(&mut self, size_bytes: u64) -> u64 {
        let size_bytes = size_bytes.max(1).next_multiple_of(GRAIN_BYTES);
        let first = self.free.iter().find(|(_, free_bytes)| **free_bytes >= size_bytes);
        let (&address, &free_bytes) = first.expect("the device is large");
        self.free.remove(&address);
        if free_bytes > size_bytes {
            self.free.insert(address + size_bytes, free_bytes - size_bytes);
        }
        self.taken.insert(address, size_bytes);
        address
    }

    fn free(&mut self, address: u64) {
        let size_bytes = self.taken.remove(&address).expect("the block is live");
        let (mut start, mut end) = (address, address + size_bytes);
        if let Some(after_bytes) = self.free.remove(&end) {
            end += after_bytes;
        }
        if let Some((&before, &before_bytes)) = self.free.range(..start).next_back()
            && before + before_bytes == start
        {
            start = before;
        }
        self.free.insert(start, end - start);
    }
}

impl Subject for Direct {
    type Block = u64;

    fn allocate(&mut self, size_bytes: u64, _stream: u8) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).allocate(size_bytes)
    }

    fn free(&mut self, block: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).free(block);
    }

    fn trim(&mut self) {}

    fn address(block: &u64) -> u64 {
        *block
    }
}
