//! The effects: every call of the source, and the order in which state and source change.

use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::category::{Arena, Category};
use crate::error::{AllocError, OutOfMemory, Rung};
use crate::fault::Fault;
use crate::history::{Action, Ring};
use crate::layout::active_bytes;
use crate::policy::{Policy, Request};
use crate::source::{MemorySource, Segment, SourceError};

/// What the handles of one allocator share; blocks keep it alive.
pub(crate) struct Core {
    pub(crate) source: Box<dyn MemorySource>,
    pub(crate) segments: [Segment; 2],
    state: Mutex<State>,
}

/// Everything behind the lock.
pub(crate) struct State {
    pub(crate) policy: Policy,
    pub(crate) history: Ring,
    pub(crate) fault: Option<Fault>,
    pub(crate) seals: usize,
}

impl Core {
    pub(crate) fn new(
        source: Box<dyn MemorySource>,
        segments: [Segment; 2],
        policy: Policy,
    ) -> Core {
        let state = State { policy, history: Ring::default(), fault: None, seals: 0 };
        Core { source, segments, state: Mutex::new(state) }
    }

    /// The lock outlives a panic: state only changes where nothing can panic between two changes
    /// that belong together, so a source that panics leaves it whole.
    pub(crate) fn lock(&self) -> Engine<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Engine { source: &*self.source, segments: &self.segments, state }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        for segment in &self.segments {
            segment.set_committed_bytes(0);
            self.source.release(segment);
        }
    }
}

/// A block as its owner remembers it.
pub(crate) struct Granted {
    pub(crate) offset: usize,
    pub(crate) slot: u32,
    pub(crate) serial: u64,
}

/// The locked state with the source at hand.
pub(crate) struct Engine<'a> {
    source: &'a dyn MemorySource,
    segments: &'a [Segment; 2],
    pub(crate) state: MutexGuard<'a, State>,
}

