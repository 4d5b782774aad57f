//! The front of the allocator: handles, requests, and queries of its state.

pub(crate) mod arenas;
pub(crate) mod block;
pub(crate) mod buffer;
mod check;
pub(crate) mod checked;
pub(crate) mod effects;
mod last_buffer;
mod live;
pub(crate) mod locked;
mod mapping;
#[cfg(all(test, lowtide_loom))]
mod models;
mod out_of_memory;
pub(crate) mod own;
mod pages;
mod peaks;
pub(crate) mod pinned;
pub(crate) mod policy;
pub(crate) mod promise;
pub(crate) mod reclaim;
pub(crate) mod rules;
pub(crate) mod scope;
pub(crate) mod shortage;
mod sim_streams;
pub(crate) mod simulation;
pub(crate) mod torch;
mod torch_named;
pub(crate) mod watch;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::arena::block_info::BlockInfo;
use crate::arena::extent::BLOCK_BYTES;
use crate::arena::freed::Checks;
use crate::arena::state::{ArenaState, Request};
use crate::caching::block::{BlockRef, Segments};
use crate::caching::buffer::Buffer;
use crate::caching::locked::{Core, LockedAllocator, State};
use crate::caching::policy::Policy;
use crate::caching::reclaim::{Reclaim, Reclaimers, Registration};
use crate::caching::rules::Rules;
use crate::caching::scope::{CategoryScope, Charge, Seal};
use crate::caching::shortage::{Refusal, Shortage};
use crate::caching::simulation::Simulation;
use crate::caching::torch::TorchFront;
use crate::category::Category;
use crate::error::{AllocError, Rung, Tried};
use crate::fault::Fault;
use crate::history::History;
use crate::lock::sync::{AtomicU8, Ordering};
use crate::source::{MemorySource, SourceError};
use crate::statistics::Statistics;
use crate::stream::Stream;

/// A caching allocator within a budget. Clones are handles to the same allocator.
///
/// Offsets depend only on the order of the requests and frees. Any thread may allocate and free,
/// but offsets are reproducible only if a single thread does.
#[derive(Clone)]
pub struct CachingAllocator {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    core: Core,
    /// The stream of requests that do not name one.
    stream: Stream,
    category: AtomicU8,
    reclaimers: Reclaimers,
}

impl CachingAllocator {
    /// An allocator over the whole of a source. Reserves address ranges, and no memory.
    ///
    /// # Errors
    /// The source cannot reserve the address ranges.
    ///
    /// # Panics
    /// If the page size is not a power of two of at least 512, or an address not a multiple of it.
    pub fn new(source: impl MemorySource + 'static) -> Result<CachingAllocator, AllocError> {
        CachingAllocator::with_policy(source, Policy::Pages)
    }

    /// [`new`](Self::new), with a choice of placement rules.
    ///
    /// # Errors
    /// The source cannot reserve the address ranges, or two segments of PyTorch's rules would share
    /// a page: its pages are over 2 MiB, or less with some `large_segment_bytes`.
    ///
    /// # Panics
    /// If the page size is not a power of two of at least 512, or an address not a multiple of it.
    pub fn with_policy(
        source: impl MemorySource + 'static,
        policy: Policy,
    ) -> Result<CachingAllocator, AllocError> {
        CachingAllocator::over(source, policy, None, Stream::DEFAULT)
    }

    /// [`new`](Self::new), for a program whose work is on one stream.
    pub(crate) fn on_stream(
        source: impl MemorySource + 'static,
        stream: Stream,
    ) -> Result<CachingAllocator, AllocError> {
        CachingAllocator::over(source, Policy::Pages, None, stream)
    }

    /// An allocator that looks for bugs in code that reaches memory by its address.
    ///
    /// - Each block has at least 64 guard bytes behind it, up to its end. They are verified when
    ///   the block is dropped. A write below a block hits the guard of the block before.
    /// - Memory that is freed gets a pattern, pairs of bytes that are a NaN in every float type,
    ///   which is verified when the memory is handed out again.
    /// - [`owner_of`](Self::owner_of) knows freed blocks too.
    ///
    /// Guards and patterns need memory that the host can write, and work that is done when its call
    /// returns. On a source with a fence, or without host memory, only `owner_of` is left. Guards
    /// make blocks larger, so places differ from an unchecked allocator's, and more is reserved.
    /// [`simulate`](Self::simulate) copies the mode, so its predictions still hold.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Panics
    /// As [`new`](Self::new). Later calls that allocate or drop a block panic if a guard or freed
    /// memory was written to: a bug in some unsafe code.
    pub fn checked(source: impl MemorySource + 'static) -> Result<CachingAllocator, AllocError> {
        CachingAllocator::over(source, Policy::Pages, Some(Box::default()), Stream::DEFAULT)
    }

