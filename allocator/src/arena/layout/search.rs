//! Search for the place of a request, and its cost in pages.

use std::cell::Cell;

use crate::arena::extent::{Extent, page_floor};
use crate::arena::free_list::{Key, key};
use crate::arena::layout::node::{Kind, NONE};
use crate::arena::layout::place::{Part, Placement, Position};
use crate::arena::layout::{Layout, PIECES_MAX};
use crate::error::{Rung, Tried};
use crate::stream::{Stream, StreamOrder, StreamSet};

/// A request, and the abilities of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceQuery<'a> {
    pub(crate) size_bytes: usize,
    pub(crate) stream: Stream,
    pub(crate) waits: &'a StreamOrder,
    /// True if the source can map pages at a second address.
    pub(crate) stitches: bool,
    /// Rungs that the search has tried, for the error of a request without a place.
    pub(crate) tried: &'a Cell<Tried>,
}

impl PlaceQuery<'_> {
    fn note(&self, rung: Rung) {
        self.tried.set(self.tried.get().with(rung));
    }
}

impl Layout {
    /// The place of a block; `None` if the arithmetic overflows.
    #[inline]
    pub(crate) fn place(&self, query: &PlaceQuery) -> Option<Placement> {
        if let Some((slot, extent)) = self.own_hole(query.size_bytes, StreamSet::of(query.stream)) {
            return Some(Placement::new(Position::Hole { slot, extent }, StreamSet::EMPTY));
        }
        self.place_elsewhere(query)
    }

    /// Slot of the best fit among the holes of exactly the streams `own`, and the extent of the
    /// block at the start of this hole. `place` prefers a stream's own holes, because they need no
    /// wait.
    #[inline]
    pub(crate) fn own_hole(&self, size_bytes: usize, own: StreamSet) -> Option<(u32, Extent)> {
        let (_, holes) = self.free_lists.iter().find(|(set, _)| *set == own)?;
        let slot = holes.best_fit(&self.nodes, size_bytes)?;
        Some((slot, Extent { offset: self.nodes[slot as usize].extent.offset, size_bytes }))
    }

    /// The place at the top and the streams to wait for there, if no own hole fits and `place`
    /// would choose the top. `None` leaves the choice to `place`.
    #[inline]
    pub(crate) fn own_top(&self, query: &PlaceQuery) -> Option<(Extent, StreamSet)> {
        let &PlaceQuery { size_bytes, stream, stitches, .. } = query;
        let own = StreamSet::of(stream);
        let stitched_bytes =
            if stitches && size_bytes >= self.page_bytes { self.page_bytes } else { usize::MAX };
        for (set, holes) in &self.free_lists {
            let is_empty = holes.len() == 0;
            if !is_empty && (*set != own || holes.may_hold(stitched_bytes)) {
                return None;
            }
        }
        let offset = self.top();
        offset.checked_add(size_bytes)?;
        Some((Extent { offset, size_bytes }, self.waits_beyond(query)))
    }

    #[cold]
    fn place_elsewhere(&self, query: &PlaceQuery) -> Option<Placement> {
        query.note(Rung::Search);
        let own = StreamSet::of(query.stream);
        if self.free_lists.iter().any(|(set, holes)| *set != own && holes.len() > 0) {
            query.note(Rung::OtherStreams);
        }
        let list_count = self.free_lists.iter().filter(|(_, holes)| holes.len() > 0).count();
        if list_count > 0
            && let Some(place) = self.any_hole(query)
        {
            return Some(place);
        }
        if list_count > 1
            && let Some(merged) = self.merged_across_streams()
        {
            let place = merged.any_hole(query).or_else(|| merged.stitched_or_top(query))?;
            return Some(Placement { merged: Some(merged), ..place });
        }
        self.stitched_or_top(query)
    }

    fn stitched_or_top(&self, query: &PlaceQuery) -> Option<Placement> {
        let stitched = self.stitched(query);
        if stitched.is_some() {
            return stitched;
        }
        let extent = Extent { offset: self.top(), size_bytes: query.size_bytes };
        extent.offset.checked_add(extent.size_bytes)?;
        Some(Placement::new(Position::Top(extent), self.waits_beyond(query)))
    }

