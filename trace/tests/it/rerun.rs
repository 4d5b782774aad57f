use lowtide_allocator::torch::{SegmentSource, StreamId, TorchPolicy, TorchSettings};
use lowtide_allocator::{CachingAllocator, Category, Policy, SimSource};
use lowtide_trace::{EventKind, Recording, RerunFailure, RerunOptions};
use proptest::prelude::*;

use crate::common::{Op, PAGE_BYTES, PLENTY, World, program};
use crate::expandable_naive::Naive;
use crate::shelf::PagedShelf;

/// Adds up the live bytes of a recording, and checks that it does not contradict itself.
fn recount(recording: &Recording) -> (u64, u64) {
    let mut live: std::collections::BTreeMap<u64, u64> =
        recording.start.iter().map(|block| (block.id, block.size_bytes)).collect();
    let mut charged: u64 = recording.start_charges.iter().map(|&(_, bytes)| bytes).sum();
    let mut reserved = recording.start_reserved_bytes;
    for event in &recording.events {
        match event.kind {
            EventKind::Allocate { id } => assert_eq!(live.insert(id, event.size_bytes), None),
            EventKind::Free { id } => assert_eq!(live.remove(&id), Some(event.size_bytes)),
            EventKind::Reserve => reserved += event.size_bytes,
            EventKind::Release => reserved -= event.size_bytes,
            EventKind::Charge => {
                charged += event.size_bytes;
                reserved += event.size_bytes;
            }
            EventKind::Discharge => {
                charged -= event.size_bytes;
                reserved -= event.size_bytes;
            }
            _ => {}
        }
    }
    (live.values().sum::<u64>() + charged, reserved)
}

proptest! {
    #[test]
    fn recording_of_a_run_adds_up_and_runs_the_same_again(
        program in program(),
        cut in 0..60_usize,
    ) {
        let mut world = World::sim(PLENTY);
        let (before, after) = program.split_at(cut.min(program.len()));
        world.run(before).unwrap();
        world.run(after).unwrap();
        let recording = Recording::of(&world.memory.capture());
        let statistics = world.memory.statistics();
        let live = statistics.allocated.current_bytes + statistics.charged.current_bytes;
        let (live_bytes, reserved_bytes) = recount(&recording);
        prop_assert_eq!(live_bytes, live as u64);
        prop_assert_eq!(reserved_bytes, statistics.reserved.current_bytes as u64);
        let end = recording.end.iter().flat_map(|range| &range.blocks);
        let end: u64 = end.map(|block| block.size_bytes).sum();
        recording.check().unwrap();
        prop_assert_eq!(end, statistics.allocated.current_bytes as u64);

        let report = recording.rerun(&RerunOptions::default()).unwrap();
        prop_assert_eq!(report.addresses_equal, report.addresses_total);
        prop_assert!(report.final_blocks_equal);
        prop_assert_eq!(report.addresses_total, statistics.allocations);
        prop_assert_eq!(report.peak_active_bytes, statistics.allocated.peak_bytes as u64);
        let is_trimmed = program.iter().any(|op| matches!(op, Op::Trim));
        if !is_trimmed {
            prop_assert_eq!(report.peak_reserved_bytes, statistics.reserved.peak_bytes as u64);
        }
    }

    #[test]
    fn least_capacity_serves_and_one_byte_less_does_not(program in program()) {
        let mut world = World::sim(PLENTY);
        world.run(&program).unwrap();
        let recording = Recording::of(&world.memory.capture());
        let least = recording.least_capacity_bytes(&Policy::Pages).unwrap();
        let within = |bytes| RerunOptions { capacity_bytes: Some(bytes), ..Default::default() };
        prop_assert_eq!(recording.rerun(&within(least)).unwrap().failure, None);
        if least > 0 {
            let failure = recording.rerun(&within(least - 1)).unwrap().failure;
            prop_assert_eq!(failure.map(|failure| failure.missing_bytes), Some(1));
        }
    }

    #[test]
    fn torch_rules_under_the_front_are_the_torch_rules(program in program()) {
        let source = SimSource::with_capacity(1 << 40).page_bytes(2 << 20);
        let policy = Policy::Torch(TorchSettings::default());
        let mut world = World::of(CachingAllocator::with_policy(source, policy).unwrap());
        let mut alone = TorchPolicy::new(TorchSettings::default());
        let mut bump = Bump(0);
        let mut addresses = std::collections::BTreeMap::new();
        for op in program {
            if let Op::Free(index) = op
                && !world.buffers.is_empty()
            {
                let serial = world.buffers[index % world.buffers.len()].serial();
                alone.free(addresses.remove(&serial).unwrap()).unwrap();
            }
            if let Op::Trim = op {
                alone.empty_cache(&mut bump);
            }
            world.step(op).unwrap();
            if let Op::Allocate(_, size_bytes) = op {
                let serial = world.buffers.last().unwrap().serial();
                let address = alone.allocate(size_bytes.max(1) as u64, StreamId(0), &mut bump);
                addresses.insert(serial, address.unwrap().unwrap());
            }
            world.memory.check_invariants();
            let statistics = world.memory.statistics();
            let reserved = statistics.reserved.current_bytes - statistics.charged.current_bytes;
            prop_assert_eq!(reserved as u64, alone.reserved_bytes());
            // Within a segment, blocks lie where the rules alone place them.
            let inside = |address: u64| address % (2 << 20);
            let mut placed: Vec<u64> =
                world.buffers.iter().map(|buffer| inside(buffer.offset() as u64)).collect();
            let mut expected: Vec<u64> = addresses.values().map(|&at| inside(at)).collect();
            placed.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(placed, expected);
        }
    }
}

