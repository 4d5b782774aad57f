//! A copy of an allocator's books at one moment.

use crate::arena::extent::Extent;
use crate::caching::CachingAllocator;
use crate::caching::rules::Rules;
use crate::category::ByCategory;
use crate::history::{Action, History, Record};
use crate::statistics::Statistics;

/// The input of a recording: an allocator's history, and its arena at the end of the history.
///
/// A capture costs as much as copying the records, of 56 bytes each. Explaining, drawing and
/// exporting a capture needs no lock of the allocator.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capture {
    /// The last events.
    pub history: History,
    /// The counters after the last event.
    pub statistics: Statistics,
    /// Live blocks after the last event, by address.
    pub blocks: Vec<CapturedBlock>,
    /// Charged bytes after the last event.
    pub charges: ByCategory<usize>,
    /// Committed ranges after the last event, by address.
    pub committed: Vec<Extent>,
    /// The policy that placed the blocks: `pages` or `torch`.
    pub policy: &'static str,
    /// The device address of offset 0.
    pub address: u64,
}

/// A live block of a [`Capture`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedBlock {
    /// The block, as if it were allocated now; without a sequence number.
    pub record: Record,
    /// The pieces of a stitched block, in order; empty if the block is not stitched.
    pub pieces: Vec<Extent>,
}

impl CachingAllocator {
    /// Copies the books of the allocator. Crate `lowtide-trace` explains, draws, exports and
    /// replays them.
    pub fn capture(&self) -> Capture {
        let core = self.core();
        let locked = core.lock();
        let arena = &locked.state.arena;
        let mut charges = ByCategory::<usize>::default();
        for entry in arena.charges.values() {
            charges[entry.category] += entry.size_bytes;
        }
        let live = locked.state.rules.live_with_pieces(arena).into_iter();
        let blocks = live.map(|(offset, live, pieces)| {
            let record = Record::of_block(Action::Allocate, offset, &live);
            CapturedBlock { record, pieces }
        });
        Capture {
            blocks: blocks.collect(),
            policy: match locked.state.rules {
                Rules::Pages => "pages",
                Rules::Torch(_) => "torch",
            },
            charges,
            committed: arena.pages.all(),
            address: core.segments.memory.address(),
            statistics: arena.statistics,
            history: locked.state.history.snapshot(),
        }
    }
}
