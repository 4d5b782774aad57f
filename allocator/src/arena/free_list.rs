//! The holes of a layout, in the order of best fit: by size, then by address.
//!
//! A bin holds the holes of similar size: every size has its own up to 256 KiB, then a power of two
//! has 256, and the last bin has all that is longer. A bitmap names the bins that are not empty, so
//! that the search goes to the right bin at once, and a bin is a treap (Seidel and Aragon 1996)
//! whose links lie in the nodes: nothing is allocated once the vectors have grown, and a bin of
//! thousands is no worse than logarithmic.

use crate::arena::extent::{BLOCK_BYTES, Extent};
use crate::arena::layout::node::{NONE, Node};

const STEP_BITS: usize = 8;
const BINS_PER_POWER: usize = 1 << STEP_BITS;
/// Sizes in blocks below this have a bin each.
const EXACT_BINS: usize = 2 * BINS_PER_POWER;
/// As many as a bitmap of one word names in words: they tell sizes apart up to 4 GiB.
const BIN_COUNT: usize = 64 * WORD_COUNT;
const WORD_COUNT: usize = 64;
const _: () = assert!(BIN_COUNT > EXACT_BINS);

/// The child of a node whose holes come before it, and the one whose holes come after.
const BEFORE: usize = 0;
const AFTER: usize = 1;
/// The parent of a node.
const ABOVE: usize = 2;

/// FreeList that the same streams used. Size, offset and links of each are in its node.
#[derive(Clone, Debug)]
pub(crate) struct FreeList {
    roots: Box<[u32; BIN_COUNT]>,
    occupied: [u64; WORD_COUNT],
    /// One bit for each word of `occupied`.
    summary: u64,
    len: usize,
}

/// By what holes are ordered: size, then offset.
pub(crate) type Key = u128;

