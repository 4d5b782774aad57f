//! Placement: arithmetic on offsets, with no memory in sight.
//!
//! Live blocks and the holes between them tile the range from 0 to the *top*, the end of the last
//! live block. Beyond it lies the wilderness, which has no end here. A request goes into the
//! smallest hole that holds it, the lowest one on ties. If there is none and the source can map
//! pages at a second address, it is *stitched*: it takes whole free pages of the holes, largest
//! runs first, and what is still missing from the top. Else it goes to the top. So the place
//! depends on the live blocks, on who used the holes, and on the size of a page, and on nothing
//! that is cached.
//!
//! A hole remembers the streams that may still work on it. One's own holes come first, then those
//! of others, which cost a wait, then neighbours of different streams merged into one.

use std::collections::BTreeSet;
use std::panic::Location;

use crate::category::Category;
use crate::holes::{Holes, NONE};
use crate::stream::{Marks, Stream, StreamSet, Waits};

/// Blocks start and end at multiples of this.
pub const BLOCK_BYTES: usize = 512;

/// A stitched block has no more pieces than this, so that no view costs too many mappings.
pub(crate) const PIECES_MAX: usize = 128;

/// Bytes that a request takes: rounded up, and never nothing. `None` if that overflows.
#[inline]
pub(crate) fn active_bytes(requested_bytes: usize) -> Option<usize> {
    requested_bytes.max(1).checked_next_multiple_of(BLOCK_BYTES)
}

/// A range of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Extent {
    pub(crate) offset: usize,
    pub(crate) size_bytes: usize,
}

impl Extent {
    pub(crate) fn end(self) -> usize {
        self.offset + self.size_bytes
    }
}

/// What is known of a live block beside its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) requested_bytes: usize,
    /// All pieces together.
    pub(crate) size_bytes: usize,
    pub(crate) category: Category,
    /// Whose it is.
    pub(crate) stream: Stream,
    /// Who has used it.
    pub(crate) users: StreamSet,
    pub(crate) site: &'static Location<'static>,
    /// Never given twice, so that a slot used again is not mistaken for the same block.
    pub(crate) serial: u64,
    /// Where the whole block is mapped, if it has pieces; else `NONE`.
    pub(crate) view: u32,
    /// Node of the second piece, or `NONE`.
    pub(crate) next_piece: u32,
}

impl Live {
    pub(crate) fn is_stitched(&self) -> bool {
        self.view != NONE
    }
}

/// What a node is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// Nobody's. Who may still work on it is in the marks.
    Hole(Marks),
    /// A block, or the first piece of one.
    Block(Live),
    /// A later piece of a block.
    Piece {
        /// Node of the first piece.
        first: u32,
        /// Node of the next piece, or `NONE`.
        next_piece: u32,
    },
}

/// A part of the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) extent: Extent,
    previous: u32,
    next: u32,
    pub(crate) state: Use,
}

/// Where a request would go.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) spot: Spot,
    /// Streams to wait for first.
    pub(crate) waits: StreamSet,
}

/// The kinds of place.
#[derive(Clone, Debug)]
pub(crate) enum Spot {
    /// The start of a hole.
    Hole { slot: u32, extent: Extent },
    /// The top.
    Top(Extent),
    /// Whole pages of holes, in this order, and pages beyond the top for the rest.
    Stitched(Vec<Part>),
}

/// A piece of a stitched place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The hole that it is cut from, or `NONE` for the top.
    hole: u32,
    pub(crate) extent: Extent,
}

impl Place {
    /// The end of what it takes. Of a stitched place only its last piece can move the top.
    pub(crate) fn end(&self) -> usize {
        match &self.spot {
            Spot::Hole { extent, .. } | Spot::Top(extent) => extent.end(),
            Spot::Stitched(parts) => parts.iter().map(|part| part.extent.end()).max().unwrap_or(0),
        }
    }

