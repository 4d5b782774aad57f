//! Expandable segments: each rule, and the cases of PyTorch's test suite about them.

use lowtide_allocator::torch::{
    AddressRange, BlockState, LayoutError, Pool, SourceCall, TorchPolicy, TorchSettings,
};
use lowtide_trace::parse_settings;

use crate::shelf::{self, MAIN, MIB, PagedShelf, SIDE, Shelf};

type World = shelf::World<PagedShelf>;

impl World {
    fn new(settings: &str, capacity_bytes: u64) -> World {
        let policy = TorchPolicy::new(parse_settings(settings).expect("settings"));
        World { policy, shelf: PagedShelf::new(capacity_bytes) }
    }

    fn expandable(capacity_bytes: u64) -> World {
        World::new("expandable_segments:True", capacity_bytes)
    }

    fn set(&mut self, settings: &str) {
        let limit_bytes = self.policy.settings().limit_bytes;
        let settings = parse_settings(settings).expect("settings");
        self.policy.set_settings(TorchSettings { limit_bytes, ..settings });
    }

    /// MiB mapped and unmapped since the last call. Unmapped ones are negative.
    fn maps(&mut self) -> Vec<i64> {
        let mib = |pages: AddressRange| i64::try_from(pages.size_bytes / MIB).unwrap();
        let calls = self.shelf.take_calls();
        let maps = calls.iter().filter_map(|call| match *call {
            SourceCall::Map(pages) => Some(mib(pages)),
            SourceCall::Unmap(pages) => Some(-mib(pages)),
            _ => None,
        });
        maps.collect()
    }
}

#[test]
fn requests_grow_one_range_for_each_stream_and_pool() {
    let mut world = World::expandable(1 << 40);
    let first = world.get(5 * MIB);
    assert_eq!(world.get(5 * MIB), first + 5 * MIB);
    assert_eq!(world.maps(), [20]);
    // 10 MiB are left of the first page.
    assert_eq!(world.get(45 * MIB), first + 10 * MIB);
    assert_eq!(world.maps(), [40]);
    world.get(512);
    assert_eq!(world.maps(), [2]);
    world.try_get(512, SIDE).unwrap();
    let keys: Vec<_> = world.policy.ranges().iter().map(|r| (r.stream, r.pool)).collect();
    assert_eq!(keys, [(MAIN, Pool::Large), (MAIN, Pool::Small), (SIDE, Pool::Small)]);
    assert_eq!(world.policy.segments().len(), 3);
    assert_eq!(world.policy.counters().reserve_calls, 0);
}

#[test]
fn blocks_are_cut_to_measure_in_the_large_pool_too() {
    let mut world = World::expandable(1 << 40);
    let block = world.get(20 * MIB - 512);
    assert_eq!(world.policy.block_bytes(block), Some(20 * MIB - 512));
    let next = world.get(2 * MIB);
    assert_eq!(next, block + 20 * MIB - 512);
}

#[test]
fn page_is_as_long_as_large_segments_are() {
    let mut world = World::new("expandable_segments:True,large_segment_size_mb:64", 1 << 40);
    world.get(2 * MIB);
    world.get(512);
    assert_eq!(world.maps(), [64, 2]);
}

#[test]
fn emptied_cache_keeps_pages_that_are_used_in_part() {
    let mut world = World::expandable(1 << 40);
    let blocks: Vec<u64> = [30, 10, 50].map(|mib| world.get(mib * MIB)).into();
    world.maps();
    world.free(blocks[0]);
    world.free(blocks[2]);
    // The block of 10 MiB covers a part of the second of five pages.
    assert_eq!(world.policy.empty_cache(&mut world.shelf), 80 * MIB);
    world.policy.check_invariants();
    assert_eq!(world.maps(), [-20, -60]);
    let segments = world.policy.segments();
    assert_eq!((segments.len(), segments[0].size_bytes), (1, 20 * MIB));
    let statistics = segments[0].statistics();
    assert_eq!((statistics.active_bytes, statistics.largest_free_bytes), (10 * MIB, 10 * MIB));
    world.free(blocks[1]);
    world.policy.empty_cache(&mut world.shelf);
    assert_eq!(world.maps(), [-20]);
    assert!(world.policy.ranges().is_empty() && world.shelf.ranges.is_empty());
}

#[test]
fn lowest_gap_is_filled_before_the_end_grows() {
    let mut world = World::expandable(1 << 40);
    let [low, _kept, high] = [40, 20, 20].map(|mib| world.get(mib * MIB));
    world.free(low);
    world.policy.empty_cache(&mut world.shelf);
    world.maps();
    // The request is smaller than the hole: a page of the hole is mapped.
    assert_eq!(world.get(15 * MIB), low);
    assert_eq!(world.maps(), [20]);
    // Free memory in front of unmapped pages counts.
    assert_eq!(world.get(22 * MIB), low + 15 * MIB);
    assert_eq!(world.maps(), [20]);
    assert_eq!(world.get(20 * MIB), high + 20 * MIB);
}

#[test]
fn block_that_can_grow_is_as_large_as_it_can_get() {
    let mut world = World::expandable(1 << 40);
    let hole = world.get(30 * MIB);
    world.get(5 * MIB);
    // The 5 MiB left at the end can grow, so the hole fits better.
    world.free(hole);
    assert_eq!(world.get(3 * MIB), hole);
    assert_eq!(world.maps(), [40]);
}

