use std::collections::{BTreeMap, BTreeSet};

use lowtide_allocator::Category;
use lowtide_allocator::{HostSource, SimSource};
use proptest::prelude::*;

use crate::common::{Op, PAGE_BYTES, PLENTY, World, category, op, program, size_bytes};

/// A slow and plain copy of the policy: sorted lists and scans.
#[derive(Default)]
struct Naive {
    /// Live blocks by the offset of their first piece: offset and size of each piece.
    blocks: BTreeMap<usize, Vec<(usize, usize)>>,
    /// Numbers of committed pages.
    committed: BTreeSet<usize>,
    charged_bytes: usize,
    capacity_bytes: usize,
    peak_bytes: usize,
}

fn touched_by(&(offset, size): &(usize, usize)) -> std::ops::Range<usize> {
    offset / PAGE_BYTES..pages(offset + size) / PAGE_BYTES
}

fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

impl Naive {
    fn pieces(&self) -> Vec<(usize, usize)> {
        let mut pieces: Vec<_> = self.blocks.values().flatten().copied().collect();
        pieces.sort_unstable();
        pieces
    }

    fn top(&self) -> usize {
        self.pieces().last().map_or(0, |&(offset, size)| offset + size)
    }

    fn holes(&self) -> Vec<(usize, usize)> {
        let mut holes = Vec::new();
        let mut end = 0;
        for (offset, size) in self.pieces() {
            if offset > end {
                holes.push((end, offset - end));
            }
            end = offset + size;
        }
        holes
    }

    fn reserved_bytes(&self) -> usize {
        self.committed.len() * PAGE_BYTES + self.charged_bytes
    }

    fn touched(&self) -> BTreeSet<usize> {
        self.pieces().iter().flat_map(touched_by).collect()
    }

    fn trim(&mut self) {
        self.committed = self.touched();
    }

    /// Gives free pages back for a growth, the highest first, but no pages that are about to be
    /// used.
    fn pay(&mut self, growth_bytes: usize, wanted: &BTreeSet<usize>) {
        let touched = self.touched();
        let is_free = |page: &&usize| !touched.contains(*page) && !wanted.contains(*page);
        let count = growth_bytes.div_ceil(PAGE_BYTES);
        let gone: Vec<usize> =
            self.committed.iter().rev().filter(is_free).take(count).copied().collect();
        for page in gone {
            self.committed.remove(&page);
        }
    }

    fn place(&self, size_bytes: usize) -> Vec<(usize, usize)> {
        let holes = self.holes();
        let fits = holes.iter().filter(|&&(_, bytes)| bytes >= size_bytes);
        if let Some(&(offset, _)) = fits.min_by_key(|&&(offset, bytes)| (bytes, offset)) {
            return vec![(offset, size_bytes)];
        }
        self.stitch(size_bytes, holes).unwrap_or_else(|| vec![(self.top(), size_bytes)])
    }

    /// Takes all whole pages of the largest holes while these are too few, then pages of the
    /// smallest remaining hole that has enough.
    fn stitch(&self, size_bytes: usize, holes: Vec<(usize, usize)>) -> Option<Vec<(usize, usize)>> {
        let run = |&(offset, bytes): &(usize, usize)| {
            let (start, end) = (pages(offset), (offset + bytes) / PAGE_BYTES * PAGE_BYTES);
            (start, end.saturating_sub(start))
        };
        let mut left: Vec<_> = holes.into_iter().filter(|hole| run(hole).1 > 0).collect();
        if size_bytes < PAGE_BYTES || left.is_empty() {
            return None;
        }
        left.sort_by_key(|&(offset, bytes)| std::cmp::Reverse((bytes, offset)));
        let (mut missing, mut pieces) = (size_bytes, Vec::new());
        while missing > 0 && !left.is_empty() {
            let has_enough = |index: &usize| run(&left[*index]).1 >= missing;
            let rest = (0..left.len()).filter(has_enough).min_by_key(|&index| {
                let (offset, bytes) = left[index];
                (bytes, offset)
            });
            let index = if has_enough(&0) { rest.unwrap() } else { 0 };
            let (start, bytes) = run(&left.remove(index));
            pieces.push((start, bytes.min(missing)));
            missing -= bytes.min(missing);
        }
        if missing > 0 {
            pieces.push((pages(self.top()), missing));
        }
        Some(pieces)
    }