    /// What it takes, in order.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> {
        let (single, parts) = match &self.spot {
            Spot::Hole { extent, .. } | Spot::Top(extent) => (Some(*extent), &[][..]),
            Spot::Stitched(parts) => (None, &parts[..]),
        };
        single.into_iter().chain(parts.iter().map(|part| part.extent))
    }

    /// Where it begins.
    pub(crate) fn offset(&self) -> usize {
        match &self.spot {
            Spot::Hole { extent, .. } | Spot::Top(extent) => extent.offset,
            Spot::Stitched(parts) => parts[0].extent.offset,
        }
    }
}

/// Who asks, and what the source can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    pub(crate) size_bytes: usize,
    pub(crate) stream: Stream,
    pub(crate) waits: &'a Waits,
    /// Whether the source can show pages at a second address.
    pub(crate) stitches: bool,
}

/// The blocks of an arena; a page is a power of two. Nodes sit in a slab and are linked in address
/// order: neighbours are found without a search, and a steady state allocates nothing on the heap
/// for them.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    first: u32,
    last: u32,
    /// Holes by who used them. There are few sets, and mostly one.
    holes: Vec<(StreamSet, Holes)>,
    /// Who may still work beyond the top, below `used_end`.
    beyond: StreamSet,
    /// By stream, the last event at which it gave memory there back: with one for all, a stream
    /// that is long idle would be waited for after every free of another.
    beyond_since: [u64; Stream::COUNT],
    /// The highest top ever.
    used_end: usize,
    page_bytes: usize,
    /// Its binary logarithm: a division costs more than all else that asks for a page.
    page_shift: u32,
    /// Pages in which a live block has bytes.
    touched_pages: usize,
}

impl Layout {
    pub(crate) fn new(page_bytes: usize) -> Layout {
        Layout {
            page_bytes,
            page_shift: page_bytes.ilog2(),
            touched_pages: 0,
            nodes: Vec::new(),
            vacant: Vec::new(),
            first: NONE,
            last: NONE,
            holes: Vec::new(),
            beyond: StreamSet::EMPTY,
            beyond_since: [0; Stream::COUNT],
            used_end: 0,
        }
    }

    /// The end of the last live block.
    #[inline]
    pub(crate) fn top(&self) -> usize {
        self.nodes.get(self.last as usize).map_or(0, |node| node.extent.end())
    }

    /// Where a block would go; `None` if the arithmetic overflows. May merge holes.
    #[inline]
    pub(crate) fn place(&mut self, want: &Want) -> Option<Place> {
        if let Some((slot, extent)) = self.own_hole(want.size_bytes, want.stream) {
            return Some(Place { spot: Spot::Hole { slot, extent }, waits: StreamSet::EMPTY });
        }
        self.place_elsewhere(want)
    }

    /// The start of the best fit among the holes that only `stream` used: a place that needs no
    /// wait, and the one that `place` prefers.
    #[inline]
    pub(crate) fn own_hole(&self, size_bytes: usize, stream: Stream) -> Option<(u32, Extent)> {
        let own = StreamSet::of(stream);
        let (_, holes) = self.holes.iter().find(|(set, _)| *set == own)?;
        let (_, offset, slot) = holes.best_fit(size_bytes)?;
        Some((slot, Extent { offset, size_bytes }))
    }

    #[cold]
    fn place_elsewhere(&mut self, want: &Want) -> Option<Place> {
        if self.holes.iter().filter(|(_, holes)| holes.len() > 0).count() > 1 {
            if let Some(place) = self.any_hole(want) {
                return Some(place);
            }
            self.merge_across_streams();
        }
        if let Some(place) = self.any_hole(want) {
            return Some(place);
        }
        if let Some(place) = self.stitched(want) {
            return Some(place);
        }
        let extent = Extent { offset: self.top(), size_bytes: want.size_bytes };
        extent.offset.checked_add(extent.size_bytes)?;
        Some(Place { spot: Spot::Top(extent), waits: self.waits_beyond(want) })
    }

