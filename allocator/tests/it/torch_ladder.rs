//! The rungs of a request, their order, and the point where the request fails.

use lowtide_allocator::torch::{
    AddressRange, BlockState, Freed, SourceCall, TorchError, TorchPolicy, TorchSettings,
};
use lowtide_trace::parse_settings;

use crate::shelf::{MAIN, MIB, PagedShelf, SIDE};

struct World {
    policy: TorchPolicy,
    shelf: PagedShelf,
}

impl World {
    fn new(settings: TorchSettings, capacity_bytes: u64) -> World {
        World { policy: TorchPolicy::new(settings), shelf: PagedShelf::new(capacity_bytes) }
    }

    fn get(&mut self, size_bytes: u64) -> Result<u64, TorchError> {
        let placed = self.policy.allocate(size_bytes, MAIN, &mut self.shelf);
        self.policy.check_invariants();
        placed.map(|address| address.expect("a block"))
    }
}

fn release(address: u64, size_bytes: u64) -> SourceCall {
    SourceCall::Release(AddressRange { address, size_bytes })
}

#[test]
fn ladder_is_climbed_step_by_step() {
    // The rungs: collection of old segments, a new segment, oversize blocks, all streams, the whole
    // cache.
    let text = "max_split_size_mb:30,garbage_collection_threshold:0.13";
    let settings = parse_settings(text).unwrap();
    let settings = TorchSettings { limit_bytes: Some(1000 * MIB), ..settings };
    let mut world = World::new(settings, 200 * MIB);
    let [old, large, small, side] = [20, 40, 10, 50].map(|mib| world.get(mib * MIB).expect("room"));
    let kept = world.get(512).expect("room");
    world.policy.record_use(side, SIDE).unwrap();
    assert_eq!(world.policy.free(side), Ok(Freed::Pending));
    world.policy.free(old).unwrap();
    // Searches make the first block old.
    let mut other = 0;
    for _ in 0..40 {
        let placed = world.policy.allocate(9 * MIB, SIDE, &mut world.shelf).unwrap();
        other = placed.expect("a block");
        world.policy.free(other).unwrap();
    }
    world.policy.free(large).unwrap();
    world.policy.free(small).unwrap();
    world.shelf.take_calls();
    let placed = world.policy.place(190 * MIB, MAIN, &mut world.shelf).unwrap().unwrap();
    let refused = SourceCall::Refuse { size_bytes: 190 * MIB };
    let reserved = AddressRange { address: placed.address, size_bytes: 190 * MIB };
    let expected = [
        release(old, 20 * MIB),
        refused,
        release(large, 40 * MIB),
        SourceCall::Synchronize,
        release(small, 10 * MIB),
        release(side, 50 * MIB),
        release(other, 20 * MIB),
        SourceCall::Reserve(reserved),
    ];
    assert_eq!(placed.source_calls, expected);
    assert_eq!(world.shelf.take_calls(), expected);
    assert_eq!(placed.size_bytes, 190 * MIB);
    assert_eq!(world.policy.counters().retries, 1);
    assert_eq!(world.policy.counters().synchronizations, 1);
    assert_eq!(world.policy.block_bytes(kept), Some(512));
}

#[test]
fn cached_block_costs_no_call() {
    let mut world = World::new(TorchSettings::default(), 100 * MIB);
    let block = world.get(20 * MIB).unwrap();
    world.policy.free(block).unwrap();
    let placed = world.policy.place(20 * MIB, MAIN, &mut world.shelf).unwrap().unwrap();
    assert_eq!((placed.address, placed.source_calls), (block, vec![]));
    assert_eq!(world.policy.place(0, MAIN, &mut world.shelf), Ok(None));
}

