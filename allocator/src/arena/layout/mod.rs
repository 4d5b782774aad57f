//! Placement: arithmetic on offsets, with no memory in sight.
//!
//! Live blocks and the holes between them tile the range from 0 to the *top*, the end of the last
//! live block. Beyond it lies the wilderness, which has no end here. A request goes into the
//! smallest hole that holds it, the lowest one on ties. If there is none and the source can map
//! pages at a second address, it is *stitched*: it takes the whole free pages of the largest holes,
//! the highest on ties, then as many as it still needs of the smallest hole that has them, and what
//! is missing even so from the top. Else it goes to the top. So the place depends on the live
//! blocks, on who used the holes, and on the size of a page, and on nothing that is cached. (The
//! addresses of views are a layout too, with a view for a block.)
//!
//! Cutting the last piece from the largest hole left, too, shattered what was large: RMM's random
//! blocks of up to 256 MiB had 12.4 pieces each instead of 6.8 (20,000 operations, 2026-11-21).
//! Going to the top for as long as it stays below the highest one ever would stitch less, and take
//! two thirds of the time on such loads; but then the place depends on what was live before, and a
//! step that is tried again lies elsewhere than it was planned.
//!
//! A hole remembers the streams that may still work on it. One's own holes come first, then those
//! of others, which cost a wait, then neighbours of different streams merged into one.

mod check;
pub(crate) mod node;
pub(crate) mod place;
pub(crate) mod search;

use crate::arena::extent::Extent;
use crate::arena::free_list::FreeList;
use crate::arena::layout::node::{FIRST_PIECE, Kind, Live, NONE, Node};
use crate::origin::ModulePath;
use crate::stream::{LastUse, Stream, StreamSet};

/// A stitched block has no more pieces than this, so that no view costs too many mappings.
pub(crate) const PIECES_MAX: usize = 128;