    /// Of the best fits of all sets of streams: one that needs no wait first, then the smallest,
    /// then the lowest.
    fn any_hole(&self, want: &Want) -> Option<Place> {
        let candidates = self.holes.iter().filter_map(|(_, holes)| {
            let (size_bytes, offset, slot) = holes.best_fit(want.size_bytes)?;
            let waits = self.waits_for(want, slot);
            Some((waits != StreamSet::EMPTY, size_bytes, offset, slot, waits))
        });
        let (_, _, offset, slot, waits) = candidates.min()?;
        let extent = Extent { offset, size_bytes: want.size_bytes };
        Some(Place { spot: Spot::Hole { slot, extent }, waits })
    }

    fn waits_for(&self, want: &Want, slot: u32) -> StreamSet {
        match self.nodes[slot as usize].state {
            Use::Hole(marks) => want.waits.missing(want.stream, marks),
            _ => StreamSet::EMPTY,
        }
    }

    fn waits_beyond(&self, want: &Want) -> StreamSet {
        if self.top() >= self.used_end {
            return StreamSet::EMPTY;
        }
        let missing = |on: Stream| {
            let (streams, since) = (StreamSet::of(on), self.beyond_since[on.index()]);
            want.waits.missing(want.stream, Marks { streams, since })
        };
        self.beyond.iter().map(missing).fold(StreamSet::EMPTY, StreamSet::union)
    }

    /// Pieces for a request that no hole holds: whole pages of holes, and the top for the rest.
    fn stitched(&self, want: &Want) -> Option<Place> {
        let page_bytes = self.page_bytes;
        if !want.stitches || want.size_bytes < page_bytes {
            return None;
        }
        let mut runs = Vec::new();
        for (_, holes) in &self.holes {
            holes.for_each_from(page_bytes, |offset, size_bytes, slot| {
                let start = offset.next_multiple_of(page_bytes);
                let end = (offset + size_bytes) / page_bytes * page_bytes;
                if start < end {
                    runs.push((std::cmp::Reverse(end - start), start, slot));
                }
            });
        }
        if runs.is_empty() {
            return None;
        }
        runs.sort_unstable();
        runs.truncate(PIECES_MAX - 2);
        let mut missing_bytes = want.size_bytes;
        let mut parts = Vec::with_capacity(4);
        let mut waits = StreamSet::EMPTY;
        for (std::cmp::Reverse(run_bytes), offset, hole) in runs {
            if missing_bytes == 0 {
                break;
            }
            let size_bytes = run_bytes.min(missing_bytes);
            parts.push(Part { hole, extent: Extent { offset, size_bytes } });
            waits = waits.union(self.waits_for(want, hole));
            missing_bytes -= size_bytes;
        }
        if missing_bytes > 0 {
            waits = waits.union(self.waits_beyond(want));
            // From the next page on: with the free part of the last one as a first piece, recorded
            // traces needed 1 % more, because such a piece leaves odd holes behind.
            let offset = self.top().checked_next_multiple_of(page_bytes)?;
            offset.checked_add(missing_bytes)?;
            let extent = Extent { offset, size_bytes: missing_bytes };
            parts.push(Part { hole: NONE, extent });
        }
        Some(Place { spot: Spot::Stitched(parts), waits })
    }

    /// Bytes of the pages in which live blocks lie: the least that has to be committed.
    #[inline]
    pub(crate) fn touched_bytes(&self) -> usize {
        self.touched_pages * self.page_bytes
    }

    /// What that would be with a block at a place.
    pub(crate) fn touched_bytes_with(&self, place: &Place) -> usize {
        let new_pages = |extent: Extent, hole: u32| {
            let (previous, next) = match self.nodes.get(hole as usize) {
                Some(node) => (node.previous, node.next),
                None => (self.last, NONE),
            };
            self.own_pages(extent, previous, next)
        };
        let new_pages: usize = match &place.spot {
            Spot::Hole { slot, extent } => new_pages(*extent, *slot),
            Spot::Top(extent) => new_pages(*extent, NONE),
            Spot::Stitched(parts) => {
                parts.iter().map(|part| new_pages(part.extent, part.hole)).sum()
            }
        };
        self.touched_pages.saturating_add(new_pages).saturating_mul(self.page_bytes)
    }

