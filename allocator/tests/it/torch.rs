//! The published rules of PyTorch's caching allocator, one by one.

use lowtide_allocator::torch::{
    BlockLayout, BlockState, Freed, Pool, SegmentLayout, TorchError, TorchPolicy, TorchSettings,
    round_to_power2_division,
};
use lowtide_trace::parse_settings;

use crate::shelf::{self, MAIN, MIB, SIDE, Shelf};

type World = shelf::World<Shelf>;

impl World {
    fn new(settings: TorchSettings) -> World {
        World::with_capacity(settings, 1 << 50)
    }

    fn with_capacity(settings: TorchSettings, capacity_bytes: u64) -> World {
        World { policy: TorchPolicy::new(settings), shelf: Shelf::new(capacity_bytes) }
    }

    /// Sizes of all blocks in address order. Sizes of free blocks are negative.
    fn blocks(&self) -> Vec<i64> {
        let segments = self.policy.segments();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let signed = |block: &BlockLayout| {
            let size = i64::try_from(block.size_bytes).unwrap();
            if block.state == BlockState::Free { -size } else { size }
        };
        blocks.map(signed).collect()
    }
}

#[test]
fn requests_are_rounded_to_512_bytes() {
    let settings = TorchSettings::default();
    let cases = [(1, 512), (511, 512), (512, 512), (513, 1024), (1200, 1536), (MIB, MIB)];
    for (requested, rounded) in cases {
        assert_eq!(settings.round(requested), rounded);
    }
    assert_eq!(settings.round((1 << 60) - 1), 1 << 60);
}

#[test]
fn powers_of_two_are_divided_into_steps() {
    // The example in PyTorch's documentation of `roundup_power2_divisions`.
    assert_eq!(round_to_power2_division(1200, 4), 1280);
    let cases = [
        (1024, 4, 1024),
        (1025, 4, 1280),
        (1280, 4, 1280),
        (1793, 4, 2048),
        (2047, 1, 2048),
        (3, 8, 4),
        (5 * MIB, 2, 6 * MIB),
        (6 * MIB + 1, 2, 8 * MIB),
    ];
    for (size, divisions, rounded) in cases {
        assert_eq!(round_to_power2_division(size, divisions), rounded, "{size} in {divisions}");
    }
}

#[test]
fn divisions_hold_above_512_bytes_each() {
    let settings = TorchSettings { power2_divisions: [4; 16], ..TorchSettings::default() };
    assert_eq!(settings.round(1200), 1536);
    assert_eq!(settings.round(2048), 2048);
    assert_eq!(settings.round(2049), 2560);
    assert_eq!(settings.round(5 * MIB + 1), 6 * MIB);
    // A value of 1 turns division off, as in PyTorch.
    let settings = TorchSettings { power2_divisions: [1; 16], ..TorchSettings::default() };
    assert_eq!(settings.round(5 * MIB + 1), 5 * MIB + 512);
}

#[test]
fn segments_come_in_published_sizes() {
    let settings = TorchSettings::default();
    let cases = [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (1 << 40, 1 << 40),
    ];
    for (size, segment) in cases {
        assert_eq!(settings.segment_bytes(size), segment, "{size}");
    }
    let settings = TorchSettings { large_segment_bytes: 64 * MIB, ..settings };
    assert_eq!(settings.segment_bytes(2 * MIB), 64 * MIB);
    assert_eq!(settings.segment_bytes(10 * MIB), 10 * MIB);
}

#[test]
fn request_of_nothing_gets_no_block_and_of_an_exabyte_an_error() {
    let mut world = World::new(TorchSettings::default());
    assert_eq!(world.policy.allocate(0, MAIN, &mut world.shelf), Ok(None));
    for requested_bytes in [1 << 60, u64::MAX] {
        let error = world.policy.allocate(requested_bytes, MAIN, &mut world.shelf).unwrap_err();
        assert_eq!(error, TorchError::TooLarge { requested_bytes });
    }
    let error = world.policy.allocate((1 << 60) - 1, MAIN, &mut world.shelf).unwrap_err();
    assert!(matches!(error, TorchError::OutOfMemory { .. }));
    assert_eq!(world.policy.reserved_bytes(), 0);
}

