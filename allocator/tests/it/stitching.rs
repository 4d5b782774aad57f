use std::collections::BTreeMap;

use lowtide_allocator::{
    Action, AllocError, Buffer, CachingAllocator, Category, Fault, FaultSource, HostSource, Repeat,
    SimSource, Statistics,
};
use proptest::prelude::*;

use crate::common::{Op, PAGE_BYTES, PLENTY, World, category};

const HOST_PAGE_BYTES: usize = 64 << 10;

/// Allocates live blocks with `count` holes of `hole_bytes` between them. All holes lie below the
/// top.
fn with_holes(memory: &CachingAllocator, hole_bytes: usize, count: usize) -> Vec<Buffer> {
    let row = (0..count).map(|_| {
        let hole = memory.allocate(hole_bytes).unwrap();
        (hole, memory.allocate(512).unwrap())
    });
    let row: Vec<_> = row.collect();
    row.into_iter().map(|(_, wall)| wall).collect()
}

fn paged(page_bytes: usize) -> World {
    World::new(SimSource::with_capacity(PLENTY).page_bytes(page_bytes))
}

/// Sizes around a few pages, 0, and sizes below a block.
fn sizes(page_bytes: usize) -> impl Strategy<Value = usize> {
    let around = (0..5_usize, 0..3_usize)
        .prop_map(move |(n, extra)| (n * page_bytes + extra * 512).saturating_sub(512));
    prop_oneof![Just(0), 1..2000_usize, around, 0..5 * page_bytes]
}

fn program(page_bytes: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (category(), sizes(page_bytes)).prop_map(|(cat, size)| Op::Allocate(cat, size)),
        6 => any::<usize>().prop_map(Op::Free),
        1 => (category(), sizes(page_bytes)).prop_map(|(cat, size)| Op::Charge(cat, size)),
        1 => any::<usize>().prop_map(Op::Discharge),
        1 => Just(Op::Trim),
    ];
    prop::collection::vec(op, 1..120)
}

/// Programs with a page size each, from the smallest possible size on.
fn paged_program() -> impl Strategy<Value = (usize, Vec<Op>)> {
    let page_bytes = prop::sample::select(vec![512, 1024, 64 << 10, 2 << 20]);
    page_bytes.prop_flat_map(|page_bytes| (Just(page_bytes), program(page_bytes)))
}

/// Bytes that depend on the block and the index, so that no other block has the same bytes.
fn pattern(buffer: &Buffer) -> impl Iterator<Item = u8> {
    let seed = buffer.serial().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..buffer.size_bytes() as u64).map(move |at| (seed.wrapping_add(at * 0x1_0001) >> 24) as u8)
}

fn write(buffer: &mut Buffer) {
    let bytes: Vec<u8> = pattern(buffer).collect();
    buffer.as_mut_slice().unwrap().copy_from_slice(&bytes);
}

fn check_contents(buffers: &[Buffer]) {
    for buffer in buffers {
        let same = pattern(buffer).eq(buffer.as_slice().unwrap().iter().copied());
        assert!(same, "{buffer:?} in {:?}", buffer.pieces());
    }
}

