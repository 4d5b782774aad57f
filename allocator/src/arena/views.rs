//! Second addresses of pages, at which a stitched block lies in one piece.
//!
//! A view is a row of pages, mapped one after the other. The view stays mapped when its block is
//! freed, and the next block on the same pages uses it: a step that repeats maps nothing. An idle
//! view is unmapped when its pages go back to the source. If there are too many mappings, the
//! longest unused views are unmapped first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::arena::extent::{BLOCK_BYTES, Extent};
use crate::arena::layout::node::{Kind, NONE, Node};
use crate::arena::layout::{Layout, PIECES_MAX};
use crate::stream::StreamSet;

/// A row of pages of the arena, and the addresses at which the row is mapped.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Whole pages, in order.
    pub(crate) pages: Vec<Extent>,
    /// Offset of the row in the range of views.
    pub(crate) offset: usize,
    /// Fingerprint of the pages in the row.
    fingerprint: u64,
    /// The slot of the row in the layout of addresses.
    slot: u32,
    /// Number of live blocks that use the row.
    users: u32,
    /// The next view with the same fingerprint, or `NONE`.
    next_of_fingerprint: u32,
    /// Neighbours of an idle view: the view that became idle before it and the view that became
    /// idle after it, or `NONE`.
    idle: [u32; 2],
}

/// The views of an allocator.
#[derive(Clone, Debug)]
pub(crate) struct Views {
    views: Vec<Option<View>>,
    vacant: Vec<u32>,
    /// The first view of each fingerprint. The map is never iterated, so its order has no effect.
    by_pages: HashMap<u64, u32, BuildHasherDefault<FingerprintHasher>>,
    /// The idle views that became idle first and last, or `NONE`.
    idle: [u32; 2],
    mapping_count: usize,
    /// The limit of `mapping_count`. When the mappings of views in use come near the limit, blocks
    /// are no longer stitched. The limit is fixed when the allocator is made, and is the same in a
    /// simulation.
    mappings_max: usize,
    /// Mappings of views in use.
    used_mapping_count: usize,
    /// The range of views: each view is a block there.
    addresses: Layout,
}

/// Free addresses, from which a view can be cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    hole: u32,
    pub(crate) extent: Extent,
}

/// The ends of the row of idle views, and the neighbours of a view in it.
const EARLIER: usize = 0;
const LATER: usize = 1;

/// A hash of pages by multiplication (Knuth, "Sorting and Searching", 6.4), one round for each
/// number.
fn fingerprint(pages: impl Iterator<Item = Extent>) -> u64 {
    let numbers = pages.flat_map(|run| [run.offset as u64, run.size_bytes as u64]);
    numbers.fold(0, |hash, number| {
        let product = (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 32)
    })
}

/// A hasher that returns the fingerprint unchanged: a fingerprint is a hash already.
#[derive(Clone, Copy, Debug, Default)]
struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("fingerprints are numbers");
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

impl Views {
    /// An empty set of views in an address range of `range_bytes`, with room for `mappings_max`
    /// pieces.
    pub(crate) fn new(range_bytes: usize, mappings_max: usize, page_bytes: usize) -> Views {
        let mut addresses = Layout::new(page_bytes);
        // A block behind the range makes it a hole: no view may lie beyond its end.
        let end = Extent { offset: range_bytes, size_bytes: BLOCK_BYTES };
        addresses.insert_on_top(end, StreamSet::EMPTY, 0);
        Views {
            views: Vec::new(),
            vacant: Vec::new(),
            by_pages: HashMap::default(),
            idle: [NONE; 2],
            mapping_count: 0,
            mappings_max,
            used_mapping_count: 0,
            addresses,
        }
    }

    /// Largest number of mappings at once.
    pub(crate) fn mappings_max(&self) -> usize {
        self.mappings_max
    }

