//! The holes of a layout, in the order of best fit: by size, then by address.
//!
//! A bin holds the holes of similar size: every size has its own up to 32 KiB, then a power of two
//! has 32. A bitmap names the bins that are not empty, so that the search goes to the right bin at
//! once, and a bin is a treap (Seidel and Aragon 1996) whose links lie beside the nodes: nothing is
//! allocated once the vectors have grown, and a bin of thousands is no worse than logarithmic.

use std::ops::ControlFlow;

use crate::layout::BLOCK_BYTES;

/// Ends a path in a treap.
pub(crate) const NONE: u32 = u32::MAX;

/// Sizes in blocks below this have a bin each.
const EXACT_BINS: usize = 64;
const BINS_PER_POWER: usize = 32;
/// Enough for 2^64 bytes.
const BIN_COUNT: usize = EXACT_BINS + (64 - 6) * BINS_PER_POWER;
const WORD_COUNT: usize = BIN_COUNT.div_ceil(64);

/// Size and place of a hole, by which the holes of a bin are ordered.
type Key = (usize, usize);

#[derive(Clone, Copy, Debug)]
struct Entry {
    size_bytes: usize,
    offset: usize,
    left: u32,
    right: u32,
}

impl Entry {
    fn key(&self) -> Key {
        (self.size_bytes, self.offset)
    }
}

/// Holes that the same streams used.
#[derive(Clone, Debug)]
pub(crate) struct Holes {
    roots: Box<[u32; BIN_COUNT]>,
    occupied: [u64; WORD_COUNT],
    /// One bit for each word of `occupied`.
    summary: u32,
    /// By slot of the layout; only those of holes listed here mean anything.
    entries: Vec<Entry>,
    len: usize,
}

const _: () = assert!(WORD_COUNT <= 32);

