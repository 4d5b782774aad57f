//! Changes of a layout: blocks come and go, holes are cut and merged.

use crate::arena::extent::Extent;
use crate::arena::layout::Layout;
use crate::arena::layout::node::{FIRST_PIECE, Kind, Live, NEXT_PIECE, NONE, Node, VIEW};
use crate::stream::{LastUse, StreamSet};

/// The place of a request, decided and not yet taken.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) position: Position,
    /// Streams to wait for first.
    pub(crate) waits: StreamSet,
    /// A copy of the layout with merged holes, if the place lies in a merged hole. A request that
    /// fails later leaves the arena's own layout unchanged.
    pub(super) merged: Option<Box<Layout>>,
}

/// The kinds of place.
#[derive(Clone, Debug)]
pub(crate) enum Position {
    /// The start of a hole.
    Hole { slot: u32, extent: Extent },
    /// The first bytes behind all blocks.
    Top(Extent),
    /// Whole pages of holes, in this order, and pages beyond the top for the rest.
    Stitched(Vec<Part>),
}

/// A piece of a stitched position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The hole that the piece is cut from, or `NONE` for the top.
    pub(super) hole: u32,
    pub(crate) extent: Extent,
}

impl Placement {
    pub(super) fn new(position: Position, waits: StreamSet) -> Placement {
        Placement { position, waits, merged: None }
    }

    /// The end of the highest part. Only the last piece of a stitched place can move the top.
    pub(crate) fn end(&self) -> usize {
        match &self.position {
            Position::Hole { extent, .. } | Position::Top(extent) => extent.end(),
            Position::Stitched(parts) => {
                parts.iter().map(|part| part.extent.end()).max().unwrap_or(0)
            }
        }
    }

    /// The parts of the place, in order.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> + Clone {
        let (single, parts) = match &self.position {
            Position::Hole { extent, .. } | Position::Top(extent) => (Some(*extent), &[][..]),
            Position::Stitched(parts) => (None, &parts[..]),
        };
        single.into_iter().chain(parts.iter().map(|part| part.extent))
    }

    /// Offset of the first part.
    pub(crate) fn offset(&self) -> usize {
        match &self.position {
            Position::Hole { extent, .. } | Position::Top(extent) => extent.offset,
            Position::Stitched(parts) => parts[0].extent.offset,
        }
    }
}

impl Layout {
    /// Turns a place into a live block after an event. Returns its slot. The layout must not have
    /// changed since the place was found.
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

    /// Writes the properties of the block to which the node in `slot` belongs.
    #[inline(always)]
    pub(crate) fn describe(&mut self, slot: u32, live: &Live) {
        self.nodes[slot as usize].describe(live);
    }

