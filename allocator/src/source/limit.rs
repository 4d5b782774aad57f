//! A budget over a source, for one allocator or shared by several.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::source::adaptor::{Adaptor, SourceCall, Upstream};
use crate::source::{MemorySource, SourceError};

/// A limit on the committed bytes of a source, shared by all clones.
///
/// A clone is a source of its own over the same memory and the same budget. So threads that have
/// nothing to do with each other get an allocator each, over a clone each. They share one atomic
/// count, and no lock. [`Arenas`](crate::Arenas) works this way.
///
/// Charges count in the budget of their own allocator only: the source does not see them.
#[derive(Debug)]
pub struct LimitSource<S> {
    inner: Arc<S>,
    budget: Arc<Budget>,
    /// Committed bytes of this clone.
    committed: Committed,
}

#[derive(Debug)]
struct Budget {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    used_bytes_peak: AtomicUsize,
}

impl<S: MemorySource> LimitSource<S> {
    /// A limit of `bytes` of `inner` at once.
    pub fn new(inner: S, bytes: usize) -> LimitSource<S> {
        let limit_bytes = bytes.min(inner.capacity_bytes());
        let budget = Budget {
            limit_bytes,
            used_bytes: AtomicUsize::new(0),
            used_bytes_peak: AtomicUsize::new(0),
        };
        let committed = Committed::default();
        LimitSource { inner: Arc::new(inner), budget: Arc::new(budget), committed }
    }

    /// Bytes that all clones together have committed.
    pub fn used_bytes(&self) -> usize {
        self.budget.used_bytes.load(Ordering::Relaxed)
    }

    /// Peak of [`used_bytes`](Self::used_bytes).
    pub fn used_bytes_peak(&self) -> usize {
        self.budget.used_bytes_peak.load(Ordering::Relaxed)
    }

    /// Bytes that the clones could still commit.
    pub fn left_bytes(&self) -> usize {
        self.budget.limit_bytes - self.used_bytes()
    }
}

impl Budget {
    /// Takes bytes out of the budget, if the budget has them. Returns the used bytes then.
    fn take(&self, bytes: usize) -> Option<usize> {
        // The order is relaxed: only the sum matters, and no other memory depends on it.
        let taken =
            self.used_bytes.try_update(Ordering::Relaxed, Ordering::Relaxed, |used_bytes| {
                used_bytes.checked_add(bytes).filter(|&sum| sum <= self.limit_bytes)
            });
        taken.ok().map(|before_bytes| before_bytes + bytes)
    }

    fn give(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl<S> Clone for LimitSource<S> {
    fn clone(&self) -> LimitSource<S> {
        let committed = Committed::default();
        LimitSource { inner: Arc::clone(&self.inner), budget: Arc::clone(&self.budget), committed }
    }
}

impl<S: MemorySource> Adaptor for LimitSource<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn limit_bytes(&self) -> usize {
        self.budget.limit_bytes
    }

    fn attempt(&self, call: SourceCall, upstream: &mut Upstream<'_>) -> Result<(), SourceError> {
        let SourceCall::Commit { segment, size_bytes, .. } = call else { return upstream() };
        let Some(used_bytes) = self.budget.take(size_bytes) else {
            return Err(SourceError::OutOfMemory { size_bytes });
        };
        if let Err(error) = upstream() {
            self.budget.give(size_bytes);
            return Err(error);
        }
        // The thread that makes a sum the highest has seen that sum. Bytes that the source refused
        // are in no sum.
        self.budget.used_bytes_peak.fetch_max(used_bytes, Ordering::Relaxed);
        self.committed.add(segment, size_bytes);
        Ok(())
    }

    fn give_back(&self, call: SourceCall, upstream: &mut dyn FnMut()) {
        upstream();
        self.budget.give(self.committed.note(call));
    }
}

/// Committed bytes by segment, for adaptors that count them: a segment may be released with pages
/// still committed.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    by_segment: Mutex<BTreeMap<u64, usize>>,
}

impl Committed {
    pub(crate) fn add(&self, segment: u64, size_bytes: usize) {
        self.lock(|by_segment| *by_segment.entry(segment).or_default() += size_bytes);
    }

    /// Counts a call that gives memory back. Returns the bytes.
    pub(crate) fn note(&self, call: SourceCall) -> usize {
        match call {
            SourceCall::Decommit { segment, size_bytes, .. } => {
                self.lock(|by_segment| {
                    let left_bytes = by_segment.get_mut(&segment).expect("committed before");
                    *left_bytes -= size_bytes;
                });
                size_bytes
            }
            SourceCall::Release { segment, .. } => {
                self.lock(|by_segment| by_segment.remove(&segment)).unwrap_or(0)
            }
            _ => 0,
        }
    }

    // Each lock makes one change, so the value behind a poisoned lock is whole.
    fn lock<R>(&self, work: impl FnOnce(&mut BTreeMap<u64, usize>) -> R) -> R {
        work(&mut self.by_segment.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
