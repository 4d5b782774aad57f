//! An adaptor that asks a callback when a source fails.

use crate::source::adaptor::{Adaptor, SourceCall, Upstream};
use crate::source::{MemorySource, SourceError};

/// The decision about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Call again, because something has changed.
    Retry,
    /// Return the failure to the caller.
    GiveUp,
}

/// A call that has just failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The call that failed.
    pub call: SourceCall,
    /// Number of failures of the call so far, from 1 on.
    pub attempts: u32,
    /// The last error.
    pub error: SourceError,
}

/// An adaptor that asks a callback about every failure of the source below. It calls again while
/// the callback says so, up to a bound.
///
/// The callback runs under the lock of the allocator. It can make room in the source (end a
/// neighbour on the device, or wait for one), but must not call the allocator. Memory that the
/// allocator's own owners can free belongs into
/// [`on_shortage`](crate::CachingAllocator::on_shortage).
#[derive(Debug)]
pub struct RetrySource<S, F> {
    inner: S,
    attempts_max: u32,
    on_failure: F,
}

impl<S, F> RetrySource<S, F>
where
    S: MemorySource,
    F: Fn(&Failure) -> OnFailure + Send + Sync,
{
    /// Makes each call at most `attempts_max` times, and at least once.
    pub fn new(inner: S, attempts_max: u32, on_failure: F) -> RetrySource<S, F> {
        RetrySource { inner, attempts_max, on_failure }
    }
}

impl<S, F> Adaptor for RetrySource<S, F>
where
    S: MemorySource,
    F: Fn(&Failure) -> OnFailure + Send + Sync,
{
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn attempt(&self, call: SourceCall, upstream: &mut Upstream<'_>) -> Result<(), SourceError> {
        let mut attempts = 0;
        loop {
            let Err(error) = upstream() else { return Ok(()) };
            attempts += 1;
            let failure = Failure { call, attempts, error };
            let is_last = attempts >= self.attempts_max;
            if is_last || (self.on_failure)(&failure) == OnFailure::GiveUp {
                return Err(failure.error);
            }
        }
    }
}