    fn allocate(&mut self, requested_bytes: usize) -> Option<usize> {
        let pieces = self.place(requested_bytes.max(1).div_ceil(512) * 512);
        let wanted: BTreeSet<usize> = pieces.iter().flat_map(touched_by).collect();
        let touched_count = self.touched().union(&wanted).count();
        let is_short = touched_count * PAGE_BYTES + self.charged_bytes > self.capacity_bytes;
        if is_short && !wanted.is_subset(&self.committed) {
            self.trim();
            return None;
        }
        let missing_count = wanted.difference(&self.committed).count();
        self.pay(missing_count * PAGE_BYTES, &wanted);
        self.committed.extend(&wanted);
        let offset = pieces[0].0;
        self.blocks.insert(offset, pieces);
        self.peak_bytes = self.peak_bytes.max(self.reserved_bytes());
        Some(offset)
    }

    fn free(&mut self, offset: usize) {
        self.blocks.remove(&offset);
        self.settle();
    }

    fn charge(&mut self, growth_bytes: usize) -> bool {
        if growth_bytes > 0 {
            let touched_bytes = self.touched().len() * PAGE_BYTES;
            if touched_bytes + self.charged_bytes + growth_bytes > self.capacity_bytes {
                self.trim();
                return false;
            }
            self.pay(growth_bytes, &BTreeSet::new());
        }
        self.charged_bytes += growth_bytes;
        self.peak_bytes = self.peak_bytes.max(self.reserved_bytes());
        true
    }

    fn settle(&mut self) {
        if self.reserved_bytes() > self.capacity_bytes {
            self.trim();
        }
    }

    /// Predicts a step that `world` has not run yet: true if the step succeeds, and the offset.
    fn step(&mut self, op: Op, world: &World) -> (bool, Option<usize>) {
        let passes = match op {
            Op::Allocate(_, size_bytes) => {
                let offset = self.allocate(size_bytes);
                return (offset.is_some(), offset);
            }
            Op::Free(index) => {
                if !world.buffers.is_empty() {
                    let buffer = &world.buffers[index % world.buffers.len()];
                    self.free(buffer.offset());
                }
                true
            }
            Op::Charge(_, size_bytes) => self.charge(size_bytes),
            Op::Raise(index, size_bytes) => {
                world.charges.is_empty() || {
                    let charge = &world.charges[index % world.charges.len()];
                    self.charge(size_bytes.saturating_sub(charge.size_bytes()))
                }
            }
            Op::Discharge(index) => {
                if !world.charges.is_empty() {
                    let charge = &world.charges[index % world.charges.len()];
                    self.charged_bytes -= charge.size_bytes();
                    self.settle();
                }
                true
            }
            Op::Trim => {
                self.trim();
                true
            }
            Op::SetCapacity(bytes) => {
                self.capacity_bytes = bytes;
                self.settle();
                true
            }
        };
        (passes, None)
    }
}

fn with_capacities() -> impl Strategy<Value = Vec<Op>> {
    let capacity = (0..60_usize).prop_map(|n| Op::SetCapacity(n * 5_000));
    prop::collection::vec(prop_oneof![9 => op(), 1 => capacity], 1..150)
}

