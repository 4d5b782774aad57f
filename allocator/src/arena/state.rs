//! The state that placement depends on: blocks, committed pages, charges, counters.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::Location;

use crate::arena::block_info::BlockInfo;
use crate::arena::extent::{Extent, GUARD_BYTES, active_bytes, page_floor};
use crate::arena::freed::{Checks, Freed};
use crate::arena::layout::Layout;
use crate::arena::layout::node::{Live, NONE};
use crate::arena::layout::place::Placement;
use crate::arena::layout::search::PlaceQuery;
use crate::arena::pages::Pages;
use crate::arena::views::Views;
use crate::category::{ByCategory, Category};
use crate::error::Tried;
use crate::origin::{ModulePath, Origin};
use crate::source::Segment;
use crate::statistics::Statistics;
use crate::stream::{Stream, StreamOrder, StreamSet};

/// A request for a block or a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) category: Category,
    pub(crate) size_bytes: usize,
    pub(crate) stream: Stream,
    pub(crate) site: &'static Location<'static>,
    pub(crate) module: Option<ModulePath>,
}

impl Request {
    /// A request with this thread's current origin. `site` is its line if the origin names no line.
    #[inline]
    pub(crate) fn new(
        category: Category,
        size_bytes: usize,
        stream: Stream,
        site: &'static Location<'static>,
    ) -> Request {
        let origin = Origin::current();
        let (module, site) = (origin.module, origin.site.unwrap_or(site));
        Request { category, size_bytes, stream, site, module }
    }
}

/// Bytes that a charge holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeEntry {
    pub(crate) category: Category,
    pub(crate) size_bytes: usize,
}

/// The state that a simulation copies to take the same decisions.
#[derive(Clone, Debug)]
pub(crate) struct ArenaState {
    pub(crate) layout: Layout,
    pub(crate) views: Views,
    pub(crate) waits: StreamOrder,
    /// Committed pages: the pages under live blocks, and cached pages.
    pub(crate) pages: Pages,
    /// End of the address range, a multiple of the page.
    pub(crate) limit_bytes: usize,
    /// True if pages can be mapped at a second address.
    stitches: bool,
    pub(crate) charges: BTreeMap<u64, ChargeEntry>,
    pub(crate) statistics: Statistics,
    /// Freed ranges of an allocator in checked mode.
    pub(crate) checks: Option<Box<Checks>>,
    pub(crate) request_count: u64,
    next_serial: u64,
    /// Number of the next event, a free or a wait. The order of these events decides which waits
    /// are needed. The history numbers its events separately, and a simulation begins a new
    /// history.
    next_event: u64,
}

impl ArenaState {
    /// A state without live blocks. Blocks are stitched if there is a range of `views`.
    pub(crate) fn new(
        capacity_bytes: usize,
        page_bytes: usize,
        limit_bytes: usize,
        views: Option<&Segment>,
    ) -> ArenaState {
        let range_bytes = page_floor(views.map_or(0, Segment::size_bytes), page_bytes);
        let mappings_max = views.map_or(0, Segment::mappings_max);
        ArenaState {
            layout: Layout::new(page_bytes),
            views: Views::new(range_bytes, mappings_max, page_bytes),
            waits: StreamOrder::default(),
            pages: Pages::new(page_bytes),
            limit_bytes: page_floor(limit_bytes, page_bytes),
            stitches: views.is_some(),
            charges: BTreeMap::new(),
            statistics: Statistics { capacity_bytes, page_bytes, ..Statistics::default() },
            checks: None,
            request_count: 0,
            next_serial: 0,
            // Event 0 comes before every free and wait.
            next_event: 1,
        }
    }

    /// Bytes of the block for a request, guard included. `None` on overflow.
    #[inline]
    pub(crate) fn block_bytes(&self, requested_bytes: usize) -> Option<usize> {
        match self.checks {
            None => active_bytes(requested_bytes),
            Some(_) => active_bytes(requested_bytes.checked_add(GUARD_BYTES)?),
        }
    }

