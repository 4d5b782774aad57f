//! The front: handles, requests, and views of the books.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::category::Category;
use crate::engine::{Core, Engine, Refusal, Segments};
use crate::error::AllocError;
use crate::fault::Fault;
use crate::history::History;
use crate::layout::BLOCK_BYTES;
use crate::policy::{BlockInfo, Policy, Request};
use crate::reclaim::{Reclaim, Reclaimers, Registration};
use crate::scope::{CategoryScope, Charge, Seal};
use crate::simulation::Simulation;
use crate::source::{MemorySource, Segment};
use crate::statistics::Statistics;
use crate::stream::Stream;
use crate::sync::{AtomicU8, Ordering};

/// A caching allocator within a budget. Clones are handles to the same one.
///
/// Offsets are a function of the requests and frees alone, so whoever wants them reproducible lets
/// a single thread allocate and free; any thread may.
#[derive(Clone)]
pub struct CachingAllocator {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    core: Core,
    category: AtomicU8,
    reclaimers: Reclaimers,
}

impl CachingAllocator {
    /// An allocator over all of a source. Reserves address ranges and no memory.
    ///
    /// # Errors
    /// The source has no such address ranges.
    ///
    /// # Panics
    /// If the page size is not a power of two of at least 512, or an address not a multiple of it.
    pub fn new(source: impl MemorySource + 'static) -> Result<CachingAllocator, AllocError> {
        let (capacity_bytes, page_bytes) = (source.capacity_bytes(), source.page_bytes());
        assert!(
            page_bytes.is_power_of_two() && page_bytes >= BLOCK_BYTES,
            "{page_bytes} is no page size"
        );
        let range_bytes = capacity_bytes.checked_next_multiple_of(page_bytes);
        let range_bytes = range_bytes.unwrap_or(capacity_bytes);
        let memory = source.reserve(range_bytes)?;
        assert_eq!(memory.address() % BLOCK_BYTES as u64, 0, "{memory:?} is not aligned");
        let views = match source.virtual_memory().map(|pages| pages.reserve_views(range_bytes)) {
            None => None,
            Some(Ok(views)) => Some(views),
            Some(Err(error)) => {
                source.release(&memory);
                return Err(error.into());
            }
        };
        let view_range_bytes = views.as_ref().map(Segment::size_bytes);
        let policy = Policy::new(capacity_bytes, page_bytes, memory.size_bytes(), view_range_bytes);
        let segments = Segments { memory, views };
        Ok(CachingAllocator::assemble(
            Core::new(Box::new(source), segments, policy),
            Category::Other,
        ))
    }

    pub(crate) fn assemble(core: Core, category: Category) -> CachingAllocator {
        let category = AtomicU8::new(category as u8);
        CachingAllocator {
            shared: Arc::new(Shared { core, category, reclaimers: Reclaimers::default() }),
        }
    }

    /// A block for the current scope's category, on the default stream.
    ///
    /// # Errors
    /// As [`allocate_on`](Self::allocate_on).
    #[track_caller]
    pub fn allocate(&self, size_bytes: usize) -> Result<Buffer, AllocError> {
        self.allocate_on(Stream::DEFAULT, self.current_category(), size_bytes)
    }

    /// A block on the default stream.
    ///
    /// # Errors
    /// As [`allocate_on`](Self::allocate_on).
    #[track_caller]
    pub fn allocate_in(&self, category: Category, size_bytes: usize) -> Result<Buffer, AllocError> {
        self.allocate_on(Stream::DEFAULT, category, size_bytes)
    }

    /// A block of at least `size_bytes`, at a multiple of 512 bytes. A block of nothing is a block.
    ///
    /// # Streams
    /// Work that is enqueued on `stream` from now on may use the block at once. Where it was used
    /// by other streams before, `stream` was made to wait for them.
    ///
    /// # Errors
    /// Out of memory, sealed, or a failure of the source; nothing but the cache has changed.
    #[track_caller]
    pub fn allocate_on(
        &self,
        stream: Stream,
        category: Category,
        size_bytes: usize,
    ) -> Result<Buffer, AllocError> {
        let request = Request { category, size_bytes, stream, site: Location::caller() };
        let granted = {
            let mut engine = self.core().lock();
            let injected = engine.admit(&request)?;
            engine.allocate(&request, injected)
        };
        let granted = match granted {
            Ok(granted) => granted,
            Err(refusal) => {
                self.climb(&request, refusal, |engine| engine.allocate(&request, false))?
            }
        };
        Ok(Buffer::new(self.clone(), category, size_bytes, granted))
    }

