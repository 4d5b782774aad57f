//! Random programs over expandable segments do what a naive twin does, call by call; what the twin
//! recorded replays exactly.
//!
//! The twin has no blocks that are split or merged: it knows which pages have memory and what is
//! live, and whatever is between is free.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_allocator::torch::{
    AddressRange, BlockLayout, BlockState, Freed, PageSource, Pool, SegmentLayout, SegmentSource,
    StreamId, TorchPolicy, TorchSettings,
};
use lowtide_allocator::trace::{
    Action, EventKind, RecordedEvent, RecordedSegment, Recording, Replay, Snapshot,
};
use proptest::prelude::*;

use crate::common::recorded_event;
use crate::exports::pickle;
use crate::shelf::{MIB, PagedShelf};
use crate::viewer;

#[derive(Clone, Debug)]
struct Live {
    size: u64,
    requested: u64,
    stream: StreamId,
    is_pending: bool,
    uses: BTreeSet<StreamId>,
}

/// A segment, or a range of which some pages have memory.
#[derive(Clone, Debug)]
struct Region {
    address: u64,
    size: u64,
    page: Option<u64>,
    stream: StreamId,
    pool: Pool,
}

impl Region {
    fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// Free bytes in a row that have memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Area {
    stream: StreamId,
    size: u64,
    address: u64,
    is_paged: bool,
    /// Covers a segment.
    is_whole: bool,
    /// With the addresses behind it that have no memory.
    room: u64,
}

struct Naive {
    settings: TorchSettings,
    shelf: PagedShelf,
    regions: Vec<Region>,
    live: BTreeMap<u64, Live>,
    events: Vec<RecordedEvent>,
}

impl Naive {
    fn new(settings: TorchSettings, shelf: PagedShelf) -> Naive {
        let (regions, live, events) = (Vec::new(), BTreeMap::new(), Vec::new());
        Naive { settings, shelf, regions, live, events }
    }

    fn note(&mut self, action: Action, address: u64, size_bytes: u64, stream: StreamId) {
        self.events.push(recorded_event(action, address, size_bytes, stream));
    }

    /// Spans of a region that have memory.
    fn mapped(&self, region: &Region) -> Vec<(u64, u64)> {
        let Some(page) = region.page else { return vec![(region.address, region.end())] };
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for (&at, _) in self.shelf.pages.range(region.address..region.end()) {
            match spans.last_mut().filter(|(_, end)| *end == at) {
                Some((_, end)) => *end += page,
                None => spans.push((at, at + page)),
            }
        }
        spans
    }

    /// Spans of a region that have no memory.
    fn unmapped(&self, region: &Region) -> Vec<(u64, u64)> {
        let mut at = region.address;
        let mut spans = Vec::new();
        for (start, end) in self.mapped(region).into_iter().chain([(region.end(), 0)]) {
            if start > at {
                spans.push((at, start));
            }
            at = end;
        }
        spans
    }

    fn areas_of(&self, region: &Region) -> Vec<Area> {
        let unmapped = self.unmapped(region);
        let mut areas = Vec::new();
        for (start, end) in self.mapped(region) {
            let mut at = start;
            let live = self.live.range(start..end).map(|(&at, live)| (at, at + live.size));
            for (next, after) in live.chain([(end, end)]) {
                if next > at {
                    let size = next - at;
                    let behind = unmapped.iter().find(|(start, _)| *start == next);
                    let room = size + behind.map_or(0, |(start, end)| end - start);
                    let (stream, is_paged) = (region.stream, region.page.is_some());
                    let is_whole = !is_paged && size == region.size;
                    areas.push(Area { stream, size, address: at, is_paged, is_whole, room });
                }
                at = after;
            }
        }
        areas
    }

    /// All streams' free areas, in the order of PyTorch's pools.
    fn areas(&self, pool: Pool) -> Vec<Area> {
        let regions = self.regions.iter().filter(|region| region.pool == pool);
        let mut areas: Vec<Area> = regions.flat_map(|region| self.areas_of(region)).collect();
        areas.sort_unstable();
        areas
    }