    /// The place of a block of `size_bytes` for `stream`. Adds the rungs of the search to `tried`.
    #[inline]
    pub(crate) fn place(
        &self,
        size_bytes: usize,
        stream: Stream,
        tried: &Cell<Tried>,
    ) -> Option<Placement> {
        let stitches = self.stitches && self.views.has_room();
        self.layout.place(&PlaceQuery { size_bytes, stream, waits: &self.waits, stitches, tried })
    }

    /// [`place`](Self::place) without stitching.
    pub(crate) fn place_whole(
        &self,
        size_bytes: usize,
        stream: Stream,
        tried: &Cell<Tried>,
    ) -> Option<Placement> {
        let waits = &self.waits;
        self.layout.place(&PlaceQuery { size_bytes, stream, waits, stitches: false, tried })
    }

    /// Rounds up to a page. Saturates at a value that no address range reaches.
    #[inline]
    pub(crate) fn page_ceil(&self, bytes: usize) -> usize {
        let page_bytes = self.statistics.page_bytes;
        let end = bytes.checked_add(page_bytes - 1);
        end.map_or(usize::MAX, |end| page_floor(end, page_bytes))
    }

    /// Bytes that would be reserved with an empty cache and a block at a place: the least that
    /// serves the request. `None` stands for a place whose arithmetic overflowed.
    pub(crate) fn needed_bytes(&self, place: Option<&Placement>) -> usize {
        let own = place.map_or(usize::MAX, |place| self.layout.touched_bytes_with(place));
        own.saturating_add(self.statistics.charged.current_bytes)
    }

    /// Bytes that would be reserved with an empty cache and `charge_bytes` more charged.
    pub(crate) fn needed_bytes_to_charge(&self, charge_bytes: usize) -> usize {
        let fixed_bytes = self.layout.touched_bytes() + self.statistics.charged.current_bytes;
        fixed_bytes.saturating_add(charge_bytes)
    }

    /// Committed bytes under no live block.
    pub(crate) fn free_page_bytes(&self) -> usize {
        self.pages.committed_bytes() - self.layout.touched_bytes()
    }

    /// Free committed pages of up to `size_bytes`, the highest first. No page lies in `except`.
    pub(crate) fn spare_pages(&self, size_bytes: usize, except: &[Extent]) -> Vec<Extent> {
        let page_bytes = self.statistics.page_bytes;
        let top = self.page_ceil(self.layout.top());
        let beyond = Extent { offset: top, size_bytes: usize::MAX - top };
        let free = std::iter::once(beyond).chain(self.layout.page_holes());
        let mut missing_bytes = self.page_ceil(size_bytes);
        let mut taken = Vec::new();
        for mut run in free.flat_map(|hole| self.pages.committed_down(hole)) {
            while run.size_bytes > 0 && missing_bytes > 0 {
                let (start, end) = (run.offset, run.end());
                let meets = |wanted: &&Extent| wanted.offset < end && start < wanted.end();
                let wanted = except.iter().filter(meets).max_by_key(|wanted| wanted.offset);
                let from = wanted.map_or(start, |wanted| self.page_ceil(wanted.end()).min(end));
                let spare_bytes = missing_bytes.min(end - from);
                if spare_bytes > 0 {
                    taken.push(Extent { offset: end - spare_bytes, size_bytes: spare_bytes });
                    missing_bytes -= spare_bytes;
                }
                let below = wanted.map_or(start, |wanted| page_floor(wanted.offset, page_bytes));
                run.size_bytes = below.saturating_sub(start);
            }
            if missing_bytes == 0 {
                break;
            }
        }
        taken
    }

    /// True if the capacity allows `needed_bytes`. No machine has more than `isize::MAX` bytes:
    /// under a capacity that means "no limit", this keeps sums from overflowing.
    pub(crate) fn fits(&self, needed_bytes: usize) -> bool {
        needed_bytes <= self.statistics.capacity_bytes.min(isize::MAX as usize)
    }

