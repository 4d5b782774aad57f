//! Changes: blocks come and go, holes are cut and merged.

use crate::arena::extent::Extent;
use crate::arena::layout::Layout;
use crate::arena::layout::node::{FIRST_PIECE, Kind, Live, NEXT_PIECE, NONE, Node, VIEW};
use crate::stream::{LastUse, StreamSet};

/// Where a request would go.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) position: Position,
    /// Streams to wait for first.
    pub(crate) waits: StreamSet,
    /// The layout that it is in, if holes had to be merged to find it: a request that fails after
    /// all leaves its layout as it was.
    pub(super) merged: Option<Box<Layout>>,
}

/// The kinds of place.
#[derive(Clone, Debug)]
pub(crate) enum Position {
    /// The start of a hole.
    Hole { slot: u32, extent: Extent },
    /// What was never used of the segment, behind all blocks.
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

impl Placement {
    pub(super) fn new(position: Position, waits: StreamSet) -> Placement {
        Placement { position, waits, merged: None }
    }

    /// The end of what it takes. Of a stitched place only its last piece can move the top.
    pub(crate) fn end(&self) -> usize {
        match &self.position {
            Position::Hole { extent, .. } | Position::Top(extent) => extent.end(),
            Position::Stitched(parts) => {
                parts.iter().map(|part| part.extent.end()).max().unwrap_or(0)
            }
        }
    }

    /// What it takes, in order.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> + Clone {
        let (single, parts) = match &self.position {
            Position::Hole { extent, .. } | Position::Top(extent) => (Some(*extent), &[][..]),
            Position::Stitched(parts) => (None, &parts[..]),
        };
        single.into_iter().chain(parts.iter().map(|part| part.extent))
    }

    /// Where it begins.
    pub(crate) fn offset(&self) -> usize {
        match &self.position {
            Position::Hole { extent, .. } | Position::Top(extent) => extent.offset,
            Position::Stitched(parts) => parts[0].extent.offset,
        }
    }
}

impl Layout {
    /// Makes a place, found since the last change, a live block after an event. Returns its slot.
    pub(crate) fn insert(&mut self, place: &mut Placement, live: &Live, event: u64) -> u32 {
        if let Some(merged) = place.merged.take() {
            *self = *merged;
        }
        let slot = match &place.position {
            Position::Hole { slot, extent } => self.insert_in_hole(*slot, *extent),
            Position::Top(extent) => {
                debug_assert_eq!(extent.offset, self.top(), "the place is older than the layout");
                self.insert_on_top(*extent, live.users, event)
            }
            Position::Stitched(parts) => return self.insert_stitched(parts, live, event),
        };
        self.describe(slot, live);
        slot
    }

    /// Says what the block in `slot` is, or the one that it is a piece of.
    #[inline(always)]
    pub(crate) fn describe(&mut self, slot: u32, live: &Live) {
        self.nodes[slot as usize].describe(live);
    }

    fn insert_stitched(&mut self, parts: &[Part], live: &Live, event: u64) -> u32 {
        let (mut first, mut before) = (NONE, NONE);
        for Part { hole, extent } in parts {
            let kind = if first == NONE { Kind::First } else { Kind::Piece };
            let slot = match *hole {
                NONE => self.put_on_top(*extent, kind, live.users, event),
                hole => self.cut(hole, *extent, kind),
            };
            self.describe(slot, live);
            self.nodes[slot as usize].links[NEXT_PIECE] = NONE;
            match self.nodes.get_mut(before as usize) {
                Some(before) => {
                    before.links[NEXT_PIECE] = slot;
                    self.nodes[slot as usize].links[FIRST_PIECE] = first;
                }
                None => {
                    self.nodes[slot as usize].links[VIEW] = live.view;
                    first = slot;
                }
            }
            before = slot;
        }
        first
    }

    /// Makes what is at the top a block of `users`, to be described. Returns its slot.
    #[inline]
    pub(crate) fn insert_on_top(&mut self, extent: Extent, users: StreamSet, event: u64) -> u32 {
        self.put_on_top(extent, Kind::Block, users, event)
    }

    /// Links an extent at or beyond the top; what is between becomes a hole of its users.
    #[inline]
    fn put_on_top(&mut self, extent: Extent, kind: Kind, users: StreamSet, event: u64) -> u32 {
        let gap = Extent { offset: self.top(), size_bytes: extent.offset - self.top() };
        if gap.size_bytes > 0 {
            // The block has waited for the streams that were there: to wait for its users is
            // enough.
            let slot = self.link_after(self.last, gap, Kind::Hole);
            self.list(slot, LastUse { streams: users, since: event });
        }
        self.touched_pages += self.own_pages(extent, self.last, NONE);
        self.link_after(self.last, extent, kind)
    }

    /// Makes the start of the hole in `slot` a block, to be described. Returns its slot.
    #[inline]
    pub(crate) fn insert_in_hole(&mut self, slot: u32, extent: Extent) -> u32 {
        self.cut(slot, extent, Kind::Block)
    }

    /// Takes an extent out of the hole in `slot`; what is left on either side stays a hole, the
    /// right side the one in `slot`. Returns the slot of the extent.
    #[inline]
    fn cut(&mut self, slot: u32, extent: Extent, kind: Kind) -> u32 {
        let &Node { extent: hole, previous, next, .. } = &self.nodes[slot as usize];
        debug_assert_eq!(self.nodes[slot as usize].kind, Kind::Hole, "slot {slot}");
        self.touched_pages += self.own_pages(extent, previous, next);
        if extent.offset > hole.offset {
            return self.cut_inside(slot, extent, kind);
        }
        if extent.size_bytes == hole.size_bytes {
            self.unlist(slot);
            self.nodes[slot as usize].kind = kind;
            return slot;
        }
        let rest = Extent { offset: extent.end(), size_bytes: hole.end() - extent.end() };
        self.resize_hole(slot, rest);
        self.link_after(previous, extent, kind)
    }

