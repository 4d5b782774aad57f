use lowtide_allocator::torch::{SegmentSource, StreamId, TorchPolicy, TorchSettings};
use lowtide_allocator::trace::{EventKind, Recording, RerunOptions};
use lowtide_allocator::{CachingAllocator, Category, Policy, SimSource};
use proptest::prelude::*;

use crate::common::{Op, PAGE_BYTES, PLENTY, World, program};

/// Adds up the bytes that a recording says are live, and checks that it contradicts itself nowhere.
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
        let recording = world.memory.recording();
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
        let recording = world.memory.recording();
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
            // Within a segment, blocks lie where the rules alone put them.
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

/// Segments one after the other.
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
    let recording = memory.recording();
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
    let recording = memory.recording();
    assert!(recording.lost_events > 0 && !recording.start.is_empty());
    let statistics = memory.statistics();
    let expected =
        (statistics.allocated.current_bytes as u64, statistics.reserved.current_bytes as u64);
    assert_eq!(recount(&recording), expected);
    let report = recording.rerun(&RerunOptions::default()).unwrap();
    assert_eq!((report.addresses_equal, report.final_blocks_equal), (report.addresses_total, true));
}