/// The blocks of an arena; a page is a power of two. Nodes sit in a slab and are linked in address
/// order: neighbours are found without a search, and a steady state allocates nothing on the heap
/// for them.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    first: u32,
    last: u32,
    /// FreeList by who used them. There are few sets, and mostly one.
    holes: Vec<(StreamSet, FreeList)>,
    /// Who may still work beyond the top, below `used_end`.
    beyond: StreamSet,
    /// By stream, the last event at which it gave memory there back: with one for all, a stream
    /// that is long idle would be waited for after every free of another.
    beyond_since: [u64; Stream::COUNT],
    /// The highest top ever.
    used_end: usize,
    page_bytes: usize,
    /// Its binary logarithm.
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

    /// The block in `slot`.
    #[inline]
    pub(crate) fn block(&self, slot: u32) -> Live {
        let node = &self.nodes[slot as usize];
        if node.kind == Kind::Block {
            return node.live(node.extent.size_bytes);
        }
        assert_eq!(node.kind, Kind::First, "slot {slot} is no block");
        node.live(self.pieces(slot).map(|piece| piece.size_bytes).sum())
    }

    /// Who works on the block in `slot`.
    pub(crate) fn users_mut(&mut self, slot: u32) -> &mut StreamSet {
        let node = &mut self.nodes[slot as usize];
        assert!(matches!(node.kind, Kind::Block | Kind::First), "slot {slot} is no block");
        &mut node.streams
    }

    /// Says which module the block in `slot` belongs to.
    pub(crate) fn set_module(&mut self, slot: u32, module: ModulePath) {
        self.nodes[slot as usize].set_module(module);
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
            debug_assert!(node.kind != Kind::Hole, "a piece of a live block is a hole");
            at = node.next_piece();
            Some(node.extent)
        })
    }

    /// Size of the largest hole.
    pub(crate) fn largest_hole_bytes(&self) -> usize {
        self.holes.iter().map(|(_, holes)| holes.largest_bytes(&self.nodes)).max().unwrap_or(0)
    }

    /// What no block takes below the top, from there down, where it is at least a page long: holes,
    /// and rows of holes of different streams.
    pub(crate) fn page_holes(&self) -> impl Iterator<Item = Extent> {
        let mut slot = self.last;
        let rows = std::iter::from_fn(move || {
            let mut row = self.hole_down_from(&mut slot)?;
            while let Some(before) = self.nodes.get(slot as usize)
                && before.kind == Kind::Hole
            {
                row.offset = before.extent.offset;
                row.size_bytes += before.extent.size_bytes;
                slot = before.previous;
            }
            Some(row)
        });
        rows.filter(|row| row.size_bytes >= self.page_bytes)
    }

    /// The next hole from the one in `slot` down; `slot` is then the node before it.
    fn hole_down_from(&self, slot: &mut u32) -> Option<Extent> {
        while let Some(node) = self.nodes.get(*slot as usize) {
            *slot = node.previous;
            if node.kind == Kind::Hole {
                return Some(node.extent);
            }
        }
        None
    }

    /// Blocks, pieces and holes in address order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (u32, &Node)> + Clone {
        let mut slot = self.first;
        std::iter::from_fn(move || {
            let at = slot;
            let node = self.nodes.get(at as usize)?;
            slot = node.next;
            Some((at, node))
        })
    }

    /// Live blocks by the address of their first piece.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, Live)> {
        let is_first = |node: &Node| matches!(node.kind, Kind::Block | Kind::First);
        let blocks = self.nodes().filter(move |(_, node)| is_first(node));
        blocks.map(|(slot, _)| (slot, self.block(slot)))
    }

    /// Every part of a live block in address order.
    pub(crate) fn live_extents(&self) -> impl Iterator<Item = (Extent, Live)> {
        self.nodes().filter_map(|(slot, node)| match node.kind {
            Kind::Block | Kind::First => Some((node.extent, self.block(slot))),
            Kind::Piece => Some((node.extent, self.block(node.links[FIRST_PIECE]))),
            Kind::Hole => None,
        })
    }

    /// Makes the node in `slot` a hole, and enters it.
    #[inline]
    fn list(&mut self, slot: u32, marks: LastUse) {
        let LastUse { streams, since } = marks;
        let index = self.holes.iter().position(|(set, _)| *set == streams);
        let index = index.unwrap_or_else(|| self.list_for(streams));
        let node = &mut self.nodes[slot as usize];
        (node.kind, node.streams, node.number) = (Kind::Hole, streams, since);
        self.holes[index].1.insert(&mut self.nodes, slot);
    }

    /// A list for the holes of a new set of streams, one that no set needs any more if there is
    /// one: there are as many lists as there were sets at once.
    #[cold]
    fn list_for(&mut self, streams: StreamSet) -> usize {
        let vacant = self.holes.iter().position(|(_, holes)| holes.len() == 0);
        let index = vacant.unwrap_or_else(|| {
            self.holes.push((streams, FreeList::new()));
            self.holes.len() - 1
        });
        self.holes[index].0 = streams;
        index
    }

    /// The list of the holes of a set of streams.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    fn list_of(&self, streams: StreamSet) -> usize {
        let index = self.holes.iter().position(|(set, _)| *set == streams);
        index.expect("holes are listed by their streams")
    }

    /// Strikes the hole in `slot` off its list.
    #[inline]
    fn unlist(&mut self, slot: u32) {
        let list = self.list_of(self.nodes[slot as usize].streams);
        self.holes[list].1.remove(&mut self.nodes, slot);
    }

    /// Changes the extent of the hole in `slot`.
    #[inline]
    fn resize_hole(&mut self, slot: u32, to: Extent) {
        let list = self.list_of(self.nodes[slot as usize].streams);
        self.holes[list].1.resize(&mut self.nodes, slot, to);
    }

    /// A node behind another one, or the first.
    #[inline]
    fn link_after(&mut self, previous: u32, extent: Extent, kind: Kind) -> u32 {
        let next = match self.nodes.get(previous as usize) {
            Some(node) => node.next,
            None => self.first,
        };
        let slot = self.vacant.pop().unwrap_or_else(|| self.add());
        let node = &mut self.nodes[slot as usize];
        (node.extent, node.kind) = (extent, kind);
        (node.previous, node.next) = (previous, next);
        self.join(previous, slot);
        self.join(slot, next);
        slot
    }

    #[cold]
    fn add(&mut self) -> u32 {
        let slot = u32::try_from(self.nodes.len()).expect("fewer than 2^32 blocks");
        self.nodes.push(Node::hole(Extent { offset: 0, size_bytes: 0 }));
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
