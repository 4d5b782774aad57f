//! Random programs over expandable segments: a naive policy makes the same calls, and its recording
//! replays exactly.

use std::collections::BTreeSet;

use lowtide_allocator::torch::{Freed, StreamId, TorchPolicy, TorchSettings};
use lowtide_trace::{Action, EventKind, Recording, Replay, parse_settings};
use proptest::prelude::*;

use crate::expandable_naive::Naive;
use crate::exports::pickle;
use crate::shelf::{Held, MIB, PagedShelf};
use crate::viewer;

#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate(u64, StreamId),
    Free(usize),
    Use(usize, StreamId),
    Complete(usize),
    EmptyCache,
    /// Turns expandable segments on or off.
    Toggle,
}

fn op() -> impl Strategy<Value = Op> {
    let stream = || (0..2_u64).prop_map(StreamId);
    let size = prop_oneof![
        2 => 1..5000_u64,
        3 => (1..2048_u64).prop_map(|n| n * 1024),
        4 => (1..45_u64).prop_map(|n| n * MIB),
        3 => (1..45_u64).prop_map(|n| n * MIB + 4096),
        1 => prop::sample::select(vec![MIB, MIB + 1, 20 * MIB, 40 * MIB, 30 * MIB, 2 * MIB]),
    ];
    prop_oneof![
        20 => (size, stream()).prop_map(|(size, stream)| Op::Allocate(size, stream)),
        18 => any::<usize>().prop_map(Op::Free),
        2 => (any::<usize>(), stream()).prop_map(|(index, stream)| Op::Use(index, stream)),
        2 => any::<usize>().prop_map(Op::Complete),
        2 => Just(Op::EmptyCache),
        1 => Just(Op::Toggle),
    ]
}

fn settings() -> impl Strategy<Value = TorchSettings> {
    prop::sample::select(vec![
        "expandable_segments:True",
        "expandable_segments:True,max_split_size_mb:30",
        "expandable_segments:True,max_split_size_mb:21,max_non_split_rounding_mb:25",
        "expandable_segments:True,roundup_power2_divisions:4",
        "expandable_segments:True,large_segment_size_mb:12",
        "max_split_size_mb:40",
    ])
    .prop_flat_map(|text| {
        let limit = prop::option::weighted(0.3, (40..400_u64).prop_map(|n| n * MIB));
        limit.prop_map(move |limit_bytes| {
            let settings = parse_settings(text).expect("settings");
            TorchSettings { limit_bytes, ..settings }
        })
    })
}

/// The policy and the naive policy side by side.
struct Pair {
    policy: TorchPolicy,
    shelf: PagedShelf,
    naive: Naive,
    live: Vec<u64>,
    /// Sizes of the allocated blocks, in order.
    sizes: Vec<u64>,
}

impl Pair {
    fn new(settings: TorchSettings, shelf: PagedShelf) -> Pair {
        let naive = Naive::new(settings.clone(), shelf.clone());
        Pair {
            policy: TorchPolicy::new(settings),
            shelf,
            naive,
            live: Vec::new(),
            sizes: Vec::new(),
        }
    }

    fn step(&mut self, op: Op) {
        let Pair { policy, shelf, naive, live, sizes } = self;
        match op {
            Op::Allocate(size, stream) => {
                let before = shelf.calls.len();
                let placed = policy.place(size, stream, shelf).ok().flatten();
                let expected = naive.allocate(size, stream);
                assert_eq!(placed.as_ref().map(|placed| placed.address), expected, "{op:?}");
                if let Some(placed) = placed {
                    assert_eq!(placed.source_calls, shelf.calls[before..]);
                    assert_eq!(policy.block_bytes(placed.address), Some(placed.size_bytes));
                }
                sizes.extend(expected.map(|address| naive.live[&address].size));
                live.extend(expected);
            }
            Op::Free(index) if !live.is_empty() => {
                let address = live.swap_remove(index % live.len());
                let freed = policy.free(address).expect("a live block");
                assert_eq!(freed == Freed::Pending, naive.free(address));
            }
            Op::Use(index, stream) if !live.is_empty() => {
                let address = live[index % live.len()];
                policy.record_use(address, stream).expect("a live block");
                naive.add_use(address, stream);
            }
            Op::Complete(index) => {
                let pending = naive.pending();
                if !pending.is_empty() {
                    let address = pending[index % pending.len()];
                    policy.complete_free(address).expect("a pending block");
                    naive.complete(address);
                }
            }
            Op::EmptyCache => {
                policy.empty_cache(shelf);
                naive.synchronize();
                naive.release_cached();
            }
            Op::Toggle => {
                let settings = &mut naive.settings;
                settings.expandable_segments = !settings.expandable_segments;
                policy.set_settings(settings.clone());
            }
            Op::Free(_) | Op::Use(..) => {}
        }
        policy.check_invariants();
        assert_eq!(shelf.calls, naive.shelf.calls, "after {op:?}");
        let layouts: Vec<_> = naive.segments().into_iter().map(|(layout, _)| layout).collect();
        assert_eq!(policy.segments(), layouts, "after {op:?}");
        assert_eq!(policy.reserved_bytes(), shelf.held_bytes());
    }
}

