//! Committed pages: those that have memory from the source.
//!
//! Usually all pages up to an end are committed. The map `missing` has the gaps: free pages that
//! went back to the source.

use std::collections::BTreeMap;

use crate::arena::extent::Extent;

/// Committed pages of an arena.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    page_bytes: usize,
    /// The end of the last committed page.
    end: usize,
    /// Gaps in the committed pages, start to end. They touch neither each other nor `end`.
    missing: BTreeMap<usize, usize>,
    missing_bytes: usize,
}

impl Pages {
    pub(crate) fn new(page_bytes: usize) -> Pages {
        Pages { page_bytes, end: 0, missing: BTreeMap::new(), missing_bytes: 0 }
    }

    pub(crate) fn committed_bytes(&self) -> usize {
        self.end - self.missing_bytes
    }

    /// True if all pages up to `end` are committed, as they are in a steady state.
    #[inline]
    pub(crate) fn reach(&self, end: usize) -> bool {
        end <= self.end && self.missing_bytes == 0
    }

    /// The pages of an extent that are not committed, in order.
    pub(crate) fn missing_in(&self, extent: Extent) -> Vec<Extent> {
        let pages = extent.pages_around(self.page_bytes);
        let (start, end) = (pages.offset, pages.end());
        let before = self.missing.range(..start).next_back();
        let gaps = before.into_iter().chain(self.missing.range(start..end));
        let gaps = gaps.map(|(&gap, &gap_end)| (gap, gap_end)).chain([(self.end, usize::MAX)]);
        let clipped = gaps.map(|(gap, gap_end)| (gap.max(start), gap_end.min(end)));
        let clipped = clipped.filter(|(from, to)| from < to);
        clipped.map(|(from, to)| Extent { offset: from, size_bytes: to - from }).collect()
    }

    /// The committed pages that lie wholly inside an extent, the highest run first.
    pub(crate) fn committed_down(&self, extent: Extent) -> impl Iterator<Item = Extent> {
        let pages = extent.pages_inside(self.page_bytes);
        let (start, mut end) = (pages.offset, pages.end().min(self.end));
        let mut gaps = self.missing.range(..end).rev();
        std::iter::from_fn(move || {
            while start < end {
                let (gap, gap_end) = gaps.next().map_or((start, start), |(&at, &to)| (at, to));
                let offset = gap_end.clamp(start, end);
                let run = Extent { offset, size_bytes: end - offset };
                end = gap;
                if run.size_bytes > 0 {
                    return Some(run);
                }
            }
            None
        })
    }

    /// [`committed_down`](Self::committed_down), with the lowest run first.
    pub(crate) fn committed_in(&self, extent: Extent) -> Vec<Extent> {
        let mut runs: Vec<Extent> = self.committed_down(extent).collect();
        runs.reverse();
        runs
    }

    /// Runs of committed pages, in order.
    pub(crate) fn all(&self) -> Vec<Extent> {
        self.committed_in(Extent { offset: 0, size_bytes: self.end })
    }

    /// Adds whole pages that were just committed.
    pub(crate) fn add(&mut self, run: Extent) {
        if run.offset >= self.end {
            if run.offset > self.end {
                self.missing.insert(self.end, run.offset);
                self.missing_bytes += run.offset - self.end;
            }
            self.end = run.end();
            return;
        }
        let (&start, &end) = self.missing.range(..=run.offset).next_back().expect("it was missing");
        assert!(run.end() <= end, "{run:?} is committed already");
        self.missing.remove(&start);
        if start < run.offset {
            self.missing.insert(start, run.offset);
        }
        if run.end() < end {
            self.missing.insert(run.end(), end);
        }
        self.missing_bytes -= run.size_bytes;
    }

    /// Removes whole committed pages.
    pub(crate) fn remove(&mut self, run: Extent) {
        let (mut start, mut end) = (run.offset, run.end());
        if let Some((&before, &before_end)) = self.missing.range(..start).next_back()
            && before_end == start
        {
            self.missing.remove(&before);
            self.missing_bytes -= before_end - before;
            start = before;
        }
        if end == self.end {
            self.end = start;
            return;
        }
        if let Some(after_end) = self.missing.remove(&end) {
            self.missing_bytes -= after_end - end;
            end = after_end;
        }
        self.missing.insert(start, end);
        self.missing_bytes += end - start;
    }

    /// # Panics
    /// If a gap is not made of whole pages, touches another gap, or reaches the end.
    pub(crate) fn check(&self) {
        let mut last_end = None;
        let mut missing_bytes = 0;
        for (&start, &end) in &self.missing {
            assert!(start < end && end < self.end, "missing {start}..{end} below {}", self.end);
            assert!(last_end.is_none_or(|last_end| last_end < start), "two gaps meet at {start}");
            assert_eq!((start % self.page_bytes, end % self.page_bytes), (0, 0), "parts of pages");
            missing_bytes += end - start;
            last_end = Some(end);
        }
        assert_eq!(missing_bytes, self.missing_bytes, "missing bytes");
        assert_eq!(self.end % self.page_bytes, 0, "part of a page");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const PAGE: usize = 4096;

    proptest! {
        #[test]
        fn agrees_with_a_set_of_pages(
            ops in prop::collection::vec((any::<bool>(), 0..30_usize, 1..6_usize), 1..100),
        ) {
            let mut pages = Pages::new(PAGE);
            let mut set: BTreeSet<usize> = BTreeSet::new();
            for (adds, first, count) in ops {
                let extent = Extent { offset: first * PAGE + 512, size_bytes: count * PAGE - 1024 };
                let inside: Vec<usize> = (first..first + count).collect();
                if adds {
                    for run in pages.missing_in(extent) {
                        pages.add(run);
                    }
                    set.extend(inside);
                } else {
                    let whole = Extent { offset: first * PAGE, size_bytes: count * PAGE };
                    for run in pages.committed_in(whole) {
                        pages.remove(run);
                    }
                    set.retain(|page| !inside.contains(page));
                }
                pages.check();
                prop_assert_eq!(pages.committed_bytes(), set.len() * PAGE);
                let all = Extent { offset: 0, size_bytes: 40 * PAGE };
                let listed: Vec<usize> = pages
                    .committed_in(all)
                    .iter()
                    .flat_map(|run| run.offset / PAGE..run.end() / PAGE)
                    .collect();
                prop_assert_eq!(listed, set.iter().copied().collect::<Vec<_>>());
                let reaches = set.len() * PAGE == pages.end && pages.end >= 3 * PAGE;
                prop_assert_eq!(pages.reach(3 * PAGE), reaches);
            }
        }
    }
}
