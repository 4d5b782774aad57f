//! Changes: blocks come and go, holes are cut and merged.

use super::{Extent, Layout, Live, Node, Use};
use crate::holes::NONE;
use crate::stream::{Marks, StreamSet};

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
    pub(super) hole: u32,
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

impl Layout {
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

    pub(super) fn insert_stitched(&mut self, parts: &[Part], live: Live, event: u64) -> u32 {
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
    pub(super) fn put_on_top(
        &mut self,
        extent: Extent,
        state: Use,
        users: StreamSet,
        event: u64,
    ) -> u32 {
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
    pub(super) fn cut(&mut self, slot: u32, extent: Extent, state: Use) -> u32 {
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

    pub(super) fn vacate(&mut self, slot: u32, marks: Marks) {
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
    pub(super) fn mergeable(&self, slot: u32, marks: Marks) -> Option<(Extent, Marks)> {
        let node = self.nodes.get(slot as usize)?;
        match node.state {
            Use::Hole(others) if others.streams == marks.streams => Some((node.extent, others)),
            _ => None,
        }
    }

    /// The last node is a hole: it becomes wilderness, and whatever hole is the last then.
    pub(super) fn sink(&mut self, slot: u32, marks: Marks) {
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

    pub(super) fn give_beyond(&mut self, marks: Marks) {
        self.beyond = self.beyond.union(marks.streams);
        for on in marks.streams.iter() {
            let since = &mut self.beyond_since[on.index()];
            *since = marks.since.max(*since);
        }
    }

    /// Neighbours become one hole that all their streams used.
    pub(super) fn merge_across_streams(&mut self) {
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
}