    /// Size of a large block that a request on the default stream could still get with an empty
    /// cache: the largest block that fits a hole, the pages that the capacity leaves, or the top.
    pub(crate) fn largest_free_bytes(&self) -> usize {
        let Statistics { capacity_bytes, page_bytes, charged, .. } = self.statistics;
        // Holes are merged once: placing each candidate would merge a copy again.
        let merged = self.layout.merged_across_streams();
        let layout = merged.as_deref().unwrap_or(&self.layout);
        let stitches = self.stitches && self.views.has_room();
        let pages = capacity_bytes.saturating_sub(charged.current_bytes) / page_bytes * page_bytes;
        let room_bytes = pages.saturating_sub(layout.touched_bytes());
        let page_end = self.page_ceil(layout.top());
        let shared_bytes = page_end - layout.top();
        let beyond_bytes = shared_bytes + room_bytes.min(self.limit_bytes - page_end);
        // A hole may begin in a page that a block below has already.
        let in_hole = |hole: Extent| {
            let shared_bytes = (page_bytes - hole.offset % page_bytes) % page_bytes;
            let end_bytes = hole.end() % page_bytes;
            let whole_bytes = hole.size_bytes.saturating_sub(shared_bytes + end_bytes);
            if whole_bytes <= room_bytes { hole.size_bytes } else { shared_bytes + room_bytes }
        };
        let mut candidates: Vec<usize> = layout.page_holes().map(in_hole).collect();
        candidates.extend([beyond_bytes, room_bytes, layout.largest_hole_bytes()]);
        candidates.sort_unstable();
        let could_be_had = |&size_bytes: &usize| {
            let (stream, waits, tried) = (Stream::DEFAULT, &self.waits, &Cell::default());
            let place = layout.place(&PlaceQuery { size_bytes, stream, waits, stitches, tried });
            place.is_some_and(|place| {
                let touched_bytes = layout.touched_bytes_with(&place);
                let is_free = touched_bytes == layout.touched_bytes();
                let needed_bytes = touched_bytes.saturating_add(charged.current_bytes);
                (is_free || self.fits(needed_bytes)) && place.end() <= self.limit_bytes
            })
        };
        candidates.into_iter().rev().filter(|&bytes| bytes > 0).find(could_be_had).unwrap_or(0)
    }

    /// The place at the top and the streams to wait for there, if no own hole fits and `place`
    /// would choose the top. `None` leaves the choice to `place`.
    #[inline]
    pub(crate) fn own_top(&self, size_bytes: usize, stream: Stream) -> Option<(Extent, StreamSet)> {
        let stitches = self.stitches && self.views.has_room();
        let tried = &Cell::default();
        self.layout.own_top(&PlaceQuery { size_bytes, stream, waits: &self.waits, stitches, tried })
    }

    /// Counts and describes the block that was just put into a slot. Returns its serial.
    #[inline]
    pub(crate) fn describe_block(
        &mut self,
        slot: u32,
        size_bytes: usize,
        request: &Request,
    ) -> u64 {
        let live = self.count_block(size_bytes, request);
        self.layout.describe(slot, &live);
        live.serial
    }

    /// Turns a place into a live block, in `view` if the block is stitched. Returns the block's
    /// slot and serial.
    pub(crate) fn insert(
        &mut self,
        place: &mut Placement,
        size_bytes: usize,
        view: u32,
        request: &Request,
    ) -> (u32, u64) {
        if view != NONE {
            self.views.add_user(view);
        }
        let live = Live { view, ..self.count_block(size_bytes, request) };
        (self.layout.insert(place, &live, self.current_event()), live.serial)
    }

    /// Number of the last free or wait.
    pub(crate) fn current_event(&self) -> u64 {
        self.next_event - 1
    }

    /// Counts a block that is about to be live. Returns its properties.
    #[inline]
    pub(crate) fn count_block(&mut self, size_bytes: usize, request: &Request) -> Live {
        let Request { category, size_bytes: requested_bytes, stream, site, module } = *request;
        self.statistics.requested.add(requested_bytes);
        self.statistics.allocated.add(size_bytes);
        self.statistics.by_category[category].add(size_bytes);
        self.statistics.allocations += 1;
        Live {
            requested_bytes,
            size_bytes,
            category,
            stream,
            users: StreamSet::of(stream),
            site,
            module,
            serial: self.take_serial(),
            view: NONE,
        }
    }

