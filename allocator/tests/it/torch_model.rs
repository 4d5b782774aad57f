//! Random programs give the same addresses as a naive policy, which searches lists from end to end.

use lowtide_allocator::torch::{
    BlockState, Freed, SegmentSource, StreamId, TorchPolicy, TorchSettings,
};
use lowtide_trace::parse_settings;
use proptest::prelude::*;

use crate::shelf::{MIB, Shelf};

#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate(u64, StreamId),
    Free(usize),
    /// Another stream uses a block.
    Use(usize, StreamId),
    /// The other streams of a pending block are done with it.
    Complete(usize),
    EmptyCache,
}

fn op() -> impl Strategy<Value = Op> {
    let stream = || (0..3_u64).prop_map(StreamId);
    let size = prop_oneof![
        1..5000_u64,
        (1..2048_u64).prop_map(|n| n * 1024),
        (1..45_u64).prop_map(|n| n * MIB),
        (1..45_u64).prop_map(|n| n * MIB + 4096),
        prop::sample::select(vec![MIB, MIB + 1, 10 * MIB, 10 * MIB - 512, 30 * MIB]),
    ];
    prop_oneof![
        10 => (size, stream()).prop_map(|(size, stream)| Op::Allocate(size, stream)),
        8 => any::<usize>().prop_map(Op::Free),
        2 => (any::<usize>(), stream()).prop_map(|(index, stream)| Op::Use(index, stream)),
        1 => any::<usize>().prop_map(Op::Complete),
        1 => Just(Op::EmptyCache),
    ]
}

fn settings() -> impl Strategy<Value = TorchSettings> {
    prop::sample::select(vec![
        "",
        "max_split_size_mb:30",
        "max_split_size_mb:21,max_non_split_rounding_mb:25",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[1:8,4:2,>:16],large_segment_size_mb:32",
        "garbage_collection_threshold:0.6",
        "garbage_collection_threshold:0.3,max_split_size_mb:40",
    ])
    .prop_flat_map(|text| {
        let limit = prop::option::of((40..400_u64).prop_map(|n| n * MIB));
        limit.prop_map(move |limit_bytes| {
            let settings = parse_settings(text).expect("settings");
            TorchSettings { limit_bytes, ..settings }
        })
    })
}

#[derive(Clone, Debug)]
struct Block {
    address: u64,
    size: u64,
    state: BlockState,
    uses: Vec<StreamId>,
    age: u64,
}

#[derive(Clone, Debug)]
struct Segment {
    stream: StreamId,
    is_small: bool,
    blocks: Vec<Block>,
}

impl Segment {
    fn size(&self) -> u64 {
        self.blocks.iter().map(|block| block.size).sum()
    }

    fn is_cached(&self) -> bool {
        self.blocks.len() == 1 && self.blocks[0].state == BlockState::Free
    }

    fn merge(&mut self) {
        let mut index = 1;
        while index < self.blocks.len() {
            let both_free =
                |a: &Block, b: &Block| (a.state, b.state) == (BlockState::Free, BlockState::Free);
            if both_free(&self.blocks[index - 1], &self.blocks[index]) {
                self.blocks[index - 1].size += self.blocks[index].size;
                self.blocks[index - 1].age = 0;
                self.blocks.remove(index);
            } else {
                index += 1;
            }
        }
    }
}

struct Naive {
    settings: TorchSettings,
    shelf: Shelf,
    segments: Vec<Segment>,
}

impl Naive {
    fn reserved(&self) -> u64 {
        self.segments.iter().map(Segment::size).sum()
    }

    fn block(&mut self, address: u64) -> (&mut Segment, usize) {
        for segment in &mut self.segments {
            let index = segment.blocks.iter().position(|block| block.address == address);
            if let Some(index) = index {
                return (segment, index);
            }
        }
        panic!("no block at {address:#x}")
    }

    fn release(&mut self, address: u64) -> u64 {
        let index = self.segments.iter().position(|s| s.blocks[0].address == address).unwrap();
        let segment = self.segments.remove(index);
        self.shelf.release(address, segment.size());
        segment.size()
    }

    fn empty_cache(&mut self) {
        let cached: Vec<u64> =
            self.segments.iter().filter(|s| s.is_cached()).map(|s| s.blocks[0].address).collect();
        for address in cached {
            self.release(address);
        }
    }

