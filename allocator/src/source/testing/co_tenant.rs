//! Another program on the same device, from a script.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::source::adaptor::{Adaptor, SourceCall, Upstream};
use crate::source::limit::Committed;
use crate::source::{MemorySource, SourceError};

/// An entry of the script: the bytes that the co-tenant holds from one call onwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenancy {
    /// The call from which the entry is in force, counted from 1 among the calls that can fail. The
    /// co-tenant takes or gives back its memory before this call.
    pub from_call: u64,
    /// Bytes that the co-tenant wants to hold in all; 0 gives everything back.
    pub wanted_bytes: usize,
}

/// An adaptor that takes memory away at scripted calls, as another process on the same device does.
/// The capacity stays unchanged, so the allocator notices only when a commit fails.
///
/// The co-tenant takes the wanted bytes, or all bytes that are left if these are fewer. It never
/// fails and never waits, so a run depends only on the script and on the allocator's requests.
#[derive(Debug)]
pub struct CoTenantSource<S> {
    inner: S,
    /// Tenancies by call.
    script: Vec<Tenancy>,
    committed: Committed,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: u64,
    /// Number of past entries of the script.
    past: usize,
    held_bytes: usize,
    committed_bytes: usize,
}

impl<S: MemorySource> CoTenantSource<S> {
    /// A co-tenant that follows a script, in the order of its calls.
    pub fn new(inner: S, script: impl IntoIterator<Item = Tenancy>) -> CoTenantSource<S> {
        let mut script: Vec<Tenancy> = script.into_iter().collect();
        script.sort_by_key(|tenancy| tenancy.from_call);
        CoTenantSource { inner, script, committed: Committed::default(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: MemorySource> Adaptor for CoTenantSource<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn attempt(&self, call: SourceCall, upstream: &mut Upstream<'_>) -> Result<(), SourceError> {
        let mut state = self.lock();
        state.calls += 1;
        let capacity_bytes = self.inner.capacity_bytes();
        while let Some(tenancy) = self.script.get(state.past)
            && tenancy.from_call <= state.calls
        {
            state.past += 1;
            let left_bytes = capacity_bytes.saturating_sub(state.committed_bytes);
            state.held_bytes = tenancy.wanted_bytes.min(left_bytes);
        }
        let SourceCall::Commit { segment, size_bytes, .. } = call else { return upstream() };
        let used_bytes = state.committed_bytes.saturating_add(state.held_bytes);
        if used_bytes.checked_add(size_bytes).is_none_or(|sum| sum > capacity_bytes) {
            return Err(SourceError::OutOfMemory { size_bytes });
        }
        upstream()?;
        self.committed.add(segment, size_bytes);
        state.committed_bytes += size_bytes;
        Ok(())
    }

    fn give_back(&self, call: SourceCall, upstream: &mut dyn FnMut()) {
        upstream();
        self.lock().committed_bytes -= self.committed.note(call);
    }
}