    fn over(
        source: impl MemorySource + 'static,
        policy: Policy,
        checks: Option<Box<Checks>>,
        stream: Stream,
    ) -> Result<CachingAllocator, AllocError> {
        let (capacity_bytes, page_bytes) = (source.capacity_bytes(), source.page_bytes());
        assert!(
            page_bytes.is_power_of_two() && page_bytes >= BLOCK_BYTES,
            "{page_bytes} is no page size"
        );
        // A segment that is released gives whole pages back, after the source waited for all work
        // on them. A page shared with a neighbour would stay, and no stream would wait for the work
        // on it.
        if let Policy::Torch(settings) = &policy
            && !settings.fill_pages(page_bytes as u64)
        {
            return Err(AllocError::PageShared { page_bytes });
        }
        let range_bytes = capacity_bytes.checked_next_multiple_of(page_bytes);
        let range_bytes = range_bytes.unwrap_or(capacity_bytes);
        let memory = source.reserve(range_bytes)?;
        assert_eq!(memory.address() % BLOCK_BYTES as u64, 0, "{memory:?} is not aligned");
        assert!(memory.can_be_memory(), "{memory:?} is a range of views");
        let views = match source.virtual_memory().map(|pages| pages.reserve_views(range_bytes)) {
            Some(Ok(views)) => Some(views),
            Some(Err(error @ SourceError::DeviceFault { .. })) => {
                source.release(&memory);
                return Err(error.into());
            }
            // Blocks are not stitched without addresses for views.
            None | Some(Err(_)) => None,
        };
        let limit_bytes = memory.size_bytes();
        let mut arena = ArenaState::new(capacity_bytes, page_bytes, limit_bytes, views.as_ref());
        arena.checks = checks;
        let segments = Segments { memory, views };
        let rules = match policy {
            Policy::Pages => Rules::Pages,
            Policy::Torch(settings) => Rules::Torch(Box::new(TorchFront::new(settings))),
        };
        let core = Core::new(Box::new(source), segments, arena, rules);
        Ok(CachingAllocator::assemble(core, Category::Other, stream))
    }

    pub(crate) fn assemble(core: Core, category: Category, stream: Stream) -> CachingAllocator {
        let (category, reclaimers) = (AtomicU8::new(category as u8), Reclaimers::default());
        CachingAllocator { shared: Arc::new(Shared { core, stream, category, reclaimers }) }
    }

    /// The stream of requests that do not name one: the default stream, except in the [arena of
    /// another stream](crate::Arenas::on).
    pub fn stream(&self) -> Stream {
        self.shared.stream
    }

    /// A block for the current scope's category, on the allocator's [`stream`](Self::stream).
    ///
    /// # Errors
    /// As [`allocate_on`](Self::allocate_on).
    #[track_caller]
    pub fn allocate(&self, size_bytes: usize) -> Result<Buffer, AllocError> {
        self.allocate_on(self.shared.stream, self.current_category(), size_bytes)
    }

    /// A block on the allocator's [`stream`](Self::stream).
    ///
    /// # Errors
    /// As [`allocate_on`](Self::allocate_on).
    #[track_caller]
    pub fn allocate_in(&self, category: Category, size_bytes: usize) -> Result<Buffer, AllocError> {
        self.allocate_on(self.shared.stream, category, size_bytes)
    }

