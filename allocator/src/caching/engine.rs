//! The effects: every call of the source, and the order in which state and source change.

use std::cell::Cell;
use std::panic::Location;

use crate::arena::free_list::NONE;
use crate::arena::layout::{Extent, Place, Spot};
use crate::arena::state::{Books, Request};
use crate::caching::buffer::Keeper;
use crate::caching::history::{Action, Record, Ring};
use crate::caching::torch::TorchFront;
use crate::caching::watch::Watches;
use crate::category::Category;
use crate::error::{AllocError, OutOfMemory, Rung, Tried};
use crate::fault::Fault;
use crate::lock::{Lock, Locked};
use crate::origin::{ModulePath, Origin};
use crate::source::{MemorySource, PageRange, Segment, SourceError};
use crate::statistics::Statistics;
use crate::stream::{Stream, StreamSet};

/// What the handles of one allocator share; blocks keep it alive.
pub(crate) struct Core {
    source: Box<dyn MemorySource>,
    /// Whether the source keeps streams in order.
    pub(crate) has_streams: bool,
    pub(crate) segments: Segments,
    /// Whether the books have checks, readable without the lock.
    pub(crate) is_checked: bool,
    state: Lock<State>,
}

/// The address ranges of one allocator.
pub(crate) struct Segments {
    /// Where pages are committed.
    pub(crate) memory: Segment,
    /// Where they are shown a second time, if the source can.
    pub(crate) views: Option<Segment>,
}

/// Everything behind the lock.
pub(crate) struct State {
    pub(crate) books: Books,
    /// PyTorch's rules, where they place blocks instead of the arena's own.
    pub(crate) torch: Option<TorchFront>,
    pub(crate) history: Ring,
    pub(crate) fault: Option<Fault>,
    pub(crate) seals: usize,
    pub(crate) watches: Watches,
    pub(crate) keeper: Keeper,
}

impl Core {
    pub(crate) fn new(
        source: Box<dyn MemorySource>,
        segments: Segments,
        books: Books,
        torch: Option<TorchFront>,
    ) -> Core {
        let watches = Watches::default();
        let history = Ring::new();
        let keeper = Keeper::default();
        let state = State { books, torch, history, fault: None, seals: 0, watches, keeper };
        let is_checked = state.books.checks.is_some();
        let has_streams = source.fence().is_some();
        Core { source, has_streams, segments, is_checked, state: Lock::new(state) }
    }

    /// The lock outlives a panic: state only changes where nothing can panic between two changes
    /// that belong together, so a source that panics leaves it whole.
    #[inline]
    pub(crate) fn lock(&self) -> Engine<'_> {
        let Core { source, has_streams, segments, state, .. } = self;
        Engine { source: &**source, has_streams: *has_streams, segments, state: state.lock() }
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

/// A block as its owner remembers it.
///
/// What could be a `bool` or an enum is a number: a value that it never has would mark the empty
/// `Option` of a buffer, and a buffer that moves would be copied around that mark, in parts that
/// have to wait for the writes before. Without one, the mark is the handle, a word of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) offset: usize,
    /// Where it lies in its address range: the range of views if it is stitched, else the memory.
    pub(crate) range_offset: usize,
    is_stitched: u8,
    category: u8,
    pub(crate) slot: u32,
    pub(crate) serial: u64,
}

impl Granted {
    /// A block in one piece.
    #[inline(always)]
    pub(crate) fn whole(offset: usize, slot: u32, serial: u64, request: &Request) -> Granted {
        let category = request.category as u8;
        Granted { offset, range_offset: offset, is_stitched: 0, category, slot, serial }
    }

    pub(crate) fn is_stitched(&self) -> bool {
        self.is_stitched != 0
    }

    pub(crate) fn category(&self) -> Category {
        Category::ALL[usize::from(self.category)]
    }
}

/// Why a request could not be served, for now or for good.
pub(crate) enum Refusal {
    /// There is too little memory; reclaimers may help.
    Short(Shortage),
    /// The source failed.
    Final(AllocError),
}

/// How much is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    needed_bytes: usize,
    /// Nobody can help against a fault that was asked for.
    pub(crate) injected: bool,
    /// What has been tried so far.
    pub(crate) tried: Tried,
}

/// The locked state with the source at hand.
pub(crate) struct Engine<'a> {
    pub(crate) source: &'a dyn MemorySource,
    has_streams: bool,
    pub(crate) segments: &'a Segments,
    pub(crate) state: Locked<'a, State>,
}

