//! Where a request would go, and what that would cost in pages.

use super::place::{Part, Place, Spot};
use super::{Extent, Layout, PIECES_MAX, Use};
use crate::holes::NONE;
use crate::stream::{Marks, Stream, StreamSet, Waits};

/// Who asks, and what the source can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    pub(crate) size_bytes: usize,
    pub(crate) stream: Stream,
    pub(crate) waits: &'a Waits,
    /// Whether the source can show pages at a second address.
    pub(crate) stitches: bool,
}

impl Layout {
    /// Where a block would go; `None` if the arithmetic overflows. May merge holes.
    #[inline]
    pub(crate) fn place(&mut self, want: &Want) -> Option<Place> {
        if let Some((slot, extent)) = self.own_hole(want.size_bytes, want.stream) {
            return Some(Place { spot: Spot::Hole { slot, extent }, waits: StreamSet::EMPTY });
        }
        self.place_elsewhere(want)
    }

    /// The start of the best fit among the holes that only `stream` used: a place that needs no
    /// wait, and the one that `place` prefers.
    #[inline]
    pub(crate) fn own_hole(&self, size_bytes: usize, stream: Stream) -> Option<(u32, Extent)> {
        let own = StreamSet::of(stream);
        let (_, holes) = self.holes.iter().find(|(set, _)| *set == own)?;
        let (_, offset, slot) = holes.best_fit(size_bytes)?;
        Some((slot, Extent { offset, size_bytes }))
    }

    #[cold]
    pub(super) fn place_elsewhere(&mut self, want: &Want) -> Option<Place> {
        if self.holes.iter().filter(|(_, holes)| holes.len() > 0).count() > 1 {
            if let Some(place) = self.any_hole(want) {
                return Some(place);
            }
            self.merge_across_streams();
        }
        if let Some(place) = self.any_hole(want) {
            return Some(place);
        }
        if let Some(place) = self.stitched(want) {
            return Some(place);
        }
        let extent = Extent { offset: self.top(), size_bytes: want.size_bytes };
        extent.offset.checked_add(extent.size_bytes)?;
        Some(Place { spot: Spot::Top(extent), waits: self.waits_beyond(want) })
    }

    /// Of the best fits of all sets of streams: one that needs no wait first, then the smallest,
    /// then the lowest.
    pub(super) fn any_hole(&self, want: &Want) -> Option<Place> {
        let candidates = self.holes.iter().filter_map(|(_, holes)| {
            let (size_bytes, offset, slot) = holes.best_fit(want.size_bytes)?;
            let waits = self.waits_for(want, slot);
            Some((waits != StreamSet::EMPTY, size_bytes, offset, slot, waits))
        });
        let (_, _, offset, slot, waits) = candidates.min()?;
        let extent = Extent { offset, size_bytes: want.size_bytes };
        Some(Place { spot: Spot::Hole { slot, extent }, waits })
    }

    pub(super) fn waits_for(&self, want: &Want, slot: u32) -> StreamSet {
        match self.nodes[slot as usize].state {
            Use::Hole(marks) => want.waits.missing(want.stream, marks),
            _ => StreamSet::EMPTY,
        }
    }

    pub(super) fn waits_beyond(&self, want: &Want) -> StreamSet {
        if self.top() >= self.used_end {
            return StreamSet::EMPTY;
        }
        let missing = |on: Stream| {
            let (streams, since) = (StreamSet::of(on), self.beyond_since[on.index()]);
            want.waits.missing(want.stream, Marks { streams, since })
        };
        self.beyond.iter().map(missing).fold(StreamSet::EMPTY, StreamSet::union)
    }

