//! The state behind the lock, and operations on it.

use std::panic::Location;
use std::thread::ThreadId;

use crate::arena::state::{ArenaState, Request};
use crate::caching::block::{BlockRef, Segments};
use crate::caching::effects::Effects;
use crate::caching::last_buffer::LastBuffer;
use crate::caching::peaks::WatchedPeaks;
use crate::caching::rules::Rules;
use crate::caching::shortage::{Refusal, Shortage};
use crate::category::Category;
use crate::error::{AllocError, Tried};
use crate::fault::Fault;
use crate::history::Action;
use crate::history::ring::Ring;
use crate::lock::{Lock, Locked};
use crate::origin::{ModulePath, Origin};
use crate::source::{MemorySource, SourceError};
use crate::stream::{Stream, StreamSet};

/// The part of an allocator that its handles share. Blocks keep it alive.
pub(crate) struct Core {
    source: Box<dyn MemorySource>,
    /// True if the source keeps streams in order.
    pub(crate) has_streams: bool,
    pub(crate) segments: Segments,
    /// True if the arena is in checked mode; readable without the lock.
    pub(crate) is_checked: bool,
    state: Lock<State>,
}

/// The state behind the lock.
pub(crate) struct State {
    pub(crate) arena: ArenaState,
    pub(crate) rules: Rules,
    pub(crate) history: Ring,
    pub(crate) fault: Option<Fault>,
    pub(crate) seals: usize,
    pub(crate) promised: Option<Promised>,
    pub(crate) watches: WatchedPeaks,
    pub(crate) last_buffer: LastBuffer,
}

/// The promise that is being kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promised {
    /// The thread whose requests must not fail.
    pub(crate) to: ThreadId,
    /// A capacity that was set during the promise.
    pub(crate) capacity_bytes: Option<usize>,
}

impl Core {
    pub(crate) fn new(
        source: Box<dyn MemorySource>,
        segments: Segments,
        arena: ArenaState,
        rules: Rules,
    ) -> Core {
        let watches = WatchedPeaks::default();
        let history = Ring::new();
        let last_buffer = LastBuffer::default();
        let (fault, seals, promised) = (None, 0, None);
        let state = State { arena, rules, history, fault, seals, promised, watches, last_buffer };
        let is_checked = state.arena.checks.is_some();
        let has_streams = source.fence().is_some();
        Core { source, has_streams, segments, is_checked, state: Lock::new(state) }
    }

    /// Locks the state. A panic does not poison the lock: nothing can panic between two changes of
    /// state that belong together, so a panic in the source leaves the state whole.
    #[inline]
    pub(crate) fn lock(&self) -> LockedAllocator<'_> {
        let Core { source, has_streams, segments, state, .. } = self;
        LockedAllocator {
            source: &**source,
            has_streams: *has_streams,
            segments,
            state: state.lock(),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(views) = &self.segments.views {
            self.source.release(views);
        }
        self.source.release(&self.segments.memory);
    }
}

/// The locked state with the source at hand.
pub(crate) struct LockedAllocator<'a> {
    pub(crate) source: &'a dyn MemorySource,
    has_streams: bool,
    pub(crate) segments: &'a Segments,
    pub(crate) state: Locked<'a, State>,
}