#[test]
fn remainders_are_split_off_if_they_are_worth_it() {
    let mut world = World::new(TorchSettings::default());
    world.get(1000);
    assert_eq!(world.blocks(), [1024, -(2 * MIB as i64 - 1024)]);

    // Exactly 1 MiB is too small to split off in the large pool, and stays with the block.
    let mut world = World::new(TorchSettings::default());
    world.get(11 * MIB);
    assert_eq!(world.blocks(), [12 * MIB as i64]);
    let mut world = World::new(TorchSettings::default());
    world.get(11 * MIB - 512);
    assert_eq!(world.blocks(), [11 * MIB as i64 - 512, -(MIB as i64 + 512)]);
    assert_eq!(world.policy.active_bytes(), 11 * MIB - 512);
}

#[test]
fn freed_block_merges_with_both_neighbours() {
    let mut world = World::new(TorchSettings::default());
    let blocks: Vec<u64> = (0..4).map(|_| world.get(512)).collect();
    world.free(blocks[0]);
    world.free(blocks[2]);
    assert_eq!(world.blocks(), [-512, 512, -512, 512, -(2 * MIB as i64 - 2048)]);
    world.free(blocks[1]);
    assert_eq!(world.blocks(), [-1536, 512, -(2 * MIB as i64 - 2048)]);
    world.free(blocks[3]);
    assert_eq!(world.blocks(), [-(2 * MIB as i64)]);
    assert_eq!(world.policy.active_bytes(), 0);
}

#[test]
fn best_fit_is_the_smallest_and_the_lowest_on_ties() {
    let mut world = World::new(TorchSettings::default());
    let sizes = [4096, 1024, 2048, 1024];
    let holes: Vec<u64> = sizes
        .iter()
        .map(|&size| {
            let hole = world.get(size);
            world.get(512);
            hole
        })
        .collect();
    for &hole in holes.iter().rev() {
        world.free(hole);
    }
    assert_eq!(world.get(1000), holes[1]);
    assert_eq!(world.get(1000), holes[3]);
    assert_eq!(world.get(1000), holes[2]);
    assert_eq!(world.get(1000), holes[2] + 1024);
    assert_eq!(world.get(1000), holes[0]);
}

#[test]
fn streams_and_pools_do_not_mix() {
    let mut world = World::new(TorchSettings::default());
    let main = world.get(5 * MIB);
    world.free(main);
    let side = world.try_get(5 * MIB, SIDE).unwrap();
    assert_eq!(world.shelf.held.len(), 2);
    let small = world.get(512);
    assert_eq!(world.shelf.held.len(), 3);
    assert_eq!(world.get(5 * MIB), main);
    world.policy.free(side).unwrap();
    let segments = world.policy.segments();
    let of = |address: u64| {
        let segment = segments.iter().find(|segment| segment.address == address).unwrap();
        (segment.stream, segment.pool)
    };
    assert_eq!(of(main), (MAIN, Pool::Large));
    assert_eq!(of(side), (SIDE, Pool::Large));
    assert_eq!(of(small), (MAIN, Pool::Small));
}