    fn reserved(&self) -> u64 {
        self.shelf.held_bytes()
    }

    fn best_fit(&self, size: u64, stream: StreamId, pool: Pool) -> Option<Area> {
        let mut fits = self.areas(pool);
        fits.retain(|area| area.stream == stream && area.size >= size);
        let mut index = 0;
        let first = fits.first()?;
        if first.is_paged && self.settings.expandable_segments {
            while fits[index].is_paged
                && index + 1 < fits.len()
                && fits[index + 1].room < fits[index].room
            {
                index += 1;
            }
        } else if first.is_paged {
            index = fits.iter().position(|area| !area.is_paged)?;
        }
        let best = fits[index];
        let max_split = self.settings.max_split_bytes.unwrap_or(u64::MAX);
        let rounding = self.settings.max_non_split_rounding_bytes;
        let is_refused = (size < max_split && best.size >= max_split)
            || (size >= max_split && best.size >= size + rounding);
        (!is_refused).then_some(best)
    }

    fn reserve(&mut self, size: u64, stream: StreamId, pool: Pool) -> Option<Area> {
        let segment = self.settings.segment_bytes(size);
        if self.settings.limit_bytes.is_some_and(|limit| self.reserved() + segment > limit) {
            return None;
        }
        if self.settings.expandable_segments {
            return self.expand(size, stream, pool);
        }
        let address = self.shelf.reserve(segment)?;
        self.regions.push(Region { address, size: segment, page: None, stream, pool });
        self.note(Action::SegmentAlloc, address, segment, stream);
        let (is_paged, is_whole) = (false, true);
        Some(Area { stream, size: segment, address, is_paged, is_whole, room: segment })
    }

    /// Where a request could begin that maps what it lacks: an unmapped span, or the free area in
    /// front of one, from which on nothing is live for long enough.
    fn lowest_room(&self, size: u64, stream: StreamId, pool: Pool) -> Option<(Region, u64)> {
        let mut ranges: Vec<&Region> = self.regions.iter().collect();
        ranges.retain(|r| (r.page.is_some(), r.stream, r.pool) == (true, stream, pool));
        ranges.sort_by_key(|region| region.address);
        for region in ranges {
            for (gap, _) in self.unmapped(region) {
                let areas = self.areas_of(region);
                let before = areas.iter().find(|area| area.address + area.size == gap);
                let start = before.map_or(gap, |area| area.address);
                let next_live = self.live.range(start..).next().map_or(u64::MAX, |(&at, _)| at);
                if next_live.min(region.end()) - start >= size {
                    return Some((region.clone(), start));
                }
            }
        }
        None
    }

    fn expand(&mut self, size: u64, stream: StreamId, pool: Pool) -> Option<Area> {
        let (region, start) = match self.lowest_room(size, stream, pool) {
            Some(found) => found,
            None => {
                let page =
                    if pool == Pool::Small { 2 * MIB } else { self.settings.page_bytes(pool) };
                let range = self.shelf.reserve_range(page, stream)?;
                let AddressRange { address, size_bytes } = range;
                let region = Region { address, size: size_bytes, page: Some(page), stream, pool };
                if size_bytes < size {
                    self.shelf.release_range(range);
                    return None;
                }
                self.regions.push(region.clone());
                (region, address)
            }
        };
        let page = region.page.unwrap();
        for (from, to) in self.unmapped(&region) {
            if from >= start && from < start + size {
                let wanted = (start + size - from).next_multiple_of(page).min(to - from);
                if !self.shelf.map(AddressRange { address: from, size_bytes: wanted }) {
                    return None;
                }
                self.note(Action::SegmentMap, from, wanted, stream);
            }
        }
        self.areas_of(&region).into_iter().find(|area| area.address == start)
    }

    fn release(&mut self, area: Area) -> u64 {
        self.regions.retain(|region| region.address != area.address);
        self.shelf.release(area.address, area.size);
        self.note(Action::SegmentFree, area.address, area.size, area.stream);
        area.size
    }

