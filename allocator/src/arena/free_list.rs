//! Holes of a layout in the order of best fit: by size, then by address.
//!
//! A bin holds holes of similar size. Every size up to 256 KiB has its own bin, every power of two
//! above has 256, and the last bin has all longer holes. A bitmap of bins that are not empty leads
//! the search to the right bin at once. A bin is a treap (Seidel and Aragon 1996) whose links lie
//! in the nodes: nothing is allocated once the vectors have grown, and a search in a bin of
//! thousands takes logarithmic time.

use crate::arena::extent::{BLOCK_BYTES, Extent};
use crate::arena::layout::node::{NONE, Node};

const STEP_BITS: usize = 8;
const BINS_PER_POWER: usize = 1 << STEP_BITS;
/// Sizes below this number of blocks have a bin each.
const EXACT_BINS: usize = 2 * BINS_PER_POWER;
/// Number of bins: one for each bit of a bitmap whose summary is a single word. The bins tell sizes
/// up to 4 GiB apart.
const BIN_COUNT: usize = 64 * WORD_COUNT;
const WORD_COUNT: usize = 64;
const _: () = assert!(BIN_COUNT > EXACT_BINS);

/// The two children of a node: holes below `LEFT` come before the node in the order, holes below
/// `RIGHT` after.
const LEFT: usize = 0;
const RIGHT: usize = 1;
/// The parent of a node.
const PARENT: usize = 2;

/// A place for a node of a treap: the side of a parent, or the root.
#[derive(Clone, Copy)]
struct Edge {
    /// `NONE` for the root.
    parent: u32,
    side: usize,
}

impl Edge {
    const ROOT: Edge = Edge { parent: NONE, side: LEFT };
}

/// Free list of the holes that one set of streams used. Size, offset and links of a hole are in its
/// node.
#[derive(Clone, Debug)]
pub(crate) struct FreeList {
    roots: Box<[u32; BIN_COUNT]>,
    occupied: [u64; WORD_COUNT],
    /// One bit for each word of `occupied`.
    summary: u64,
    len: usize,
}

/// The order of holes: size, then offset.
pub(crate) type Key = u128;

/// The key of a hole.
#[inline]
pub(crate) fn key(size_bytes: usize, offset: usize) -> Key {
    (size_bytes as u128) << 64 | offset as u128
}