#[test]
fn block_that_another_stream_used_stays_active_until_it_passed() {
    let mut world = World::new(TorchSettings::default());
    let block = world.get(512);
    world.policy.record_use(block, MAIN).unwrap();
    assert_eq!(world.policy.free(block), Ok(Freed::Completed));

    let block = world.get(512);
    world.policy.record_use(block, SIDE).unwrap();
    assert_eq!(world.policy.free(block), Ok(Freed::Pending));
    world.policy.check_invariants();
    assert_eq!(world.policy.active_bytes(), 512);
    assert_ne!(world.get(512), block);
    assert!(world.policy.free(block).is_err());
    assert!(world.policy.record_use(block, SIDE).is_err());
    world.policy.complete_free(block).unwrap();
    world.policy.check_invariants();
    assert!(world.policy.complete_free(block).is_err());
    assert_eq!(world.get(512), block);
    // The recorded uses belonged to the previous block at this address.
    assert_eq!(world.policy.free(block), Ok(Freed::Completed));
}

#[test]
fn what_is_not_there_cannot_be_freed() {
    let mut world = World::new(TorchSettings::default());
    let block = world.get(512);
    let before = world.policy.segments();
    for address in [0, block + 512, block + 1] {
        assert!(world.policy.free(address).is_err());
        assert!(world.policy.complete_free(address).is_err());
        assert!(world.policy.release_segment(address).is_err());
    }
    assert!(world.policy.complete_free(block).is_err());
    assert!(world.policy.release_segment(block).is_err());
    assert_eq!(world.policy.segments(), before);
}

#[test]
fn oversize_blocks_are_neither_split_nor_given_to_lesser_requests() {
    let settings = parse_settings("max_split_size_mb:30").unwrap();
    let mut world = World::new(settings);
    let large = world.get(50 * MIB);
    assert_eq!(world.blocks(), [50 * MIB as i64]);
    world.free(large);
    // Below the split limit: the request gets a segment of its own.
    let lesser = world.get(29 * MIB);
    assert_eq!(world.policy.reserved_bytes(), 80 * MIB);
    // Oversize, and within the rounding of 20 MiB: the request gets the cached block, unsplit.
    assert_eq!(world.get(30 * MIB + 1), large);
    assert_eq!(world.policy.block_bytes(large), Some(50 * MIB));
    world.free(large);
    // Oversize, and beyond the rounding.
    assert_ne!(world.get(30 * MIB), large);
    assert_eq!(world.policy.block_bytes(lesser), Some(30 * MIB));
}

#[test]
fn cached_segments_are_released_before_a_request_fails() {
    let mut world = World::with_capacity(TorchSettings::default(), 40 * MIB);
    let (a, small) = (world.get(30 * MIB), world.get(512));
    world.free(a);
    // 32 of 40 MiB are reserved, 30 of them cached.
    world.get(34 * MIB);
    assert_eq!(world.shelf.releases, [30 * MIB]);
    assert_eq!(world.policy.counters().retries, 1);
    let error = world.try_get(5 * MIB, MAIN).unwrap_err();
    let expected = TorchError::OutOfMemory {
        requested_bytes: 5 * MIB,
        segment_bytes: 20 * MIB,
        reserved_bytes: 36 * MIB,
        active_bytes: 34 * MIB + 512,
        limit_bytes: None,
    };
    assert_eq!(error, expected);
    world.free(small);
    assert_eq!(world.policy.release_cached(&mut world.shelf), 2 * MIB);
}

#[test]
fn limit_is_refused_before_the_source_is_asked() {
    let settings = TorchSettings { limit_bytes: Some(20 * MIB), ..TorchSettings::default() };
    let mut world = World::new(settings);
    world.get(5 * MIB);
    assert_eq!(world.policy.counters().reserve_calls, 1);
    assert!(world.try_get(512, MAIN).is_err());
    assert_eq!(world.policy.counters().reserve_calls, 1);
    world.get(5 * MIB);
}

#[test]
fn pending_blocks_are_waited_for_before_a_request_fails() {
    let mut world = World::with_capacity(TorchSettings::default(), 20 * MIB);
    let block = world.get(20 * MIB);
    world.policy.record_use(block, SIDE).unwrap();
    assert_eq!(world.policy.free(block), Ok(Freed::Pending));
    world.get(18 * MIB);
    assert_eq!(world.shelf.releases, [20 * MIB]);
}

