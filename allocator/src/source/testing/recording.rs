//! A log of the calls of a source, for tests and tools.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::source::adaptor::{Adaptor, SourceCall, Upstream};
use crate::source::{MemorySource, SourceError};

/// Number of calls kept; older ones are dropped.
const CALLS_MAX: usize = 1 << 16;

/// An adaptor that records the last 65,536 calls and their outcomes. Clones share the source and
/// the log, so keep a clone to read the log.
#[derive(Debug)]
pub struct RecordingSource<S> {
    inner: Arc<S>,
    log: Arc<Mutex<VecDeque<CallRecord>>>,
}

/// A call and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRecord {
    /// The call to the source.
    pub call: SourceCall,
    /// The outcome; always `Ok` for calls that cannot fail.
    pub outcome: Result<(), SourceError>,
}

impl<S: MemorySource> RecordingSource<S> {
    /// A source with an empty log.
    pub fn new(inner: S) -> RecordingSource<S> {
        RecordingSource { inner: Arc::new(inner), log: Arc::default() }
    }

    /// Takes the calls out of the log, oldest first.
    pub fn take(&self) -> Vec<CallRecord> {
        self.lock().drain(..).collect()
    }

    fn push(&self, call: SourceCall, outcome: Result<(), SourceError>) {
        let mut log = self.lock();
        if log.len() == CALLS_MAX {
            log.pop_front();
        }
        log.push_back(CallRecord { call, outcome });
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<CallRecord>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Clone for RecordingSource<S> {
    fn clone(&self) -> RecordingSource<S> {
        RecordingSource { inner: Arc::clone(&self.inner), log: Arc::clone(&self.log) }
    }
}

impl<S: MemorySource> Adaptor for RecordingSource<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn attempt(&self, call: SourceCall, upstream: &mut Upstream<'_>) -> Result<(), SourceError> {
        let outcome = upstream();
        self.push(call, outcome.clone());
        outcome
    }

    fn give_back(&self, call: SourceCall, upstream: &mut dyn FnMut()) {
        upstream();
        self.push(call, Ok(()));
    }
}
