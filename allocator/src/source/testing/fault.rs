//! An adaptor over a source that fails on purpose.

use std::sync::{Arc, Mutex, PoisonError};

use crate::fault::Fault;
use crate::source::adaptor::{Adaptor, SourceCall, Upstream};
use crate::source::{MemorySource, SourceError};

/// An adaptor over a source that makes the nth call that can fail end with
/// [`SourceError::OutOfMemory`]. Clones share the countdown, so a test can keep a clone and arm it.
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

    /// Removes the fault.
    pub fn clear(&self) {
        self.lock(|state| state.armed = None);
    }

    /// Number of calls so far that could have failed.
    pub fn call_count(&self) -> u64 {
        self.lock(|state| state.calls)
    }

    fn lock<R>(&self, work: impl FnOnce(&mut FaultState) -> R) -> R {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<S> Clone for FaultSource<S> {
    fn clone(&self) -> FaultSource<S> {
        FaultSource { inner: Arc::clone(&self.inner), state: Arc::clone(&self.state) }
    }
}

impl<S: MemorySource> Adaptor for FaultSource<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn attempt(&self, call: SourceCall, upstream: &mut Upstream<'_>) -> Result<(), SourceError> {
        let fails = self.lock(|state| {
            state.calls += 1;
            Fault::fires(&mut state.armed)
        });
        if fails {
            let size_bytes = call.requested_bytes();
            return Err(SourceError::OutOfMemory { size_bytes });
        }
        upstream()
    }
}
