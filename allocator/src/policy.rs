//! The whole state that decides: blocks, committed pages, charges, counters. No memory, no I/O.

use std::collections::BTreeMap;
use std::panic::Location;

use crate::category::{ByCategory, Category};
use crate::holes::NONE;
use crate::layout::{Extent, Layout, Live, Place, Want};
use crate::pages::Pages;
use crate::statistics::Statistics;
use crate::stream::{Stream, StreamSet, Waits};
use crate::views::Views;

/// A live block, for naming what is left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Offset, of its first piece if it is stitched.
    pub offset: usize,
    /// Active bytes: what it takes.
    pub size_bytes: usize,
    /// What was asked for.
    pub requested_bytes: usize,
    /// What it is for.
    pub category: Category,
    /// Whose it is.
    pub stream: Stream,
    /// Who asked.
    pub site: &'static Location<'static>,
    /// Counts up with every block and charge.
    pub serial: u64,
}

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) category: Category,
    pub(crate) size_bytes: usize,
    pub(crate) stream: Stream,
    pub(crate) site: &'static Location<'static>,
}

/// Bytes that a charge holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeEntry {
    pub(crate) category: Category,
    pub(crate) size_bytes: usize,
}

/// Everything that a simulation has to copy to take the same decisions.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) layout: Layout,
    pub(crate) views: Views,
    pub(crate) waits: Waits,
    /// Committed pages: all that live blocks lie on, and those that are cached.
    pub(crate) pages: Pages,
    /// End of the address range, a multiple of the page.
    pub(crate) limit_bytes: usize,
    /// Whether pages can be mapped at a second address.
    stitches: bool,
    pub(crate) charges: BTreeMap<u64, ChargeEntry>,
    pub(crate) statistics: Statistics,
    pub(crate) request_count: u64,
    next_serial: u64,
    /// Counts frees and waits, the events whose order decides. Not the history's count, which a
    /// simulation begins anew.
    next_event: u64,
}

impl Policy {
    /// Nothing is live. Views take addresses from a range of `view_range_bytes`, if there is one.
    pub(crate) fn new(
        capacity_bytes: usize,
        page_bytes: usize,
        limit_bytes: usize,
        view_range_bytes: Option<usize>,
    ) -> Policy {
        Policy {
            layout: Layout::new(page_bytes),
            views: Views::new(view_range_bytes.unwrap_or(0)),
            waits: Waits::default(),
            pages: Pages::new(page_bytes),
            limit_bytes: limit_bytes / page_bytes * page_bytes,
            stitches: view_range_bytes.is_some(),
            charges: BTreeMap::new(),
            statistics: Statistics { capacity_bytes, page_bytes, ..Statistics::default() },
            request_count: 0,
            next_serial: 0,
            // 0 is before all of them.
            next_event: 1,
        }
    }

    /// Where a block of `size_bytes` for `stream` would go.
    #[inline]
    pub(crate) fn place(&mut self, size_bytes: usize, stream: Stream) -> Option<Place> {
        let stitches = self.stitches && self.views.has_room();
        self.layout.place(&Want { size_bytes, stream, waits: &self.waits, stitches })
    }

    /// Rounded up to a page; saturates at a value that no address range reaches.
    #[inline]
    pub(crate) fn page_ceil(&self, bytes: usize) -> usize {
        bytes.checked_next_multiple_of(self.statistics.page_bytes).unwrap_or(usize::MAX)
    }

    /// What would be reserved with nothing cached, with a block at a place and `charge_bytes` more
    /// charged: the least that any cache could do with. No place is one that overflowed.
    pub(crate) fn needed_bytes(&self, place: Option<&Place>, charge_bytes: usize) -> usize {
        let own = place.map_or(usize::MAX, |place| self.layout.touched_bytes_with(place));
        own.saturating_add(self.statistics.charged.current_bytes).saturating_add(charge_bytes)
    }

    /// What would be reserved with nothing cached and `charge_bytes` more charged.
    pub(crate) fn needed_bytes_to_charge(&self, charge_bytes: usize) -> usize {
        let fixed_bytes = self.layout.touched_bytes() + self.statistics.charged.current_bytes;
        fixed_bytes.saturating_add(charge_bytes)
    }

    /// Committed bytes under no live block.
    pub(crate) fn free_page_bytes(&self) -> usize {
        self.pages.committed_bytes() - self.layout.touched_bytes()
    }

    /// Up to `size_bytes` of free committed pages, the highest first, none of them in `except`.
    pub(crate) fn spare_pages(&self, size_bytes: usize, except: &[Extent]) -> Vec<Extent> {
        let page_bytes = self.statistics.page_bytes;
        let mut spare = self.pages.beyond(self.page_ceil(self.layout.top()));
        let holes = self.layout.page_holes();
        spare.splice(0..0, holes.into_iter().flat_map(|hole| self.pages.committed_in(hole)));
        let mut missing_bytes = size_bytes;
        let mut taken: Vec<Extent> = Vec::new();
        for run in spare.into_iter().rev() {
            let mut end = run.end();
            while end > run.offset && missing_bytes > 0 {
                let page = Extent { offset: end - page_bytes, size_bytes: page_bytes };
                end = page.offset;
                let is_wanted =
                    except.iter().any(|e| e.offset < page.end() && page.offset < e.end());
                if is_wanted {
                    continue;
                }
                missing_bytes = missing_bytes.saturating_sub(page_bytes);
                match taken.last_mut() {
                    Some(last) if last.offset == page.end() => {
                        last.offset = page.offset;
                        last.size_bytes += page_bytes;
                    }
                    _ => taken.push(page),
                }
            }
        }
        taken
    }