    /// The best fit of all free lists. Holes that need no wait come first, then the smallest hole,
    /// then the lowest.
    fn any_hole(&self, query: &PlaceQuery) -> Option<Placement> {
        let candidates = self.free_lists.iter().filter_map(|(_, holes)| {
            let slot = holes.best_fit(&self.nodes, query.size_bytes)?;
            let Extent { offset, size_bytes } = self.nodes[slot as usize].extent;
            let waits = self.waits_for(query, slot);
            Some((waits != StreamSet::EMPTY, size_bytes, offset, slot, waits))
        });
        let (_, _, offset, slot, waits) = candidates.min()?;
        let extent = Extent { offset, size_bytes: query.size_bytes };
        Some(Placement::new(Position::Hole { slot, extent }, waits))
    }

    fn waits_for(&self, query: &PlaceQuery, slot: u32) -> StreamSet {
        query.waits.missing(query.stream, self.nodes[slot as usize].last_use())
    }

    #[inline]
    fn waits_beyond(&self, query: &PlaceQuery) -> StreamSet {
        if self.top() >= self.used_end {
            return StreamSet::EMPTY;
        }
        let others = self.beyond.without(query.stream);
        if others == StreamSet::EMPTY {
            return others;
        }
        query.waits.fewest(query.stream, others, |on| self.beyond_since[on.index()])
    }

    /// Pieces for a request that is larger than every hole: whole pages of holes, and the top for
    /// the rest.
    fn stitched(&self, query: &PlaceQuery) -> Option<Placement> {
        let page_bytes = self.page_bytes;
        if !query.stitches || query.size_bytes < page_bytes {
            return None;
        }
        query.note(Rung::Stitch);
        let mut missing_bytes = query.size_bytes;
        let mut parts = Vec::with_capacity(8);
        let mut waits = StreamSet::EMPTY;
        let mut next = self.next_largest(Key::MAX);
        while let Some(largest) = next
            && missing_bytes > 0
            && parts.len() < PIECES_MAX - 2
        {
            let whole = self.whole_pages(largest);
            let Part { hole, extent } = if whole.extent.size_bytes < missing_bytes {
                next = self.next_largest(self.nodes[largest as usize].key());
                whole
            } else {
                self.smallest_run(missing_bytes, whole)
            };
            if extent.size_bytes > 0 {
                let size_bytes = extent.size_bytes.min(missing_bytes);
                parts.push(Part { hole, extent: Extent { size_bytes, ..extent } });
                waits = waits.union(self.waits_for(query, hole));
                missing_bytes -= size_bytes;
            }
        }
        if parts.is_empty() {
            return None;
        }
        if missing_bytes > 0 {
            waits = waits.union(self.waits_beyond(query));
            // The part at the top begins with the next page. With the free part of the last page as
            // a first piece, recorded traces needed 1 % more, because such a piece leaves odd holes
            // behind.
            let offset = page_floor(self.top().checked_add(page_bytes - 1)?, page_bytes);
            offset.checked_add(missing_bytes)?;
            let extent = Extent { offset, size_bytes: missing_bytes };
            parts.push(Part { hole: NONE, extent });
        }
        Some(Placement::new(Position::Stitched(parts), waits))
    }

    /// The largest hole whose key is below `below`, the highest one on ties. `None` if the hole is
    /// shorter than a page.
    fn next_largest(&self, below: Key) -> Option<u32> {
        let lasts =
            self.free_lists.iter().filter_map(|(_, holes)| holes.last_below(&self.nodes, below));
        let largest = lasts.max_by_key(|slot| self.nodes[*slot as usize].key())?;
        let size_bytes = self.nodes[largest as usize].extent.size_bytes;
        (size_bytes >= self.page_bytes).then_some(largest)
    }

    /// The whole pages of the smallest hole that has at least `size_bytes` in whole pages, the
    /// lowest hole on ties. `enough` has the pages of one such hole: only holes before this hole
    /// are searched.
    fn smallest_run(&self, size_bytes: usize, enough: Part) -> Part {
        let end = self.nodes[enough.hole as usize].key();
        let mut from = key(size_bytes.max(self.page_bytes), 0);
        while let Some(slot) = self.first_hole(from)
            && self.nodes[slot as usize].key() < end
        {
            let whole = self.whole_pages(slot);
            if whole.extent.size_bytes >= size_bytes {
                return whole;
            }
            from = self.nodes[slot as usize].key() + 1;
        }
        enough
    }

