//! A copy of an allocator on a simulated device.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::caching::block::Segments;
use crate::caching::buffer::Buffer;
use crate::caching::locked::{Core, State};
use crate::caching::scope::Charge;
use crate::caching::{CachingAllocator, Shared};
use crate::source::MemorySource;
use crate::source::sim::SimSource;
use crate::source::sim_streams::SimStreams;

/// An allocator that takes the same decisions as the original, from the state of the copy on.
/// Blocks that were live then are live here too, until their copies are adopted and dropped.
#[derive(Debug)]
pub struct Simulation {
    allocator: CachingAllocator,
    /// The allocator whose blocks may be adopted. Weak: a simulation keeps no real memory.
    original: Weak<Shared>,
    /// Serials of the blocks and charges that were not adopted yet.
    orphans: Mutex<BTreeSet<u64>>,
}

impl Simulation {
    pub(crate) fn new(original: &CachingAllocator) -> Simulation {
        let (arena, rules, orphans) = {
            let locked = original.core().lock();
            let state = &locked.state;
            let mut arena = state.arena.clone();
            arena.statistics = state.watches.whole(&arena.statistics);
            (arena, state.rules.clone(), orphans_of(state))
        };
        let statistics = &arena.statistics;
        let mut source =
            SimSource::with_capacity(statistics.capacity_bytes).page_bytes(statistics.page_bytes);
        if original.core().segments.views.is_none() {
            source = source.without_virtual_memory();
        }
        if original.core().has_streams {
            source = source.streams(&SimStreams::new());
        }
        let memory = source.reserve(arena.limit_bytes);
        let memory = memory.expect("an address range that exists elsewhere fits here");
        let views = original.core().segments.views.as_ref().map(|views| {
            let views = source.reserve(views.size_bytes());
            views.expect("an address range that exists elsewhere fits here")
        });
        let segments = Segments { memory, views };
        let core = Core::new(Box::new(source), segments, arena, rules);
        Simulation {
            allocator: CachingAllocator::assemble(
                core,
                original.current_category(),
                original.stream(),
            ),
            original: Arc::downgrade(original.shared()),
            orphans: Mutex::new(orphans),
        }
    }

    /// The simulated allocator.
    pub fn allocator(&self) -> &CachingAllocator {
        &self.allocator
    }

    /// The copy of a block of the original. Dropping the copy frees the block here. `None` if the
    /// block was adopted before, or was not live when the simulation was made.
    pub fn adopt(&self, real: &Buffer) -> Option<Buffer> {
        let block = real.block();
        self.claim(real.allocator(), block.serial)?;
        let size_bytes = real.size_bytes();
        let mut locked = self.allocator.core().lock();
        Some(Buffer::new(&mut locked.state, &self.allocator, size_bytes, block))
    }

    /// The copy of a charge of the original, with the charge's bytes at the time of the copy.
    /// `None` as for [`adopt`](Self::adopt).
    pub fn adopt_charge(&self, real: &Charge) -> Option<Charge> {
        self.claim(real.allocator(), real.serial)?;
        let entry = self.allocator.core().lock().state.arena.charges[&real.serial];
        let allocator = self.allocator.clone();
        Some(Charge::new(allocator, entry.category, entry.size_bytes, real.serial, real.site()))
    }

    fn claim(&self, owner: &CachingAllocator, serial: u64) -> Option<()> {
        let is_original = std::ptr::eq(Arc::as_ptr(owner.shared()), self.original.as_ptr());
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        (is_original && orphans.remove(&serial)).then_some(())
    }
}

fn orphans_of(state: &State) -> BTreeSet<u64> {
    let blocks = state.live().into_iter().map(|(_, live)| live.serial);
    blocks.chain(state.arena.charges.keys().copied()).collect()
}