proptest! {
    #[test]
    fn policy_agrees_with_the_naive_one_on_expandable_segments(
        program in prop::collection::vec(op(), 1..120),
        settings in settings(),
        capacity_mib in 30..500_u64,
        range_mib in prop::option::weighted(0.3, 45..200_u64),
    ) {
        let mut shelf = PagedShelf::new(capacity_mib * MIB);
        shelf.range_bytes = range_mib.map_or(shelf.range_bytes, |mib| mib * MIB);
        let mut pair = Pair::new(settings, shelf);
        for &op in &program {
            pair.step(op);
        }
        let Pair { mut policy, mut shelf, live, .. } = pair;
        let twin = TorchPolicy::clone(&policy);
        prop_assert_eq!(twin.segments(), policy.segments());
        for address in live {
            policy.free(address).expect("a live block");
        }
        policy.empty_cache(&mut shelf);
        prop_assert_eq!((policy.reserved_bytes(), policy.active_bytes()), (0, 0));
        prop_assert_eq!(shelf.held_bytes(), 0);
        // Only ranges whose first page was refused are left: they have no memory in the cache.
        prop_assert!(policy.ranges().iter().all(|range| range.mapped.is_empty()));
    }

    #[test]
    fn restored_ranges_continue_as_the_original(
        program in prop::collection::vec(op(), 1..60),
        more in prop::collection::vec(op(), 1..60),
        settings in settings(),
    ) {
        let mut pair = Pair::new(settings, PagedShelf::new(300 * MIB));
        for &op in &program {
            pair.step(op);
        }
        let ranges = pair.policy.ranges();
        let paged: BTreeSet<u64> =
            ranges.iter().flat_map(|range| &range.mapped).map(|part| part.address).collect();
        let mut segments = pair.policy.segments();
        segments.retain(|segment| !paged.contains(&segment.address));
        // A layout does not contain uses.
        pair.naive.live.values_mut().for_each(|live| live.uses.clear());
        let mut restored = TorchPolicy::restore(pair.naive.settings.clone(), &segments).unwrap();
        for range in &ranges {
            restored.restore_range(range).unwrap();
        }
        restored.check_invariants();
        prop_assert_eq!(restored.ranges(), ranges);
        pair.policy = restored;
        for &op in &more {
            pair.step(op);
        }
    }

    #[test]
    fn what_was_recorded_of_expandable_segments_replays_exactly(
        program in prop::collection::vec(op(), 1..150),
        settings in settings(),
        capacity_mib in 60..500_u64,
        has_uses: bool,
        cut in 0..400_usize,
    ) {
        let mut settings = settings;
        settings.expandable_segments = true;
        // A request that has to release memory does not search again. Its recording looks like an
        // empty cache before the request. The difference matters with pending or oversize blocks.
        let has_plenty = settings.max_split_bytes.is_some() || has_uses;
        let capacity_bytes = if has_plenty { 1 << 40 } else { capacity_mib * MIB };
        settings.limit_bytes = settings.limit_bytes.filter(|_| !has_plenty);
        let mut shelf = PagedShelf::new(capacity_bytes);
        // The end of a range is not recorded.
        shelf.range_bytes = 1 << 40;
        let mut pair = Pair::new(settings, shelf);
        for &op in &program {
            match op {
                Op::Toggle => {}
                Op::Use(..) if !has_uses => {}
                _ => pair.step(op),
            }
        }
        let whole = pair.naive.snapshot();
        for cut in [0, cut, cut / 7] {
            let mut snapshot = whole.clone();
            let events = &mut snapshot.device_traces[0];
            let mut cut = cut.min(events.len());
            // The pages and their block are one event of the allocator.
            while cut > 0 && events[cut - 1].action == Action::SegmentMap {
                cut -= 1;
            }
            events.drain(..cut);
            let count = |action| events.iter().filter(|event| event.action == action).count();
            let allocations = count(Action::Alloc) as u64;
            let report = Replay::new(&snapshot, 0).expect("a start").run().expect("a run");
            prop_assert!(report.is_exact(), "without {} events: {:?}", cut, report);
            prop_assert_eq!(report.first_difference, None);
            prop_assert_eq!(report.addresses_total, allocations);

            let recording = Recording::from_snapshot(&snapshot, 0).expect("a recording");
            prop_assert_eq!(recording.check(), Ok(()));
            viewer::check(&viewer::unpickle(&pickle(&recording)).expect("a pickle")).unwrap();
            let allocated = recording.events.iter().filter_map(|event| match event.kind {
                EventKind::Allocate { .. } => Some(event.size_bytes),
                _ => None,
            });
            let sizes = &pair.sizes[pair.sizes.len() - allocations as usize..];
            prop_assert_eq!(allocated.collect::<Vec<u64>>(), sizes);
        }
    }
}

#[test]
fn pages_that_were_mapped_in_vain_replay() {
    let settings = parse_settings("expandable_segments:True").unwrap();
    let mut pair = Pair::new(settings, PagedShelf::new(60 * MIB));
    let [main, side] = [0, 1].map(StreamId);
    // The first page is unmapped, the second page is free, and another stream has a page.
    let before = [
        Op::Allocate(20 * MIB, main),
        Op::Allocate(10 * MIB, main),
        Op::Free(0),
        Op::EmptyCache,
        Op::Allocate(20 * MIB, side),
        Op::Free(1),
        Op::Free(0),
    ];
    before.into_iter().for_each(|op| pair.step(op));
    let recorded = pair.naive.events.len();
    // The first page is mapped and a third page is refused; then everything is released.
    pair.step(Op::Allocate(60 * MIB, main));
    let actions: Vec<Action> =
        pair.naive.events[recorded..].iter().map(|event| event.action).collect();
    let [map, unmap] = [Action::SegmentMap, Action::SegmentUnmap];
    assert_eq!(actions, [map, unmap, unmap, map, Action::Alloc]);
    let report = Replay::new(&pair.naive.snapshot(), 0).unwrap().run().unwrap();
    assert!(report.is_exact() && report.first_difference.is_none(), "{report:?}");
    // The policy never asks for the page that was mapped in vain.
    assert_eq!((report.segments_total, report.segments_equal), (4, 4));
}
