//! Placement in one arena: arithmetic on offsets, with no memory and no pages in sight.
//!
//! The live blocks and the holes between them tile the range from 0 to the *top*, the end of the
//! last live block. Beyond it lies the wilderness, which has no end here. A request goes into the
//! smallest hole that holds it, the lowest one on ties, and to the top if there is none. So the
//! place depends on the live blocks alone.

use std::collections::BTreeSet;
use std::panic::Location;

use crate::category::Category;

/// Blocks start and end at multiples of this.
pub const BLOCK_BYTES: usize = 512;

/// Ends the list of nodes.
const NONE: u32 = u32::MAX;

/// Bytes that a request takes: rounded up, and never nothing. `None` if that overflows.
pub(crate) fn active_bytes(requested_bytes: usize) -> Option<usize> {
    requested_bytes.max(1).checked_next_multiple_of(BLOCK_BYTES)
}

/// What is known of a live block beside its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) requested_bytes: usize,
    pub(crate) category: Category,
    pub(crate) site: &'static Location<'static>,
    /// Never given twice, so that a slot used again is not mistaken for the same block.
    pub(crate) serial: u64,
}

/// A live block, or a hole between two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) offset: usize,
    pub(crate) size_bytes: usize,
    previous: u32,
    next: u32,
    /// `None` for a hole.
    pub(crate) live: Option<Live>,
}

impl Node {
    fn end(&self) -> usize {
        self.offset + self.size_bytes
    }
}

/// Where a request would go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    pub(crate) size_bytes: usize,
    /// The hole that holds it; `NONE` for the top.
    hole: u32,
}

impl Place {
    pub(crate) fn end(&self) -> usize {
        self.offset + self.size_bytes
    }
}

/// The blocks of one arena. Nodes sit in a slab and are linked in address order: neighbours are
/// found without a search, and a steady state allocates nothing on the heap for them.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    first: u32,
    last: u32,
    /// Holes by (size, offset, slot): the order of best fit.
    holes: BTreeSet<(usize, usize, u32)>,
}

impl Layout {
    pub(crate) fn new() -> Layout {
        Layout {
            nodes: Vec::new(),
            vacant: Vec::new(),
            first: NONE,
            last: NONE,
            holes: BTreeSet::new(),
        }
    }

    /// The end of the last live block.
    pub(crate) fn top(&self) -> usize {
        self.nodes.get(self.last as usize).map_or(0, Node::end)
    }

    /// Where a block of `size_bytes` would go; `None` if the arithmetic overflows.
    pub(crate) fn place(&self, size_bytes: usize) -> Option<Place> {
        let best = self.holes.range((size_bytes, 0, 0)..).next();
        let (offset, hole) = best.map_or((self.top(), NONE), |&(_, offset, slot)| (offset, slot));
        offset.checked_add(size_bytes)?;
        Some(Place { offset, size_bytes, hole })
    }

    /// Makes a place, found since the last change, a live block. Returns its slot.
    pub(crate) fn insert(&mut self, place: Place, live: Live) -> u32 {
        let Place { offset, size_bytes, hole } = place;
        if hole == NONE {
            debug_assert_eq!(offset, self.top(), "the place is older than the layout");
            return self.link_after(self.last, offset, size_bytes, Some(live));
        }
        let node = &mut self.nodes[hole as usize];
        let (hole_bytes, end) = (node.size_bytes, node.end());
        node.size_bytes = size_bytes;
        node.live = Some(live);
        self.holes.remove(&(hole_bytes, offset, hole));
        if hole_bytes > size_bytes {
            let rest_bytes = hole_bytes - size_bytes;
            let rest = self.link_after(hole, end - rest_bytes, rest_bytes, None);
            self.holes.insert((rest_bytes, end - rest_bytes, rest));
        }
        hole
    }