#[test]
fn oversize_blocks_are_released_before_the_whole_cache() {
    let settings = parse_settings("max_split_size_mb:30").unwrap();
    let mut world = World::with_capacity(settings, 200 * MIB);
    let blocks = [40, 60, 50, 20].map(|mib| world.get(mib * MIB));
    for block in blocks {
        world.free(block);
    }
    // The request is within the rounding of a cached block.
    world.get(34 * MIB);
    assert!(world.shelf.releases.is_empty());
    // There is no block of 100 MiB: the largest blocks are released until their sum is enough.
    world.get(100 * MIB);
    assert_eq!(world.shelf.releases, [60 * MIB, 50 * MIB]);
    assert_eq!(world.policy.counters().retries, 0);
}

#[test]
fn old_segments_are_collected_above_the_threshold() {
    let settings = TorchSettings {
        limit_bytes: Some(100 * MIB),
        garbage_collection_threshold: 0.5,
        ..TorchSettings::default()
    };
    let mut world = World::new(settings);
    let old = world.get(30 * MIB);
    let young = world.get(24 * MIB);
    world.free(old);
    for _ in 0..10 {
        let block = world.try_get(10 * MIB, SIDE).unwrap();
        world.free(block);
    }
    world.try_get(10 * MIB, SIDE).unwrap();
    world.free(young);
    // 64 of 100 MiB are reserved. No cached block holds 36 MiB, so the older block is released.
    world.get(36 * MIB);
    assert_eq!(world.shelf.releases, [30 * MIB]);
    assert_eq!(world.policy.reserved_bytes(), 70 * MIB);
}

#[test]
fn restored_policy_continues_as_the_original() {
    let mut world = World::new(TorchSettings::default());
    let blocks: Vec<u64> = [512, 5 * MIB, 700_000, 11 * MIB].map(|size| world.get(size)).into();
    world.policy.record_use(blocks[1], SIDE).unwrap();
    world.policy.free(blocks[1]).unwrap();
    world.free(blocks[2]);
    let segments = world.policy.segments();
    let restored = TorchPolicy::restore(TorchSettings::default(), &segments).unwrap();
    restored.check_invariants();
    assert_eq!(restored.segments(), segments);
    let mut twin = World { policy: restored, shelf: world.shelf.clone() };
    for policy in [&mut world.policy, &mut twin.policy] {
        policy.complete_free(blocks[1]).unwrap();
    }
    assert_eq!(world.get(6 * MIB), twin.get(6 * MIB));
    assert_eq!(world.policy.segments(), twin.policy.segments());
}

#[test]
fn segments_that_cannot_be_are_not_restored() {
    let block =
        |address, size_bytes, state| BlockLayout { address, size_bytes, requested_bytes: 0, state };
    let segment = |address, size_bytes, blocks| SegmentLayout {
        address,
        size_bytes,
        stream: MAIN,
        pool: Pool::Small,
        blocks,
    };
    let (free, active) = (BlockState::Free, BlockState::Active);
    let good = segment(0, 1024, vec![block(0, 512, active), block(512, 512, free)]);
    let check = |segments: &[&SegmentLayout]| {
        TorchPolicy::restore(TorchSettings::default(), segments.iter().copied()).is_ok()
    };
    assert!(check(&[&good]));
    let bad = [
        segment(512, 512, vec![block(512, 512, active)]),
        segment(4096, 1024, vec![]),
        segment(4096, 1024, vec![block(4096, 512, active)]),
        segment(4096, 1024, vec![block(4096, 512, active), block(5120, 512, active)]),
        segment(4096, 1024, vec![block(4096, 512, free), block(4608, 512, free)]),
        segment(u64::MAX, 1024, vec![block(u64::MAX, 1024, free)]),
    ];
    for segment in &bad {
        assert!(!check(&[&good, segment]), "{segment:?}");
    }
}