    fn insert_stitched(&mut self, parts: &[Part], live: &Live, event: u64) -> u32 {
        let (mut first, mut before) = (NONE, NONE);
        for Part { hole, extent } in parts {
            let kind = if first == NONE { Kind::First } else { Kind::Piece };
            let slot = match *hole {
                NONE => self.insert_at_top(*extent, kind, live.users, event),
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

    /// Inserts a block of `users` behind all blocks, to be described by the caller. Returns its
    /// slot.
    #[inline]
    pub(crate) fn insert_on_top(&mut self, extent: Extent, users: StreamSet, event: u64) -> u32 {
        self.insert_at_top(extent, Kind::Block, users, event)
    }

    /// Inserts a node at or beyond the top. The gap below the node becomes a hole with the same
    /// users.
    #[inline]
    fn insert_at_top(&mut self, extent: Extent, kind: Kind, users: StreamSet, event: u64) -> u32 {
        let gap = Extent { offset: self.top(), size_bytes: extent.offset - self.top() };
        if gap.size_bytes > 0 {
            // The block has waited for all streams that used the gap, so a wait for the block's
            // users is enough.
            let slot = self.insert_node_after(self.last, gap, Kind::Hole);
            self.insert_hole(slot, LastUse { streams: users, since: event });
        }
        self.touched_pages += self.own_pages(extent, self.last, NONE);
        self.insert_node_after(self.last, extent, kind)
    }

    /// Makes the start of the hole in `slot` a block, to be described by the caller. Returns its
    /// slot.
    #[inline]
    pub(crate) fn insert_in_hole(&mut self, slot: u32, extent: Extent) -> u32 {
        self.cut(slot, extent, Kind::Block)
    }

    /// Cuts an extent out of the hole in `slot`. The rests on either side stay holes, the right one
    /// in `slot`. Returns the slot of the extent.
    #[inline]
    fn cut(&mut self, slot: u32, extent: Extent, kind: Kind) -> u32 {
        let &Node { extent: hole, previous, next, .. } = &self.nodes[slot as usize];
        debug_assert_eq!(self.nodes[slot as usize].kind, Kind::Hole, "slot {slot}");
        self.touched_pages += self.own_pages(extent, previous, next);
        if extent.offset > hole.offset {
            return self.cut_inside(slot, extent, kind);
        }
        if extent.size_bytes == hole.size_bytes {
            self.remove_hole(slot);
            self.nodes[slot as usize].kind = kind;
            return slot;
        }
        let rest = Extent { offset: extent.end(), size_bytes: hole.end() - extent.end() };
        self.resize_hole(slot, rest);
        self.insert_node_after(previous, extent, kind)
    }

    /// [`cut`](Self::cut) that leaves a rest on the left side.
    fn cut_inside(&mut self, slot: u32, extent: Extent, kind: Kind) -> u32 {
        let node = &self.nodes[slot as usize];
        let (hole, last_use) = (node.extent, node.last_use());
        let size_bytes = extent.offset - hole.offset;
        self.resize_hole(slot, Extent { offset: hole.offset, size_bytes });
        let taken = self.insert_node_after(slot, extent, kind);
        if hole.end() > extent.end() {
            let rest = Extent { offset: extent.end(), size_bytes: hole.end() - extent.end() };
            let rest_slot = self.insert_node_after(taken, rest, Kind::Hole);
            self.insert_hole(rest_slot, last_use);
        }
        taken
    }

    /// Frees the block in `slot` at an event. Each piece merges with the holes beside it that the
    /// same streams used; a piece at the top lowers the top.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32, event: u64) {
        let node = &self.nodes[slot as usize];
        assert!(matches!(node.kind, Kind::Block | Kind::First), "slot {slot} is no block");
        let last_use = LastUse { streams: node.streams, since: event };
        let mut next_piece = node.next_piece();
        self.free_part(slot, last_use);
        while next_piece != NONE {
            let at = next_piece;
            let node = &self.nodes[at as usize];
            debug_assert_eq!(node.kind, Kind::Piece, "node {at}");
            next_piece = node.next_piece();
            self.free_part(at, last_use);
        }
    }

    fn free_part(&mut self, slot: u32, last_use: LastUse) {
        let Node { extent, previous, next, .. } = self.nodes[slot as usize];
        self.touched_pages -= self.own_pages(extent, previous, next);
        if next == NONE {
            return self.remove_last(slot, last_use);
        }
        let before = self.mergeable(previous, last_use);
        let after = self.mergeable(next, last_use);
        match (before, after) {
            (None, None) => self.insert_hole(slot, last_use),
            (Some(before), None) => {
                self.remove_node(slot);
                self.extend_hole(
                    previous,
                    Extent { offset: before.offset, ..extent },
                    before,
                    last_use,
                );
            }
            (None, Some(after)) => {
                self.remove_node(slot);
                self.extend_hole(next, extent, after, last_use);
            }
            (Some(before), Some(after)) => {
                self.remove_hole(next);
                let last_use = last_use.union(self.nodes[next as usize].last_use());
                self.remove_node(next);
                self.remove_node(slot);
                let size_bytes = extent.size_bytes + after.size_bytes;
                let extent = Extent { offset: before.offset, size_bytes };
                self.extend_hole(previous, extent, before, last_use);
            }
        }
    }

    /// Extends the hole in `slot` by an extent beside it. `hole` is the extent of the hole so far.
    #[inline]
    fn extend_hole(&mut self, slot: u32, extent: Extent, hole: Extent, last_use: LastUse) {
        let node = &mut self.nodes[slot as usize];
        debug_assert_eq!(node.streams, last_use.streams, "{node:?}");
        node.number = node.number.max(last_use.since);
        let size_bytes = extent.size_bytes + hole.size_bytes;
        self.resize_hole(slot, Extent { offset: extent.offset, size_bytes });
    }

    /// Extent of the node in `slot`, if the node is a hole that the same streams used.
    #[inline]
    fn mergeable(&self, slot: u32, last_use: LastUse) -> Option<Extent> {
        let node = self.nodes.get(slot as usize)?;
        let is_alike = node.kind == Kind::Hole && node.streams == last_use.streams;
        is_alike.then_some(node.extent)
    }

    /// Removes the last node, and the holes directly before it. The top falls.
    #[inline]
    fn remove_last(&mut self, slot: u32, last_use: LastUse) {
        self.used_end = self.used_end.max(self.nodes[slot as usize].extent.end());
        self.note_use_beyond(last_use);
        self.remove_node(slot);
        while let Some(node) = self.nodes.get(self.last as usize)
            && node.kind == Kind::Hole
        {
            let (last, last_use) = (self.last, node.last_use());
            self.note_use_beyond(last_use);
            self.remove_hole(last);
            self.remove_node(last);
        }
    }

    #[inline]
    fn note_use_beyond(&mut self, last_use: LastUse) {
        self.beyond = self.beyond.union(last_use.streams);
        for on in last_use.streams.iter() {
            let since = &mut self.beyond_since[on.index()];
            *since = last_use.since.max(*since);
        }
    }

    /// A copy of this layout in which neighbouring holes are merged, each with the streams of all
    /// of its parts; `None` if no two holes touch.
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
                    let last_use = node.last_use().union(after.last_use());
                    self.remove_hole(slot);
                    self.remove_hole(next);
                    self.remove_node(next);
                    self.nodes[slot as usize].extent = extent;
                    self.insert_hole(slot, last_use);
                }
                _ => slot = next,
            }
        }
    }
}