#[test]
fn fraction_of_the_device_is_the_limit() {
    // `test_set_per_process_memory_fraction` of PyTorch's `test_cuda.py` (BSD-3).
    let device_bytes = 80 << 30;
    let settings = parse_settings("per_process_memory_fraction:0.5").unwrap();
    let mut world = World::new(settings.for_device(device_bytes), device_bytes);
    let tensor = world.get((device_bytes as f64 * 0.499) as u64).unwrap();
    world.policy.free(tensor).unwrap();
    world.policy.empty_cache(&mut world.shelf);
    world.shelf.take_calls();
    // The driver takes nothing: half of the device is the limit itself, so one more byte is
    // refused.
    let error = world.get(device_bytes / 2 + 1).unwrap_err();
    let TorchError::OutOfMemory { limit_bytes, reserved_bytes, .. } = error else { panic!() };
    assert_eq!((limit_bytes, reserved_bytes), (Some(device_bytes / 2), 0));
    assert_eq!(world.shelf.take_calls(), [SourceCall::Synchronize]);
    assert!(world.get(device_bytes / 2).is_ok());
}

#[test]
fn memory_in_halves_that_are_freed_serves_one_whole() {
    // `test_raises_oom` of PyTorch's `test_cuda.py` (BSD-3), with and without a split limit.
    for (text, is_expandable) in [
        ("", false),
        ("max_split_size_mb:1024", false),
        ("expandable_segments:True", true),
        ("expandable_segments:True,max_split_size_mb:1024", true),
    ] {
        let mut world = World::new(parse_settings(text).unwrap(), 40 << 30);
        assert!(matches!(world.get(1 << 40), Err(TorchError::OutOfMemory { .. })), "{text}");
        assert_eq!(world.policy.counters().failures, 1);
        let halves = [10_u64 << 30, 10 << 30].map(|bytes| world.get(bytes).unwrap());
        assert!(world.get(30 << 30).is_err());
        for half in halves {
            world.policy.free(half).unwrap();
        }
        assert!(world.get(30 << 30).is_ok(), "{text}");
        assert_eq!(world.shelf.segments.is_empty(), is_expandable);
        assert_eq!(world.policy.counters().failures, 2);
    }
}

#[test]
fn recorded_use_keeps_a_block_until_every_stream_has_passed() {
    let mut world = World::new(TorchSettings::default(), 20 * MIB);
    let block = world.get(20 * MIB).unwrap();
    // A stream counts once, and the block's own stream does not count.
    for stream in [MAIN, SIDE, SIDE] {
        world.policy.record_use(block, stream).unwrap();
    }
    assert_eq!(world.policy.free(block), Ok(Freed::Pending));
    let live: Vec<_> = world.policy.live_blocks().collect();
    assert_eq!((live.len(), live[0].stream), (1, MAIN));
    assert_eq!(live[0].layout.state, BlockState::Pending);
    let statistics = world.policy.segments()[0].statistics();
    assert_eq!((statistics.allocated_bytes, statistics.active_bytes), (0, 20 * MIB));
    assert_eq!(world.policy.release_cached(&mut world.shelf), 0);
    let twin = world.policy.clone();
    world.policy.complete_free(block).unwrap();
    assert_eq!(world.policy.live_blocks().count(), 0);
    assert_eq!(world.get(20 * MIB), Ok(block));
    // The clone continues from the state before: the ladder waits, and releases the pending block.
    let mut twin = World { policy: twin, shelf: world.shelf.clone() };
    twin.shelf.take_calls();
    assert!(twin.get(18 * MIB).is_ok());
    let calls = twin.shelf.take_calls();
    assert_eq!(calls[..2], [SourceCall::Refuse { size_bytes: 18 * MIB }, SourceCall::Synchronize]);
}

#[test]
fn synchronized_block_that_fits_is_not_searched_for_again() {
    // pytorch/pytorch#189504: the wait frees a part of a segment, but the request fails all the
    // same.
    let mut world = World::new(TorchSettings::default(), 20 * MIB);
    let [pending, _kept] = [8, 8].map(|mib| world.get(mib * MIB).unwrap());
    world.policy.record_use(pending, SIDE).unwrap();
    world.policy.free(pending).unwrap();
    assert!(world.get(8 * MIB).is_err());
    assert_eq!(world.get(8 * MIB), Ok(pending));
}