    /// The last rung: reclaimers in their order, and a search after each. They run without the
    /// lock, so they may free what they hold.
    #[cold]
    fn climb<T>(
        &self,
        request: &Request,
        refusal: Refusal,
        search: impl Fn(&mut Engine<'_>) -> Result<T, Refusal>,
    ) -> Result<T, AllocError> {
        let mut shortage = match refusal {
            Refusal::Final(error) => return Err(error),
            Refusal::Short(shortage) => shortage,
        };
        let mut asked = false;
        if !shortage.injected {
            let round = self.shared.reclaimers.round();
            for reclaimer in round.reclaimers() {
                asked = true;
                reclaimer.reclaim(request.size_bytes);
                match search(&mut self.core().lock()) {
                    Ok(granted) => return Ok(granted),
                    Err(Refusal::Final(error)) => return Err(error),
                    Err(Refusal::Short(still)) => shortage = still,
                }
            }
        }
        Err(self.core().lock().give_up(request, shortage, asked))
    }

    /// Registers somebody who can give memory back when it is short. Lower priorities are asked
    /// first, and among equals whoever came first; until the guard is dropped.
    pub fn on_shortage(&self, priority: i32, reclaimer: impl Reclaim + 'static) -> Registration {
        self.shared.reclaimers.register(priority, Arc::new(reclaimer))
    }

    /// Makes `category` the current one until the scope is dropped. There is one current category
    /// per allocator, not per thread: scopes belong on the thread that runs the step.
    pub fn category(&self, category: Category) -> CategoryScope {
        let previous = self.replace_category(category);
        CategoryScope::new(self.clone(), previous)
    }

    /// What [`allocate`](Self::allocate) uses; [`Category::Other`] outside every scope.
    pub fn current_category(&self) -> Category {
        Category::ALL[usize::from(self.shared.category.load(Ordering::Relaxed))]
    }

    /// Counts bytes against the budget that something else takes.
    ///
    /// # Errors
    /// Out of memory or sealed; a charge of nothing is neither.
    #[track_caller]
    pub fn charge(&self, category: Category, size_bytes: usize) -> Result<Charge, AllocError> {
        let site = Location::caller();
        let serial = self.grow_charge(None, category, size_bytes, site)?;
        Ok(Charge::new(self.clone(), category, size_bytes, serial, site))
    }

    /// The counters now.
    pub fn statistics(&self) -> Statistics {
        self.core().lock().state.policy.statistics
    }

    /// Every peak becomes the current value.
    pub fn reset_peaks(&self) {
        self.core().lock().state.policy.statistics.reset_peaks();
    }

    /// A hash of the live blocks: offset, size and category, and nothing else. Stable across runs
    /// and machines.
    pub fn layout_hash(&self) -> u64 {
        self.core().lock().state.policy.layout_hash()
    }

    /// The live blocks in address order.
    pub fn live_blocks(&self) -> Vec<BlockInfo> {
        self.core().lock().state.policy.live_blocks()
    }

    /// Refuses every request until the guard, and all others like it, are dropped.
    pub fn seal(&self) -> Seal {
        Seal::new(self.clone())
    }

    /// Gives every page under no live block back to the source. Returns their bytes.
    #[track_caller]
    pub fn trim(&self) -> usize {
        self.core().lock().trim(Category::Other, Location::caller())
    }

    /// The budget.
    pub fn capacity_bytes(&self) -> usize {
        self.core().lock().state.policy.statistics.capacity_bytes
    }

    /// Changes the budget. It may fall below what is reserved: the cache goes, live blocks stay,
    /// nothing is cached until they fit again, and growth fails until then.
    #[track_caller]
    pub fn set_capacity(&self, bytes: usize) {
        self.core().lock().set_capacity(bytes, Location::caller());
    }

    /// Makes the nth request from now fail, past the allocator's own retries, as out of memory.
    /// Requests are `allocate`, `allocate_in` and everything that grows a charge.
    pub fn inject_fault(&self, fault: Fault) {
        self.core().lock().state.fault = Some(fault);
    }

    /// No injected fault strikes any more.
    pub fn clear_fault(&self) {
        self.core().lock().state.fault = None;
    }

    /// Requests so far, failed ones too, except those refused by a seal.
    pub fn request_count(&self) -> u64 {
        self.core().lock().state.policy.request_count
    }

    /// Events so far: the sequence number of the next [`Record`](crate::Record).
    pub fn event_count(&self) -> u64 {
        self.core().lock().state.history.event_count()
    }

    /// The last 131,072 events.
    pub fn history(&self) -> History {
        self.core().lock().state.history.snapshot()
    }

    /// The same allocator on a device that is not there, in the state that this one has now:
    /// blocks, committed pages, charges, counters with their peaks, capacity and the current
    /// category. Not faults, seals and history.
    pub fn simulate(&self) -> Simulation {
        Simulation::new(self)
    }

    pub(crate) fn grow_charge(
        &self,
        serial: Option<u64>,
        category: Category,
        size_bytes: usize,
        site: &'static Location<'static>,
    ) -> Result<u64, AllocError> {
        let request = Request { category, size_bytes, stream: Stream::DEFAULT, site };
        let charged = {
            let mut engine = self.core().lock();
            // A growth of nothing is no request.
            let injected = size_bytes > 0 && engine.admit(&request)?;
            engine.charge(serial, &request, injected)
        };
        match charged {
            Ok(serial) => Ok(serial),
            Err(refusal) => {
                self.climb(&request, refusal, |engine| engine.charge(serial, &request, false))
            }
        }
    }

    pub(crate) fn replace_category(&self, category: Category) -> Category {
        let previous = self.shared.category.swap(category as u8, Ordering::Relaxed);
        Category::ALL[usize::from(previous)]
    }

    pub(crate) fn core(&self) -> &Core {
        &self.shared.core
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl fmt::Debug for CachingAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statistics = self.statistics();
        f.debug_struct("CachingAllocator")
            .field("capacity_bytes", &statistics.capacity_bytes)
            .field("reserved_bytes", &statistics.reserved.current_bytes)
            .field("allocated_bytes", &statistics.allocated.current_bytes)
            .finish_non_exhaustive()
    }
}

/// Handles and blocks cross threads.
const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<CachingAllocator>();
    is_send_and_sync::<Buffer>();
    is_send_and_sync::<Simulation>();
    is_send_and_sync::<Charge>();
};