/// Where a hole of a size at an offset stands in the order.
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
                at = node.links[BEFORE];
            } else {
                at = node.links[AFTER];
            }
        }
        if first != NONE {
            return Some(first);
        }
        let root = self.roots[self.next_bin(bin + 1)?];
        Some(end_of(nodes, root, BEFORE))
    }

    /// The last hole in the order that comes before `below`.
    pub(crate) fn last_below(&self, nodes: &[Node], below: Key) -> Option<u32> {
        let bin = bin_of(size_of_key(below));
        let (mut at, mut last) = (self.roots[bin], NONE);
        while at != NONE {
            let node = &nodes[at as usize];
            if node.key() < below {
                last = at;
                at = node.links[AFTER];
            } else {
                at = node.links[BEFORE];
            }
        }
        if last != NONE {
            return Some(last);
        }
        let root = self.roots[self.last_bin(bin)?];
        Some(end_of(nodes, root, AFTER))
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
            let above = &nodes[at as usize];
            at = above.links[above.side_of(node.key())];
        }
        at == slot
    }

    /// Enters a hole by what its node says.
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
            self.insert_beside(nodes, bin, slot);
        }
    }

    /// Enters a hole in a bin that has others: below those of a higher priority, above the rest,
    /// which are parted into those before it and those after it.
    fn insert_beside(&mut self, nodes: &mut [Node], bin: usize, slot: u32) {
        let (key, own_priority) = (nodes[slot as usize].key(), priority(slot));
        let (mut parent, mut side, mut at) = (NONE, BEFORE, self.roots[bin]);
        while at != NONE && priority(at) > own_priority {
            let node = &nodes[at as usize];
            (parent, side) = (at, node.side_of(key));
            at = node.links[side];
        }
        self.hang(nodes, bin, (parent, side), slot);
        // The last node of each part, and on which side the rest of the part hangs below it.
        let mut ends = [(slot, BEFORE), (slot, AFTER)];
        while at != NONE {
            let towards = nodes[at as usize].side_of(key);
            let part = 1 - towards;
            let (end, end_side) = ends[part];
            nodes[end as usize].links[end_side] = at;
            ends[part] = (at, towards);
            let node = &mut nodes[at as usize];
            node.links[ABOVE] = end;
            at = node.links[towards];
        }
        for (end, end_side) in ends {
            nodes[end as usize].links[end_side] = NONE;
        }
    }

    /// Strikes a hole off, which is still as it was when it was entered.
    ///
    /// # Panics
    /// If the hole is not listed.
    #[inline]
    pub(crate) fn remove(&mut self, nodes: &mut [Node], slot: u32) {
        let node = &nodes[slot as usize];
        let bin = bin_of(node.extent.size_bytes);
        self.len -= 1;
        if node.is_alone() {
            assert_eq!(self.roots[bin], slot, "the hole is not listed");
            self.roots[bin] = NONE;
            self.occupied[bin / 64] &= !(1 << (bin % 64));
            if self.occupied[bin / 64] == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        } else {
            self.remove_from_others(nodes, bin, slot);
        }
    }

    /// Strikes a hole off a bin that has others: what hangs below it is joined in its place.
    fn remove_from_others(&mut self, nodes: &mut [Node], bin: usize, slot: u32) {
        let [mut before, mut after, mut parent] = nodes[slot as usize].links;
        let (mut side, hung) = match nodes.get(parent as usize) {
            Some(above) => {
                let side = usize::from(above.links[AFTER] == slot);
                (side, above.links[side])
            }
            None => (BEFORE, self.roots[bin]),
        };
        assert_eq!(hung, slot, "the hole is not listed");
        while before != NONE && after != NONE {
            let (upper, next_side) =
                if priority(before) > priority(after) { (before, AFTER) } else { (after, BEFORE) };
            self.hang(nodes, bin, (parent, side), upper);
            (parent, side) = (upper, next_side);
            let next = nodes[upper as usize].links[next_side];
            if next_side == AFTER {
                before = next;
            } else {
                after = next;
            }
        }
        self.hang(nodes, bin, (parent, side), if before == NONE { after } else { before });
    }

    /// Hangs a node, or nothing, below another one, or at the root.
    #[inline]
    fn hang(&mut self, nodes: &mut [Node], bin: usize, (parent, side): (u32, usize), at: u32) {
        match nodes.get_mut(parent as usize) {
            Some(above) => above.links[side] = at,
            None => self.roots[bin] = at,
        }
        if let Some(node) = nodes.get_mut(at as usize) {
            node.links[ABOVE] = parent;
        }
    }

    /// Changes size and offset of a hole.
    ///
    /// # Panics
    /// If it is not listed.
    #[inline]
    pub(crate) fn resize(&mut self, nodes: &mut [Node], slot: u32, to: Extent) {
        let node = &mut nodes[slot as usize];
        let bin = bin_of(node.extent.size_bytes);
        if node.is_alone() && bin_of(to.size_bytes) == bin {
            assert_eq!(self.roots[bin], slot, "the hole is not listed");
            node.extent = to;
        } else {
            self.remove(nodes, slot);
            nodes[slot as usize].extent = to;
            self.insert(nodes, slot);
        }
    }

    /// Whether there may be a hole of at least `size_bytes`: whether there is one in its bin or in
    /// a later one.
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

/// The first or the last node of a treap, by the side on which nothing hangs below it.
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

    /// Of a listed hole: whether its bin has no other.
    #[inline]
    fn is_alone(&self) -> bool {
        self.links == [NONE; 3]
    }

    /// On which side of this node a key lies.
    #[inline]
    fn side_of(&self, key: Key) -> usize {
        usize::from(self.key() < key)
    }
}

#[inline]
pub(crate) fn size_of_key(key: Key) -> usize {
    (key >> 64) as usize
}

/// The bin of a size: monotone, so that a later bin holds larger holes.
#[inline]
fn bin_of(size_bytes: usize) -> usize {
    let blocks = size_bytes / BLOCK_BYTES;
    // Below `EXACT_BINS` the shift is 0. From there on it leaves a leading one and the bits of the
    // step, so that each power of two begins where the one before ends.
    let shift = (blocks | BINS_PER_POWER).ilog2() as usize - STEP_BITS;
    (shift * BINS_PER_POWER + (blocks >> shift)).min(BIN_COUNT - 1)
}

/// Shuffles slots: an odd multiplier is a bijection, so no two are equal.
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

    /// Slots with the places of holes, whether listed or not.
    fn nodes() -> Vec<Node> {
        (0..60).map(|slot| Node::hole(Extent { offset: slot * 1024, size_bytes: 0 })).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_an_ordered_set(
            ops in prop::collection::vec((0..3_u8, 1..400_usize, 0..60_u32), 1..300),
            // Up to 76 MiB, and up to 76 GiB: the largest share the last bin.
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
