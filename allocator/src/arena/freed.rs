//! Freed memory in checked mode: the ranges that freed blocks left, and where each block was freed.

use std::backtrace::Backtrace;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::arena::block_info::BlockInfo;
use crate::arena::extent::Extent;
use crate::arena::layout::Layout;

/// A block that was dropped.
#[derive(Debug)]
pub struct FreedBlock {
    /// The block as it was when it was live, with the source line of its request.
    pub block: BlockInfo,
    /// Sequence number of the block's [`Free`](crate::Action::Free) in the history.
    pub event: u64,
    /// Backtrace of the drop, if the standard library captures backtraces (`RUST_BACKTRACE=1`).
    pub freed_at: Backtrace,
}

/// Freed ranges by offset. No range lies in a live block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks {
    freed: BTreeMap<usize, Freed>,
}

/// A range that a freed block left.
#[derive(Clone, Debug)]
pub(crate) struct Freed {
    pub(crate) size_bytes: usize,
    /// Index of the range's first byte in the block.
    pub(crate) index: usize,
    pub(crate) block: Arc<FreedBlock>,
}

impl Checks {
    pub(crate) fn last_at(&self, offset: usize) -> Option<Arc<FreedBlock>> {
        let (&start, freed) = self.freed.range(..=offset).next_back()?;
        (offset < start + freed.size_bytes).then(|| Arc::clone(&freed.block))
    }

    /// Records the ranges that a freed block left.
    pub(crate) fn note(&mut self, pieces: &[Extent], block: &Arc<FreedBlock>) {
        let mut index = 0;
        for piece in pieces {
            let (size_bytes, block) = (piece.size_bytes, Arc::clone(block));
            self.freed.insert(piece.offset, Freed { size_bytes, index, block });
            index += size_bytes;
        }
    }

    /// Removes and returns the parts of freed ranges that lie in a range.
    pub(crate) fn take(&mut self, extent: Extent) -> Vec<(usize, Freed)> {
        let (start, end) = (extent.offset, extent.end());
        let meets = self.freed.range(..end).rev();
        let meets = meets.take_while(|&(&offset, freed)| offset + freed.size_bytes > start);
        let mut offsets: Vec<usize> = meets.map(|(&offset, _)| offset).collect();
        offsets.reverse();
        let mut taken = Vec::new();
        for offset in offsets {
            let Freed { size_bytes, index, block } =
                self.freed.remove(&offset).expect("it was just seen");
            let mut keep = |from: usize, to: usize| {
                if from < to {
                    let (index, block) = (index + from - offset, Arc::clone(&block));
                    self.freed.insert(from, Freed { size_bytes: to - from, index, block });
                }
            };
            keep(offset, start);
            keep(end, offset + size_bytes);
            let (from, to) = (offset.max(start), (offset + size_bytes).min(end));
            let index = index + from - offset;
            taken.push((from, Freed { size_bytes: to - from, index, block }));
        }
        taken
    }

    /// Removes and returns the parts of freed ranges in the pieces of a block, each with its place
    /// in the block.
    pub(crate) fn take_pieces(&mut self, pieces: &[Extent]) -> Vec<(usize, Freed)> {
        let mut freed = Vec::new();
        let mut before_bytes = 0;
        for &piece in pieces {
            let inside = self.take(piece).into_iter();
            freed.extend(inside.map(|(offset, part)| (before_bytes + offset - piece.offset, part)));
            before_bytes += piece.size_bytes;
        }
        freed
    }

    /// # Panics
    /// If a freed range lies in a live block, or two of them overlap.
    pub(crate) fn check(&self, layout: &Layout) {
        let mut end = 0;
        for (&offset, freed) in &self.freed {
            assert!(offset >= end, "freed ranges overlap at {offset}");
            end = offset + freed.size_bytes;
        }
        for (extent, live) in layout.live_extents() {
            let freed = self.freed.range(..extent.end()).next_back();
            let is_clear = freed.is_none_or(|(at, freed)| at + freed.size_bytes <= extent.offset);
            assert!(is_clear, "block {} is noted as freed", live.serial);
        }
    }

    /// Forgets freed ranges on pages that went back to the source.
    pub(crate) fn forget(&mut self, run: Extent) {
        self.take(run);
    }
}