    /// Pages of an extent in which no other live block has bytes; the nodes beside it are given.
    #[inline]
    fn own_pages(&self, extent: Extent, previous: u32, next: u32) -> usize {
        let first = extent.offset >> self.page_shift;
        let last = (extent.end() - 1) >> self.page_shift;
        let shares_first = self.is_live_from(previous, first << self.page_shift);
        let shares_last = self.is_live_below(next, (last + 1).saturating_mul(self.page_bytes));
        let shared = if first == last {
            usize::from(shares_first || shares_last)
        } else {
            usize::from(shares_first) + usize::from(shares_last)
        };
        last + 1 - first - shared
    }

    /// Whether a live byte lies at or beyond `offset`, in the node in `slot` or before it.
    #[inline]
    fn is_live_from(&self, mut slot: u32, offset: usize) -> bool {
        while let Some(node) = self.nodes.get(slot as usize) {
            if node.extent.end() <= offset {
                return false;
            }
            if !matches!(node.state, Use::Hole(_)) {
                return true;
            }
            slot = node.previous;
        }
        false
    }

    /// Whether a live byte lies below `end`, in the node in `slot` or after it.
    #[inline]
    fn is_live_below(&self, mut slot: u32, end: usize) -> bool {
        while let Some(node) = self.nodes.get(slot as usize) {
            if node.extent.offset >= end {
                return false;
            }
            if !matches!(node.state, Use::Hole(_)) {
                return true;
            }
            slot = node.next;
        }
        false
    }

    /// Makes a place, found since the last change, a live block after an event. Returns its slot.
    pub(crate) fn insert(&mut self, place: &Place, live: Live, event: u64) -> u32 {
        match &place.spot {
            Spot::Hole { slot, extent } => self.cut(*slot, *extent, Use::Block(live)),
            Spot::Top(extent) => {
                debug_assert_eq!(extent.offset, self.top(), "the place is older than the layout");
                self.put_on_top(*extent, Use::Block(live), live.users, event)
            }
            Spot::Stitched(parts) => self.insert_stitched(parts, live, event),
        }
    }

    fn insert_stitched(&mut self, parts: &[Part], live: Live, event: u64) -> u32 {
        let unset = Use::Piece { first: NONE, next_piece: NONE };
        let place = |part: &Part| match part.hole {
            NONE => self.put_on_top(part.extent, unset, live.users, event),
            hole => self.cut(hole, part.extent, unset),
        };
        let slots: Vec<u32> = parts.iter().map(place).collect();
        let first = slots[0];
        // From the last one on, so that each piece knows the next.
        let mut next_piece = NONE;
        for &slot in slots[1..].iter().rev() {
            self.nodes[slot as usize].state = Use::Piece { first, next_piece };
            next_piece = slot;
        }
        self.nodes[first as usize].state = Use::Block(Live { next_piece, ..live });
        first
    }

    /// Links an extent at or beyond the top; what is between becomes a hole of its users.
    fn put_on_top(&mut self, extent: Extent, state: Use, users: StreamSet, event: u64) -> u32 {
        let gap = Extent { offset: self.top(), size_bytes: extent.offset - self.top() };
        if gap.size_bytes > 0 {
            // The block has waited for whoever was there: to wait for its users is enough.
            let marks = Marks { streams: users, since: event };
            let slot = self.link_after(self.last, gap, Use::Hole(marks));
            self.list(slot, gap, marks.streams);
        }
        self.touched_pages += self.own_pages(extent, self.last, NONE);
        self.link_after(self.last, extent, state)
    }

    /// Makes the start of the hole in `slot` a live block. Returns its slot.
    #[inline]
    pub(crate) fn insert_in_hole(&mut self, slot: u32, extent: Extent, live: Live) -> u32 {
        self.cut(slot, extent, Use::Block(live))
    }

