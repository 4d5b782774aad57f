//! Subjects that serve a load, and the run of a load.

use std::collections::BTreeMap;

use lowtide_allocator::torch::{SegmentSource, StreamId, TorchPolicy, TorchSettings};
use lowtide_allocator::{
    Arenas, Buffer, CachingAllocator, Category, SimSource, SimStreams, Stream,
};

use crate::load::{Load, Op};

/// An allocator under test.
pub(crate) trait Subject {
    /// The handle of an allocation. The user gives the handle back to free the memory.
    type Block;
    fn allocate(&mut self, size_bytes: u64, stream: u8) -> Self::Block;
    fn free(&mut self, block: Self::Block);
    /// Releases the cache.
    fn trim(&mut self);
    fn address(block: &Self::Block) -> u64;
}

/// Live blocks by number.
pub(crate) type Table<S> = Vec<Option<<S as Subject>::Block>>;

pub(crate) fn table<S: Subject>(load: &Load) -> Table<S> {
    (0..load.block_count).map(|_| None).collect()
}

/// Runs operations in order.
pub(crate) fn run<S: Subject>(subject: &mut S, ops: &[Op], table: &mut Table<S>) {
    for op in ops {
        match *op {
            Op::Allocate { block, stream, size_bytes } => {
                table[block as usize] = Some(subject.allocate(size_bytes, stream));
            }
            Op::Free { block } => {
                if let Some(block) = table[block as usize].take() {
                    subject.free(block);
                }
            }
            Op::Trim => subject.trim(),
        }
    }
}

pub(crate) fn free_all<S: Subject>(subject: &mut S, table: &mut Table<S>) {
    table.iter_mut().filter_map(Option::take).for_each(|block| subject.free(block));
}

/// Runs a load twice, the second time with a warm cache. Returns every address.
///
/// # Panics
/// If two live blocks share a byte.
pub(crate) fn addresses<S: Subject>(subject: &mut S, load: &Load) -> Vec<u64> {
    let mut table = table::<S>(load);
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        for op in load.setup.iter().chain(&load.ops) {
            if let Op::Free { block } = *op {
                let freed = table[block as usize].as_ref().map(S::address);
                live.remove(&freed.expect("a load frees what is live"));
            }
            run(subject, std::slice::from_ref(op), &mut table);
            if let Op::Allocate { block, size_bytes, .. } = *op {
                let address = S::address(table[block as usize].as_ref().expect("it is live"));
                let end = address + size_bytes;
                let before = live.range(..end).next_back();
                assert!(before.is_none_or(|(_, &end)| end <= address), "two blocks at {address}");
                live.insert(address, end);
                addresses.push(address);
            }
        }
        free_all(subject, &mut table);
    }
    addresses
}

/// The allocator of this crate on a simulated device with pages of 2 MiB, history included.
#[derive(Clone)]
pub(crate) struct Pages(CachingAllocator);

impl Pages {
    /// An allocator with `stream_count` streams. Its device orders streams if there are several.
    pub(crate) fn new(stream_count: usize) -> Pages {
        let source = SimSource::with_capacity(1 << 42).page_bytes(2 << 20);
        let source = if stream_count > 1 { source.streams(&SimStreams::new()) } else { source };
        Pages(CachingAllocator::new(source).expect("a simulated device"))
    }

    /// One arena for each of several streams, all within one budget.
    pub(crate) fn arenas(stream_count: usize) -> Vec<Pages> {
        const CAPACITY_BYTES: usize = 1 << 42;
        let source = SimSource::with_capacity(CAPACITY_BYTES).page_bytes(2 << 20);
        let arenas = Arenas::new(source.streams(&SimStreams::new()), CAPACITY_BYTES);
        let streams = (0..stream_count).map(|index| Stream::new(index).expect("few streams"));
        streams.map(|stream| Pages(arenas.on(stream).expect("a simulated device"))).collect()
    }

    pub(crate) fn check(&self) {
        self.0.check_invariants();
    }
}

impl Subject for Pages {
    type Block = Buffer;

    #[inline]
    fn allocate(&mut self, size_bytes: u64, stream: u8) -> Buffer {
        let stream = Stream::new(usize::from(stream)).expect("few streams");
        let size_bytes = size_bytes as usize;
        let block = self.0.allocate_on(stream, Category::Activation, size_bytes);
        block.expect("the device is large")
    }

    #[inline]
    fn free(&mut self, block: Buffer) {
        drop(block);
    }

    fn trim(&mut self) {
        self.0.trim();
    }

    fn address(block: &Buffer) -> u64 {
        block.address()
    }
}

/// PyTorch's placement rules, driven directly: no lock, no handles, no history.
pub(crate) struct Torch {
    policy: TorchPolicy,
    source: Endless,
}

impl Torch {
    pub(crate) fn new() -> Torch {
        Torch { policy: TorchPolicy::new(TorchSettings::default()), source: Endless::new() }
    }

    pub(crate) fn check(&self) {
        self.policy.check_invariants();
    }
}

impl Subject for Torch {
    type Block = u64;

    #[inline]
    fn allocate(&mut self, size_bytes: u64, stream: u8) -> u64 {
        let stream = StreamId(u64::from(stream));
        let address = self.policy.allocate(size_bytes, stream, &mut self.source);
        address.expect("the source is endless").expect("nobody asks for nothing")
    }

    #[inline]
    fn free(&mut self, block: u64) {
        self.policy.free(block).expect("the block is live");
    }

    fn trim(&mut self) {
        self.policy.release_cached(&mut self.source);
    }

    fn address(block: &u64) -> u64 {
        *block
    }
}

/// A source of endless segments: no address is given twice.
pub(crate) struct Endless {
    next_address: u64,
}

impl Endless {
    pub(crate) fn new() -> Endless {
        Endless { next_address: 1 << 40 }
    }
}

impl SegmentSource for Endless {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        let address = self.next_address;
        self.next_address += size_bytes;
        Some(address)
    }

    fn release(&mut self, _address: u64, _size_bytes: u64) {}
}