#[test]
fn refusal_leaves_no_page_of_the_request_and_keeps_what_was_mapped_before() {
    let mut world = World::expandable(70 * MIB);
    let kept = world.get(20 * MIB);
    assert!(world.try_get(60 * MIB, MAIN).is_err());
    assert_eq!(world.policy.reserved_bytes(), 20 * MIB);
    assert_eq!(world.get(30 * MIB), kept + 20 * MIB);
    assert_eq!(world.policy.counters().failures, 1);
    assert_eq!(world.policy.counters().retries, 1);
}

#[test]
fn source_without_pages_gives_ordinary_segments() {
    let settings = TorchSettings { expandable_segments: true, ..TorchSettings::default() };
    let (mut policy, mut shelf) = (TorchPolicy::new(settings), Shelf::new(1 << 40));
    policy.allocate(11 * MIB, MAIN, &mut shelf).unwrap();
    assert_eq!(shelf.held.values().copied().collect::<Vec<_>>(), [12 * MIB]);
    // The segments are not cut to the size of the request.
    assert_eq!(policy.live_blocks().next().unwrap().layout.size_bytes, 12 * MIB);
}

#[test]
fn oversize_segments_are_released_past_expandable_ones() {
    // `test_max_split_expandable` of PyTorch's `test_cuda.py` (BSD-3).
    let mut world = World::new("max_split_size_mb:40", 1 << 40);
    let settings = world.policy.settings().clone();
    world.policy.set_settings(TorchSettings { limit_bytes: Some(120 * MIB), ..settings });
    let a = world.get(40 * MIB);
    world.set("expandable_segments:True,max_split_size_mb:40");
    let b = world.get(40 * MIB);
    world.set("expandable_segments:False,max_split_size_mb:40");
    let c = world.get(40 * MIB);
    assert!(world.try_get(40 * MIB, MAIN).is_err());
    for block in [a, b, c] {
        world.free(block);
    }
    // The ladder runs while expandable blocks are free.
    world.get(120 * MIB);
    assert_eq!(world.policy.reserved_bytes(), 120 * MIB);
}

#[test]
fn expandable_block_that_would_do_hides_the_segments_above_it() {
    let mut world = World::new("max_split_size_mb:40", 170 * MIB);
    let segment = world.get(100 * MIB);
    world.set("expandable_segments:True,max_split_size_mb:40");
    let paged = world.get(60 * MIB);
    world.free(segment);
    world.free(paged);
    world.set("expandable_segments:False,max_split_size_mb:40");
    world.shelf.take_calls();
    world.get(45 * MIB);
    // The segment is released with the whole cache, not before it.
    let released = AddressRange { address: segment, size_bytes: 100 * MIB };
    let expected = [
        SourceCall::Refuse { size_bytes: 46 * MIB },
        SourceCall::Synchronize,
        SourceCall::Release(released),
    ];
    assert_eq!(world.shelf.take_calls()[..3], expected);
}

#[test]
fn garbage_collection_spares_expandable_segments() {
    // `test_garbage_collect_expandable` of PyTorch's `test_cuda.py` (BSD-3).
    let mut world = World::new("garbage_collection_threshold:0.5", 1 << 40);
    let settings = world.policy.settings().clone();
    world.policy.set_settings(TorchSettings { limit_bytes: Some(120 * MIB), ..settings });
    let a = world.get(40 * MIB);
    world.set("expandable_segments:True,garbage_collection_threshold:0.5");
    let b = world.get(40 * MIB);
    world.free(a);
    world.free(b);
    world.shelf.take_calls();
    // 80 of 120 MiB are reserved. The segment is released; the pages stay, and pages are added.
    assert_eq!(world.get(80 * MIB), b);
    let released = AddressRange { address: a, size_bytes: 40 * MIB };
    let mapped = AddressRange { address: b + 40 * MIB, size_bytes: 40 * MIB };
    let calls = world.shelf.take_calls();
    assert_eq!(calls, [SourceCall::Release(released), SourceCall::Map(mapped)]);
}

#[test]
fn expandable_blocks_rest_while_the_setting_is_off() {
    let mut world = World::expandable(1 << 40);
    let block = world.get(5 * MIB);
    world.free(block);
    world.set("expandable_segments:False");
    assert_ne!(world.get(5 * MIB), block);
    assert_eq!(world.shelf.segments.len(), 1);
    world.set("expandable_segments:True");
    // The segment's rest of 15 MiB is the best fit for 6 MiB, because the range can grow.
    let segment = *world.shelf.segments.keys().next().unwrap();
    assert_eq!(world.get(6 * MIB), segment + 5 * MIB);
}

#[test]
fn ranges_that_cannot_be_are_not_restored() {
    let mut world = World::expandable(1 << 40);
    world.get(5 * MIB);
    let good = world.policy.ranges().remove(0);
    let address = good.range.address;
    let restore = |layout| {
        let mut policy = TorchPolicy::new(TorchSettings::default());
        policy.restore_range(layout).map(|()| policy.check_invariants())
    };
    assert_eq!(restore(&good), Ok(()));
    let mut bad = vec![good.clone(); 6];
    bad[0].range.size_bytes -= 512;
    bad[1].page_bytes = 0;
    bad[2].mapped[0].pool = Pool::Small;
    bad[3].mapped[0].blocks[1].size_bytes += 512;
    bad[4].range.size_bytes = 0;
    let twice = bad[5].mapped[0].clone();
    bad[5].mapped.push(twice);
    for layout in &bad {
        assert_eq!(restore(layout), Err(LayoutError { address }), "{layout:?}");
    }
    let mut policy = TorchPolicy::new(TorchSettings::default());
    policy.restore_range(&good).unwrap();
    assert_eq!(policy.restore_range(&good), Err(LayoutError { address }));
    assert_eq!(policy.live_blocks().next().unwrap().layout.state, BlockState::Active);
}
