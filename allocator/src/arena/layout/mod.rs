//! Placement of blocks, as arithmetic on offsets.
//!
//! Live blocks and the holes between them tile the range from 0 to the *top*, the end of the last
//! live block. Beyond the top lies the wilderness, which has no end here. A request goes into the
//! smallest hole that holds it, the lowest one on ties. If no hole is large enough and the source
//! can map pages at a second address, the block is *stitched*. A stitched block takes the whole
//! free pages of the largest holes, the highest hole on ties. Once one hole has enough pages for
//! the rest, the rest comes from the smallest such hole; if no hole has enough, from the top. If
//! the block cannot be stitched, it goes to the top. So a place depends on the live blocks, on the
//! streams that used the holes, and on the page size, but on nothing that is cached. (The addresses
//! of views are a layout too, with a view for a block.)
//!
//! Two other rules lost. Rule 1 cut the last piece from the largest hole too, and shattered large
//! holes: RMM's random blocks of up to 256 MiB had 12.4 pieces each instead of 6.8 (20,000
//! operations, 2026-11-21). Rule 2 went to the top while the top stayed below its peak. Rule 2
//! stitches less and takes two thirds of the time on such loads, but a place then depends on blocks
//! that were live before, so a repeated step gets other places than its plan.
//!
//! A hole remembers the streams that may still work on it. Holes of a request's own stream come
//! first, then holes of other streams, which cost a wait, then neighbouring holes of different
//! streams, merged into one.

mod check;
pub(crate) mod node;
pub(crate) mod place;
pub(crate) mod search;

use crate::arena::extent::Extent;
use crate::arena::free_list::FreeList;
use crate::arena::layout::node::{FIRST_PIECE, Kind, Live, NONE, Node};
use crate::origin::ModulePath;
use crate::stream::{LastUse, Stream, StreamSet};

/// The most pieces of a stitched block: each costs its view a mapping.
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
    /// Free lists by the set of streams that may still work on the holes. There are few sets,
    /// mostly one.
    free_lists: Vec<(StreamSet, FreeList)>,
    /// Streams that may still work between the top and `used_end`.
    beyond: StreamSet,
    /// For each stream, the last event at which it freed memory beyond the top. With one event for
    /// all streams, every free of one stream would cause a wait for streams that are long idle.
    beyond_since: [u64; Stream::COUNT],
    /// The highest top so far.
    used_end: usize,
    page_bytes: usize,
    /// Binary logarithm of the page size.
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
            free_lists: Vec::new(),
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

    /// The streams that work on the block in `slot`.
    pub(crate) fn users_mut(&mut self, slot: u32) -> &mut StreamSet {
        let node = &mut self.nodes[slot as usize];
        assert!(matches!(node.kind, Kind::Block | Kind::First), "slot {slot} is no block");
        &mut node.streams
    }

    /// Sets the module of the block in `slot`.
    pub(crate) fn set_module(&mut self, slot: u32, module: ModulePath) {
        self.nodes[slot as usize].set_module(module);
    }

    /// Offset of the block in `slot`, or of its first piece.
    pub(crate) fn offset(&self, slot: u32) -> usize {
        self.nodes[slot as usize].extent.offset
    }

    /// The pieces of a block in order; one piece if the block is not stitched.
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
        self.free_lists.iter().map(|(_, holes)| holes.largest_bytes(&self.nodes)).max().unwrap_or(0)
    }

    /// Rows of neighbouring holes below the top, from the top down. Each row is at least a page
    /// long. Holes of different streams that touch are one row.
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

    /// The first hole at or below the node in `slot`. Sets `slot` to the node before the hole.
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

    /// Parts of live blocks in address order.
    pub(crate) fn live_extents(&self) -> impl Iterator<Item = (Extent, Live)> {
        self.nodes().filter_map(|(slot, node)| match node.kind {
            Kind::Block | Kind::First => Some((node.extent, self.block(slot))),
            Kind::Piece => Some((node.extent, self.block(node.links[FIRST_PIECE]))),
            Kind::Hole => None,
        })
    }

    /// Makes the node in `slot` a hole, and inserts it into the free list of its streams.
    #[inline]
    fn insert_hole(&mut self, slot: u32, last_use: LastUse) {
        let LastUse { streams, since } = last_use;
        let index = self.free_lists.iter().position(|(set, _)| *set == streams);
        let index = index.unwrap_or_else(|| self.add_free_list(streams));
        let node = &mut self.nodes[slot as usize];
        (node.kind, node.streams, node.number) = (Kind::Hole, streams, since);
        self.free_lists[index].1.insert(&mut self.nodes, slot);
    }

    /// Adds a free list for a new set of streams. Reuses the empty list of another set, so that
    /// there are never more lists than there were sets at once.
    #[cold]
    fn add_free_list(&mut self, streams: StreamSet) -> usize {
        let vacant = self.free_lists.iter().position(|(_, holes)| holes.len() == 0);
        let index = vacant.unwrap_or_else(|| {
            self.free_lists.push((streams, FreeList::new()));
            self.free_lists.len() - 1
        });
        self.free_lists[index].0 = streams;
        index
    }

    /// The free list of a set of streams.
    ///
    /// # Panics
    /// If the set has no free list.
    #[inline]
    fn free_list_of(&self, streams: StreamSet) -> usize {
        let index = self.free_lists.iter().position(|(set, _)| *set == streams);
        index.expect("a hole is in the list of its streams")
    }

    /// Removes the hole in `slot` from its free list.
    #[inline]
    fn remove_hole(&mut self, slot: u32) {
        let list = self.free_list_of(self.nodes[slot as usize].streams);
        self.free_lists[list].1.remove(&mut self.nodes, slot);
    }

    /// Changes the extent of the hole in `slot`.
    #[inline]
    fn resize_hole(&mut self, slot: u32, to: Extent) {
        let list = self.free_list_of(self.nodes[slot as usize].streams);
        self.free_lists[list].1.resize(&mut self.nodes, slot, to);
    }

    /// Inserts a node behind `previous`, or as the first node if `previous` is `NONE`. Returns its
    /// slot.
    #[inline]
    fn insert_node_after(&mut self, previous: u32, extent: Extent, kind: Kind) -> u32 {
        let next = match self.nodes.get(previous as usize) {
            Some(node) => node.next,
            None => self.first,
        };
        let slot = self.vacant.pop().unwrap_or_else(|| self.add_node());
        let node = &mut self.nodes[slot as usize];
        (node.extent, node.kind) = (extent, kind);
        (node.previous, node.next) = (previous, next);
        self.link(previous, slot);
        self.link(slot, next);
        slot
    }

    #[cold]
    fn add_node(&mut self) -> u32 {
        let slot = u32::try_from(self.nodes.len()).expect("fewer than 2^32 blocks");
        self.nodes.push(Node::hole(Extent { offset: 0, size_bytes: 0 }));
        slot
    }

    #[inline]
    fn remove_node(&mut self, slot: u32) {
        let Node { previous, next, .. } = self.nodes[slot as usize];
        self.link(previous, next);
        self.vacant.push(slot);
    }

    #[inline]
    fn link(&mut self, previous: u32, next: u32) {
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