    /// Takes an extent out of the hole in `slot`; what is left on either side stays a hole.
    #[inline]
    fn cut(&mut self, slot: u32, extent: Extent, state: Use) -> u32 {
        let Node { extent: hole, previous, next, state: Use::Hole(marks) } =
            self.nodes[slot as usize]
        else {
            unreachable!("slot {slot} is no hole");
        };
        self.unlist(slot, hole, marks.streams);
        self.touched_pages += self.own_pages(extent, previous, next);
        if extent.offset > hole.offset {
            let size_bytes = extent.offset - hole.offset;
            let before = Extent { offset: hole.offset, size_bytes };
            let before_slot = self.link_after(previous, before, Use::Hole(marks));
            self.list(before_slot, before, marks.streams);
        }
        let node = &mut self.nodes[slot as usize];
        node.extent = extent;
        node.state = state;
        if hole.end() > extent.end() {
            let rest = Extent { offset: extent.end(), size_bytes: hole.end() - extent.end() };
            let rest_slot = self.link_after(slot, rest, Use::Hole(marks));
            self.list(rest_slot, rest, marks.streams);
        }
        slot
    }

    /// The block in `slot`.
    #[inline]
    pub(crate) fn block(&self, slot: u32) -> &Live {
        match &self.nodes[slot as usize].state {
            Use::Block(live) => live,
            other => unreachable!("slot {slot} is {other:?}, no block"),
        }
    }

    #[inline]
    pub(crate) fn block_mut(&mut self, slot: u32) -> &mut Live {
        match &mut self.nodes[slot as usize].state {
            Use::Block(live) => live,
            other => unreachable!("slot {slot} is {other:?}, no block"),
        }
    }

    /// Offset of the block in `slot`, or of its first piece.
    pub(crate) fn offset(&self, slot: u32) -> usize {
        self.nodes[slot as usize].extent.offset
    }

