//! Second addresses of pages: where a stitched block lies in one piece.
//!
//! A view is a row of pages, mapped one after the other. It stays mapped when its block is freed,
//! and the next block on the same pages finds it: a step that repeats maps nothing. Idle views go
//! when their pages do, or the longest unused ones when there are too many.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::holes::NONE;
use crate::layout::{Extent, PIECES_MAX};

/// Mappings that views may have together. Linux lets a process have 65,530. When those in use come
/// near it, blocks are stitched no more.
const MAPPINGS_MAX: usize = 1 << 14;

/// A row of pages of the arena and where it is mapped.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Whole pages, in order.
    pub(crate) pages: Vec<Extent>,
    /// Where the row begins in the range of views.
    pub(crate) offset: usize,
    size_bytes: usize,
    /// Live blocks in it.
    users: usize,
    /// Of its pages.
    fingerprint: u64,
    /// The next view with the same fingerprint, or `NONE`.
    namesake: u32,
    /// Of an idle view, the one that was freed before it and the one after, or `NONE`.
    idle: [u32; 2],
}

/// All views of an allocator.
#[derive(Clone, Debug)]
pub(crate) struct Views {
    views: Vec<Option<View>>,
    vacant: Vec<u32>,
    /// The first view of each fingerprint. Never walked, so its order has no say.
    by_pages: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    /// The first and the last one to be freed of the idle views, or `NONE`.
    idle: [u32; 2],
    mapping_count: usize,
    /// Those of views in use.
    used_mapping_count: usize,
    /// Addresses that no view has.
    free: Free,
}

/// The ends of the row of idle views, and the neighbours of a view in it.
const EARLIER: usize = 0;
const LATER: usize = 1;

/// Multiplicative hashing (Knuth, "Sorting and Searching", 6.4), a round for each number.
fn fingerprint(pages: impl Iterator<Item = Extent>) -> u64 {
    let numbers = pages.flat_map(|run| [run.offset as u64, run.size_bytes as u64]);
    numbers.fold(0, |hash, number| {
        let product = (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 32)
    })
}

/// A fingerprint is a hash already.
#[derive(Clone, Copy, Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
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

/// Ranges of free addresses that do not touch.
#[derive(Clone, Debug, Default)]
struct Free {
    /// Offset to length.
    by_offset: BTreeMap<usize, usize>,
    /// Length and offset.
    by_size: BTreeSet<(usize, usize)>,
}

impl Free {
    fn put(&mut self, offset: usize, size_bytes: usize) {
        self.by_offset.insert(offset, size_bytes);
        self.by_size.insert((size_bytes, offset));
    }

    fn take(&mut self, offset: usize) -> Option<usize> {
        let size_bytes = self.by_offset.remove(&offset)?;
        self.by_size.remove(&(size_bytes, offset));
        Some(size_bytes)
    }
}

impl Views {
    /// No view in an address range of `range_bytes`.
    pub(crate) fn new(range_bytes: usize) -> Views {
        let mut free = Free::default();
        if range_bytes > 0 {
            free.put(0, range_bytes);
        }
        Views {
            views: Vec::new(),
            vacant: Vec::new(),
            by_pages: HashMap::default(),
            idle: [NONE; 2],
            mapping_count: 0,
            used_mapping_count: 0,
            free,
        }
    }

