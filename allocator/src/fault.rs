//! Failure on purpose: which request or source call fails, and an adaptor that makes it so.

use std::sync::{Arc, Mutex, PoisonError};

use crate::source::{Mapping, MemorySource, PageRange, Segment, SourceError, VirtualMemory};
use crate::stream::{Fence, Stream};

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The nth time only: what comes after it succeeds, so recovery can be seen.
    Once,
    /// The nth time and ever after: nothing must loop on it.
    Forever,
}

/// The nth time from now fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// 1 is the next one; 0 is taken as 1.
    pub nth: u64,
    /// Whether those after it fail too.
    pub repeat: Repeat,
}

impl Fault {
    /// Counts one event of an armed fault down, and says whether it fails.
    pub(crate) fn strike(armed: &mut Option<Fault>) -> bool {
        let Some(fault) = armed else { return false };
        if fault.nth > 1 {
            fault.nth -= 1;
            return false;
        }
        if fault.repeat == Repeat::Once {
            *armed = None;
        }
        true
    }
}

/// An adaptor over a source whose nth call that can fail does so, with
/// [`SourceError::OutOfMemory`]. Clones share the countdown, so a test can keep one and arm it.
#[derive(Debug)]
pub struct FaultSource<S> {
    inner: Arc<S>,
    state: Arc<Mutex<FaultState>>,
}

#[derive(Debug, Default)]
struct FaultState {
    armed: Option<Fault>,
    calls: u64,
}

impl<S: MemorySource> FaultSource<S> {
    /// A source that does not fail until it is armed.
    pub fn new(inner: S) -> FaultSource<S> {
        FaultSource { inner: Arc::new(inner), state: Arc::default() }
    }

    /// Arms a fault, counting from the next call.
    pub fn inject(&self, fault: Fault) {
        self.lock(|state| state.armed = Some(fault));
    }

    /// Nothing fails any more.
    pub fn clear(&self) {
        self.lock(|state| state.armed = None);
    }

    /// Calls so far that could have failed.
    pub fn call_count(&self) -> u64 {
        self.lock(|state| state.calls)
    }

    fn lock<R>(&self, work: impl FnOnce(&mut FaultState) -> R) -> R {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn strike(&self, size_bytes: usize) -> Result<(), SourceError> {
        let fails = self.lock(|state| {
            state.calls += 1;
            Fault::strike(&mut state.armed)
        });
        if fails { Err(SourceError::OutOfMemory { size_bytes }) } else { Ok(()) }
    }
}

impl<S> Clone for FaultSource<S> {
    fn clone(&self) -> FaultSource<S> {
        FaultSource { inner: Arc::clone(&self.inner), state: Arc::clone(&self.state) }
    }
}

impl<S: MemorySource> MemorySource for FaultSource<S> {
    fn capacity_bytes(&self) -> usize {
        self.inner.capacity_bytes()
    }

    fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        self.strike(size_bytes)?;
        self.inner.reserve(size_bytes)
    }

    fn release(&self, segment: &Segment) {
        self.inner.release(segment);
    }

    fn commit(&self, segment: &Segment, pages: &PageRange) -> Result<(), SourceError> {
        self.strike(pages.size_bytes())?;
        self.inner.commit(segment, pages)
    }

    fn decommit(&self, segment: &Segment, pages: &PageRange) {
        self.inner.decommit(segment, pages);
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory().is_some().then_some(self)
    }

    fn fence(&self) -> Option<&dyn Fence> {
        self.inner.fence().is_some().then_some(self)
    }
}

impl<S: MemorySource> FaultSource<S> {
    fn pages(&self) -> &dyn VirtualMemory {
        self.inner.virtual_memory().expect("the inner source had it when it was asked")
    }
}

impl<S: MemorySource> VirtualMemory for FaultSource<S> {
    fn reserve_views(&self, capacity_bytes: usize) -> Result<Segment, SourceError> {
        self.strike(capacity_bytes)?;
        self.pages().reserve_views(capacity_bytes)
    }

    fn map(
        &self,
        segment: &Segment,
        views: &Segment,
        mapping: &Mapping,
    ) -> Result<(), SourceError> {
        self.strike(mapping.pages().size_bytes())?;
        self.pages().map(segment, views, mapping)
    }

    fn unmap(&self, views: &Segment, mapping: &Mapping) {
        self.pages().unmap(views, mapping);
    }
}

impl<S: MemorySource> Fence for FaultSource<S> {
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError> {
        self.strike(0)?;
        self.inner.fence().expect("the inner source had it when it was asked").wait(waiter, on)
    }
}