    /// The first hole in the order of size and offset that does not come before `from`.
    fn first_hole(&self, from: Key) -> Option<u32> {
        let firsts =
            self.free_lists.iter().filter_map(|(_, holes)| holes.first_from(&self.nodes, from));
        firsts.min_by_key(|slot| self.nodes[*slot as usize].key())
    }

    /// The whole pages in a hole.
    fn whole_pages(&self, hole: u32) -> Part {
        let extent = self.nodes[hole as usize].extent.pages_inside(self.page_bytes);
        Part { hole, extent }
    }

    /// Bytes of the pages in which live blocks lie: the least that must be committed.
    #[inline]
    pub(crate) fn touched_bytes(&self) -> usize {
        self.touched_pages * self.page_bytes
    }

    /// [`touched_bytes`](Self::touched_bytes) with a block at a place.
    pub(crate) fn touched_bytes_with(&self, place: &Placement) -> usize {
        let layout = place.merged.as_deref().unwrap_or(self);
        let new_pages = |extent: Extent, hole: u32| {
            let (previous, next) = match layout.nodes.get(hole as usize) {
                Some(node) => (node.previous, node.next),
                None => (layout.last, NONE),
            };
            layout.own_pages(extent, previous, next)
        };
        let new_pages: usize = match &place.position {
            Position::Hole { slot, extent } => new_pages(*extent, *slot),
            Position::Top(extent) => new_pages(*extent, NONE),
            Position::Stitched(parts) => {
                parts.iter().map(|part| new_pages(part.extent, part.hole)).sum()
            }
        };
        self.touched_pages.saturating_add(new_pages).saturating_mul(self.page_bytes)
    }

    /// Pages of an extent in which no other live block has bytes. `previous` and `next` are the
    /// nodes beside it.
    #[inline]
    pub(super) fn own_pages(&self, extent: Extent, previous: u32, next: u32) -> usize {
        let first = extent.offset >> self.page_shift;
        let last = (extent.end() - 1) >> self.page_shift;
        let (start, end) = (first << self.page_shift, (last + 1).saturating_mul(self.page_bytes));
        let (shares_first, shares_last) = if self.free_lists.len() > 1 {
            (self.is_live_from(previous, start), self.is_live_below(next, end))
        } else {
            // Holes of one set of streams do not touch, so that the nodes beside a hole are live
            // and need not be read.
            (self.live_end_before(previous) > start, self.live_start_after(next) < end)
        };
        let is_counted_twice = first == last && shares_first && shares_last;
        let page_count = last + 1 - first + usize::from(is_counted_twice);
        page_count - usize::from(shares_first) - usize::from(shares_last)
    }

    /// The end of the live bytes of the node in `slot`. If the node is a hole, the end of the node
    /// before. Holes must not touch.
    #[inline]
    fn live_end_before(&self, slot: u32) -> usize {
        let Some(node) = self.nodes.get(slot as usize) else { return 0 };
        if node.kind == Kind::Hole { node.extent.offset } else { node.extent.end() }
    }

    /// The start of the live bytes of the node in `slot`. If the node is a hole, the start of the
    /// node after. Holes must not touch.
    #[inline]
    fn live_start_after(&self, slot: u32) -> usize {
        let Some(node) = self.nodes.get(slot as usize) else { return usize::MAX };
        if node.kind == Kind::Hole { node.extent.end() } else { node.extent.offset }
    }

    /// True if the node in `slot`, or a node before, has a live byte at or beyond `offset`.
    #[inline]
    fn is_live_from(&self, mut slot: u32, offset: usize) -> bool {
        while let Some(node) = self.nodes.get(slot as usize) {
            if node.extent.end() <= offset {
                return false;
            }
            if node.kind != Kind::Hole {
                return true;
            }
            slot = node.previous;
        }
        false
    }

    /// True if the node in `slot`, or a node after, has a live byte below `end`.
    #[inline]
    fn is_live_below(&self, mut slot: u32, end: usize) -> bool {
        while let Some(node) = self.nodes.get(slot as usize) {
            if node.extent.offset >= end {
                return false;
            }
            if node.kind != Kind::Hole {
                return true;
            }
            slot = node.next;
        }
        false
    }
}
