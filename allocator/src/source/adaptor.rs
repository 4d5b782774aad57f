//! Adaptors: sources over other sources, with one hook for calls that may fail, one for calls that
//! may not, and the forwarding.
#![allow(unsafe_code, reason = "an adaptor maps what the source below maps")]

use std::sync::Arc;

use crate::source::fence::Fence;
use crate::source::{Mapping, MemorySource, PageRange, Segment, SourceError, VirtualMemory};
use crate::stream::Stream;

/// A source that changes the behaviour of another source.
///
/// An implementor is a [`MemorySource`]. It is also a [`VirtualMemory`] and a [`Fence`] if the
/// source below has one. All calls are forwarded: calls that can fail through
/// [`attempt`](Self::attempt), the others through [`give_back`](Self::give_back). So an adaptor
/// contains only its own additions, and adaptors stack in any order.
///
/// The hooks run under the lock of the calling allocator: they must not call back into it.
///
/// # Examples
/// ```
/// use lowtide_allocator::{
///     CachingAllocator, CoTenantSource, LimitSource, RecordingSource, SimSource, Tenancy,
/// };
///
/// let limited = LimitSource::new(SimSource::with_capacity(1 << 30), 1 << 20);
/// let neighbour = Tenancy { from_call: 3, wanted_bytes: 1 << 19 };
/// let log = RecordingSource::new(CoTenantSource::new(limited, [neighbour]));
/// let memory = CachingAllocator::new(log.clone())?;
/// assert!(memory.allocate(1 << 20).is_err(), "half of it is taken by then");
/// assert!(log.take().iter().any(|record| record.outcome.is_err()));
/// # Ok::<(), lowtide_allocator::AllocError>(())
/// ```
pub trait Adaptor: Send + Sync {
    /// Type of the source below.
    type Inner: MemorySource + ?Sized;

    /// The source below.
    fn inner(&self) -> &Self::Inner;

    /// Bytes that may be committed at once; at most the capacity of the source below.
    fn limit_bytes(&self) -> usize {
        self.inner().capacity_bytes()
    }

    /// Makes a call that can fail, by calling `upstream`. May call `upstream` any number of times,
    /// but never again after a success.
    ///
    /// # Errors
    /// The error of `upstream`, or the adaptor's own. Nothing has changed then, neither above nor
    /// below.
    ///
    /// # Panics
    /// The allocator panics if `attempt` returns `Ok` although no call of `upstream` succeeded, or
    /// if it calls `upstream` again after a success.
    fn attempt(&self, call: SourceCall, upstream: &mut Upstream<'_>) -> Result<(), SourceError> {
        let _ = call;
        upstream()
    }

    /// Makes a call that gives memory back and cannot fail, by calling `upstream` once.
    fn give_back(&self, call: SourceCall, upstream: &mut dyn FnMut()) {
        let _ = call;
        upstream();
    }

    /// The second addresses of pages, if the source has them.
    fn pages(&self) -> Option<&dyn VirtualMemory> {
        self.inner().virtual_memory()
    }
}

/// Makes the call of an [`Adaptor::attempt`] to the source below.
pub type Upstream<'a> = dyn FnMut() -> Result<(), SourceError> + 'a;

/// A call of a [`MemorySource`], its [`VirtualMemory`] or its [`Fence`], with its numbers. A
/// segment is named by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceCall {
    /// [`MemorySource::reserve`].
    Reserve {
        /// Bytes asked for.
        size_bytes: usize,
    },
    /// [`MemorySource::release`].
    Release {
        /// The number of the segment.
        segment: u64,
        /// Bytes of the segment.
        size_bytes: usize,
    },
    /// [`MemorySource::commit`].
    Commit {
        /// The segment whose pages are committed.
        segment: u64,
        /// The offset of the first byte.
        offset: usize,
        /// Length in bytes.
        size_bytes: usize,
    },
    /// [`MemorySource::decommit`].
    Decommit {
        /// The segment whose pages are given back.
        segment: u64,
        /// The offset of the first byte.
        offset: usize,
        /// Length in bytes.
        size_bytes: usize,
    },
    /// [`VirtualMemory::reserve_views`].
    ReserveViews {
        /// Bytes that may be committed at once.
        capacity_bytes: usize,
    },
    /// [`VirtualMemory::map`].
    Map {
        /// Offset of the pages in their segment.
        offset: usize,
        /// Offset in the range of views at which the pages are mapped.
        view_offset: usize,
        /// Length in bytes.
        size_bytes: usize,
    },
    /// [`VirtualMemory::unmap`].
    Unmap {
        /// Offset of the pages in their segment.
        offset: usize,
        /// Offset in the range of views at which the pages were mapped.
        view_offset: usize,
        /// Length in bytes.
        size_bytes: usize,
    },
    /// [`Fence::wait`].
    Wait {
        /// The stream that waits.
        waiter: Stream,
        /// The stream that is waited for.
        on: Stream,
    },
    /// [`Fence::wait_host`].
    WaitHost {
        /// The stream that is waited for.
        on: Stream,
    },
}