    /// True if there are mappings for one more view once all idle views are gone. Idle views do not
    /// count, so that the cache has no say in placement.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.used_mapping_count + PIECES_MAX <= self.mappings_max
    }

    /// The view of these pages, if it is mapped.
    pub(crate) fn find(&self, pages: impl Iterator<Item = Extent> + Clone) -> Option<u32> {
        let mut index = self.by_pages.get(&fingerprint(pages.clone())).copied().unwrap_or(NONE);
        while index != NONE {
            let view = self.get(index);
            if view.pages.iter().copied().eq(pages.clone()) {
                return Some(index);
            }
            index = view.next_of_fingerprint;
        }
        None
    }

    pub(crate) fn get(&self, index: u32) -> &View {
        self.views[index as usize].as_ref().expect("a view that is mapped")
    }

    fn get_mut(&mut self, index: u32) -> &mut View {
        self.views[index as usize].as_mut().expect("a view that is mapped")
    }

    /// Offset in memory of the byte that is mapped at `view_offset` in the range of views.
    pub(crate) fn page_offset(&self, view_offset: usize) -> Option<usize> {
        for view in self.views.iter().flatten() {
            let mut at = view.offset;
            for run in &view.pages {
                if (at..at + run.size_bytes).contains(&view_offset) {
                    return Some(run.offset + view_offset - at);
                }
                at += run.size_bytes;
            }
        }
        None
    }

    /// Free addresses for a row of pages: the smallest range that holds the row, the lowest on
    /// ties. `None` if no range does, or if there would be too many mappings.
    pub(crate) fn gap(&self, pages: &[Extent]) -> Option<Gap> {
        if self.mapping_count + pages.len() > self.mappings_max {
            return None;
        }
        let size_bytes = pages.iter().map(|run| run.size_bytes).sum();
        let (hole, extent) = self.addresses.own_hole(size_bytes, StreamSet::EMPTY)?;
        Some(Gap { hole, extent })
    }

    /// Removes and returns the view that is idle longest; `None` if all views are in use.
    pub(crate) fn take_longest_idle(&mut self) -> Option<View> {
        let [earliest, _] = self.idle;
        (earliest != NONE).then(|| self.take_out(earliest))
    }

    /// Adds the view of a row of pages, mapped in the last gap found for it.
    pub(crate) fn insert(&mut self, pages: Vec<Extent>, gap: Gap) -> u32 {
        let (offset, slot) =
            (gap.extent.offset, self.addresses.insert_in_hole(gap.hole, gap.extent));
        self.mapping_count += pages.len();
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.views.push(None);
            u32::try_from(self.views.len() - 1).expect("fewer views than mappings")
        });
        let fingerprint = fingerprint(pages.iter().copied());
        let next_of_fingerprint = self.by_pages.insert(fingerprint, index).unwrap_or(NONE);
        let idle = [NONE; 2];
        let view = View { pages, offset, fingerprint, slot, users: 0, next_of_fingerprint, idle };
        self.views[index as usize] = Some(view);
        self.push_idle(index, EARLIER);
        index
    }

    /// Counts a block that lies in the view from now on.
    pub(crate) fn add_user(&mut self, index: u32) {
        let view = self.get_mut(index);
        view.users += 1;
        if view.users == 1 {
            self.used_mapping_count += self.get(index).pages.len();
            self.remove_idle(index);
        }
    }

    /// Counts a block that left the view.
    pub(crate) fn remove_user(&mut self, index: u32) {
        let view = self.get_mut(index);
        view.users -= 1;
        if view.users == 0 {
            self.used_mapping_count -= self.get(index).pages.len();
            self.push_idle(index, LATER);
        }
    }

    /// Puts a view at an end of the row of idle views.
    fn push_idle(&mut self, index: u32, end: usize) {
        let neighbour = std::mem::replace(&mut self.idle[end], index);
        let view = self.get_mut(index);
        (view.idle[end], view.idle[1 - end]) = (NONE, neighbour);
        match neighbour {
            NONE => self.idle[1 - end] = index,
            _ => self.get_mut(neighbour).idle[end] = index,
        }
    }

    fn remove_idle(&mut self, index: u32) {
        let neighbours = self.get(index).idle;
        for side in [EARLIER, LATER] {
            match neighbours[side] {
                NONE => self.idle[side] = neighbours[1 - side],
                neighbour => self.get_mut(neighbour).idle[1 - side] = neighbours[1 - side],
            }
        }
    }

    /// Idle views, the longest unused ones first.
    fn idle(&self) -> impl Iterator<Item = u32> {
        let mut at = self.idle[EARLIER];
        std::iter::from_fn(move || {
            let index = (at != NONE).then_some(at)?;
            at = self.get(index).idle[LATER];
            Some(index)
        })
    }

    /// Removes and returns the views with pages in `run`. No live block lies in `run`.
    pub(crate) fn take_showing(&mut self, run: Extent) -> Vec<View> {
        let shows = |index: &u32| {
            let pages = &self.get(*index).pages;
            pages.iter().any(|own| own.offset < run.end() && run.offset < own.end())
        };
        let gone: Vec<u32> = self.idle().filter(shows).collect();
        gone.into_iter().map(|index| self.take_out(index)).collect()
    }

    fn take_out(&mut self, index: u32) -> View {
        assert_eq!(self.get(index).users, 0, "a view in use is not taken out");
        self.remove_idle(index);
        self.forget_pages(index);
        let view = self.views[index as usize].take().expect("a view that is mapped");
        self.vacant.push(index);
        self.mapping_count -= view.pages.len();
        self.addresses.remove(view.slot, 0);
        view
    }

    /// Removes a view from the index by pages.
    fn forget_pages(&mut self, index: u32) {
        let &View { fingerprint, next_of_fingerprint, .. } = self.get(index);
        let first = self.by_pages[&fingerprint];
        if first != index {
            let mut before = first;
            while self.get(before).next_of_fingerprint != index {
                before = self.get(before).next_of_fingerprint;
            }
            self.get_mut(before).next_of_fingerprint = next_of_fingerprint;
        } else if next_of_fingerprint == NONE {
            self.by_pages.remove(&fingerprint);
        } else {
            self.by_pages.insert(fingerprint, next_of_fingerprint);
        }
    }

    /// # Panics
    /// If views overlap, or a counter differs from its recount. `users` are the live blocks in each
    /// view.
    pub(crate) fn check(&self, users: &BTreeMap<u32, usize>) {
        let (mut mapping_count, mut used_mapping_count, mut view_count) = (0, 0, 0);
        let idle: BTreeSet<u32> = self.idle().collect();
        assert_eq!(idle.len(), self.idle().count(), "a view is idle twice");
        for (index, view) in self.views.iter().enumerate() {
            let Some(view) = view else { continue };
            let index = index as u32;
            let size_bytes = view.pages.iter().map(|run| run.size_bytes).sum();
            let extent = Extent { offset: view.offset, size_bytes };
            let is_there = self.addresses.pieces(view.slot).eq([extent]);
            assert!(is_there, "{view:?} lies elsewhere");
            view_count += 1;
            mapping_count += view.pages.len();
            let user_count = users.get(&index).copied().unwrap_or(0);
            assert_eq!(view.users as usize, user_count, "users of {view:?}");
            assert_eq!(self.find(view.pages.iter().copied()), Some(index), "{view:?} is not found");
            used_mapping_count += if view.users > 0 { view.pages.len() } else { 0 };
            assert_eq!(idle.contains(&index), view.users == 0, "{view:?} is idle or not");
        }
        assert_eq!(mapping_count, self.mapping_count, "mappings");
        assert!(mapping_count <= self.mappings_max, "{mapping_count} mappings are too many");
        assert_eq!(used_mapping_count, self.used_mapping_count, "mappings in use");
        self.addresses.check();
        // The block behind the range of views is taken too.
        let is_taken = |(_, node): &(u32, &Node)| node.kind == Kind::Block;
        let taken_count = self.addresses.nodes().filter(is_taken).count();
        assert_eq!(taken_count, view_count + 1, "addresses that no view has are taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_a_view_up_to_the_last_mapping() {
        const PAGE: usize = 4096;
        for (page_count, has_room) in [(5, true), (6, false)] {
            let mut views = Views::new(100 * PAGE, PIECES_MAX + 5, PAGE);
            let pages =
                (0..page_count).map(|page| Extent { offset: 2 * page * PAGE, size_bytes: PAGE });
            let pages: Vec<Extent> = pages.collect();
            let gap = views.gap(&pages).unwrap();
            let index = views.insert(pages, gap);
            assert!(views.has_room(), "idle views make room");
            views.add_user(index);
            assert_eq!(views.has_room(), has_room, "{page_count} mappings in use");
            views.check(&BTreeMap::from([(index, 1)]));
        }
    }

    #[test]
    fn mappings_are_never_more_than_the_limit() {
        const PAGE: usize = 4096;
        let mut views = Views::new(100 * PAGE, 4, PAGE);
        let run = |page: usize| Extent { offset: 2 * page * PAGE, size_bytes: PAGE };
        let rows = [vec![run(0), run(1), run(2)], vec![run(3)], vec![run(4)]];
        let fits = rows.map(|row| {
            let gap = views.gap(&row);
            gap.map(|gap| views.insert(row, gap)).is_some()
        });
        assert_eq!(fits, [true, true, false]);
        views.check(&BTreeMap::new());
    }

    #[test]
    fn rows_of_one_fingerprint_are_told_apart() {
        const PAGE: usize = 4096;
        let run = |offset, page_count| Extent { offset, size_bytes: page_count * PAGE };
        // A number that equals the fingerprint of the numbers before it cancels them.
        let forgets = fingerprint(std::iter::once(run(0, 1))) as usize;
        let rows = [vec![run(0, 2)], vec![run(0, 1), run(forgets, 2)]];
        let [first, second] = rows.each_ref().map(|row| fingerprint(row.iter().copied()));
        assert_eq!(first, second, "the test has lost its pair");
        let mut views = Views::new(100 * PAGE, 1000, PAGE);
        let find = |views: &Views, row: &[Extent]| views.find(row.iter().copied());
        let indices = rows.clone().map(|row| {
            let at = views.gap(&row).unwrap();
            views.insert(row, at)
        });
        assert_ne!(indices[0], indices[1]);
        for (row, index) in rows.iter().zip(indices) {
            assert_eq!(find(&views, row), Some(index));
        }
        views.check(&BTreeMap::new());
        for (taken, left) in [(0, 1), (1, 0)] {
            let mut views = views.clone();
            views.take_out(indices[taken]);
            assert_eq!(find(&views, &rows[taken]), None);
            assert_eq!(find(&views, &rows[left]), Some(indices[left]));
            views.check(&BTreeMap::new());
        }
    }
}