    fn best_fit(&mut self, size: u64, stream: StreamId) -> Option<u64> {
        let is_small = size <= MIB;
        let of_pool = |segment: &&mut Segment| segment.is_small == is_small;
        for segment in self.segments.iter_mut().filter(of_pool) {
            segment.blocks.iter_mut().for_each(|block| block.age += 1);
        }
        let fits = self.segments.iter().filter(|s| s.is_small == is_small && s.stream == stream);
        let fits = fits.flat_map(|segment| &segment.blocks);
        let fits = fits.filter(|block| block.state == BlockState::Free && block.size >= size);
        let (best, address) = fits.map(|block| (block.size, block.address)).min()?;
        let max_split = self.settings.max_split_bytes.unwrap_or(u64::MAX);
        let rounding = self.settings.max_non_split_rounding_bytes;
        let is_refused = (size < max_split && best >= max_split)
            || (size >= max_split && best >= size + rounding);
        (!is_refused).then_some(address)
    }

    fn reserve(&mut self, size: u64, stream: StreamId) -> Option<u64> {
        let segment_size = self.settings.segment_bytes(size);
        let limit = self.settings.limit_bytes.unwrap_or(u64::MAX);
        if self.reserved() + segment_size > limit {
            return None;
        }
        let address = self.shelf.reserve(segment_size)?;
        let state = BlockState::Free;
        let block = Block { address, size: segment_size, state, uses: Vec::new(), age: 0 };
        self.segments.push(Segment { stream, is_small: size <= MIB, blocks: vec![block] });
        Some(address)
    }

    fn collect(&mut self) {
        let Some(limit) = self.settings.limit_bytes else { return };
        let threshold = (self.settings.garbage_collection_threshold * limit as f64) as u64;
        if self.settings.garbage_collection_threshold == 0.0 || self.reserved() <= threshold {
            return;
        }
        let target = self.reserved() - threshold;
        let mut reclaimed = 0;
        loop {
            let cached = self.segments.iter().filter(|s| !s.is_small && s.is_cached());
            let ages: Vec<(u64, u64)> =
                cached.map(|s| (s.blocks[0].age, s.blocks[0].address)).collect();
            if reclaimed >= target || ages.is_empty() {
                return;
            }
            let mean = ages.iter().map(|(age, _)| age).sum::<u64>() as f64 / ages.len() as f64;
            for (age, address) in ages {
                if age as f64 >= mean {
                    reclaimed += self.release(address);
                }
            }
        }
    }

    fn release_oversize(&mut self, size: u64, stream: StreamId) -> bool {
        let Some(max_split) = self.settings.max_split_bytes else { return false };
        let target = size.max(max_split);
        let is_small = size <= MIB;
        let whole = self.segments.iter().filter(|s| {
            s.is_cached() && s.is_small == is_small && s.stream == stream && s.size() >= max_split
        });
        let mut whole: Vec<(u64, u64)> = whole.map(|s| (s.size(), s.blocks[0].address)).collect();
        whole.sort_unstable();
        if let Some(&(_, address)) = whole.iter().find(|(size, _)| *size >= target) {
            self.release(address);
            return true;
        }
        let mut released = 0;
        for (_, address) in whole.into_iter().rev() {
            if released < target {
                released += self.release(address);
            }
        }
        released >= target
    }

    fn grow(&mut self, size: u64, stream: StreamId) -> Option<u64> {
        self.collect();
        if let Some(address) = self.reserve(size, stream) {
            return Some(address);
        }
        if self.release_oversize(size, stream)
            && let Some(address) = self.reserve(size, stream)
        {
            return Some(address);
        }
        for segment in &mut self.segments {
            for block in &mut segment.blocks {
                if block.state == BlockState::Pending {
                    (block.state, block.age) = (BlockState::Free, 0);
                }
            }
            segment.merge();
        }
        self.empty_cache();
        self.reserve(size, stream)
    }