fn check_disjoint(buffers: &[Buffer]) {
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    for buffer in buffers {
        let pieces = buffer.pieces();
        let size_bytes: usize = pieces.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(size_bytes, buffer.size_bytes().max(1).next_multiple_of(512));
        for piece in pieces {
            let before = taken.range(..piece.end).next_back();
            assert!(before.is_none_or(|(_, &end)| end <= piece.start), "{piece:?} is taken");
            taken.insert(piece.start, piece.end);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn contents_survive_whatever_is_stitched_beside_them(program in program(HOST_PAGE_BYTES)) {
        let source = HostSource::with_capacity(1 << 30);
        let mut world = World::new(source);
        for op in program {
            let count = world.buffers.len();
            world.step(op).unwrap();
            if let Op::Allocate(..) = op {
                write(&mut world.buffers[count]);
            }
        }
        check_contents(&world.buffers);
        world.memory.trim();
        check_contents(&world.buffers);
        world.memory.check_invariants();
    }
}

proptest! {
    #[test]
    fn live_blocks_share_no_byte((page_bytes, program) in paged_program()) {
        let mut world = paged(page_bytes);
        for op in program {
            world.step(op).unwrap();
            world.memory.check_invariants();
        }
        check_disjoint(&world.buffers);
    }

    #[test]
    fn peak_is_irreducible_with_any_page((page_bytes, program) in paged_program()) {
        let mut ample = paged(page_bytes);
        let offsets = ample.run(&program).unwrap();
        let peak_bytes = ample.memory.statistics().reserved.peak_bytes;
        let with = |bytes| World::new(SimSource::with_capacity(bytes).page_bytes(page_bytes));
        prop_assert_eq!(with(peak_bytes).run(&program).unwrap(), offsets);
        if peak_bytes > 0 {
            let error = with(peak_bytes - 1).run(&program).unwrap_err();
            prop_assert_eq!(error.out_of_memory().unwrap().missing_bytes, 1);
        }
    }

    #[test]
    fn reserved_does_not_rise_while_a_free_page_is_cached(
        (page_bytes, program) in paged_program(),
    ) {
        let mut world = paged(page_bytes);
        for op in program {
            let before = world.memory.statistics();
            world.step(op).unwrap();
            let after = world.memory.statistics();
            if after.reserved.current_bytes > before.reserved.current_bytes {
                // No page is left to release. A charge may have taken a part of a page.
                let spare_bytes = world.memory.trim();
                let waste = after.reserved.current_bytes - before.reserved.current_bytes;
                prop_assert_eq!(spare_bytes, 0, "{:?} grew by {}", op, waste);
            }
        }
    }

    #[test]
    fn capacity_may_fall_and_rise_under_stitched_blocks(
        (page_bytes, program) in paged_program(),
        capacities in prop::collection::vec(0..12_usize, 1..6),
    ) {
        let mut world = paged(page_bytes);
        let turn_len = program.len().div_ceil(capacities.len());
        for (capacity, ops) in capacities.iter().zip(program.chunks(turn_len)) {
            let capacity_bytes = capacity * page_bytes;
            world.memory.set_capacity(capacity_bytes);
            for &op in ops {
                let before = world.memory.statistics();
                let result = world.step(op);
                world.memory.check_invariants();
                let Statistics { reserved, .. } = world.memory.statistics();
                let limit = capacity_bytes.max(before.reserved.current_bytes);
                prop_assert!(reserved.current_bytes <= limit);
                if let Err(error) = result {
                    let ledger = error.out_of_memory().unwrap();
                    world.memory.set_capacity(capacity_bytes + ledger.missing_bytes);
                    prop_assert!(world.step(op).is_ok());
                    world.memory.set_capacity(capacity_bytes);
                    world.memory.check_invariants();
                }
            }
        }
    }
}

#[test]
fn block_that_no_hole_holds_takes_pages_of_several() {
    let memory = CachingAllocator::new(HostSource::with_capacity(1 << 30)).unwrap();
    let mut walls = with_holes(&memory, 2 * HOST_PAGE_BYTES, 3);
    for wall in &mut walls {
        write(wall);
    }
    let before = memory.statistics().reserved.current_bytes;
    let mut block = memory.allocate(3 * HOST_PAGE_BYTES).unwrap();
    assert!(block.is_stitched());
    // Holes of one size are taken from the highest down. Only the lowest hole begins at a page.
    let pieces = [5, 3, 0].map(|page| page * HOST_PAGE_BYTES..(page + 1) * HOST_PAGE_BYTES);
    assert_eq!(block.pieces(), pieces);
    assert_eq!(memory.statistics().reserved.current_bytes, before, "it costs nothing");
    write(&mut block);
    check_contents(&walls);
    check_contents(std::slice::from_ref(&block));
    // Bytes that are written at the second address appear at the first.
    let bytes = block.as_slice().unwrap().to_vec();
    drop(block);
    let holes = [0, 1, 2].map(|_| memory.allocate(2 * HOST_PAGE_BYTES).unwrap());
    assert!(holes[0].offset() == 0 && holes.iter().all(|hole| !hole.is_stitched()));
    let pages = pieces.iter().zip(bytes.chunks_exact(HOST_PAGE_BYTES));
    for ((piece, page), hole) in pages.zip(holes.iter().rev()) {
        let there = &hole.as_slice().unwrap()[piece.start - hole.offset()..][..HOST_PAGE_BYTES];
        assert_eq!(there, page);
    }
    check_contents(&walls);
}

#[test]
fn last_pages_come_from_the_smallest_hole_that_has_enough() {
    let memory = paged(PAGE_BYTES).memory;
    let row = [5, 3, 2, 2, 1].map(|pages| {
        let hole = memory.allocate(pages * PAGE_BYTES).unwrap();
        (hole, memory.allocate(PAGE_BYTES).unwrap())
    });
    // Holes at pages 0..5, 6..9, 10..12, 13..15 and 16..17.
    let _walls = row.map(|(_, wall)| wall);
    let pieces = |page_count: usize| {
        let block = memory.allocate(page_count * PAGE_BYTES).unwrap();
        let pages = |piece: &std::ops::Range<usize>| (piece.start, piece.end);
        let pieces = block.pieces();
        pieces.iter().map(pages).map(|(at, end)| (at / PAGE_BYTES, end / PAGE_BYTES)).collect()
    };
    let rows: [Vec<(usize, usize)>; 5] = [6, 7, 8, 9, 13].map(pieces);
    assert_eq!(rows[0], [(0, 5), (16, 17)]);
    assert_eq!(rows[1], [(0, 5), (10, 12)], "the lower one of two");
    assert_eq!(rows[2], [(0, 5), (6, 9)]);
    assert_eq!(rows[3], [(0, 5), (6, 9), (16, 17)]);
    assert_eq!(rows[4], [(0, 5), (6, 9), (13, 15), (10, 12), (16, 17)]);
}

#[test]
fn block_grows_over_the_top_from_the_next_page_on() {
    let memory = CachingAllocator::new(HostSource::with_capacity(1 << 30)).unwrap();
    let page = HOST_PAGE_BYTES;
    let mut walls = with_holes(&memory, page, 1);
    write(&mut walls[0]);
    let mut block = memory.allocate(3 * page).unwrap();
    // First the hole, then memory beyond the page that the wall has begun.
    assert_eq!(block.pieces(), [0..page, 2 * page..4 * page]);
    assert_eq!(block.address() % page as u64, 0);
    write(&mut block);
    check_contents(&walls);
    check_contents(&[block]);
    let block = memory.allocate(page + 1024).unwrap();
    assert_eq!(block.pieces(), [0..page, 2 * page..2 * page + 1024]);
    memory.check_invariants();
    assert_eq!(memory.allocate(page - 2048).unwrap().offset(), page + 512, "the gap is a hole");
}

#[test]
fn step_that_repeats_calls_the_source_no_more_with_stitched_blocks() {
    let memory = paged(PAGE_BYTES).memory;
    let step = || {
        let walls = with_holes(&memory, PAGE_BYTES, 6);
        let large = memory.allocate(5 * PAGE_BYTES).unwrap();
        assert!(large.is_stitched());
        drop(walls);
        let larger = memory.allocate(9 * PAGE_BYTES + 700).unwrap();
        assert!(larger.is_stitched());
        drop(large);
        let _last = memory.allocate(4 * PAGE_BYTES).unwrap();
    };
    step();
    step();
    let before = memory.statistics();
    for _ in 0..10 {
        step();
    }
    let after = memory.statistics();
    assert_eq!(after.source_calls, before.source_calls);
    assert_eq!(after.stitches, 6 * before.stitches);
    memory.check_invariants();
}

#[test]
fn trim_takes_pages_of_holes_with_their_views_and_later_use_commits_them_again() {
    let memory = CachingAllocator::new(HostSource::with_capacity(1 << 30)).unwrap();
    let page = HOST_PAGE_BYTES;
    let mut walls = with_holes(&memory, page, 4);
    for wall in &mut walls {
        write(wall);
    }
    let mut block = memory.allocate(2 * page).unwrap();
    block.as_mut_slice().unwrap().fill(1);
    drop(block);
    let reserved_bytes = memory.statistics().reserved.current_bytes;
    // A hole of a page between two walls is a whole page only if it is aligned.
    let trimmed_bytes = memory.trim();
    assert!(trimmed_bytes > 0);
    let after = memory.statistics();
    assert_eq!(after.reserved.current_bytes, reserved_bytes - trimmed_bytes);
    let actions: Vec<Action> = memory.history().records().iter().map(|r| r.action).collect();
    let count = |action| actions.iter().filter(|&&own| own == action).count();
    assert_eq!(count(Action::Unmap), count(Action::Map));
    assert!(count(Action::Decommit) > 0);
    let again = memory.allocate(2 * page).unwrap();
    assert!(again.is_stitched());
    assert!(again.as_slice().unwrap().iter().all(|&byte| byte == 0 || byte == 1));
    check_contents(&walls);
    memory.check_invariants();
}

#[test]
fn block_has_at_most_128_pieces() {
    let memory = paged(512).memory;
    let _walls = with_holes(&memory, 512, 300);
    for page_count in 120..140 {
        let block = memory.allocate(page_count * 512).unwrap();
        let piece_count = block.pieces().len();
        assert!(piece_count <= 128, "{piece_count} pieces for {page_count} pages");
        assert!(piece_count >= 120, "{piece_count} pieces although there are holes");
        memory.check_invariants();
    }
}

#[test]
fn idle_views_make_room_when_mappings_run_out() {
    // Each of these blocks takes about 126 mappings: 130 blocks are the limit.
    let memory = paged(512).memory;
    let _walls = with_holes(&memory, 512, 200);
    for size in 100..300 {
        let block = memory.allocate(size * 512).unwrap();
        assert!(block.is_stitched());
    }
    memory.check_invariants();
    let actions = memory.history();
    let unmaps = actions.records().iter().filter(|r| r.action == Action::Unmap).count();
    assert!(unmaps > 0, "the limit was not reached");
    assert_eq!(memory.statistics().ooms, 0);
}

#[test]
fn blocks_in_use_do_not_run_out_of_mappings() {
    let memory = paged(512).memory;
    let _walls = with_holes(&memory, 512, 40_000);
    let blocks: Vec<Buffer> = (0..200).map(|_| memory.allocate(200 * 512).unwrap()).collect();
    assert!(blocks[0].is_stitched());
    assert!(!blocks[199].is_stitched(), "without mappings there is the top");
    memory.check_invariants();
    check_disjoint(&blocks[190..]);
    drop(blocks);
    assert!(memory.allocate(200 * 512).unwrap().is_stitched());
}

#[test]
fn absurd_requests_are_refused_beside_holes() {
    for page_bytes in [512, 64 << 10, 2 << 20] {
        let memory = paged(page_bytes).memory;
        let _walls = with_holes(&memory, 3 * page_bytes, 5);
        for size_bytes in [usize::MAX, usize::MAX - 511, usize::MAX - 4096, usize::MAX / 2 + 1] {
            assert!(memory.allocate(size_bytes).unwrap_err().out_of_memory().is_some());
        }
        memory.check_invariants();
        assert!(memory.allocate(0).unwrap().pieces().len() == 1);
        assert!(memory.allocate(4 * page_bytes).unwrap().is_stitched());
    }
}

#[test]
fn smallest_page_stitches_the_smallest_blocks() {
    let memory = paged(512).memory;
    let _walls = with_holes(&memory, 512, 3);
    assert_eq!(memory.allocate(0).unwrap().offset(), 0);
    let block = memory.allocate(1025).unwrap();
    assert_eq!(block.pieces(), [2048..2560, 1024..1536, 0..512]);
    let next = memory.allocate(513).unwrap();
    assert_eq!(next.offset(), 3072, "no hole is left");
    assert!(block.is_stitched() && !next.is_stitched());
}

#[test]
fn source_without_virtual_memory_stitches_nothing() {
    let source = SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES);
    let memory = CachingAllocator::new(source.without_virtual_memory()).unwrap();
    let _walls = with_holes(&memory, PAGE_BYTES, 3);
    let block = memory.allocate(2 * PAGE_BYTES).unwrap();
    assert_eq!((block.is_stitched(), block.offset()), (false, 3 * (PAGE_BYTES + 512)));
    let twin = memory.simulate();
    assert_eq!(twin.allocator().allocate(2 * PAGE_BYTES).unwrap().pieces().len(), 1);
}

#[test]
fn twin_of_a_stitched_block_has_its_pieces() {
    let memory = CachingAllocator::new(HostSource::with_capacity(1 << 30)).unwrap();
    let _walls = with_holes(&memory, HOST_PAGE_BYTES, 3);
    let block = memory.allocate(3 * HOST_PAGE_BYTES).unwrap();
    let simulation = memory.simulate();
    let twin = simulation.adopt(&block).unwrap();
    assert_eq!((twin.pieces(), twin.is_stitched()), (block.pieces(), true));
    twin.record_use(lowtide_allocator::Stream::new(3).unwrap());
    drop(twin);
    simulation.allocator().check_invariants();
    let again = simulation.allocator().allocate(3 * HOST_PAGE_BYTES).unwrap();
    assert_eq!(again.pieces(), block.pieces(), "and its view");
    let calls = simulation.allocator().statistics().source_calls;
    assert_eq!(calls, memory.statistics().source_calls);
}

/// Runs a step with stitched blocks. Returns the errors.
fn faulty_step(memory: &CachingAllocator) -> Vec<AllocError> {
    let mut errors = Vec::new();
    let mut allocate = |size_bytes: usize| {
        let before = memory.layout_hash();
        let result = memory.allocate_in(Category::Activation, size_bytes);
        memory.check_invariants();
        if result.is_err() {
            assert_eq!(memory.layout_hash(), before);
        }
        result.map_err(|error| errors.push(error)).ok()
    };
    let row: Vec<_> = (0..3).map(|_| (allocate(2 * PAGE_BYTES), allocate(512))).collect();
    let walls: Vec<_> = row.into_iter().map(|(_, wall)| wall).collect();
    let large = allocate(4 * PAGE_BYTES);
    let _larger = allocate(3 * PAGE_BYTES + 700);
    drop(large);
    let _last = allocate(6 * PAGE_BYTES);
    drop(walls);
    errors
}

#[test]
fn source_that_fails_while_it_maps_leaves_all_as_it_was() {
    let source = || FaultSource::new(SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES));
    let clean = source();
    let memory = CachingAllocator::new(clean.clone()).unwrap();
    assert!(faulty_step(&memory).is_empty());
    let maps = memory.history();
    let maps = maps.records().iter().filter(|record| record.action == Action::Map).count();
    assert!(maps > 3);
    for nth in 1..=clean.call_count() - 2 {
        for repeat in [Repeat::Once, Repeat::Forever] {
            let faulty = source();
            let memory = CachingAllocator::new(faulty.clone()).unwrap();
            faulty.inject(Fault { nth, repeat });
            let errors = faulty_step(&memory);
            for error in &errors {
                assert_eq!(error.out_of_memory().unwrap().missing_bytes, 0, "call {nth}");
            }
            assert!(repeat == Repeat::Once || !errors.is_empty(), "call {nth}");
            assert!(repeat == Repeat::Forever || errors.len() <= 1, "call {nth}");
            faulty.clear();
            assert!(faulty_step(&memory).is_empty(), "call {nth}");
            assert_eq!(memory.statistics().allocated.current_bytes, 0);
            memory.trim();
            assert_eq!(memory.statistics().reserved.current_bytes, 0);
        }
    }
}