    /// A block of at least `size_bytes`, at a multiple of 512 bytes. A size of 0 gives a block too.
    ///
    /// # Streams
    /// Work that is enqueued on `stream` from now on may use the block at once. If other streams
    /// used the memory before, `stream` was made to wait for them.
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
        let request = Request::new(category, size_bytes, stream, Location::caller());
        let mut locked = self.core().lock();
        let injected = locked.admit(&request)?;
        let is_plain = !injected && !self.core().is_checked;
        if is_plain {
            match locked.allocate_ready(&request) {
                Ok(Some(block)) => return Ok(self.buffer_of(&mut locked, &request, block)),
                Ok(None) => {}
                Err(error) => return Err(locked.wait_failed(error, &request)),
            }
        }
        self.allocate_slowly(locked, &request, injected)
    }

    #[inline(always)]
    fn buffer_of(
        &self,
        locked: &mut LockedAllocator<'_>,
        request: &Request,
        block: BlockRef,
    ) -> Buffer {
        self.note_own(block.serial);
        Buffer::new(&mut locked.state, self, request.size_bytes, block)
    }

    #[cold]
    fn allocate_slowly(
        &self,
        mut locked: LockedAllocator<'_>,
        request: &Request,
        injected: bool,
    ) -> Result<Buffer, AllocError> {
        let buffer = match locked.allocate(request, injected) {
            Ok(block) => {
                let buffer = self.buffer_of(&mut locked, request, block);
                drop(locked);
                buffer
            }
            Err(refusal) => {
                drop(locked);
                self.reclaim_and_retry(request, refusal, |locked| {
                    let block = locked.allocate(request, false)?;
                    Ok(self.buffer_of(locked, request, block))
                })?
            }
        };
        Ok(if self.core().is_checked { checked::set_guard(buffer) } else { buffer })
    }

    /// The last rung: asks the reclaimers in order, and searches again after each. They run without
    /// the lock, so that they may free blocks.
    #[cold]
    fn reclaim_and_retry<T>(
        &self,
        request: &Request,
        refusal: Refusal,
        search: impl Fn(&mut LockedAllocator<'_>) -> Result<T, Refusal>,
    ) -> Result<T, AllocError> {
        let mut shortage = self.shortage_of(refusal, request)?;
        if !shortage.injected {
            let round = self.shared.reclaimers.round();
            for reclaimer in round.reclaimers() {
                let tried = shortage.tried.with(Rung::Reclaim);
                reclaimer.reclaim(request.size_bytes);
                // The search holds the lock to its end, and no longer.
                let found = search(&mut self.core().lock());
                match found {
                    Ok(found) => return Ok(found),
                    Err(refusal) => shortage = self.shortage_of(refusal, request)?,
                }
                shortage.tried = tried.and(shortage.tried);
            }
        }
        Err(self.core().lock().out_of_memory(request, shortage))
    }

    /// The shortage of a refusal; an error if the request was refused for another reason.
    fn shortage_of(&self, refusal: Refusal, request: &Request) -> Result<Shortage, AllocError> {
        match refusal {
            Refusal::Short(shortage) => Ok(shortage),
            Refusal::Final(error) => Err(error),
            Refusal::Wait(error) => Err(self.core().lock().wait_failed(error, request)),
        }
    }

    /// Orders two streams: work enqueued on `waiter` from now on starts after all work enqueued on
    /// `on` so far. A block in memory that was freed before this call needs no second wait.
    ///
    /// # Errors
    /// A failure of the source.
    #[track_caller]
    pub fn wait(&self, waiter: Stream, on: Stream) -> Result<(), AllocError> {
        let (category, site) = (self.current_category(), Location::caller());
        let request = Request::new(category, 0, waiter, site);
        self.core().lock().wait(on, &request)
    }

    /// Registers a holder of memory that can give it back when memory is short, until the guard is
    /// dropped. Lower priorities are asked first, and equal ones in the order of registration.
    pub fn on_shortage(&self, priority: i32, reclaimer: impl Reclaim + 'static) -> Registration {
        self.shared.reclaimers.register(priority, Arc::new(reclaimer))
    }

    /// Makes `category` the current one until the scope is dropped. There is one current category
    /// per allocator, not per thread: scopes belong on the thread that runs the step.
    pub fn category(&self, category: Category) -> CategoryScope {
        let previous = self.replace_category(category);
        CategoryScope::new(self.clone(), previous)
    }

    /// The category that [`allocate`](Self::allocate) uses; [`Category::Other`] outside every
    /// scope.
    pub fn current_category(&self) -> Category {
        Category::ALL[usize::from(self.shared.category.load(Ordering::Relaxed))]
    }

    /// Counts bytes that are taken elsewhere against the budget.
    ///
    /// # Errors
    /// Out of memory or sealed. A charge of 0 bytes does not fail.
    #[track_caller]
    pub fn charge(&self, category: Category, size_bytes: usize) -> Result<Charge, AllocError> {
        let site = Location::caller();
        let serial = self.grow_charge(None, category, size_bytes, site)?;
        Ok(Charge::new(self.clone(), category, size_bytes, serial, site))
    }

    /// The counters now.
    pub fn statistics(&self) -> Statistics {
        let state = self.core().lock().state;
        state.watches.whole(&state.arena.statistics)
    }

    /// Sets every peak to the current value.
    pub fn reset_peaks(&self) {
        let mut locked = self.core().lock();
        let State { arena, watches, .. } = &mut *locked.state;
        watches.reset_peaks(&mut arena.statistics);
    }

    /// A hash of the offset, size and category of all live blocks, and of nothing else. Equal on
    /// all runs and machines.
    pub fn layout_hash(&self) -> u64 {
        self.core().lock().state.layout_hash()
    }

    /// The live blocks in address order.
    pub fn live_blocks(&self) -> Vec<BlockInfo> {
        self.core().lock().state.live_blocks()
    }

    /// Refuses every request until the guard, and all others like it, are dropped.
    pub fn seal(&self) -> Seal {
        Seal::new(self.clone())
    }

    /// Gives every page without live bytes back to the source, unless a promise holds the pages.
    /// Returns the bytes of the pages.
    #[track_caller]
    pub fn trim(&self) -> usize {
        self.core().lock().trim(Category::Other, Location::caller())
    }

    /// The error of a driver call that found no memory even after [`trim`](Self::trim): out of
    /// memory, with the arena as it is.
    #[track_caller]
    pub fn refused_outside(&self, call: &'static str) -> AllocError {
        let (category, site) = (self.current_category(), Location::caller());
        let request = Request::new(category, 0, self.shared.stream, site);
        self.core().lock().refused_outside(call, Tried::default().with(Rung::Trim), &request)
    }

    /// Bytes that may be reserved.
    pub fn capacity_bytes(&self) -> usize {
        self.core().lock().state.arena.statistics.capacity_bytes
    }

    /// Largest number of mappings for stitched blocks at once. The number decides where blocks lie.
    /// 0 if the source cannot map pages at a second address.
    pub fn mappings_max(&self) -> usize {
        self.core().lock().state.arena.views.mappings_max()
    }

    /// Changes the budget. If more is reserved, the cache goes and live blocks stay. Until the live
    /// blocks fit again, nothing is cached and growth fails.
    #[track_caller]
    pub fn set_capacity(&self, bytes: usize) {
        self.core().lock().set_capacity(bytes, Location::caller());
    }

    /// Makes the nth request from now fail as out of memory; no retry of the allocator helps it.
    /// Requests are `allocate`, `allocate_in`, `allocate_on` and each growth of a charge.
    pub fn inject_fault(&self, fault: Fault) {
        self.core().lock().state.fault = Some(fault);
    }

    /// Removes the injected fault.
    pub fn clear_fault(&self) {
        self.core().lock().state.fault = None;
    }

    /// Number of requests so far, including failed ones, but not requests refused by a seal.
    pub fn request_count(&self) -> u64 {
        self.core().lock().state.arena.request_count
    }

    /// Number of events so far: the sequence number of the next [`Record`](crate::Record).
    pub fn event_count(&self) -> u64 {
        self.core().lock().state.history.event_count()
    }

    /// The last 131,072 events.
    pub fn history(&self) -> History {
        self.core().lock().state.history.snapshot()
    }

    /// A copy of this allocator on a simulated device: blocks, committed pages, charges, counters
    /// with their peaks, capacity and the current category. Faults, seals and history are not
    /// copied.
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
        let request = Request::new(category, size_bytes, Stream::DEFAULT, site);
        let charged = {
            let mut locked = self.core().lock();
            // A growth of 0 bytes is no request.
            let injected = size_bytes > 0 && locked.admit(&request)?;
            locked.charge(serial, &request, injected)
        };
        match charged {
            Ok(serial) => Ok(serial),
            Err(refusal) => self.reclaim_and_retry(&request, refusal, |locked| {
                locked.charge(serial, &request, false)
            }),
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

    /// A handle to the value of [`shared`](Self::shared).
    pub(crate) fn of(shared: Arc<Shared>) -> CachingAllocator {
        CachingAllocator { shared }
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