impl Engine<'_> {
    pub(crate) fn allocate(&mut self, request: &Request) -> Result<Granted, AllocError> {
        self.admit(request)?;
        let arena = request.category.arena();
        let place = active_bytes(request.size_bytes)
            .and_then(|size_bytes| self.state.policy.layout(arena).place(size_bytes));
        let end = place.map_or(usize::MAX, |place| place.end());
        if Fault::strike(&mut self.state.fault) {
            return Err(self.refuse(request, self.needed(request, end), true));
        }
        self.commit_up_to(arena, end, request)?;
        // Only a place can end inside an address range.
        let place = place.expect("a request that overflows is refused above");
        let (slot, serial) = self.state.policy.insert(place, request);
        self.record(Action::Allocate, request, place.offset, place.size_bytes);
        Ok(Granted { offset: place.offset, slot, serial })
    }

    pub(crate) fn free(&mut self, arena: Arena, slot: u32) {
        let (node, live) = self.state.policy.remove(arena, slot);
        let request =
            Request { category: live.category, size_bytes: node.size_bytes, site: live.site };
        self.record(Action::Free, &request, node.offset, node.size_bytes);
        self.settle(live.category, live.site);
    }

    /// Raises a charge, or opens one first if `serial` is `None`; `request` is the growth.
    pub(crate) fn charge(
        &mut self,
        serial: Option<u64>,
        request: &Request,
    ) -> Result<u64, AllocError> {
        let growth_bytes = request.size_bytes;
        if growth_bytes > 0 {
            self.admit(request)?;
            let injected = Fault::strike(&mut self.state.fault);
            self.trim(request.category, request.site);
            let needed_bytes = self.needed_with_charge(request);
            if injected || !self.state.policy.fits(needed_bytes) {
                return Err(self.refuse(request, needed_bytes, injected));
            }
        }
        let policy = &mut self.state.policy;
        let serial = serial.unwrap_or_else(|| policy.open_charge(request.category));
        policy.raise_charge(serial, growth_bytes);
        if growth_bytes > 0 {
            self.record(Action::Charge, request, 0, growth_bytes);
        }
        Ok(serial)
    }

    pub(crate) fn discharge(&mut self, serial: u64, site: &'static Location<'static>) {
        let entry = self.state.policy.close_charge(serial);
        let (category, size_bytes) = (entry.category, entry.size_bytes);
        if size_bytes > 0 {
            let request = Request { category, size_bytes, site };
            self.record(Action::Discharge, &request, 0, size_bytes);
        }
        self.settle(category, site);
    }

    pub(crate) fn set_capacity(&mut self, bytes: usize, site: &'static Location<'static>) {
        self.state.policy.statistics.capacity_bytes = bytes;
        self.settle(Category::Other, site);
    }

    /// Gives every free page beyond the tops back. Returns their bytes.
    pub(crate) fn trim(&mut self, category: Category, site: &'static Location<'static>) -> usize {
        Arena::ALL.into_iter().map(|arena| self.trim_arena(arena, category, site)).sum()
    }

    /// Nothing is cached while more is reserved than the capacity allows.
    fn settle(&mut self, category: Category, site: &'static Location<'static>) {
        let statistics = &self.state.policy.statistics;
        if statistics.reserved.current_bytes > statistics.capacity_bytes {
            self.trim(category, site);
        }
    }

    /// Counts a request, unless the allocator is sealed.
    fn admit(&mut self, request: &Request) -> Result<(), AllocError> {
        if self.state.seals > 0 {
            let Request { site, size_bytes: requested_bytes, .. } = *request;
            return Err(AllocError::Sealed { site, requested_bytes });
        }
        self.state.policy.request_count += 1;
        Ok(())
    }

    /// Makes an arena's pages reach `end`. Growth trims first, always: what is reserved after it
    /// is then the least that the live blocks need, so that the peak cannot be undercut.
    fn commit_up_to(
        &mut self,
        arena: Arena,
        end: usize,
        request: &Request,
    ) -> Result<(), AllocError> {
        let target_bytes = self.state.policy.page_ceil(end);
        if target_bytes <= self.state.policy.committed_bytes[arena.index()] {
            return Ok(());
        }
        let Request { category, site, .. } = *request;
        self.trim_arena(arena.other(), category, site);
        let needed_bytes = self.needed(request, end);
        let policy = &self.state.policy;
        if !policy.fits(needed_bytes) || target_bytes > policy.limit_bytes[arena.index()] {
            return Err(self.refuse(request, needed_bytes, false));
        }
        if self.commit(arena, target_bytes, request).is_ok() {
            return Ok(());
        }
        // The source has less than its capacity: somebody else uses it too.
        self.state.policy.statistics.retries += 1;
        self.trim(category, site);
        match self.commit(arena, target_bytes, request) {
            Ok(()) => Ok(()),
            Err(SourceError::OutOfMemory { .. }) => Err(self.give_up(request, needed_bytes, false)),
            Err(error) => Err(AllocError::Source(error)),
        }
    }

    fn commit(
        &mut self,
        arena: Arena,
        target_bytes: usize,
        request: &Request,
    ) -> Result<(), SourceError> {
        let segment = &self.segments[arena.index()];
        let offset = self.state.policy.committed_bytes[arena.index()];
        let size_bytes = target_bytes - offset;
        self.state.policy.statistics.source_calls += 1;
        self.source.commit(segment, offset, size_bytes)?;
        segment.set_committed_bytes(target_bytes);
        self.state.policy.set_committed(arena, target_bytes);
        self.record(Action::Commit, request, offset, size_bytes);
        Ok(())
    }

    fn trim_arena(
        &mut self,
        arena: Arena,
        category: Category,
        site: &'static Location<'static>,
    ) -> usize {
        let state = &mut *self.state;
        let kept_bytes = state.policy.kept_bytes(arena);
        let size_bytes = state.policy.committed_bytes[arena.index()] - kept_bytes;
        if size_bytes > 0 {
            state.policy.set_committed(arena, kept_bytes);
            state.policy.statistics.source_calls += 1;
            state.history.push(Action::Decommit, category, (arena, kept_bytes), size_bytes, site);
            let segment = &self.segments[arena.index()];
            segment.set_committed_bytes(kept_bytes);
            self.source.decommit(segment, kept_bytes, size_bytes);
        }
        size_bytes
    }

    fn needed(&self, request: &Request, end: usize) -> usize {
        self.state.policy.needed_bytes(request.category.arena(), end, 0)
    }

    fn needed_with_charge(&self, request: &Request) -> usize {
        self.state.policy.needed_bytes(request.category.arena(), 0, request.size_bytes)
    }

    /// Climbs the last rung and fails. The second search needs no code: `needed_bytes` already
    /// counts nothing that is cached.
    fn refuse(&mut self, request: &Request, needed_bytes: usize, injected: bool) -> AllocError {
        self.state.policy.statistics.retries += 1;
        self.trim(request.category, request.site);
        self.give_up(request, needed_bytes, injected)
    }

    fn give_up(&mut self, request: &Request, needed_bytes: usize, injected: bool) -> AllocError {
        self.state.policy.statistics.ooms += 1;
        self.record(Action::OutOfMemory, request, 0, request.size_bytes);
        let policy = &self.state.policy;
        let statistics = &policy.statistics;
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested_bytes: request.size_bytes,
            capacity_bytes: statistics.capacity_bytes,
            reserved_bytes: statistics.reserved.current_bytes,
            allocated_bytes: statistics.allocated.current_bytes,
            charged_bytes: statistics.charged.current_bytes,
            cached_bytes: statistics.cached_bytes(),
            largest_free_bytes: policy.largest_free_bytes(request.category.arena()),
            by_category: policy.by_category_bytes(),
            category: request.category,
            site: request.site,
            missing_bytes: needed_bytes.saturating_sub(statistics.capacity_bytes),
            request_index: policy.request_count,
            tried: vec![Rung::Search, Rung::Trim],
            injected,
        }))
    }

    fn record(&mut self, action: Action, request: &Request, offset: usize, size_bytes: usize) {
        let Request { category, site, .. } = *request;
        self.state.history.push(action, category, (category.arena(), offset), size_bytes, site);
    }
}