    /// Whether there are mappings for one more view, once all idle ones went. Says the same before
    /// and after they go, so that what is cached has no say.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.used_mapping_count + PIECES_MAX <= MAPPINGS_MAX
    }

    /// The view of these pages, if it is mapped.
    pub(crate) fn find(&self, pages: impl Iterator<Item = Extent> + Clone) -> Option<u32> {
        let mut index = self.by_pages.get(&fingerprint(pages.clone())).copied().unwrap_or(NONE);
        while index != NONE {
            let view = self.get(index);
            if view.pages.iter().copied().eq(pages.clone()) {
                return Some(index);
            }
            index = view.namesake;
        }
        None
    }

    pub(crate) fn get(&self, index: u32) -> &View {
        self.views[index as usize].as_ref().expect("a view that is mapped")
    }

    fn get_mut(&mut self, index: u32) -> &mut View {
        self.views[index as usize].as_mut().expect("a view that is mapped")
    }

    /// Offset in memory of the byte that is shown at an offset in the range of views.
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

    /// An idle view that has to go before one of `pages` can be made; `None` if there is room, or
    /// if nothing more can go.
    pub(crate) fn obstacle(&mut self, pages: &[Extent]) -> Option<View> {
        let has_mappings = self.mapping_count + pages.len() <= MAPPINGS_MAX;
        if has_mappings && self.gap(pages).is_some() {
            return None;
        }
        let [earliest, _] = self.idle;
        (earliest != NONE).then(|| self.take_out(earliest))
    }

    /// The smallest free range of addresses that holds a row of pages, the lowest on ties.
    pub(crate) fn gap(&self, pages: &[Extent]) -> Option<usize> {
        let size_bytes: usize = pages.iter().map(|run| run.size_bytes).sum();
        self.free.by_size.range((size_bytes, 0)..).next().map(|&(_, at)| at)
    }

    /// Enters a row of pages, mapped at `offset`, which came from [`gap`](Self::gap).
    pub(crate) fn insert(&mut self, pages: Vec<Extent>, offset: usize) -> u32 {
        let size_bytes = pages.iter().map(|run| run.size_bytes).sum();
        let free_bytes = self.free.take(offset).expect("the start of free addresses");
        if free_bytes > size_bytes {
            self.free.put(offset + size_bytes, free_bytes - size_bytes);
        }
        self.mapping_count += pages.len();
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.views.push(None);
            u32::try_from(self.views.len() - 1).expect("fewer views than mappings")
        });
        let fingerprint = fingerprint(pages.iter().copied());
        let namesake = self.by_pages.insert(fingerprint, index).unwrap_or(NONE);
        let idle = [NONE; 2];
        let view = View { pages, offset, size_bytes, users: 0, fingerprint, namesake, idle };
        self.views[index as usize] = Some(view);
        self.lay_idle(index, EARLIER);
        index
    }

    /// A block lies in it from now on.
    pub(crate) fn enter(&mut self, index: u32) {
        let view = self.get_mut(index);
        view.users += 1;
        if view.users == 1 {
            self.used_mapping_count += self.get(index).pages.len();
            self.take_from_idle(index);
        }
    }

    /// A block left it.
    pub(crate) fn leave(&mut self, index: u32) {
        let view = self.get_mut(index);
        view.users -= 1;
        if view.users == 0 {
            self.used_mapping_count -= self.get(index).pages.len();
            self.lay_idle(index, LATER);
        }
    }

    /// Puts a view at an end of the row of idle ones.
    fn lay_idle(&mut self, index: u32, end: usize) {
        let neighbour = std::mem::replace(&mut self.idle[end], index);
        let view = self.get_mut(index);
        (view.idle[end], view.idle[1 - end]) = (NONE, neighbour);
        match neighbour {
            NONE => self.idle[1 - end] = index,
            _ => self.get_mut(neighbour).idle[end] = index,
        }
    }

    fn take_from_idle(&mut self, index: u32) {
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

    /// Takes out the views that show pages of a run, in which no live block is.
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
        self.take_from_idle(index);
        self.forget_pages(index);
        let view = self.views[index as usize].take().expect("a view that is mapped");
        self.vacant.push(index);
        self.mapping_count -= view.pages.len();
        let (mut offset, mut size_bytes) = (view.offset, view.size_bytes);
        if let Some(after_bytes) = self.free.take(offset + size_bytes) {
            size_bytes += after_bytes;
        }
        if let Some((&before, &before_bytes)) = self.free.by_offset.range(..offset).next_back()
            && before + before_bytes == offset
        {
            self.free.take(before);
            offset = before;
            size_bytes += before_bytes;
        }
        self.free.put(offset, size_bytes);
        view
    }

    /// A view is found by its pages no more.
    fn forget_pages(&mut self, index: u32) {
        let &View { fingerprint, namesake, .. } = self.get(index);
        let first = self.by_pages[&fingerprint];
        if first != index {
            let mut before = first;
            while self.get(before).namesake != index {
                before = self.get(before).namesake;
            }
            self.get_mut(before).namesake = namesake;
        } else if namesake == NONE {
            self.by_pages.remove(&fingerprint);
        } else {
            self.by_pages.insert(fingerprint, namesake);
        }
    }

    /// # Panics
    /// If views overlap, or a counter is not what a recount gives. `users` are the live blocks in
    /// each view.
    pub(crate) fn check(&self, users: &BTreeMap<u32, usize>) {
        let mut ranges: Vec<(usize, usize)> =
            self.free.by_offset.iter().map(|(&at, &size_bytes)| (at, size_bytes)).collect();
        let indexed: BTreeSet<(usize, usize)> =
            ranges.iter().map(|&(at, size)| (size, at)).collect();
        assert_eq!(indexed, self.free.by_size, "free addresses by size");
        let (mut mapping_count, mut used_mapping_count) = (0, 0);
        let idle: BTreeSet<u32> = self.idle().collect();
        assert_eq!(idle.len(), self.idle().count(), "a view is idle twice");
        for (index, view) in self.views.iter().enumerate() {
            let Some(view) = view else { continue };
            let index = index as u32;
            let size_bytes = view.pages.iter().map(|run| run.size_bytes).sum();
            assert_eq!(size_bytes, view.size_bytes, "size of {view:?}");
            ranges.push((view.offset, size_bytes));
            mapping_count += view.pages.len();
            assert_eq!(view.users, users.get(&index).copied().unwrap_or(0), "users of {view:?}");
            assert_eq!(self.find(view.pages.iter().copied()), Some(index), "{view:?} is not found");
            used_mapping_count += if view.users > 0 { view.pages.len() } else { 0 };
            assert_eq!(idle.contains(&index), view.users == 0, "{view:?} is idle or not");
        }
        assert_eq!(mapping_count, self.mapping_count, "mappings");
        assert_eq!(used_mapping_count, self.used_mapping_count, "mappings in use");
        ranges.sort_unstable();
        let is_tiled = ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0);
        assert!(is_tiled, "views and free addresses do not tile their range");
    }
}

/// The whole pages that a piece of a block lies on.
#[inline]
pub(crate) fn whole_pages(piece: Extent, page_bytes: usize) -> Extent {
    let offset = piece.offset & !(page_bytes - 1);
    Extent { offset, size_bytes: piece.end().next_multiple_of(page_bytes) - offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_fingerprint_are_told_apart() {
        const PAGE: usize = 4096;
        let run = |offset, page_count| Extent { offset, size_bytes: page_count * PAGE };
        // A number that is the fingerprint of what comes before it makes that be forgotten.
        let forgets = fingerprint(std::iter::once(run(0, 1))) as usize;
        let rows = [vec![run(0, 2)], vec![run(0, 1), run(forgets, 2)]];
        let [first, second] = rows.each_ref().map(|row| fingerprint(row.iter().copied()));
        assert_eq!(first, second, "the test has lost its pair");
        let mut views = Views::new(100 * PAGE);
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