/// Peak of the bytes that the naive rules reserve for the events of a snapshot of one stream.
fn naive_peak_bytes(recording: &Recording, settings: &TorchSettings) -> u64 {
    let mut naive = Naive::new(settings.clone(), PagedShelf::new(1 << 40));
    let mut addresses = std::collections::HashMap::new();
    for block in &recording.start {
        let address = naive.allocate(block.requested_bytes, StreamId(0));
        addresses.insert(block.id, address.expect("room"));
    }
    let mut peak_bytes = naive.reserved();
    for event in &recording.events {
        match event.kind {
            EventKind::Allocate { id } => {
                let address = naive.allocate(event.requested_bytes, StreamId(0));
                addresses.insert(id, address.expect("room"));
            }
            EventKind::Free { id } => {
                naive.free(addresses.remove(&id).expect("live"));
            }
            _ => {}
        }
        peak_bytes = peak_bytes.max(naive.reserved());
    }
    peak_bytes
}

#[test]
fn expandable_segments_reserve_what_their_naive_twin_does() {
    for (name, snapshot) in crate::traces::pytorch_snapshots() {
        let recording = Recording::from_snapshot(&snapshot, 0).expect("a recording");
        let settings = TorchSettings { expandable_segments: true, ..TorchSettings::default() };
        let policy = Policy::Torch(settings.clone());
        let options = RerunOptions { policy: policy.clone(), ..RerunOptions::default() };
        let report = recording.rerun(&options).expect("a rerun");
        let whole = Policy::Torch(TorchSettings::default());
        let whole = recording.rerun(&RerunOptions { policy: whole, ..options.clone() });
        let whole = whole.expect("a rerun");
        println!("{name}: {} of {}", report.peak_reserved_bytes, whole.peak_reserved_bytes);
        assert_eq!(report.peak_reserved_bytes, naive_peak_bytes(&recording, &settings), "{name}");
        assert_eq!(report.peak_active_bytes, whole.peak_active_bytes, "{name}");
        assert!(report.peak_reserved_bytes < whole.peak_reserved_bytes, "{name}");
        assert_eq!(report.failure, None, "{name}");

        let least_bytes = recording.least_capacity_bytes(&policy).expect("a rerun");
        let within = |bytes| RerunOptions { capacity_bytes: Some(bytes), ..options.clone() };
        let served = |bytes| recording.rerun(&within(bytes)).expect("a rerun").failure;
        assert!(least_bytes <= report.peak_reserved_bytes, "{name}");
        assert_eq!(served(least_bytes), None, "{name}");
        let failure = served(least_bytes - (2 << 20)).expect("too little");
        // The failed request succeeds with its missing bytes, and fails with one byte less.
        let enough = least_bytes - (2 << 20) + failure.missing_bytes;
        let event = |failure: Option<RerunFailure>| failure.and_then(|failure| failure.event);
        assert!(event(served(enough)).is_none_or(|event| Some(event) > failure.event), "{name}");
        assert_eq!(event(served(enough - 1)), failure.event, "{name}");
    }
}

/// A source that places segments one after the other.
struct Bump(u64);

impl SegmentSource for Bump {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        self.0 += size_bytes;
        Some(self.0 - size_bytes)
    }

    fn release(&mut self, _: u64, _: u64) {}
}

#[test]
fn recording_names_sites_categories_and_failures() {
    let memory = World::sim(4 * PAGE_BYTES).memory;
    let line = line!() + 1;
    let _block = memory.allocate_in(Category::Gradient, 600).unwrap();
    memory.allocate_in(Category::Input, 8 * PAGE_BYTES).unwrap_err();
    let recording = Recording::of(&memory.capture());
    let kinds: Vec<EventKind> = recording.events.iter().map(|event| event.kind).collect();
    let [EventKind::Reserve, EventKind::Allocate { .. }, EventKind::OutOfMemory { free_bytes }] =
        kinds[..]
    else {
        panic!("{kinds:?}");
    };
    assert_eq!(free_bytes, 3 * PAGE_BYTES as u64);
    let event = &recording.events[1];
    assert_eq!(event.category, Some(Category::Gradient));
    let site = &recording.sites[event.site.unwrap() as usize];
    assert_eq!((site.file.as_str(), site.line), (file!(), line));
    assert_eq!(recording.policy, "pages");
    assert!(recording.events.windows(2).all(|pair| pair[0].time_us <= pair[1].time_us));
}

#[test]
fn recording_of_an_overflowed_history_still_adds_up() {
    let memory = World::sim(PLENTY).memory;
    let mut held = std::collections::VecDeque::new();
    for index in 0..200_000_usize {
        held.push_back(memory.allocate(index % 5_000 + 1).unwrap());
        if held.len() > 50 {
            held.pop_front();
        }
    }
    let recording = Recording::of(&memory.capture());
    assert!(recording.lost_events > 0 && !recording.start.is_empty());
    let statistics = memory.statistics();
    let expected =
        (statistics.allocated.current_bytes as u64, statistics.reserved.current_bytes as u64);
    assert_eq!(recount(&recording), expected);
    let report = recording.rerun(&RerunOptions::default()).unwrap();
    assert_eq!((report.addresses_equal, report.final_blocks_equal), (report.addresses_total, true));
}