impl Holes {
    pub(crate) fn new() -> Holes {
        Holes {
            roots: Box::new([NONE; BIN_COUNT]),
            occupied: [0; WORD_COUNT],
            summary: 0,
            entries: Vec::new(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The smallest hole of at least `size_bytes`, the lowest one on ties: its size, offset, slot.
    #[inline]
    pub(crate) fn best_fit(&self, size_bytes: usize) -> Option<(usize, usize, u32)> {
        let bin = bin_of(size_bytes);
        let slot = self.first_in(bin, size_bytes);
        let slot = if slot == NONE { self.smallest_in(self.next_bin(bin + 1)?) } else { slot };
        let entry = &self.entries[slot as usize];
        Some((entry.size_bytes, entry.offset, slot))
    }

    /// Size of the largest hole.
    pub(crate) fn largest_bytes(&self) -> usize {
        let Some(bin) = self.last_bin(BIN_COUNT) else { return 0 };
        let mut at = self.roots[bin];
        loop {
            let entry = &self.entries[at as usize];
            if entry.right == NONE {
                return entry.size_bytes;
            }
            at = entry.right;
        }
    }

    /// Calls `visit` with size, offset and slot of the holes of at least `size_bytes`, the largest
    /// first, the highest on ties, for as long as it likes.
    pub(crate) fn for_each_down(
        &self,
        size_bytes: usize,
        mut visit: impl FnMut(usize, usize, u32) -> ControlFlow<()>,
    ) {
        let lowest = bin_of(size_bytes);
        let mut below = BIN_COUNT;
        while let Some(bin) = self.last_bin(below)
            && bin >= lowest
            && self.walk(self.roots[bin], size_bytes, &mut visit).is_continue()
        {
            below = bin;
        }
    }

    pub(crate) fn contains(&self, size_bytes: usize, offset: usize, slot: u32) -> bool {
        let mut at = self.roots[bin_of(size_bytes)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            match (size_bytes, offset).cmp(&entry.key()) {
                std::cmp::Ordering::Less => at = entry.left,
                std::cmp::Ordering::Greater => at = entry.right,
                std::cmp::Ordering::Equal => return at == slot,
            }
        }
        false
    }

    #[inline]
    pub(crate) fn insert(&mut self, size_bytes: usize, offset: usize, slot: u32) {
        let entry = Entry { size_bytes, offset, left: NONE, right: NONE };
        let index = slot as usize;
        if index >= self.entries.len() {
            self.entries.resize(index + 1, entry);
        }
        self.entries[index] = entry;
        let bin = bin_of(size_bytes);
        let root = self.roots[bin];
        self.len += 1;
        if root == NONE {
            self.roots[bin] = slot;
            self.occupied[bin / 64] |= 1 << (bin % 64);
            self.summary |= 1 << (bin / 64);
        } else {
            self.roots[bin] = self.inserted(root, slot);
        }
    }

    /// # Panics
    /// If the hole is not listed.
    #[inline]
    pub(crate) fn remove(&mut self, size_bytes: usize, offset: usize, slot: u32) {
        let bin = bin_of(size_bytes);
        let key = (size_bytes, offset);
        let mut parent = NONE;
        let mut at = self.roots[bin];
        while at != slot {
            assert!(at != NONE, "the hole of {size_bytes} at {offset} is not listed");
            parent = at;
            let entry = &self.entries[at as usize];
            at = if key < entry.key() { entry.left } else { entry.right };
        }
        let Entry { left, right, .. } = self.entries[slot as usize];
        let joined = match (left, right) {
            (NONE, only) | (only, NONE) => only,
            _ => self.joined(left, right),
        };
        self.len -= 1;
        if parent == NONE {
            self.roots[bin] = joined;
            if joined == NONE {
                self.occupied[bin / 64] &= !(1 << (bin % 64));
                if self.occupied[bin / 64] == 0 {
                    self.summary &= !(1 << (bin / 64));
                }
            }
        } else {
            let parent = &mut self.entries[parent as usize];
            if parent.left == slot {
                parent.left = joined;
            } else {
                parent.right = joined;
            }
        }
    }

    /// Changes size and offset of a hole.
    ///
    /// # Panics
    /// If it is not listed as it is told.
    #[inline]
    pub(crate) fn resize(&mut self, from: Key, to: Key, slot: u32) {
        let bin = bin_of(from.0);
        let entry = &mut self.entries[slot as usize];
        let is_alone = self.roots[bin] == slot && (entry.left, entry.right) == (NONE, NONE);
        if is_alone && bin_of(to.0) == bin {
            (entry.size_bytes, entry.offset) = to;
        } else {
            self.remove(from.0, from.1, slot);
            self.insert(to.0, to.1, slot);
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
        let words = u64::from(self.summary) >> (word + 1) << (word + 1);
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
            let words = u64::from(self.summary) & ((1 << word) - 1);
            let word = 63_usize.checked_sub(words.leading_zeros() as usize)?;
            (word, self.occupied[word])
        };
        Some(word * 64 + 63 - rest.leading_zeros() as usize)
    }

    /// The first hole of a bin with at least `size_bytes`, or `NONE`.
    #[inline]
    fn first_in(&self, bin: usize, size_bytes: usize) -> u32 {
        let mut at = self.roots[bin];
        let mut best = NONE;
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.size_bytes >= size_bytes {
                best = at;
                at = entry.left;
            } else {
                at = entry.right;
            }
        }
        best
    }

    #[inline]
    fn smallest_in(&self, bin: usize) -> u32 {
        let mut at = self.roots[bin];
        while self.entries[at as usize].left != NONE {
            at = self.entries[at as usize].left;
        }
        at
    }

    fn walk(
        &self,
        at: u32,
        size_bytes: usize,
        visit: &mut impl FnMut(usize, usize, u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if at == NONE {
            return ControlFlow::Continue(());
        }
        let entry = &self.entries[at as usize];
        self.walk(entry.right, size_bytes, visit)?;
        if entry.size_bytes < size_bytes {
            return ControlFlow::Continue(());
        }
        visit(entry.size_bytes, entry.offset, at)?;
        self.walk(entry.left, size_bytes, visit)
    }

    /// The treap under `at` with `slot` in it.
    fn inserted(&mut self, at: u32, slot: u32) -> u32 {
        if at == NONE {
            return slot;
        }
        let key = self.entries[slot as usize].key();
        if priority(slot) > priority(at) {
            let (left, right) = self.parted(at, key);
            let entry = &mut self.entries[slot as usize];
            (entry.left, entry.right) = (left, right);
            return slot;
        }
        let Entry { left, right, .. } = self.entries[at as usize];
        if key < self.entries[at as usize].key() {
            let left = self.inserted(left, slot);
            self.entries[at as usize].left = left;
        } else {
            let right = self.inserted(right, slot);
            self.entries[at as usize].right = right;
        }
        at
    }

    /// The holes below `key` and those above it.
    fn parted(&mut self, at: u32, key: Key) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let Entry { left, right, .. } = self.entries[at as usize];
        if self.entries[at as usize].key() < key {
            let (below, above) = self.parted(right, key);
            self.entries[at as usize].right = below;
            (at, above)
        } else {
            let (below, above) = self.parted(left, key);
            self.entries[at as usize].left = above;
            (below, at)
        }
    }

    /// One treap of two, all of `left` before all of `right`.
    fn joined(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE {
            return right;
        }
        if right == NONE {
            return left;
        }
        if priority(left) > priority(right) {
            let inner = self.entries[left as usize].right;
            let inner = self.joined(inner, right);
            self.entries[left as usize].right = inner;
            left
        } else {
            let inner = self.entries[right as usize].left;
            let inner = self.joined(left, inner);
            self.entries[right as usize].left = inner;
            right
        }
    }
}

/// The bin of a size: monotone, so that a later bin holds larger holes.
#[inline]
fn bin_of(size_bytes: usize) -> usize {
    let blocks = size_bytes / BLOCK_BYTES;
    if blocks < EXACT_BINS {
        return blocks;
    }
    let power = blocks.ilog2() as usize;
    let step = (blocks >> (power - 5)) & (BINS_PER_POWER - 1);
    EXACT_BINS + (power - 6) * BINS_PER_POWER + step
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
            assert!(bin >= last || size_bytes < 5000 * 512, "{size_bytes}");
            last = bin;
        }
        assert!(bin_of(usize::MAX) < BIN_COUNT);
    }