    fn release_oversize(&mut self, size: u64, stream: StreamId, pool: Pool) -> bool {
        let Some(max_split) = self.settings.max_split_bytes else { return false };
        let target = size.max(max_split);
        let mut areas = self.areas(pool);
        areas.retain(|area| area.stream == stream && area.size >= max_split);
        if let Some(&area) = areas.iter().find(|area| area.size >= target)
            && area.is_whole
        {
            self.release(area);
            return true;
        }
        let mut released = 0;
        for area in areas.into_iter().rev().filter(|area| area.size < target && area.is_whole) {
            if released < target {
                released += self.release(area);
            }
        }
        released >= target
    }

    fn synchronize(&mut self) {
        self.shelf.synchronize();
        let pending = self.live.iter().filter(|(_, live)| live.is_pending);
        for address in pending.map(|(&address, _)| address).collect::<Vec<_>>() {
            self.complete(address);
        }
    }

    fn release_cached(&mut self) {
        for pool in [Pool::Large, Pool::Small] {
            let areas = self.areas(pool);
            for &area in areas.iter().filter(|area| area.is_whole) {
                self.release(area);
            }
            for area in areas.into_iter().filter(|area| area.is_paged) {
                self.unmap(area);
            }
        }
    }

    fn unmap(&mut self, area: Area) {
        let around = |region: &Region| (region.address..region.end()).contains(&area.address);
        let region = self.regions.iter().find(|region| around(region)).unwrap().clone();
        let end = area.address + area.size;
        let inside =
            |(&at, &page): (&u64, &u64)| (at >= area.address && at + page <= end).then_some(at);
        let pages: Vec<u64> = self.shelf.pages.iter().filter_map(inside).collect();
        let Some(&address) = pages.first() else { return };
        let size_bytes = pages.len() as u64 * region.page.unwrap();
        self.shelf.unmap(AddressRange { address, size_bytes });
        self.note(Action::SegmentUnmap, address, size_bytes, area.stream);
        if self.mapped(&region).is_empty() {
            let (address, size_bytes) = (region.address, region.size);
            self.regions.retain(|other| other.address != address);
            self.shelf.release_range(AddressRange { address, size_bytes });
        }
    }

    fn allocate(&mut self, requested: u64, stream: StreamId) -> Option<u64> {
        let size = self.settings.round(requested);
        let pool = if size <= MIB { Pool::Small } else { Pool::Large };
        let mut area =
            self.best_fit(size, stream, pool).or_else(|| self.reserve(size, stream, pool));
        if area.is_none() && self.release_oversize(size, stream, pool) {
            area = self.reserve(size, stream, pool);
        }
        if area.is_none() {
            self.synchronize();
            self.release_cached();
            area = self.reserve(size, stream, pool);
        }
        let Some(area) = area else {
            self.note(Action::Oom, 0, size, stream);
            return None;
        };
        let rest = area.size - size;
        let max_split = self.settings.max_split_bytes.unwrap_or(u64::MAX);
        let splits = if pool == Pool::Small || self.settings.expandable_segments {
            rest >= 512
        } else {
            size < max_split && rest > MIB
        };
        let size = if splits { size } else { area.size };
        let (is_pending, uses) = (false, BTreeSet::new());
        self.live.insert(area.address, Live { size, requested, stream, is_pending, uses });
        self.note(Action::Alloc, area.address, requested, stream);
        Some(area.address)
    }

    /// Whether it is pending now.
    fn free(&mut self, address: u64) -> bool {
        let live = self.live.get_mut(&address).unwrap();
        live.is_pending = true;
        let Live { requested, stream, .. } = *live;
        let waits = !live.uses.is_empty();
        self.note(Action::FreeRequested, address, requested, stream);
        if !waits {
            self.complete(address);
        }
        waits
    }

    fn complete(&mut self, address: u64) {
        let live = self.live.remove(&address).unwrap();
        self.note(Action::FreeCompleted, address, live.requested, live.stream);
    }