    /// [`cut`](Self::cut) where something is left on the left side.
    fn cut_inside(&mut self, slot: u32, extent: Extent, kind: Kind) -> u32 {
        let node = &self.nodes[slot as usize];
        let (hole, marks) = (node.extent, node.marks());
        let size_bytes = extent.offset - hole.offset;
        self.resize_hole(slot, Extent { offset: hole.offset, size_bytes });
        let taken = self.link_after(slot, extent, kind);
        if hole.end() > extent.end() {
            let rest = Extent { offset: extent.end(), size_bytes: hole.end() - extent.end() };
            let rest_slot = self.link_after(taken, rest, Kind::Hole);
            self.list(rest_slot, marks);
        }
        taken
    }

    /// Frees the block in `slot` at an event: its pieces merge with the holes beside them that the
    /// same streams used, and what touches the top becomes wilderness.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32, event: u64) {
        let node = &self.nodes[slot as usize];
        assert!(matches!(node.kind, Kind::Block | Kind::First), "slot {slot} is no block");
        let marks = LastUse { streams: node.streams, since: event };
        let mut next_piece = node.next_piece();
        self.vacate(slot, marks);
        while next_piece != NONE {
            let at = next_piece;
            let node = &self.nodes[at as usize];
            debug_assert_eq!(node.kind, Kind::Piece, "node {at}");
            next_piece = node.next_piece();
            self.vacate(at, marks);
        }
    }

    fn vacate(&mut self, slot: u32, marks: LastUse) {
        let Node { extent, previous, next, .. } = self.nodes[slot as usize];
        self.touched_pages -= self.own_pages(extent, previous, next);
        if next == NONE {
            return self.sink(slot, marks);
        }
        let before = self.mergeable(previous, marks);
        let after = self.mergeable(next, marks);
        match (before, after) {
            (None, None) => self.list(slot, marks),
            (Some(before), None) => {
                self.unlink(slot);
                self.widen(previous, Extent { offset: before.offset, ..extent }, before, marks);
            }
            (None, Some(after)) => {
                self.unlink(slot);
                self.widen(next, extent, after, marks);
            }
            (Some(before), Some(after)) => {
                self.unlist(next);
                let marks = marks.union(self.nodes[next as usize].marks());
                self.unlink(next);
                self.unlink(slot);
                let size_bytes = extent.size_bytes + after.size_bytes;
                let extent = Extent { offset: before.offset, size_bytes };
                self.widen(previous, extent, before, marks);
            }
        }
    }

    /// Adds the length of what begins at `extent` to the hole in `slot`, which was as it is told.
    #[inline]
    fn widen(&mut self, slot: u32, extent: Extent, hole: Extent, marks: LastUse) {
        let node = &mut self.nodes[slot as usize];
        debug_assert_eq!(node.streams, marks.streams, "{node:?}");
        node.number = node.number.max(marks.since);
        let size_bytes = extent.size_bytes + hole.size_bytes;
        self.resize_hole(slot, Extent { offset: extent.offset, size_bytes });
    }

    /// The hole in `slot`, if there is one that the same streams used.
    #[inline]
    fn mergeable(&self, slot: u32, marks: LastUse) -> Option<Extent> {
        let node = self.nodes.get(slot as usize)?;
        let is_alike = node.kind == Kind::Hole && node.streams == marks.streams;
        is_alike.then_some(node.extent)
    }

    /// The last node goes: it becomes wilderness, and whatever hole is the last then.
    #[inline]
    fn sink(&mut self, slot: u32, marks: LastUse) {
        self.used_end = self.used_end.max(self.nodes[slot as usize].extent.end());
        self.give_beyond(marks);
        self.unlink(slot);
        while let Some(node) = self.nodes.get(self.last as usize)
            && node.kind == Kind::Hole
        {
            let (last, marks) = (self.last, node.marks());
            self.give_beyond(marks);
            self.unlist(last);
            self.unlink(last);
        }
    }

    #[inline]
    fn give_beyond(&mut self, marks: LastUse) {
        self.beyond = self.beyond.union(marks.streams);
        for on in marks.streams.iter() {
            let since = &mut self.beyond_since[on.index()];
            *since = marks.since.max(*since);
        }
    }

    /// This layout with neighbouring holes as one that all their streams used; `None` if no two
    /// touch.
    pub(crate) fn merged_across_streams(&self) -> Option<Box<Layout>> {
        let holes = self.nodes().map(|(_, node)| node.kind == Kind::Hole);
        let touch = holes.clone().zip(holes.skip(1)).any(|pair| pair == (true, true));
        touch.then(|| {
            let mut merged = Box::new(self.clone());
            merged.merge_across_streams();
            merged
        })
    }

    fn merge_across_streams(&mut self) {
        let mut slot = self.first;
        while let Some(node) = self.nodes.get(slot as usize) {
            let next = node.next;
            match self.nodes.get(next as usize) {
                Some(after) if node.kind == Kind::Hole && after.kind == Kind::Hole => {
                    let mut extent = node.extent;
                    extent.size_bytes += after.extent.size_bytes;
                    let marks = node.marks().union(after.marks());
                    self.unlist(slot);
                    self.unlist(next);
                    self.unlink(next);
                    self.nodes[slot as usize].extent = extent;
                    self.list(slot, marks);
                }
                _ => slot = next,
            }
        }
    }
}