impl Engine<'_> {
    /// Counts a request, unless the allocator is sealed. Returns whether a fault strikes it.
    #[inline]
    pub(crate) fn admit(&mut self, request: &Request) -> Result<bool, AllocError> {
        if self.state.seals > 0 {
            let Request { site, size_bytes: requested_bytes, .. } = *request;
            return Err(AllocError::Sealed { site, requested_bytes });
        }
        self.state.books.request_count += 1;
        Ok(Fault::strike(&mut self.state.fault))
    }

    /// The way of almost every request of a steady state: a hole of its own stream, or the top, on
    /// committed pages. `None` is for a request that has to go another way.
    #[inline]
    pub(crate) fn allocate_ready(
        &mut self,
        request: &Request,
    ) -> Result<Option<Granted>, SourceError> {
        if self.state.torch.is_some() {
            return Ok(None);
        }
        let request = &Request { stream: self.ordered(request.stream), ..*request };
        let books = &mut self.state.books;
        let Some(size_bytes) = books.block_bytes(request.size_bytes) else { return Ok(None) };
        let own = StreamSet::of(request.stream);
        let found = match books.layout.own_hole(size_bytes, own) {
            Some((hole, extent)) if books.pages.reach(extent.end()) => {
                Some((books.layout.insert_in_hole(hole, extent), extent))
            }
            Some(_) => None,
            None => self.insert_on_ready_top(size_bytes, request)?,
        };
        let Some((slot, Extent { offset, size_bytes })) = found else { return Ok(None) };
        let serial = self.state.books.enter_live(slot, size_bytes, request);
        self.record(Action::Allocate, request, offset, size_bytes, serial);
        Ok(Some(Granted::whole(offset, slot, serial, request)))
    }

    /// Takes the top where there is no own hole. Returns the slot of what it took, to be entered.
    #[inline(always)]
    fn insert_on_ready_top(
        &mut self,
        size_bytes: usize,
        request: &Request,
    ) -> Result<Option<(u32, Extent)>, SourceError> {
        let books = &self.state.books;
        let Some((extent, waits)) = books.own_top(size_bytes, request.stream) else {
            return Ok(None);
        };
        if !books.pages.reach(extent.end()) {
            return Ok(None);
        }
        if waits != StreamSet::EMPTY {
            self.wait_in_order(waits, request)?;
        }
        let books = &mut self.state.books;
        let (users, event) = (StreamSet::of(request.stream), books.current_event());
        Ok(Some((books.layout.insert_on_top(extent, users, event), extent)))
    }

    /// The way of every request, which may have to wait, or the source to move.
    pub(crate) fn allocate(
        &mut self,
        request: &Request,
        injected: bool,
    ) -> Result<Granted, Refusal> {
        let request = &Request { stream: self.ordered(request.stream), ..*request };
        if self.state.torch.is_some() && !injected {
            return self.allocate_by_torch(request);
        }
        if injected {
            return Err(self.shortage(0, true, Tried::default(), request));
        }
        let (books, tried) = (&self.state.books, Cell::default());
        let size_bytes = books.block_bytes(request.size_bytes);
        let mut place = size_bytes.and_then(|bytes| books.place(bytes, request.stream, &tried));
        let (Some(size_bytes), Some(place)) = (size_bytes, place.as_mut()) else {
            return Err(self.shortage(usize::MAX, false, tried.get(), request));
        };
        if !self.state.books.pages.reach(place.end()) {
            self.commit_for(place, tried.get(), request)?;
        }
        if !matches!(place.spot, Spot::Stitched(_)) {
            return self.enter(place, size_bytes, NONE, request);
        }
        match self.map_view(place, request) {
            Ok(view) => self.enter(place, size_bytes, view, request),
            Err(_) => self.allocate_whole(size_bytes, &tried, request),
        }
    }

    /// The way of a request whose pages the source could not show at a second address: it does
    /// without.
    #[cold]
    fn allocate_whole(
        &mut self,
        size_bytes: usize,
        tried: &Cell<Tried>,
        request: &Request,
    ) -> Result<Granted, Refusal> {
        let mut place = self.state.books.place_whole(size_bytes, request.stream, tried);
        let Some(place) = place.as_mut() else {
            return Err(self.shortage(usize::MAX, false, tried.get(), request));
        };
        if !self.state.books.pages.reach(place.end()) {
            self.commit_for(place, tried.get(), request)?;
        }
        self.enter(place, size_bytes, NONE, request)
    }

    /// Makes a place that has its pages a live block, once its stream waits for whom it must.
    fn enter(
        &mut self,
        place: &mut Place,
        size_bytes: usize,
        view: u32,
        request: &Request,
    ) -> Result<Granted, Refusal> {
        if place.waits != StreamSet::EMPTY {
            self.wait_for(place.waits, request)?;
        }
        let (slot, serial) = self.state.books.insert(place, size_bytes, view, request);
        self.record(Action::Allocate, request, place.offset(), size_bytes, serial);
        let granted = Granted::whole(place.offset(), slot, serial, request);
        if view == NONE {
            return Ok(granted);
        }
        let range_offset = self.enter_view(place, view, request, serial);
        Ok(Granted { range_offset, is_stitched: 1, ..granted })
    }

    #[inline]
    pub(crate) fn free(&mut self, slot: u32) {
        if self.state.torch.is_some() {
            return self.free_by_torch(slot);
        }
        let State { books, history, .. } = &mut *self.state;
        let offset = books.layout.offset(slot);
        let live = books.layout.block(slot);
        let record = Record::of_block(Action::Free, offset, &live);
        history.push(record);
        if live.is_stitched() {
            for Extent { offset, size_bytes } in books.layout.pieces(slot) {
                history.push(Record { action: Action::Piece, offset, size_bytes, ..record });
            }
        }
        books.remove(slot, &live);
        self.settle(live.category, live.site);
    }

    /// What a live block counts for.
    pub(crate) fn origin(&self, slot: u32) -> Origin {
        let live = match &self.state.torch {
            Some(torch) => torch.block(slot).1,
            None => self.state.books.layout.block(slot),
        };
        Origin { module: live.module, site: Some(live.site) }
    }

    /// Says which module a live block belongs to.
    pub(crate) fn set_module(&mut self, slot: u32, module: ModulePath) {
        match &mut self.state.torch {
            Some(torch) => torch.block_mut(slot).1.module = Some(module),
            None => self.state.books.layout.set_module(slot, module),
        }
    }

    /// Notes that a stream works on a block that is not its own.
    pub(crate) fn record_use(&mut self, slot: u32, stream: Stream) {
        let stream = self.ordered(stream);
        if self.state.torch.is_some() {
            return self.record_use_by_torch(slot, stream);
        }
        let users = self.state.books.layout.users_mut(slot);
        *users = users.union(StreamSet::of(stream));
    }

    /// Makes the request's stream wait for all that work on a block, and its only one.
    pub(crate) fn hand_over(&mut self, slot: u32, request: &Request) -> Result<(), AllocError> {
        let request = &Request { stream: self.ordered(request.stream), ..*request };
        if self.state.torch.is_some() {
            // Its rules go by the stream that asked first.
            let users = self.torch_users(slot);
            self.wait_for_users(users, request)?;
            self.record_use_by_torch(slot, request.stream);
            return Ok(());
        }
        let users = *self.state.books.layout.users_mut(slot);
        self.wait_for_users(users, request)?;
        *self.state.books.layout.users_mut(slot) = StreamSet::of(request.stream);
        Ok(())
    }

    fn wait_for_users(&mut self, users: StreamSet, request: &Request) -> Result<(), AllocError> {
        let waited = self.wait_in_order(users.without(request.stream), request);
        waited.map_err(|error| self.wait_failed(error, request))
    }

    /// Makes the request's stream wait for another.
    pub(crate) fn wait(&mut self, on: Stream, request: &Request) -> Result<(), AllocError> {
        let request = &Request { stream: self.ordered(request.stream), ..*request };
        self.wait_for_users(StreamSet::of(self.ordered(on)), request)
    }

    /// Raises a charge, or opens one first if `serial` is `None`; `request` is the growth.
    pub(crate) fn charge(
        &mut self,
        serial: Option<u64>,
        request: &Request,
        injected: bool,
    ) -> Result<u64, Refusal> {
        let growth_bytes = request.size_bytes;
        if growth_bytes > 0 {
            let needed_bytes = self.state.books.needed_bytes_to_charge(growth_bytes);
            if injected || !self.state.books.fits(needed_bytes) {
                return Err(self.shortage(needed_bytes, injected, Tried::default(), request));
            }
        }
        self.pay(growth_bytes, &[], request);
        let books = &mut self.state.books;
        let serial = serial.unwrap_or_else(|| books.open_charge(request.category));
        books.raise_charge(serial, growth_bytes);
        if growth_bytes > 0 {
            self.record(Action::Charge, request, 0, growth_bytes, serial);
        }
        Ok(serial)
    }

    pub(crate) fn discharge(&mut self, serial: u64, site: &'static Location<'static>) {
        let entry = self.state.books.close_charge(serial);
        let (category, size_bytes) = (entry.category, entry.size_bytes);
        if size_bytes > 0 {
            let request = Request::new(category, size_bytes, Stream::DEFAULT, site);
            self.record(Action::Discharge, &request, 0, size_bytes, serial);
        }
        self.settle(category, site);
    }

    pub(crate) fn set_capacity(&mut self, bytes: usize, site: &'static Location<'static>) {
        self.state.books.statistics.capacity_bytes = bytes;
        self.settle(Category::Other, site);
    }

    /// Gives every free page back. Returns their bytes.
    pub(crate) fn trim(&mut self, category: Category, site: &'static Location<'static>) -> usize {
        let size_bytes = self.state.books.free_page_bytes();
        let request = Request::new(category, size_bytes, Stream::DEFAULT, site);
        let released_bytes = self.empty_torch_cache(&request);
        self.pay(size_bytes, &[], &request);
        released_bytes + size_bytes
    }

    /// Gives up to `size_bytes` of free pages back, none that a block is about to take.
    pub(crate) fn pay(&mut self, size_bytes: usize, except: &[Extent], request: &Request) {
        if size_bytes == 0 || self.state.books.free_page_bytes() == 0 {
            return;
        }
        for run in self.state.books.spare_pages(size_bytes, except) {
            for view in self.state.books.views.take_showing(run) {
                self.unmap_view(&view, request);
            }
            self.state.books.remove_pages(run);
            self.state.books.statistics.source_calls += 1;
            self.record(Action::Decommit, request, run.offset, run.size_bytes, 0);
            let segment = &self.segments.memory;
            self.source.decommit(segment, &PageRange::new(segment, run.offset, run.size_bytes));
        }
    }

    /// The books of a request that nothing could help.
    pub(crate) fn give_up(&mut self, request: &Request, shortage: Shortage) -> AllocError {
        self.state.books.statistics.ooms += 1;
        let Statistics { capacity_bytes, reserved, .. } = self.state.books.statistics;
        let left_bytes = capacity_bytes.saturating_sub(reserved.current_bytes);
        self.record(Action::OutOfMemory, request, left_bytes, request.size_bytes, 0);
        let by_module = self.state.by_module();
        let State { books, torch, .. } = &mut *self.state;
        let largest_free_bytes = match torch {
            Some(torch) => torch.largest_free_bytes(left_bytes),
            None => books.largest_free_bytes(),
        };
        let statistics = &books.statistics;
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested_bytes: request.size_bytes,
            refused_call: None,
            outside_bytes: self.source.outside_bytes(),
            capacity_bytes: statistics.capacity_bytes,
            reserved_bytes: statistics.reserved.current_bytes,
            allocated_bytes: statistics.allocated.current_bytes,
            charged_bytes: statistics.charged.current_bytes,
            cached_bytes: statistics.cached_bytes(),
            largest_free_bytes,
            by_category: books.by_category_bytes(),
            category: request.category,
            site: request.site,
            module: request.module,
            by_module,
            missing_bytes: shortage.needed_bytes.saturating_sub(statistics.capacity_bytes),
            request_index: books.request_count,
            tried: shortage.tried.to_vec(),
            injected: shortage.injected,
        }))
    }

    /// The books when the driver had no memory for a call, which is none of the allocator's.
    #[cold]
    pub(crate) fn refused_outside(
        &mut self,
        call: &'static str,
        tried: Tried,
        request: &Request,
    ) -> AllocError {
        let shortage = Shortage { needed_bytes: 0, injected: false, tried };
        let mut error = self.give_up(request, shortage);
        if let AllocError::OutOfMemory(ledger) = &mut error {
            ledger.refused_call = Some(call);
        }
        error
    }

    /// What a wait that failed is to who asked for memory.
    #[cold]
    pub(crate) fn wait_failed(&mut self, error: SourceError, request: &Request) -> AllocError {
        match error {
            SourceError::OutOfMemory { .. } => {
                let request = &Request { size_bytes: 0, ..*request };
                self.refused_outside("a wait of one stream for another", Tried::default(), request)
            }
            error => AllocError::Source(error),
        }
    }

    /// Streams of a source that has no order to keep are all the same to the policy.
    #[inline]
    fn ordered(&self, stream: Stream) -> Stream {
        if self.has_streams { stream } else { Stream::DEFAULT }
    }

    /// No free page is cached while more is reserved than the capacity allows.
    #[inline]
    pub(crate) fn settle(&mut self, category: Category, site: &'static Location<'static>) {
        let statistics = &self.state.books.statistics;
        if statistics.reserved.current_bytes > statistics.capacity_bytes {
            self.trim(category, site);
        }
    }

    /// Commits the pages that a place lacks. Growth is paid with free pages first, always: what is
    /// reserved only rises when none is left, so that the peak cannot be undercut.
    #[cold]
    pub(crate) fn commit_for(
        &mut self,
        place: &Place,
        tried: Tried,
        request: &Request,
    ) -> Result<(), Refusal> {
        let books = &self.state.books;
        let needed_bytes = books.needed_bytes(Some(place));
        if place.end() > books.limit_bytes {
            return Err(self.shortage(needed_bytes, false, tried, request));
        }
        let extents: Vec<Extent> = place.extents().collect();
        let missing = |extent: &Extent| books.pages.missing_in(*extent);
        let missing: Vec<Extent> = extents.iter().flat_map(missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if !books.fits(needed_bytes) {
            return Err(self.shortage(needed_bytes, false, tried, request));
        }
        let missing_bytes = missing.iter().map(|run| run.size_bytes).sum();
        self.pay(missing_bytes, &extents, request);
        for run in missing {
            if self.commit(run, request).is_ok() {
                continue;
            }
            // The source has less than its capacity: somebody else uses it too.
            self.state.books.statistics.retries += 1;
            self.pay(usize::MAX, &extents, request);
            match self.commit(run, request) {
                Ok(()) => {}
                Err(SourceError::OutOfMemory { .. }) => {
                    let tried = tried.with(Rung::Trim);
                    return Err(Refusal::Short(Shortage { needed_bytes, injected: false, tried }));
                }
                Err(error) => return Err(Refusal::Final(AllocError::Source(error))),
            }
        }
        Ok(())
    }

    fn commit(&mut self, run: Extent, request: &Request) -> Result<(), SourceError> {
        let segment = &self.segments.memory;
        self.state.books.statistics.source_calls += 1;
        self.source.commit(segment, &PageRange::new(segment, run.offset, run.size_bytes))?;
        self.state.books.add_pages(run);
        self.record(Action::Commit, request, run.offset, run.size_bytes, 0);
        Ok(())
    }

    pub(crate) fn wait_for(&mut self, waits: StreamSet, request: &Request) -> Result<(), Refusal> {
        let waited = self.wait_in_order(waits, request);
        waited.map_err(|error| Refusal::Final(self.wait_failed(error, request)))
    }

    fn wait_in_order(&mut self, waits: StreamSet, request: &Request) -> Result<(), SourceError> {
        let Some(fence) = self.source.fence() else { return Ok(()) };
        for on in waits.iter() {
            fence.wait(request.stream, on)?;
            self.state.books.statistics.waits += 1;
            self.state.books.note_wait(request.stream, on);
            self.record(Action::Wait, request, on.index(), 0, 0);
        }
        Ok(())
    }

    /// Gives the cache back before anybody is told that memory is short. The second search needs
    /// no code: `needed_bytes` already counts nothing that is cached.
    #[cold]
    pub(crate) fn shortage(
        &mut self,
        needed_bytes: usize,
        injected: bool,
        tried: Tried,
        request: &Request,
    ) -> Refusal {
        self.state.books.statistics.retries += 1;
        self.trim(request.category, request.site);
        Refusal::Short(Shortage { needed_bytes, injected, tried: tried.with(Rung::Trim) })
    }

    /// Memory is short, and the torch rules have released what they could.
    pub(crate) fn short_of(&self, needed_bytes: usize) -> Refusal {
        let tried = Tried::default().with(Rung::Search).with(Rung::Trim);
        Refusal::Short(Shortage { needed_bytes, injected: false, tried })
    }

    #[inline]
    pub(crate) fn record(
        &mut self,
        action: Action,
        request: &Request,
        offset: usize,
        size_bytes: usize,
        serial: u64,
    ) {
        let Request { category, size_bytes: requested_bytes, stream, site, module } = *request;
        self.state.history.push(Record {
            sequence: 0,
            action,
            category,
            stream,
            offset,
            size_bytes,
            requested_bytes,
            serial,
            site,
            module,
        });
    }
}