    /// Whether that much may be reserved. No machine has more than `isize::MAX` bytes: under a
    /// capacity that means "no limit", this keeps sums from overflowing.
    pub(crate) fn fits(&self, needed_bytes: usize) -> bool {
        needed_bytes <= self.statistics.capacity_bytes.min(isize::MAX as usize)
    }

    /// A large block that a request on the default stream could still get, with nothing cached: the
    /// largest of those that fill a hole, the pages that the capacity leaves, or the top.
    pub(crate) fn largest_free_bytes(&mut self) -> usize {
        let Statistics { capacity_bytes, page_bytes, charged, .. } = self.statistics;
        let pages = capacity_bytes.saturating_sub(charged.current_bytes) / page_bytes * page_bytes;
        let room_bytes = pages.saturating_sub(self.layout.touched_bytes());
        let page_end = self.page_ceil(self.layout.top());
        let shared_bytes = page_end - self.layout.top();
        let beyond_bytes = shared_bytes + room_bytes.min(self.limit_bytes - page_end);
        // A hole may begin in a page that is paid for already.
        let in_hole = |hole: &Extent| {
            let shared_bytes = (page_bytes - hole.offset % page_bytes) % page_bytes;
            let end_bytes = hole.end() % page_bytes;
            let whole_bytes = hole.size_bytes.saturating_sub(shared_bytes + end_bytes);
            if whole_bytes <= room_bytes { hole.size_bytes } else { shared_bytes + room_bytes }
        };
        let holes = self.layout.page_holes();
        let mut candidates: Vec<usize> = holes.iter().map(in_hole).collect();
        candidates.extend([beyond_bytes, room_bytes, self.layout.largest_hole_bytes()]);
        candidates.sort_unstable();
        let could_be_had = |&size_bytes: &usize| {
            let place = self.place(size_bytes, Stream::DEFAULT);
            place.is_some_and(|place| {
                let is_free = self.layout.touched_bytes_with(&place) == self.layout.touched_bytes();
                let fits = is_free || self.fits(self.needed_bytes(Some(&place), 0));
                fits && place.end() <= self.limit_bytes
            })
        };
        candidates.into_iter().rev().filter(|&bytes| bytes > 0).find(could_be_had).unwrap_or(0)
    }

    /// Makes a place a live block, in `view` if it is stitched. Returns its slot and serial.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        place: &Place,
        size_bytes: usize,
        view: u32,
        request: &Request,
    ) -> (u32, u64) {
        let Request { category, size_bytes: requested_bytes, stream, site } = *request;
        let serial = self.take_serial();
        if view != NONE {
            self.views.enter(view);
        }
        let users = StreamSet::of(stream);
        let next_piece = NONE;
        let live = Live {
            requested_bytes,
            size_bytes,
            category,
            stream,
            users,
            site,
            serial,
            view,
            next_piece,
        };
        let slot = self.layout.insert(place, live, self.next_event - 1);
        self.statistics.requested.add(requested_bytes);
        self.statistics.allocated.add(size_bytes);
        self.statistics.by_category[category].add(size_bytes);
        self.statistics.allocations += 1;
        (slot, serial)
    }

    /// Frees a block; its pages stay committed.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> Live {
        let event = self.take_event();
        let live = *self.layout.block(slot);
        self.layout.remove(slot, event);
        if live.is_stitched() {
            self.views.leave(live.view, event);
        }
        self.statistics.requested.subtract(live.requested_bytes);
        self.statistics.allocated.subtract(live.size_bytes);
        self.statistics.by_category[live.category].subtract(live.size_bytes);
        live
    }

    pub(crate) fn add_pages(&mut self, run: Extent) {
        self.pages.add(run);
        self.statistics.reserved.add(run.size_bytes);
    }

    pub(crate) fn remove_pages(&mut self, run: Extent) {
        self.pages.remove(run);
        self.statistics.reserved.subtract(run.size_bytes);
    }

    /// A charge of nothing, to be raised.
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

    pub(crate) fn live_blocks(&self) -> Vec<BlockInfo> {
        let info = |(slot, live): (u32, &Live)| BlockInfo {
            offset: self.layout.offset(slot),
            size_bytes: live.size_bytes,
            requested_bytes: live.requested_bytes,
            category: live.category,
            stream: live.stream,
            site: live.site,
            serial: live.serial,
        };
        self.layout.live().map(info).collect()
    }

    /// 64-bit FNV-1a (Fowler, Noll, Vo; RFC 9923) over category, offset and size of every live
    /// block, or piece of one, in address order.
    pub(crate) fn layout_hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut absorb = |bytes: &[u8]| {
            for &byte in bytes {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        for (extent, live) in self.layout.live_extents() {
            absorb(&[live.category as u8]);
            absorb(&(extent.offset as u64).to_le_bytes());
            absorb(&(extent.size_bytes as u64).to_le_bytes());
        }
        hash
    }

    /// `waiter` has waited for all that `on` had up to now.
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