    /// Counts a block that was freed.
    #[inline]
    pub(crate) fn count_free(&mut self, live: &Live) {
        let &Live { requested_bytes, size_bytes, category, .. } = live;
        self.statistics.frees += 1;
        self.statistics.requested.subtract(requested_bytes);
        self.statistics.allocated.subtract(size_bytes);
        self.statistics.by_category[category].subtract(size_bytes);
    }

    /// Frees the block in a slot; its pages stay committed.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32, live: &Live) {
        let event = self.take_event();
        self.layout.remove(slot, event);
        if live.is_stitched() {
            self.views.remove_user(live.view);
        }
        self.count_free(live);
    }

    pub(crate) fn add_pages(&mut self, run: Extent) {
        self.pages.add(run);
        self.statistics.reserved.add(run.size_bytes);
    }

    pub(crate) fn remove_pages(&mut self, run: Extent) {
        self.pages.remove(run);
        if let Some(checks) = &mut self.checks {
            checks.forget(run);
        }
        self.statistics.reserved.subtract(run.size_bytes);
    }

    /// Opens a charge of 0 bytes, to be raised. Returns its serial.
    pub(crate) fn open_charge(&mut self, category: Category) -> u64 {
        let serial = self.take_serial();
        self.charges.insert(serial, ChargeEntry { category, size_bytes: 0 });
        serial
    }

    pub(crate) fn raise_charge(&mut self, serial: u64, growth_bytes: usize) {
        let entry = self.charges.get_mut(&serial).expect("a charge lives until it is closed");
        entry.size_bytes += growth_bytes;
        self.statistics.charged.add(growth_bytes);
        self.statistics.reserved.add(growth_bytes);
        self.statistics.by_category[entry.category].add(growth_bytes);
    }

    pub(crate) fn close_charge(&mut self, serial: u64) -> ChargeEntry {
        let entry = self.charges.remove(&serial).expect("a charge is closed once");
        self.statistics.charged.subtract(entry.size_bytes);
        self.statistics.reserved.subtract(entry.size_bytes);
        self.statistics.by_category[entry.category].subtract(entry.size_bytes);
        entry
    }

    pub(crate) fn by_category_bytes(&self) -> ByCategory<usize> {
        ByCategory::from_fn(|category| self.statistics.by_category[category].current_bytes)
    }

    /// The block in a slot.
    pub(crate) fn block_info(&self, slot: u32) -> BlockInfo {
        BlockInfo::of(self.layout.offset(slot), &self.layout.block(slot))
    }

    /// Removes and returns the freed ranges of checked mode in the block in a slot, with their
    /// place in the block.
    pub(crate) fn take_freed(&mut self, slot: u32) -> Vec<(usize, Freed)> {
        let pieces: Vec<Extent> = self.layout.pieces(slot).collect();
        self.checks.as_mut().map_or_else(Vec::new, |checks| checks.take_pieces(&pieces))
    }

    /// The block directly behind the last piece of the block in a slot.
    pub(crate) fn block_after(&self, slot: u32) -> Option<BlockInfo> {
        let end = self.layout.pieces(slot).last()?.end();
        let next = self.layout.live().find(|&(slot, _)| self.layout.offset(slot) == end);
        next.map(|(slot, _)| self.block_info(slot))
    }

    /// The last serial that was given.
    pub(crate) fn last_serial(&self) -> u64 {
        self.next_serial
    }

    /// Notes that `waiter` has waited for all work of `on` up to now.
    pub(crate) fn note_wait(&mut self, waiter: Stream, on: Stream) {
        let event = self.take_event();
        self.waits.note(waiter, on, event);
    }

    fn take_event(&mut self) -> u64 {
        self.next_event += 1;
        self.next_event - 1
    }

    fn take_serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }
}