proptest! {
    #[test]
    fn allocator_agrees_with_the_naive_one(program in with_capacities()) {
        let mut world = World::sim(150_000);
        let mut naive = Naive { capacity_bytes: 150_000, ..Naive::default() };
        for op in program {
            let (passes, offset) = naive.step(op, &world);
            let result = world.step(op);
            world.memory.check_invariants();
            prop_assert_eq!(result.is_ok(), passes, "{:?}: {:?}", op, result);
            prop_assert_eq!(result.unwrap_or(None), offset);
            let reserved = world.memory.statistics().reserved;
            prop_assert_eq!(reserved.current_bytes, naive.reserved_bytes());
            prop_assert_eq!(reserved.peak_bytes, naive.peak_bytes);
        }
    }

    #[test]
    fn what_is_cached_has_no_say_in_placement(program in program()) {
        let kept = World::sim(PLENTY).run(&program).unwrap();
        let mut trimmed = World::sim(PLENTY);
        let mut offsets = Vec::new();
        for &op in &program {
            offsets.extend(trimmed.step(op).unwrap());
            trimmed.memory.trim();
        }
        prop_assert_eq!(kept, offsets);
    }

    #[test]
    fn host_and_simulation_give_the_same_offsets(program in program()) {
        let mut host = World::new(HostSource::with_capacity(1 << 30));
        let mut sim = World::new(SimSource::with_capacity(1 << 30));
        prop_assert_eq!(host.run(&program).unwrap(), sim.run(&program).unwrap());
        prop_assert_eq!(host.memory.statistics(), sim.memory.statistics());
        prop_assert_eq!(host.memory.layout_hash(), sim.memory.layout_hash());
    }

    #[test]
    fn frees_in_any_order_then_a_trim_leave_nothing(
        sizes in prop::collection::vec((category(), size_bytes()), 1..60),
        picks in prop::collection::vec(any::<usize>(), 60),
    ) {
        let mut world = World::sim(PLENTY);
        for (category, size_bytes) in sizes {
            world.step(Op::Allocate(category, size_bytes)).unwrap();
        }
        for pick in picks {
            world.step(Op::Free(pick)).unwrap();
            world.memory.check_invariants();
        }
        let reserved_bytes = world.memory.statistics().reserved.current_bytes;
        prop_assert_eq!(world.memory.trim(), reserved_bytes);
        prop_assert_eq!(world.memory.statistics().reserved.current_bytes, 0);
        prop_assert_eq!(world.memory.trim(), 0);
    }

    #[test]
    fn layout_hash_returns_when_the_blocks_do(before in program(), between in program()) {
        let mut world = World::sim(PLENTY);
        world.run(&before).unwrap();
        let hash = world.memory.layout_hash();
        let mut guest = World::of(world.memory.clone());
        guest.run(&between).unwrap();
        let has_guests = !guest.buffers.is_empty();
        prop_assert_eq!(world.memory.layout_hash() != hash, has_guests);
        drop(guest);
        prop_assert_eq!(world.memory.layout_hash(), hash);
    }
}

/// A world with a hole of each of `sizes` between blocks of 512 bytes, from offset 0 on.
fn with_holes(sizes: &[usize]) -> World {
    let mut world = World::sim(PLENTY);
    for &size_bytes in sizes {
        world.step(Op::Allocate(Category::Other, size_bytes)).unwrap();
        world.step(Op::Allocate(Category::Other, 512)).unwrap();
    }
    let mut index = 0;
    world.buffers.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    world.memory.check_invariants();
    world
}

#[test]
fn smallest_hole_that_fits_wins_and_the_lowest_on_ties() {
    let mut world = with_holes(&[4096, 1024, 2048, 1024]);
    assert_eq!(world.step(Op::Allocate(Category::Other, 1000)).unwrap(), Some(4096 + 512));
    let next = 4096 + 512 + 1024 + 512 + 2048 + 512;
    assert_eq!(world.step(Op::Allocate(Category::Other, 1000)).unwrap(), Some(next));
}

#[test]
fn top_is_the_last_resort() {
    let mut world = with_holes(&[1024]);
    assert_eq!(world.step(Op::Allocate(Category::Other, 1025)).unwrap(), Some(1536));
    assert_eq!(world.step(Op::Allocate(Category::Other, 512)).unwrap(), Some(0));
    assert_eq!(world.step(Op::Allocate(Category::Other, 512)).unwrap(), Some(512));
}

#[test]
fn request_of_nothing_is_a_block() {
    let mut world = World::sim(PLENTY);
    assert_eq!(world.step(Op::Allocate(Category::Other, 0)).unwrap(), Some(0));
    assert_eq!(world.step(Op::Allocate(Category::Other, 0)).unwrap(), Some(512));
    let statistics = world.memory.statistics();
    assert_eq!(statistics.requested.current_bytes, 0);
    assert_eq!(statistics.allocated.current_bytes, 1024);
    assert_eq!(world.buffers[0].size_bytes(), 0);
}

#[test]
fn layout_hash_is_the_one_of_every_other_run_and_machine() {
    let mut world = World::sim(PLENTY);
    // The offset basis of FNV-1a: the hash of nothing.
    assert_eq!(world.memory.layout_hash(), 0xcbf2_9ce4_8422_2325);
    world.step(Op::Allocate(Category::Parameter, 1000)).unwrap();
    world.step(Op::Charge(Category::Workspace, 1000)).unwrap();
    // Category 0, offset 0, size 1024, little endian.
    let mut bytes = [0_u8; 17];
    bytes[10] = 4;
    let expected = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
    });
    assert_eq!(world.memory.layout_hash(), expected);
}

#[test]
fn layout_hash_sees_the_category() {
    let memory = World::sim(PLENTY).memory;
    let one = memory.allocate_in(Category::Gradient, 512).unwrap();
    let hash = memory.layout_hash();
    drop(one);
    let _other = memory.allocate_in(Category::Activation, 512).unwrap();
    assert_ne!(memory.layout_hash(), hash);
}
