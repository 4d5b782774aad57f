//! Promised memory, for a section that must not fail once it has begun to write.

use std::panic::Location;
use std::thread;

use crate::arena::extent::{Extent, page_floor};
use crate::arena::state::Request;
use crate::caching::CachingAllocator;
use crate::caching::effects::Effects;
use crate::caching::locked::{LockedAllocator, Promised};
use crate::caching::rules::Rules;
use crate::caching::shortage::{Refusal, Shortage};
use crate::category::Category;
use crate::error::{AllocError, Tried};
use crate::source::SourceError;
use crate::stream::Stream;

/// A guard that keeps promised bytes for the requests of its thread; see
/// [`CachingAllocator::promise`].
#[must_use = "the promise ends with the guard"]
#[derive(Debug)]
pub struct Promise {
    allocator: CachingAllocator,
    site: &'static Location<'static>,
}

impl CachingAllocator {
    /// Takes pages from the source until `reserved_bytes` are reserved in all, and keeps the pages
    /// for this thread until the guard is dropped. Until then no page goes back, requests and
    /// charges of other threads are out of memory, and injected faults and a smaller capacity have
    /// no effect.
    ///
    /// Requests of this thread do not fail as long as no more than `reserved_bytes` is reserved. A
    /// [simulation](Self::simulate) of the same requests from the same state gives the number.
    /// There is at most one promise at a time, and none unless [`can_promise`](Self::can_promise)
    /// is true.
    ///
    /// ```
    /// use lowtide_allocator::{CachingAllocator, SimSource};
    ///
    /// let memory = CachingAllocator::new(SimSource::with_capacity(1 << 30))?;
    /// let promise = memory.promise(64 << 20)?;
    /// memory.set_capacity(0);
    /// let block = memory.allocate(48 << 20)?;
    /// drop(promise);
    /// assert!(memory.allocate(512).is_err());
    /// # drop(block);
    /// # Ok::<(), lowtide_allocator::AllocError>(())
    /// ```
    ///
    /// # Errors
    /// Out of memory, also while another promise is open; a failure of the source. Nothing but the
    /// cache has changed.
    ///
    /// # Panics
    /// If [`can_promise`](Self::can_promise) is false.
    #[track_caller]
    pub fn promise(&self, reserved_bytes: usize) -> Result<Promise, AllocError> {
        let site = Location::caller();
        self.core().lock().promise(reserved_bytes, site)?;
        Ok(Promise { allocator: self.clone(), site })
    }

    /// True if blocks are placed by the arena's own rules. PyTorch's rules reserve whole segments,
    /// so a number of bytes does not bound the needs of a program.
    pub fn can_promise(&self) -> bool {
        matches!(self.core().lock().state.rules, Rules::Pages)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut locked = self.allocator.core().lock();
        let promised = locked.state.promised.take();
        if let Some(capacity_bytes) = promised.and_then(|promised| promised.capacity_bytes) {
            locked.set_capacity(capacity_bytes, self.site);
        }
    }
}

impl LockedAllocator<'_> {
    fn promise(
        &mut self,
        reserved_bytes: usize,
        site: &'static Location<'static>,
    ) -> Result<(), AllocError> {
        assert!(matches!(self.state.rules, Rules::Pages), "these rules promise nothing");
        let reserved = self.state.arena.statistics.reserved.current_bytes;
        let missing_bytes = reserved_bytes.saturating_sub(reserved);
        let request = Request::new(Category::Other, missing_bytes, Stream::DEFAULT, site);
        let tried = Tried::default();
        let injected = self.admit(&request)?;
        if injected || self.state.promised.is_some() {
            let shortage = Shortage { needed_bytes: 0, injected, tried };
            return Err(self.out_of_memory(&request, shortage));
        }
        if !self.state.arena.fits(reserved_bytes) {
            let shortage = Shortage { needed_bytes: reserved_bytes, injected: false, tried };
            return Err(self.out_of_memory(&request, shortage));
        }
        match self.effects().commit_more(missing_bytes, &request) {
            Ok(()) => {}
            Err(SourceError::OutOfMemory { .. }) => {
                let refusal = self.shortage(reserved_bytes, false, &request);
                let Refusal::Short(shortage) = refusal else { unreachable!("memory is short") };
                return Err(self.out_of_memory(&request, shortage));
            }
            Err(error) => return Err(error.into()),
        }
        self.state.promised = Some(Promised { to: thread::current().id(), capacity_bytes: None });
        Ok(())
    }

    /// True if another thread has a promise.
    #[cold]
    pub(crate) fn is_promised_elsewhere(&self) -> bool {
        self.state.promised.is_some_and(|promised| promised.to != thread::current().id())
    }

    /// Stores a capacity until the end of the promise. Returns false if there is no promise.
    pub(crate) fn defer_capacity(&mut self, capacity_bytes: usize) -> bool {
        match &mut self.state.promised {
            Some(promised) => {
                promised.capacity_bytes = Some(capacity_bytes);
                true
            }
            None => false,
        }
    }
}

impl Effects<'_> {
    /// Commits pages of `size_bytes` more: first in gaps, then at the top.
    fn commit_more(&mut self, size_bytes: usize, request: &Request) -> Result<(), SourceError> {
        // The rest below a page is left for charges, which take no pages.
        let mut left_bytes = page_floor(size_bytes, self.arena.statistics.page_bytes);
        let everything = Extent { offset: 0, size_bytes: self.arena.limit_bytes };
        for run in self.arena.pages.missing_in(everything) {
            let run = Extent { size_bytes: run.size_bytes.min(left_bytes), ..run };
            if run.size_bytes == 0 {
                break;
            }
            self.commit(run, request)?;
            left_bytes -= run.size_bytes;
        }
        Ok(())
    }
}