    fn add_use(&mut self, address: u64, stream: StreamId) {
        let live = self.live.get_mut(&address).unwrap();
        if stream != live.stream {
            live.uses.insert(stream);
        }
    }

    fn pending(&self) -> Vec<u64> {
        let pending = self.live.iter().filter(|(_, live)| live.is_pending);
        pending.map(|(&address, _)| address).collect()
    }

    /// Every span that has memory, with its blocks.
    fn segments(&self) -> Vec<(SegmentLayout, bool)> {
        let mut segments = Vec::new();
        for region in &self.regions {
            let areas = self.areas_of(region);
            for (address, end) in self.mapped(region) {
                let live = self.live.range(address..end).map(|(&address, live)| BlockLayout {
                    address,
                    size_bytes: live.size,
                    requested_bytes: live.requested,
                    state: if live.is_pending { BlockState::Pending } else { BlockState::Active },
                });
                let inside = areas.iter().filter(|area| (address..end).contains(&area.address));
                let free = inside.map(|area| BlockLayout {
                    address: area.address,
                    size_bytes: area.size,
                    requested_bytes: 0,
                    state: BlockState::Free,
                });
                let mut blocks: Vec<BlockLayout> = live.chain(free).collect();
                blocks.sort_by_key(|block| block.address);
                let (stream, pool, size_bytes) = (region.stream, region.pool, end - address);
                let layout = SegmentLayout { address, size_bytes, stream, pool, blocks };
                segments.push((layout, region.page.is_some()));
            }
        }
        segments.sort_by_key(|(layout, _)| layout.address);
        segments
    }

    fn snapshot(self) -> Snapshot {
        let record = |(layout, is_expandable)| {
            let (device, pool_id) = (0, (0, 0));
            RecordedSegment { device, pool_id, is_expandable, layout, block_sites: Vec::new() }
        };
        let segments = self.segments().into_iter().map(record).collect();
        let device_traces = vec![self.events];
        Snapshot { segments, device_traces, settings: self.settings, sites: Vec::new() }
    }
}

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
            let settings = TorchSettings::parse(text).expect("settings");
            TorchSettings { limit_bytes, ..settings }
        })
    })
}

/// The policy and the twin side by side.
struct Pair {
    policy: TorchPolicy,
    shelf: PagedShelf,
    naive: Naive,
    live: Vec<u64>,
    /// Of every block handed out, in turn.
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
        // Only ranges whose first page was refused are left: nothing of them is in the cache.
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
        // Uses are not part of a layout.
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
        // A request that has to release memory does not search again. That it did so cannot be told
        // from an empty cache before it, and matters if there are pending or oversize blocks.
        let has_plenty = settings.max_split_bytes.is_some() || has_uses;
        let capacity_bytes = if has_plenty { 1 << 40 } else { capacity_mib * MIB };
        settings.limit_bytes = settings.limit_bytes.filter(|_| !has_plenty);
        let mut shelf = PagedShelf::new(capacity_bytes);
        // Where a range ends is not recorded.
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
            // The pages and the block they are for are one event of the allocator.
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
    let settings = TorchSettings::parse("expandable_segments:True").unwrap();
    let mut pair = Pair::new(settings, PagedShelf::new(60 * MIB));
    let [main, side] = [0, 1].map(StreamId);
    // The first page without memory, the second one free, and a page of another stream.
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
    // The first page is mapped, a third one is refused; then everything is released.
    pair.step(Op::Allocate(60 * MIB, main));
    let actions: Vec<Action> =
        pair.naive.events[recorded..].iter().map(|event| event.action).collect();
    let [map, unmap] = [Action::SegmentMap, Action::SegmentUnmap];
    assert_eq!(actions, [map, unmap, unmap, map, Action::Alloc]);
    let report = Replay::new(&pair.naive.snapshot(), 0).unwrap().run().unwrap();
    assert!(report.is_exact() && report.first_difference.is_none(), "{report:?}");
    // The one in vain was not for the policy to ask.
    assert_eq!((report.segments_total, report.segments_equal), (4, 4));
}