impl FreeList {
    pub(crate) fn new() -> FreeList {
        let roots = Box::new([NONE; BIN_COUNT]);
        FreeList { roots, occupied: [0; WORD_COUNT], summary: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The smallest hole of at least `size_bytes`, the lowest one on ties.
    #[inline]
    pub(crate) fn best_fit(&self, nodes: &[Node], size_bytes: usize) -> Option<u32> {
        self.first_from(nodes, key(size_bytes, 0))
    }

    /// The first hole in the order that does not come before `from`.
    #[inline]
    pub(crate) fn first_from(&self, nodes: &[Node], from: Key) -> Option<u32> {
        let bin = bin_of(size_of_key(from));
        let (mut at, mut first) = (self.roots[bin], NONE);
        while at != NONE {
            let node = &nodes[at as usize];
            if node.key() >= from {
                first = at;
                at = node.links[LEFT];
            } else {
                at = node.links[RIGHT];
            }
        }
        if first != NONE {
            return Some(first);
        }
        let root = self.roots[self.next_bin(bin + 1)?];
        Some(end_of(nodes, root, LEFT))
    }

    /// The last hole in the order that comes before `below`.
    pub(crate) fn last_below(&self, nodes: &[Node], below: Key) -> Option<u32> {
        let bin = bin_of(size_of_key(below));
        let (mut at, mut last) = (self.roots[bin], NONE);
        while at != NONE {
            let node = &nodes[at as usize];
            if node.key() < below {
                last = at;
                at = node.links[RIGHT];
            } else {
                at = node.links[LEFT];
            }
        }
        if last != NONE {
            return Some(last);
        }
        let root = self.roots[self.last_bin(bin)?];
        Some(end_of(nodes, root, RIGHT))
    }

    /// Size of the largest hole.
    pub(crate) fn largest_bytes(&self, nodes: &[Node]) -> usize {
        let largest = self.last_below(nodes, Key::MAX);
        largest.map_or(0, |slot| nodes[slot as usize].extent.size_bytes)
    }

    pub(crate) fn contains(&self, nodes: &[Node], slot: u32) -> bool {
        let node = &nodes[slot as usize];
        let mut at = self.roots[bin_of(node.extent.size_bytes)];
        while at != NONE && at != slot {
            let parent = &nodes[at as usize];
            at = parent.links[parent.side_of(node.key())];
        }
        at == slot
    }

    /// Inserts the hole in `slot`.
    #[inline]
    pub(crate) fn insert(&mut self, nodes: &mut [Node], slot: u32) {
        let node = &mut nodes[slot as usize];
        node.links = [NONE; 3];
        let bin = bin_of(node.extent.size_bytes);
        self.len += 1;
        if self.roots[bin] == NONE {
            self.roots[bin] = slot;
            self.occupied[bin / 64] |= 1 << (bin % 64);
            self.summary |= 1 << (bin / 64);
        } else {
            self.insert_into_bin(nodes, bin, slot);
        }
    }

    /// Inserts a hole into a bin with other holes: below the nodes of a higher priority, above the
    /// rest. The rest is split into the nodes before the hole and the nodes after the hole.
    fn insert_into_bin(&mut self, nodes: &mut [Node], bin: usize, slot: u32) {
        let (key, own_priority) = (nodes[slot as usize].key(), priority(slot));
        let (mut edge, mut at) = (Edge::ROOT, self.roots[bin]);
        while at != NONE && priority(at) > own_priority {
            let node = &nodes[at as usize];
            edge = Edge { parent: at, side: node.side_of(key) };
            at = node.links[edge.side];
        }
        self.set_child(nodes, bin, edge, slot);
        // Edges at which the next node of each part of the rest is attached.
        let mut ends = [LEFT, RIGHT].map(|side| Edge { parent: slot, side });
        while at != NONE {
            let side = nodes[at as usize].side_of(key);
            let part = 1 - side;
            let Edge { parent, side: end_side } = ends[part];
            nodes[parent as usize].links[end_side] = at;
            ends[part] = Edge { parent: at, side };
            let node = &mut nodes[at as usize];
            node.links[PARENT] = parent;
            at = node.links[side];
        }
        for Edge { parent, side } in ends {
            nodes[parent as usize].links[side] = NONE;
        }
    }

    /// Removes a hole. Its node must not have changed since it was inserted.
    ///
    /// # Panics
    /// If the hole is in no list.
    #[inline]
    pub(crate) fn remove(&mut self, nodes: &mut [Node], slot: u32) {
        let node = &nodes[slot as usize];
        let bin = bin_of(node.extent.size_bytes);
        self.len -= 1;
        if node.is_alone() {
            assert_eq!(self.roots[bin], slot, "the hole is in no list");
            self.roots[bin] = NONE;
            self.occupied[bin / 64] &= !(1 << (bin % 64));
            if self.occupied[bin / 64] == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        } else {
            self.remove_from_bin(nodes, bin, slot);
        }
    }

    /// Removes a hole from a bin with other holes. The two subtrees of the hole are merged in its
    /// place.
    fn remove_from_bin(&mut self, nodes: &mut [Node], bin: usize, slot: u32) {
        let [mut before, mut after, parent] = nodes[slot as usize].links;
        let (mut edge, child) = match nodes.get(parent as usize) {
            Some(node) => {
                let side = usize::from(node.links[RIGHT] == slot);
                (Edge { parent, side }, node.links[side])
            }
            None => (Edge::ROOT, self.roots[bin]),
        };
        assert_eq!(child, slot, "the hole is in no list");
        while before != NONE && after != NONE {
            let (upper, side) =
                if priority(before) > priority(after) { (before, RIGHT) } else { (after, LEFT) };
            self.set_child(nodes, bin, edge, upper);
            edge = Edge { parent: upper, side };
            let next = nodes[upper as usize].links[side];
            if side == RIGHT {
                before = next;
            } else {
                after = next;
            }
        }
        self.set_child(nodes, bin, edge, if before == NONE { after } else { before });
    }

    /// Makes a node, or `NONE`, the child at an edge.
    #[inline]
    fn set_child(&mut self, nodes: &mut [Node], bin: usize, edge: Edge, at: u32) {
        match nodes.get_mut(edge.parent as usize) {
            Some(parent) => parent.links[edge.side] = at,
            None => self.roots[bin] = at,
        }
        if let Some(node) = nodes.get_mut(at as usize) {
            node.links[PARENT] = edge.parent;
        }
    }

    /// Changes the size and offset of a hole.
    ///
    /// # Panics
    /// If the hole is in no list.
    #[inline]
    pub(crate) fn resize(&mut self, nodes: &mut [Node], slot: u32, to: Extent) {
        let node = &mut nodes[slot as usize];
        let bin = bin_of(node.extent.size_bytes);
        if node.is_alone() && bin_of(to.size_bytes) == bin {
            assert_eq!(self.roots[bin], slot, "the hole is in no list");
            node.extent = to;
        } else {
            self.remove(nodes, slot);
            nodes[slot as usize].extent = to;
            self.insert(nodes, slot);
        }
    }

    /// True if there may be a hole of at least `size_bytes`: if the bin of that size, or a later
    /// one, is not empty.
    #[inline]
    pub(crate) fn may_hold(&self, size_bytes: usize) -> bool {
        self.next_bin(bin_of(size_bytes)).is_some()
    }

    /// The first bin from `bin` on that is not empty.
    #[inline]
    fn next_bin(&self, bin: usize) -> Option<usize> {
        let (word, bit) = (bin / 64, bin % 64);
        let rest = self.occupied.get(word)? >> bit << bit;
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let words = self.summary & u64::MAX.checked_shl(word as u32 + 1)?;
        if words == 0 {
            return None;
        }
        let word = words.trailing_zeros() as usize;
        Some(word * 64 + self.occupied[word].trailing_zeros() as usize)
    }

    /// The last bin below `end` that is not empty.
    fn last_bin(&self, end: usize) -> Option<usize> {
        let (word, bits) = (end / 64, end % 64);
        let rest = self.occupied.get(word).map_or(0, |own| own & ((1 << bits) - 1));
        let (word, rest) = if rest != 0 {
            (word, rest)
        } else {
            let words = self.summary & ((1 << word) - 1);
            let word = 63_usize.checked_sub(words.leading_zeros() as usize)?;
            (word, self.occupied[word])
        };
        Some(word * 64 + 63 - rest.leading_zeros() as usize)
    }
}

/// The first or the last node of a treap: the one without a child on `side`.
#[inline]
fn end_of(nodes: &[Node], root: u32, side: usize) -> u32 {
    let mut at = root;
    loop {
        match nodes[at as usize].links[side] {
            NONE => return at,
            next => at = next,
        }
    }
}

impl Node {
    #[inline]
    pub(crate) fn key(&self) -> Key {
        key(self.extent.size_bytes, self.extent.offset)
    }

    /// True if the hole is the only one in its bin.
    #[inline]
    fn is_alone(&self) -> bool {
        self.links == [NONE; 3]
    }

    /// The side of this node on which a key lies.
    #[inline]
    fn side_of(&self, key: Key) -> usize {
        usize::from(self.key() < key)
    }
}

#[inline]
pub(crate) fn size_of_key(key: Key) -> usize {
    (key >> 64) as usize
}

/// The bin of a size. Later bins hold larger holes.
#[inline]
fn bin_of(size_bytes: usize) -> usize {
    let blocks = size_bytes / BLOCK_BYTES;
    // The shift is 0 below `EXACT_BINS`. For larger sizes the shift leaves a leading one and the
    // bits of the step. So the bins of a power of two follow the bins of the power before.
    let shift = (blocks | BINS_PER_POWER).ilog2() as usize - STEP_BITS;
    (shift * BINS_PER_POWER + (blocks >> shift)).min(BIN_COUNT - 1)
}

/// Shuffles slots: an odd multiplier is a bijection, so no two priorities are equal.
#[inline]
fn priority(slot: u32) -> u32 {
    slot.wrapping_mul(0x9e37_79b1).rotate_left(15).wrapping_mul(0x85eb_ca77)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bins_are_monotone_and_within_bounds() {
        let mut last = 0;
        let sizes = (1..5000).map(|n| n * 512).chain((22..63).flat_map(|p| {
            let power = 1_usize << p;
            [power - 512, power, power + 512, power + power / 2]
        }));
        for size_bytes in sizes {
            let bin = bin_of(size_bytes);
            assert!(bin >= last, "{size_bytes}");
            assert!(bin > last || size_bytes > 256 << 10, "{size_bytes} has no bin of its own");
            last = bin;
        }
        assert!(bin_of(usize::MAX) < BIN_COUNT);
    }

    /// Nodes of holes that are in no list yet.
    fn nodes() -> Vec<Node> {
        (0..60).map(|slot| Node::hole(Extent { offset: slot * 1024, size_bytes: 0 })).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_an_ordered_set(
            ops in prop::collection::vec((0..3_u8, 1..400_usize, 0..60_u32), 1..300),
            // Sizes up to 76 MiB, or up to 76 GiB: the largest of these share the last bin.
            grain_bytes in prop_oneof![Just(512_usize), Just(512 << 10)],
        ) {
            let (mut holes, mut nodes) = (FreeList::new(), nodes());
            let mut set: BTreeSet<(usize, usize, u32)> = BTreeSet::new();
            for (op, blocks, slot) in ops {
                let offset = slot as usize * 1024;
                let size_bytes = blocks * blocks * grain_bytes;
                let listed = set.iter().find(|hole| hole.2 == slot).copied();
                match (op, listed) {
                    (0, None) => {
                        nodes[slot as usize].extent = Extent { offset, size_bytes };
                        holes.insert(&mut nodes, slot);
                        set.insert((size_bytes, offset, slot));
                    }
                    (2, Some(hole)) => {
                        let to = Extent { offset: offset + 512, size_bytes };
                        holes.resize(&mut nodes, slot, to);
                        set.remove(&hole);
                        set.insert((size_bytes, offset + 512, slot));
                    }
                    (1, Some(hole)) => {
                        holes.remove(&mut nodes, slot);
                        set.remove(&hole);
                    }
                    _ => {}
                }
                let expected = set.range((size_bytes, 0, 0)..).next().map(|hole| hole.2);
                prop_assert_eq!(holes.best_fit(&nodes, size_bytes), expected);
                prop_assert_eq!(
                    holes.largest_bytes(&nodes),
                    set.last().map_or(0, |hole| hole.0)
                );
                prop_assert_eq!(holes.len(), set.len());
                let at = key(size_bytes, offset);
                let expected = set.range((size_bytes, offset, 0)..).next().map(|hole| hole.2);
                prop_assert_eq!(holes.first_from(&nodes, at), expected);
                let expected = set.range(..(size_bytes, offset, 0)).next_back().map(|hole| hole.2);
                prop_assert_eq!(holes.last_below(&nodes, at), expected);
            }
        }
    }
}