impl SourceCall {
    /// Bytes that the call asks for; 0 if it asks for none.
    pub fn requested_bytes(self) -> usize {
        match self {
            SourceCall::Reserve { size_bytes }
            | SourceCall::Commit { size_bytes, .. }
            | SourceCall::Map { size_bytes, .. } => size_bytes,
            SourceCall::ReserveViews { capacity_bytes } => capacity_bytes,
            SourceCall::Release { .. }
            | SourceCall::Decommit { .. }
            | SourceCall::Unmap { .. }
            | SourceCall::Wait { .. }
            | SourceCall::WaitHost { .. } => 0,
        }
    }

    /// True if the call cannot fail.
    pub fn is_infallible(self) -> bool {
        use SourceCall::{Decommit, Release, Unmap};
        matches!(self, Release { .. } | Decommit { .. } | Unmap { .. })
    }
}

/// Makes a shared source a source, for several allocators over one device, or for a handle that is
/// kept for queries.
impl<S: MemorySource + ?Sized> Adaptor for Arc<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        self
    }
}

impl<A: Adaptor> MemorySource for A {
    fn capacity_bytes(&self) -> usize {
        self.limit_bytes()
    }

    fn page_bytes(&self) -> usize {
        self.inner().page_bytes()
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        let call = SourceCall::Reserve { size_bytes };
        attempted(self, call, || self.inner().reserve(size_bytes))
    }

    fn release(&self, segment: &Segment) {
        let (address, size_bytes) = (segment.address(), segment.size_bytes());
        let call = SourceCall::Release { segment: address, size_bytes };
        self.give_back(call, &mut || self.inner().release(segment));
    }

    fn commit(&self, segment: &Segment, pages: &PageRange) -> Result<(), SourceError> {
        let (offset, size_bytes) = (pages.offset(), pages.size_bytes());
        let call = SourceCall::Commit { segment: segment.address(), offset, size_bytes };
        attempted(self, call, || self.inner().commit(segment, pages))
    }

    fn decommit(&self, segment: &Segment, pages: &PageRange) {
        let (offset, size_bytes) = (pages.offset(), pages.size_bytes());
        let call = SourceCall::Decommit { segment: segment.address(), offset, size_bytes };
        self.give_back(call, &mut || self.inner().decommit(segment, pages));
    }

    fn outside_bytes(&self) -> usize {
        self.inner().outside_bytes()
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.pages().is_some().then_some(self)
    }

    fn fence(&self) -> Option<&dyn Fence> {
        self.inner().fence().is_some().then_some(self)
    }
}

// SAFETY: 1. `map` returns the result of `map` of the source below: `attempted` takes no answer of
// the adaptor for it. The source below keeps the obligations, and panics if `pages` names another
// source than the one that reserved the range. 2. The adaptor's own code does not see the mapping.
// 3. The range of views is the range of the source below.
unsafe impl<A: Adaptor> VirtualMemory for A {
    fn reserve_views(&self, capacity_bytes: usize) -> Result<Segment, SourceError> {
        let call = SourceCall::ReserveViews { capacity_bytes };
        attempted(self, call, || pages_below(self).reserve_views(capacity_bytes))
    }

    fn map(
        &self,
        segment: &Segment,
        views: &Segment,
        mapping: &Mapping,
    ) -> Result<(), SourceError> {
        let (offset, view_offset) = (mapping.pages().offset(), mapping.view_offset());
        let size_bytes = mapping.pages().size_bytes();
        let call = SourceCall::Map { offset, view_offset, size_bytes };
        attempted(self, call, || pages_below(self).map(segment, views, mapping))
    }

    fn unmap(&self, views: &Segment, mapping: &Mapping) {
        let (offset, view_offset) = (mapping.pages().offset(), mapping.view_offset());
        let size_bytes = mapping.pages().size_bytes();
        let call = SourceCall::Unmap { offset, view_offset, size_bytes };
        self.give_back(call, &mut || pages_below(self).unmap(views, mapping));
    }
}

impl<A: Adaptor> Fence for A {
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError> {
        let call = SourceCall::Wait { waiter, on };
        attempted(self, call, || fence_below(self).wait(waiter, on))
    }

    fn wait_host(&self, on: Stream) -> Result<(), SourceError> {
        attempted(self, SourceCall::WaitHost { on }, || fence_below(self).wait_host(on))
    }
}

fn pages_below<A: Adaptor>(adaptor: &A) -> &dyn VirtualMemory {
    adaptor.pages().expect("the source below had it when it was asked")
}

fn fence_below<A: Adaptor>(adaptor: &A) -> &dyn Fence {
    adaptor.inner().fence().expect("the source below had it when it was asked")
}

/// Makes a call of the source below through the adaptor. Returns the result of the call itself: an
/// `Ok` of the adaptor, which is safe code, proves nothing about memory.
///
/// # Panics
/// If the adaptor makes the call again after a success, or returns `Ok` without a success.
fn attempted<A: Adaptor, T>(
    adaptor: &A,
    call: SourceCall,
    mut upstream: impl FnMut() -> Result<T, SourceError>,
) -> Result<T, SourceError> {
    let mut result = None;
    adaptor.attempt(call, &mut || {
        assert!(result.is_none(), "{call:?} is made again although it succeeded");
        result = Some(upstream()?);
        Ok(())
    })?;
    Ok(result.unwrap_or_else(|| panic!("the adaptor answered {call:?} without making the call")))
}