    /// Frees the block in `slot`: it merges with the holes beside it, and what touches the top
    /// becomes wilderness.
    pub(crate) fn remove(&mut self, slot: u32) -> Node {
        let freed = self.nodes[slot as usize];
        assert!(freed.live.is_some(), "slot {slot} at {} is not live", freed.offset);
        self.nodes[slot as usize].live = None;
        if self.is_hole(freed.next) {
            self.unlist(freed.next);
            self.swallow(freed.next, slot);
        }
        let merged = if self.is_hole(freed.previous) {
            self.unlist(freed.previous);
            self.swallow(slot, freed.previous);
            freed.previous
        } else {
            slot
        };
        if merged == self.last {
            self.unlink(merged);
        } else {
            let Node { offset, size_bytes, .. } = self.nodes[merged as usize];
            self.holes.insert((size_bytes, offset, merged));
        }
        freed
    }

    /// Size of the largest hole.
    pub(crate) fn largest_hole_bytes(&self) -> usize {
        self.holes.last().map_or(0, |&(size_bytes, ..)| size_bytes)
    }

    /// Blocks and holes in address order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        let mut slot = self.first;
        std::iter::from_fn(move || {
            let node = self.nodes.get(slot as usize)?;
            slot = node.next;
            Some(node)
        })
    }

    /// Live blocks in address order.
    pub(crate) fn live(&self) -> impl Iterator<Item = (&Node, &Live)> {
        self.nodes().filter_map(|node| Some((node, node.live.as_ref()?)))
    }

    /// # Panics
    /// If blocks and holes do not tile the range up to the top, if two holes touch, or if the
    /// index of holes is not the holes.
    pub(crate) fn check(&self) {
        let mut end = 0;
        let mut after_hole = false;
        let (mut count, mut hole_count) = (0, 0);
        let mut slot = self.first;
        let mut previous = NONE;
        while let Some(node) = self.nodes.get(slot as usize) {
            assert_eq!(node.offset, end, "gap or overlap before {}", node.offset);
            assert_eq!(node.previous, previous, "broken link at {}", node.offset);
            assert!(node.size_bytes > 0, "empty node at {end}");
            assert_eq!(node.size_bytes % BLOCK_BYTES, 0, "odd size at {end}");
            assert!(node.live.is_some() || !after_hole, "two holes meet at {end}");
            if node.live.is_none() {
                let entry = (node.size_bytes, node.offset, slot);
                assert!(self.holes.contains(&entry), "hole at {end} is not listed");
                hole_count += 1;
            }
            after_hole = node.live.is_none();
            end = node.end();
            count += 1;
            previous = slot;
            slot = node.next;
        }
        assert!(!after_hole, "a hole touches the top at {end}");
        assert_eq!(previous, self.last, "the list ends early");
        assert_eq!(hole_count, self.holes.len(), "more holes listed than there are");
        assert_eq!(count + self.vacant.len(), self.nodes.len(), "lost slots");
    }

    fn is_hole(&self, slot: u32) -> bool {
        self.nodes.get(slot as usize).is_some_and(|node| node.live.is_none())
    }

    /// The node in `slot` becomes part of the one before it.
    fn swallow(&mut self, slot: u32, into: u32) {
        self.nodes[into as usize].size_bytes += self.nodes[slot as usize].size_bytes;
        self.unlink(slot);
    }

    fn unlist(&mut self, slot: u32) {
        let Node { offset, size_bytes, .. } = self.nodes[slot as usize];
        let was_listed = self.holes.remove(&(size_bytes, offset, slot));
        debug_assert!(was_listed, "hole at {offset} was not listed");
    }

    fn link_after(
        &mut self,
        previous: u32,
        offset: usize,
        size_bytes: usize,
        live: Option<Live>,
    ) -> u32 {
        let next = self.nodes.get(previous as usize).map_or(NONE, |node| node.next);
        let node = Node { offset, size_bytes, previous, next, live };
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

    fn unlink(&mut self, slot: u32) {
        let Node { previous, next, .. } = self.nodes[slot as usize];
        self.join(previous, next);
        self.vacant.push(slot);
    }

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
