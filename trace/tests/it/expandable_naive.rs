//! A naive copy of PyTorch's rules with expandable segments.
//!
//! The naive policy does not split or merge blocks. It stores the pages that have memory and the
//! live ranges; everything between them is free.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_allocator::torch::{
    AddressRange, BlockLayout, BlockState, PageSource, Pool, SegmentLayout, SegmentSource,
    StreamId, TorchSettings,
};
use lowtide_trace::{Action, RecordedEvent, RecordedSegment, Snapshot};

use crate::events::recorded_event;
use crate::shelf::{Held, MIB, PagedShelf};

#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) stream: StreamId,
    pub(crate) is_pending: bool,
    pub(crate) uses: BTreeSet<StreamId>,
}

/// A segment, or a range in which some pages have memory.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) page: Option<u64>,
    pub(crate) stream: StreamId,
    pub(crate) pool: Pool,
}

impl Region {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// Consecutive free bytes that have memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Area {
    pub(crate) stream: StreamId,
    pub(crate) size: u64,
    pub(crate) address: u64,
    pub(crate) is_paged: bool,
    /// True if the area covers a whole segment.
    pub(crate) is_whole: bool,
    /// Bytes of the area and of the addresses without memory behind it.
    pub(crate) room: u64,
}

pub(crate) struct Naive {
    pub(crate) settings: TorchSettings,
    pub(crate) shelf: PagedShelf,
    pub(crate) regions: Vec<Region>,
    pub(crate) live: BTreeMap<u64, Live>,
    pub(crate) events: Vec<RecordedEvent>,
}

impl Naive {
    pub(crate) fn new(settings: TorchSettings, shelf: PagedShelf) -> Naive {
        let (regions, live, events) = (Vec::new(), BTreeMap::new(), Vec::new());
        Naive { settings, shelf, regions, live, events }
    }

    pub(crate) fn note(&mut self, action: Action, address: u64, size_bytes: u64, stream: StreamId) {
        self.events.push(recorded_event(action, address, size_bytes, stream));
    }

    /// Spans of a region with memory.
    pub(crate) fn mapped(&self, region: &Region) -> Vec<(u64, u64)> {
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

    /// Spans of a region without memory.
    pub(crate) fn unmapped(&self, region: &Region) -> Vec<(u64, u64)> {
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

    pub(crate) fn areas_of(&self, region: &Region) -> Vec<Area> {
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

    /// The free areas of all streams, in the order of PyTorch's pools.
    pub(crate) fn areas(&self, pool: Pool) -> Vec<Area> {
        let regions = self.regions.iter().filter(|region| region.pool == pool);
        let mut areas: Vec<Area> = regions.flat_map(|region| self.areas_of(region)).collect();
        areas.sort_unstable();
        areas
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.shelf.held_bytes()
    }

    pub(crate) fn best_fit(&self, size: u64, stream: StreamId, pool: Pool) -> Option<Area> {
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

    pub(crate) fn reserve(&mut self, size: u64, stream: StreamId, pool: Pool) -> Option<Area> {
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

    /// The lowest place of a request that maps missing pages: an unmapped span, or the free area in
    /// front of an unmapped span. No live block may lie on the addresses of the request.
    pub(crate) fn lowest_room(
        &self,
        size: u64,
        stream: StreamId,
        pool: Pool,
    ) -> Option<(Region, u64)> {
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

    pub(crate) fn expand(&mut self, size: u64, stream: StreamId, pool: Pool) -> Option<Area> {
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

    pub(crate) fn release(&mut self, area: Area) -> u64 {
        self.regions.retain(|region| region.address != area.address);
        self.shelf.release(area.address, area.size);
        self.note(Action::SegmentFree, area.address, area.size, area.stream);
        area.size
    }

    pub(crate) fn release_oversize(&mut self, size: u64, stream: StreamId, pool: Pool) -> bool {
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

    pub(crate) fn synchronize(&mut self) {
        self.shelf.synchronize();
        let pending = self.live.iter().filter(|(_, live)| live.is_pending);
        for address in pending.map(|(&address, _)| address).collect::<Vec<_>>() {
            self.complete(address);
        }
    }

    pub(crate) fn release_cached(&mut self) {
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

    pub(crate) fn unmap(&mut self, area: Area) {
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

    pub(crate) fn allocate(&mut self, requested: u64, stream: StreamId) -> Option<u64> {
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

    /// Frees a block. Returns true if the block is pending.
    pub(crate) fn free(&mut self, address: u64) -> bool {
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

    pub(crate) fn complete(&mut self, address: u64) {
        let live = self.live.remove(&address).unwrap();
        self.note(Action::FreeCompleted, address, live.requested, live.stream);
    }

    pub(crate) fn add_use(&mut self, address: u64, stream: StreamId) {
        let live = self.live.get_mut(&address).unwrap();
        if stream != live.stream {
            live.uses.insert(stream);
        }
    }

    pub(crate) fn pending(&self) -> Vec<u64> {
        let pending = self.live.iter().filter(|(_, live)| live.is_pending);
        pending.map(|(&address, _)| address).collect()
    }

    /// Every span with memory, with its blocks.
    pub(crate) fn segments(&self) -> Vec<(SegmentLayout, bool)> {
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

    pub(crate) fn snapshot(self) -> Snapshot {
        let record = |(layout, is_expandable)| {
            let (device, pool_id) = (0, (0, 0));
            RecordedSegment { device, pool_id, is_expandable, layout, block_sites: Vec::new() }
        };
        let segments = self.segments().into_iter().map(record).collect();
        let device_traces = vec![self.events];
        Snapshot { segments, device_traces, settings: self.settings, sites: Vec::new() }
    }
}