    proptest! {
        #[test]
        fn agrees_with_an_ordered_set(
            ops in prop::collection::vec((0..3_u8, 1..400_usize, 0..60_u32), 1..300),
        ) {
            let mut holes = Holes::new();
            let mut set: BTreeSet<(usize, usize, u32)> = BTreeSet::new();
            for (op, blocks, slot) in ops {
                let offset = slot as usize * 1024;
                let size_bytes = blocks * blocks * 512;
                let listed = set.iter().find(|hole| hole.2 == slot).copied();
                match (op, listed) {
                    (0, None) => {
                        holes.insert(size_bytes, offset, slot);
                        set.insert((size_bytes, offset, slot));
                    }
                    (2, Some(hole)) => {
                        holes.resize((hole.0, hole.1), (size_bytes, offset + 512), slot);
                        set.remove(&hole);
                        set.insert((size_bytes, offset + 512, slot));
                    }
                    (1, Some(hole)) => {
                        holes.remove(hole.0, hole.1, hole.2);
                        set.remove(&hole);
                    }
                    _ => {}
                }
                let expected = set.range((size_bytes, 0, 0)..).next().copied();
                prop_assert_eq!(holes.best_fit(size_bytes), expected);
                prop_assert_eq!(holes.largest_bytes(), set.last().map_or(0, |hole| hole.0));
                prop_assert_eq!(holes.len(), set.len());
                let mut down = Vec::new();
                holes.for_each_down(size_bytes, |size, at, slot| {
                    down.push((size, at, slot));
                    ControlFlow::Continue(())
                });
                let from = set.range((size_bytes, 0, 0)..);
                prop_assert_eq!(down, from.rev().copied().collect::<Vec<_>>());
            }
        }
    }
}