    /// Pieces for a request that no hole holds: whole pages of holes, and the top for the rest.
    pub(super) fn stitched(&self, want: &Want) -> Option<Place> {
        let page_bytes = self.page_bytes;
        if !want.stitches || want.size_bytes < page_bytes {
            return None;
        }
        let mut runs = Vec::new();
        for (_, holes) in &self.holes {
            holes.for_each_from(page_bytes, |offset, size_bytes, slot| {
                let start = offset.next_multiple_of(page_bytes);
                let end = (offset + size_bytes) / page_bytes * page_bytes;
                if start < end {
                    runs.push((std::cmp::Reverse(end - start), start, slot));
                }
            });
        }
        if runs.is_empty() {
            return None;
        }
        runs.sort_unstable();
        runs.truncate(PIECES_MAX - 2);
        let mut missing_bytes = want.size_bytes;
        let mut parts = Vec::with_capacity(4);
        let mut waits = StreamSet::EMPTY;
        for (std::cmp::Reverse(run_bytes), offset, hole) in runs {
            if missing_bytes == 0 {
                break;
            }
            let size_bytes = run_bytes.min(missing_bytes);
            parts.push(Part { hole, extent: Extent { offset, size_bytes } });
            waits = waits.union(self.waits_for(want, hole));
            missing_bytes -= size_bytes;
        }
        if missing_bytes > 0 {
            waits = waits.union(self.waits_beyond(want));
            // From the next page on: with the free part of the last one as a first piece, recorded
            // traces needed 1 % more, because such a piece leaves odd holes behind.
            let offset = self.top().checked_next_multiple_of(page_bytes)?;
            offset.checked_add(missing_bytes)?;
            let extent = Extent { offset, size_bytes: missing_bytes };
            parts.push(Part { hole: NONE, extent });
        }
        Some(Place { spot: Spot::Stitched(parts), waits })
    }

    /// Bytes of the pages in which live blocks lie: the least that has to be committed.
    #[inline]
    pub(crate) fn touched_bytes(&self) -> usize {
        self.touched_pages * self.page_bytes
    }

    /// What that would be with a block at a place.
    pub(crate) fn touched_bytes_with(&self, place: &Place) -> usize {
        let new_pages = |extent: Extent, hole: u32| {
            let (previous, next) = match self.nodes.get(hole as usize) {
                Some(node) => (node.previous, node.next),
                None => (self.last, NONE),
            };
            self.own_pages(extent, previous, next)
        };
        let new_pages: usize = match &place.spot {
            Spot::Hole { slot, extent } => new_pages(*extent, *slot),
            Spot::Top(extent) => new_pages(*extent, NONE),
            Spot::Stitched(parts) => {
                parts.iter().map(|part| new_pages(part.extent, part.hole)).sum()
            }
        };
        self.touched_pages.saturating_add(new_pages).saturating_mul(self.page_bytes)
    }

    /// Pages of an extent in which no other live block has bytes; the nodes beside it are given.
    #[inline]
    pub(super) fn own_pages(&self, extent: Extent, previous: u32, next: u32) -> usize {
        let first = extent.offset >> self.page_shift;
        let last = (extent.end() - 1) >> self.page_shift;
        let shares_first = self.is_live_from(previous, first << self.page_shift);
        let shares_last = self.is_live_below(next, (last + 1).saturating_mul(self.page_bytes));
        let shared = if first == last {
            usize::from(shares_first || shares_last)
        } else {
            usize::from(shares_first) + usize::from(shares_last)
        };
        last + 1 - first - shared
    }

    /// Whether a live byte lies at or beyond `offset`, in the node in `slot` or before it.
    #[inline]
    pub(super) fn is_live_from(&self, mut slot: u32, offset: usize) -> bool {
        while let Some(node) = self.nodes.get(slot as usize) {
            if node.extent.end() <= offset {
                return false;
            }
            if !matches!(node.state, Use::Hole(_)) {
                return true;
            }
            slot = node.previous;
        }
        false
    }

    /// Whether a live byte lies below `end`, in the node in `slot` or after it.
    #[inline]
    pub(super) fn is_live_below(&self, mut slot: u32, end: usize) -> bool {
        while let Some(node) = self.nodes.get(slot as usize) {
            if node.extent.offset >= end {
                return false;
            }
            if !matches!(node.state, Use::Hole(_)) {
                return true;
            }
            slot = node.next;
        }
        false
    }
}