    /// Where a block lies, in order.
    pub(crate) fn pieces(&self, slot: u32) -> impl Iterator<Item = Extent> {
        let mut at = slot;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = match node.state {
                Use::Block(live) => live.next_piece,
                Use::Piece { next_piece, .. } => next_piece,
                Use::Hole(_) => unreachable!("a piece of a live block is a hole"),
            };
            Some(node.extent)
        })
    }

    /// Frees the block in `slot` at an event: its pieces merge with the holes beside them that the
    /// same streams used, and what touches the top becomes wilderness.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32, event: u64) {
        let &Live { users, mut next_piece, .. } = self.block(slot);
        let marks = Marks { streams: users, since: event };
        self.vacate(slot, marks);
        while next_piece != NONE {
            let at = next_piece;
            let Use::Piece { next_piece: after, .. } = self.nodes[at as usize].state else {
                unreachable!("node {at} is no piece");
            };
            next_piece = after;
            self.vacate(at, marks);
        }
    }

    fn vacate(&mut self, slot: u32, marks: Marks) {
        let (mut merged, mut marks) = (slot, marks);
        let Node { mut extent, previous, next, .. } = self.nodes[slot as usize];
        self.touched_pages -= self.own_pages(extent, previous, next);
        if let Some((after, others)) = self.mergeable(next, marks) {
            marks = marks.union(others);
            self.unlist(next, after, marks.streams);
            self.unlink(next);
            extent.size_bytes += after.size_bytes;
        }
        if let Some((before, others)) = self.mergeable(previous, marks) {
            marks = marks.union(others);
            self.unlist(previous, before, marks.streams);
            self.unlink(slot);
            extent.offset = before.offset;
            extent.size_bytes += before.size_bytes;
            merged = previous;
        }
        let node = &mut self.nodes[merged as usize];
        node.extent = extent;
        node.state = Use::Hole(marks);
        if merged == self.last {
            self.sink(merged, marks);
        } else {
            self.list(merged, extent, marks.streams);
        }
    }

    /// The hole in `slot` with its marks, if there is one that the same streams used.
    #[inline]
    fn mergeable(&self, slot: u32, marks: Marks) -> Option<(Extent, Marks)> {
        let node = self.nodes.get(slot as usize)?;
        match node.state {
            Use::Hole(others) if others.streams == marks.streams => Some((node.extent, others)),
            _ => None,
        }
    }

    /// The last node is a hole: it becomes wilderness, and whatever hole is the last then.
    fn sink(&mut self, slot: u32, marks: Marks) {
        self.used_end = self.used_end.max(self.nodes[slot as usize].extent.end());
        self.give_beyond(marks);
        self.unlink(slot);
        while let Some(&Node { extent, state: Use::Hole(marks), .. }) =
            self.nodes.get(self.last as usize)
        {
            let last = self.last;
            self.give_beyond(marks);
            self.unlist(last, extent, marks.streams);
            self.unlink(last);
        }
    }

    fn give_beyond(&mut self, marks: Marks) {
        self.beyond = self.beyond.union(marks.streams);
        for on in marks.streams.iter() {
            let since = &mut self.beyond_since[on.index()];
            *since = marks.since.max(*since);
        }
    }

    /// Neighbours become one hole that all their streams used.
    fn merge_across_streams(&mut self) {
        let mut slot = self.first;
        while let Some(&Node { mut extent, next, state, .. }) = self.nodes.get(slot as usize) {
            let after = self.nodes.get(next as usize).map(|node| (node.extent, node.state));
            match (state, after) {
                (Use::Hole(marks), Some((after, Use::Hole(others)))) => {
                    self.unlist(slot, extent, marks.streams);
                    self.unlist(next, after, others.streams);
                    self.unlink(next);
                    let marks = marks.union(others);
                    extent.size_bytes += after.size_bytes;
                    let node = &mut self.nodes[slot as usize];
                    node.extent = extent;
                    node.state = Use::Hole(marks);
                    self.list(slot, extent, marks.streams);
                }
                _ => slot = next,
            }
        }
    }

    /// Size of the largest hole.
    pub(crate) fn largest_hole_bytes(&self) -> usize {
        self.holes.iter().map(|(_, holes)| holes.largest_bytes()).max().unwrap_or(0)
    }

    /// What no block takes below the top, by address, where it is at least a page long: holes, and
    /// rows of holes of different streams.
    pub(crate) fn page_holes(&self) -> Vec<Extent> {
        let mut rows: Vec<Extent> = Vec::new();
        for (_, node) in self.nodes() {
            let Use::Hole(_) = node.state else { continue };
            match rows.last_mut() {
                Some(row) if row.end() == node.extent.offset => {
                    row.size_bytes += node.extent.size_bytes;
                }
                _ => rows.push(node.extent),
            }
        }
        rows.retain(|row| row.size_bytes >= self.page_bytes);
        rows
    }

    /// Blocks, pieces and holes in address order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (u32, &Node)> {
        let mut slot = self.first;
        std::iter::from_fn(move || {
            let at = slot;
            let node = self.nodes.get(at as usize)?;
            slot = node.next;
            Some((at, node))
        })
    }

    /// Live blocks by the address of their first piece.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &Live)> {
        self.nodes().filter_map(|(slot, node)| match &node.state {
            Use::Block(live) => Some((slot, live)),
            _ => None,
        })
    }

    /// Every part of a live block in address order.
    pub(crate) fn live_extents(&self) -> impl Iterator<Item = (Extent, &Live)> {
        self.nodes().filter_map(|(_, node)| match &node.state {
            Use::Block(live) => Some((node.extent, live)),
            Use::Piece { first, .. } => Some((node.extent, self.block(*first))),
            Use::Hole(_) => None,
        })
    }

    /// # Panics
    /// If blocks and holes do not tile the range up to the top, if two holes of the same streams
    /// touch, if pieces are not a block's, or if the index of holes is not the holes.
    pub(crate) fn check(&self) {
        let (mut end, mut count, mut hole_count) = (0, 0, 0);
        let mut touched = BTreeSet::new();
        let mut before: Option<StreamSet> = None;
        let (mut slot, mut previous) = (self.first, NONE);
        while let Some(node) = self.nodes.get(slot as usize) {
            assert_eq!(node.extent.offset, end, "gap or overlap before {}", node.extent.offset);
            assert_eq!(node.previous, previous, "broken link at {end}");
            assert!(node.extent.size_bytes > 0, "empty node at {end}");
            assert_eq!(node.extent.size_bytes % BLOCK_BYTES, 0, "odd size at {end}");
            let mut marked = None;
            if !matches!(node.state, Use::Hole(_)) {
                let last = (node.extent.end() - 1) / self.page_bytes;
                touched.extend(node.extent.offset / self.page_bytes..=last);
            }
            match node.state {
                Use::Hole(marks) => {
                    assert!(before != Some(marks.streams), "two holes meet at {end}");
                    let listed = self.holes.iter().any(|(set, holes)| {
                        *set == marks.streams
                            && holes.contains(node.extent.size_bytes, node.extent.offset, slot)
                    });
                    assert!(listed, "hole at {end} is not listed");
                    hole_count += 1;
                    marked = Some(marks.streams);
                }
                Use::Block(live) => {
                    let total_bytes: usize = self.pieces(slot).map(|piece| piece.size_bytes).sum();
                    assert_eq!(total_bytes, live.size_bytes, "pieces of the block at {end}");
                    let is_whole = live.next_piece == NONE;
                    assert!(live.is_stitched() || is_whole, "the block at {end} has no view");
                }
                Use::Piece { first, .. } => {
                    let offset = node.extent.offset;
                    let is_known = self.pieces(first).any(|piece| piece.offset == offset);
                    assert!(is_known, "piece at {end} is nobody's");
                }
            }
            before = marked;
            end = node.extent.end();
            count += 1;
            previous = slot;
            slot = node.next;
        }
        assert_eq!(touched.len(), self.touched_pages, "touched pages");
        assert!(before.is_none(), "a hole touches the top at {end}");
        assert_eq!(previous, self.last, "the list ends early");
        let listed_count: usize = self.holes.iter().map(|(_, holes)| holes.len()).sum();
        assert_eq!(hole_count, listed_count, "more holes listed than there are");
        assert_eq!(count + self.vacant.len(), self.nodes.len(), "lost slots");
    }

    /// Enters the hole in `slot`, which is as it is told.
    #[inline]
    fn list(&mut self, slot: u32, hole: Extent, streams: StreamSet) {
        let index = self.holes.iter().position(|(set, _)| *set == streams);
        let index = index.unwrap_or_else(|| self.list_for(streams));
        self.holes[index].1.insert(hole.size_bytes, hole.offset, slot);
    }

    /// A list for the holes of a new set of streams, one that no set needs any more if there is
    /// one: there are as many lists as there were sets at once.
    #[cold]
    fn list_for(&mut self, streams: StreamSet) -> usize {
        let vacant = self.holes.iter().position(|(_, holes)| holes.len() == 0);
        let index = vacant.unwrap_or_else(|| {
            self.holes.push((streams, Holes::new()));
            self.holes.len() - 1
        });
        self.holes[index].0 = streams;
        index
    }

    #[inline]
    fn unlist(&mut self, slot: u32, hole: Extent, streams: StreamSet) {
        let listed = self.holes.iter_mut().find(|(set, _)| *set == streams);
        let (_, holes) = listed.expect("a hole is listed under its streams");
        holes.remove(hole.size_bytes, hole.offset, slot);
    }

    #[inline]
    fn link_after(&mut self, previous: u32, extent: Extent, state: Use) -> u32 {
        let next = match self.nodes.get(previous as usize) {
            Some(node) => node.next,
            None => self.first,
        };
        let node = Node { extent, previous, next, state };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                let slot = u32::try_from(self.nodes.len()).expect("fewer than 2^32 blocks");
                self.nodes.push(node);
                slot
            }
        };
        self.join(previous, slot);
        self.join(slot, next);
        slot
    }

    #[inline]
    fn unlink(&mut self, slot: u32) {
        let Node { previous, next, .. } = self.nodes[slot as usize];
        self.join(previous, next);
        self.vacant.push(slot);
    }

    #[inline]
    fn join(&mut self, previous: u32, next: u32) {
        match self.nodes.get_mut(previous as usize) {
            Some(node) => node.next = next,
            None => self.first = next,
        }
        match self.nodes.get_mut(next as usize) {
            Some(node) => node.previous = previous,
            None => self.last = previous,
        }
    }
}