    fn allocate(&mut self, requested: u64, stream: StreamId) -> Option<u64> {
        let size = self.settings.round(requested);
        let address = match self.best_fit(size, stream) {
            Some(address) => address,
            None => self.grow(size, stream)?,
        };
        let max_split = self.settings.max_split_bytes.unwrap_or(u64::MAX);
        let (segment, index) = self.block(address);
        let rest = segment.blocks[index].size - size;
        if if segment.is_small { rest >= 512 } else { size < max_split && rest > MIB } {
            let mut remainder = segment.blocks[index].clone();
            (remainder.address, remainder.size, remainder.age) = (address + size, rest, 0);
            segment.blocks.insert(index + 1, remainder);
            segment.blocks[index].size = size;
        }
        segment.blocks[index].state = BlockState::Active;
        Some(address)
    }

    /// Frees a block. Returns true if the block is pending.
    fn free(&mut self, address: u64) -> bool {
        let (segment, index) = self.block(address);
        let block = &mut segment.blocks[index];
        let is_pending = !block.uses.is_empty();
        block.uses.clear();
        block.state = if is_pending { BlockState::Pending } else { BlockState::Free };
        block.age = 0;
        segment.merge();
        is_pending
    }

    fn complete(&mut self, address: u64) {
        let (segment, index) = self.block(address);
        (segment.blocks[index].state, segment.blocks[index].age) = (BlockState::Free, 0);
        segment.merge();
    }

    fn add_use(&mut self, address: u64, stream: StreamId) {
        let (segment, index) = self.block(address);
        if stream != segment.stream {
            segment.blocks[index].uses.push(stream);
        }
    }

    /// (address, size, state) of every block.
    fn layout(&self) -> Vec<(u64, u64, BlockState)> {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        let mut layout: Vec<_> =
            blocks.map(|block| (block.address, block.size, block.state)).collect();
        layout.sort_unstable_by_key(|&(address, ..)| address);
        layout
    }
}

fn layout(policy: &TorchPolicy) -> Vec<(u64, u64, BlockState)> {
    let segments = policy.segments();
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    blocks.map(|block| (block.address, block.size_bytes, block.state)).collect()
}

proptest! {
    #[test]
    fn policy_agrees_with_the_naive_one(
        program in prop::collection::vec(op(), 1..150),
        settings in settings(),
        capacity_mib in 30..500_u64,
    ) {
        let mut shelf = Shelf::new(capacity_mib * MIB);
        let mut naive =
            Naive { settings: settings.clone(), shelf: shelf.clone(), segments: Vec::new() };
        let mut policy = TorchPolicy::new(settings);
        let mut live = Vec::new();
        for op in program {
            match op {
                Op::Allocate(size, stream) => {
                    let placed = policy.allocate(size, stream, &mut shelf);
                    let expected = naive.allocate(size, stream);
                    prop_assert_eq!(placed.ok().flatten(), expected, "{:?}", op);
                    live.extend(expected);
                }
                Op::Free(index) if !live.is_empty() => {
                    let address = live.swap_remove(index % live.len());
                    let freed = policy.free(address).expect("a live block");
                    prop_assert_eq!(freed == Freed::Pending, naive.free(address));
                }
                Op::Use(index, stream) if !live.is_empty() => {
                    let address = live[index % live.len()];
                    policy.record_use(address, stream).expect("a live block");
                    naive.add_use(address, stream);
                }
                Op::Complete(index) => {
                    let pending = naive.layout();
                    let pending: Vec<_> =
                        pending.iter().filter(|block| block.2 == BlockState::Pending).collect();
                    if !pending.is_empty() {
                        let address = pending[index % pending.len()].0;
                        policy.complete_free(address).expect("a pending block");
                        naive.complete(address);
                    }
                }
                Op::EmptyCache => {
                    policy.release_cached(&mut shelf);
                    naive.empty_cache();
                }
                Op::Free(_) | Op::Use(..) => {}
            }
            policy.check_invariants();
            prop_assert_eq!(layout(&policy), naive.layout(), "after {:?}", op);
            prop_assert_eq!(&shelf.held, &naive.shelf.held);
        }
        for address in live {
            policy.free(address).expect("a live block");
        }
        policy.complete_all_frees();
        policy.release_cached(&mut shelf);
        prop_assert_eq!((policy.reserved_bytes(), policy.active_bytes()), (0, 0));
        prop_assert!(shelf.held.is_empty());
    }
}