impl LockedAllocator<'_> {
    /// Counts a request, unless the allocator is sealed or promised to another thread. Returns true
    /// if an injected fault makes the request fail.
    #[inline]
    pub(crate) fn admit(&mut self, request: &Request) -> Result<bool, AllocError> {
        let State { seals, promised, .. } = &*self.state;
        if *seals > 0 || promised.is_some() {
            return self.admit_guarded(request);
        }
        self.state.arena.request_count += 1;
        Ok(Fault::fires(&mut self.state.fault))
    }

    #[cold]
    fn admit_guarded(&mut self, request: &Request) -> Result<bool, AllocError> {
        if self.state.seals > 0 {
            let Request { site, size_bytes: requested_bytes, .. } = *request;
            return Err(AllocError::Sealed { site, requested_bytes });
        }
        self.state.arena.request_count += 1;
        if self.is_promised_elsewhere() {
            let tried = Tried::default();
            let shortage = Shortage { needed_bytes: 0, injected: false, tried };
            return Err(self.out_of_memory(request, shortage));
        }
        Ok(false)
    }

    /// The rules, and the effects that carry out their decisions.
    #[inline(always)]
    fn parts(&mut self) -> (&mut Rules, Effects<'_>) {
        let State { arena, rules, history, .. } = &mut *self.state;
        (rules, Effects { source: self.source, segments: self.segments, arena, history })
    }

    #[inline(always)]
    pub(crate) fn effects(&mut self) -> Effects<'_> {
        self.parts().1
    }

    /// Serves almost every request of a steady state. `None` if the request needs
    /// [`allocate`](Self::allocate).
    #[inline]
    pub(crate) fn allocate_ready(
        &mut self,
        request: &Request,
    ) -> Result<Option<BlockRef>, SourceError> {
        let request = &Request { stream: self.ordered(request.stream), ..*request };
        let (rules, mut effects) = self.parts();
        rules.allocate_ready(&mut effects, request)
    }

    /// Serves any request. It may make a stream wait, and call the source.
    pub(crate) fn allocate(
        &mut self,
        request: &Request,
        injected: bool,
    ) -> Result<BlockRef, Refusal> {
        let request = &Request { stream: self.ordered(request.stream), ..*request };
        if injected {
            return Err(self.shortage(0, true, request));
        }
        let (rules, mut effects) = self.parts();
        rules.allocate(&mut effects, request)
    }

    #[inline]
    pub(crate) fn free(&mut self, slot: u32) {
        let (rules, mut effects) = self.parts();
        let live = rules.free(&mut effects, slot);
        self.enforce_capacity(live.category, live.site);
    }

    /// The module and the line of a live block.
    pub(crate) fn origin(&self, slot: u32) -> Origin {
        let live = self.state.rules.block(&self.state.arena, slot);
        Origin { module: live.module, site: Some(live.site) }
    }

    /// Sets the module of a live block.
    pub(crate) fn set_module(&mut self, slot: u32, module: ModulePath) {
        let (rules, effects) = self.parts();
        rules.set_module(effects.arena, slot, module);
    }

    /// Notes that a stream works on a block of another stream.
    pub(crate) fn record_use(&mut self, slot: u32, stream: Stream) {
        let stream = self.ordered(stream);
        let (rules, effects) = self.parts();
        let users = rules.users_mut(effects.arena, slot);
        *users = users.with(stream);
    }

    /// Makes the request's stream wait for all streams that work on a block. The block then belongs
    /// to the request's stream alone.
    pub(crate) fn transfer_to(&mut self, slot: u32, request: &Request) -> Result<(), AllocError> {
        let request = &Request { stream: self.ordered(request.stream), ..*request };
        let (rules, effects) = self.parts();
        let users = *rules.users_mut(effects.arena, slot);
        self.wait_for_users(users, request)?;
        let (rules, effects) = self.parts();
        let users = rules.users_after_transfer(users, request.stream);
        *rules.users_mut(effects.arena, slot) = users;
        Ok(())
    }

    fn wait_for_users(&mut self, users: StreamSet, request: &Request) -> Result<(), AllocError> {
        let waited = self.effects().wait_in_order(users.without(request.stream), request);
        waited.map_err(|error| self.wait_failed(error, request))
    }

    /// Makes the request's stream wait for another.
    pub(crate) fn wait(&mut self, on: Stream, request: &Request) -> Result<(), AllocError> {
        let request = &Request { stream: self.ordered(request.stream), ..*request };
        self.wait_for_users(StreamSet::of(self.ordered(on)), request)
    }

    /// Raises a charge by the bytes of `request`. Opens a new charge if `serial` is `None`.
    pub(crate) fn charge(
        &mut self,
        serial: Option<u64>,
        request: &Request,
        injected: bool,
    ) -> Result<u64, Refusal> {
        let growth_bytes = request.size_bytes;
        if growth_bytes > 0 {
            let needed_bytes = self.state.arena.needed_bytes_to_charge(growth_bytes);
            if injected || !self.state.arena.fits(needed_bytes) {
                return Err(self.shortage(needed_bytes, injected, request));
            }
        }
        self.effects().release_cached(growth_bytes, &[], request);
        let arena = &mut self.state.arena;
        let serial = serial.unwrap_or_else(|| arena.open_charge(request.category));
        arena.raise_charge(serial, growth_bytes);
        if growth_bytes > 0 {
            self.effects().record(Action::Charge, request, 0, growth_bytes, serial);
        }
        Ok(serial)
    }

    pub(crate) fn discharge(&mut self, serial: u64, site: &'static Location<'static>) {
        let entry = self.state.arena.close_charge(serial);
        let (category, size_bytes) = (entry.category, entry.size_bytes);
        if size_bytes > 0 {
            let request = Request::new(category, size_bytes, Stream::DEFAULT, site);
            self.effects().record(Action::Discharge, &request, 0, size_bytes, serial);
        }
        self.enforce_capacity(category, site);
    }

    pub(crate) fn set_capacity(&mut self, bytes: usize, site: &'static Location<'static>) {
        if self.defer_capacity(bytes) {
            return;
        }
        self.state.arena.statistics.capacity_bytes = bytes;
        self.enforce_capacity(Category::Other, site);
    }

    /// Releases every free page. Returns the released bytes.
    pub(crate) fn trim(&mut self, category: Category, site: &'static Location<'static>) -> usize {
        if self.state.promised.is_some() {
            return 0;
        }
        let size_bytes = self.state.arena.free_page_bytes();
        let request = Request::new(category, size_bytes, Stream::DEFAULT, site);
        let (rules, mut effects) = self.parts();
        let released_bytes = rules.empty_cache(&mut effects, &request);
        effects.release_cached(size_bytes, &[], &request);
        released_bytes + size_bytes
    }

    /// The stream for the policy: always the default stream if the source does not order streams.
    #[inline]
    fn ordered(&self, stream: Stream) -> Stream {
        if self.has_streams { stream } else { Stream::DEFAULT }
    }

    /// Trims the cache if more is reserved than the capacity allows.
    #[inline]
    pub(crate) fn enforce_capacity(
        &mut self,
        category: Category,
        site: &'static Location<'static>,
    ) {
        let statistics = &self.state.arena.statistics;
        if statistics.reserved.current_bytes > statistics.capacity_bytes {
            self.trim(category, site);
        }
    }
}
