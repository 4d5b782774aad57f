//! Effects: every call of the source, and the order in which state and source change.

use crate::arena::extent::Extent;
use crate::arena::layout::place::Placement;
use crate::arena::state::{ArenaState, Request};
use crate::caching::block::Segments;
use crate::caching::shortage::{Refusal, Shortage};
use crate::error::{AllocError, Rung, Tried};
use crate::history::ring::Ring;
use crate::history::{Action, Record};
use crate::source::{MemorySource, PageRange, SourceError};
use crate::stream::StreamSet;

/// The arena, the source and the history, for the rules that place a block. Every change of the
/// source changes the arena's state at once, and is recorded.
pub(crate) struct Effects<'a> {
    pub(crate) source: &'a dyn MemorySource,
    pub(crate) segments: &'a Segments,
    pub(crate) arena: &'a mut ArenaState,
    pub(crate) history: &'a mut Ring,
}

impl Effects<'_> {
    /// Commits the pages that a place lacks. Free pages always go back before the arena grows:
    /// reserved bytes rise only when no free page is left, so that the peak cannot be undercut.
    #[cold]
    pub(crate) fn commit_for(
        &mut self,
        place: &Placement,
        tried: Tried,
        request: &Request,
    ) -> Result<(), Refusal> {
        let arena = &self.arena;
        let needed_bytes = arena.needed_bytes(Some(place));
        if place.end() > arena.limit_bytes {
            return Err(self.shortage(needed_bytes, tried, request));
        }
        let extents: Vec<Extent> = place.extents().collect();
        let missing = |extent: &Extent| arena.pages.missing_in(*extent);
        let missing: Vec<Extent> = extents.iter().flat_map(missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if !arena.fits(needed_bytes) {
            return Err(self.shortage(needed_bytes, tried, request));
        }
        let missing_bytes = missing.iter().map(|run| run.size_bytes).sum();
        self.release_cached(missing_bytes, &extents, request);
        for run in missing {
            if self.commit(run, request).is_ok() {
                continue;
            }
            // The source has less than its capacity: another program uses it too.
            self.arena.statistics.retries += 1;
            self.release_cached(usize::MAX, &extents, request);
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

    pub(crate) fn commit(&mut self, run: Extent, request: &Request) -> Result<(), SourceError> {
        let segment = &self.segments.memory;
        self.arena.statistics.source_calls += 1;
        self.source.commit(segment, &PageRange::new(segment, run.offset, run.size_bytes))?;
        self.arena.add_pages(run);
        self.record(Action::Commit, request, run.offset, run.size_bytes, 0);
        Ok(())
    }

    /// Releases every free page. Returns the released bytes.
    pub(crate) fn trim(&mut self, request: &Request) -> usize {
        let size_bytes = self.arena.free_page_bytes();
        self.release_cached(size_bytes, &[], request);
        size_bytes
    }

    /// Gives up to `size_bytes` of free pages back, except those that a block is about to take.
    pub(crate) fn release_cached(
        &mut self,
        size_bytes: usize,
        except: &[Extent],
        request: &Request,
    ) {
        if size_bytes == 0 || self.arena.free_page_bytes() == 0 {
            return;
        }
        for run in self.arena.spare_pages(size_bytes, except) {
            for view in self.arena.views.take_showing(run) {
                self.unmap_view(&view, request);
            }
            self.arena.remove_pages(run);
            self.arena.statistics.source_calls += 1;
            self.record(Action::Decommit, request, run.offset, run.size_bytes, 0);
            let segment = &self.segments.memory;
            self.source.decommit(segment, &PageRange::new(segment, run.offset, run.size_bytes));
        }
    }

    /// Releases the cache, and returns a refusal for lack of memory. No second search is needed:
    /// `needed_bytes` counts no cached page.
    #[cold]
    pub(crate) fn shortage(
        &mut self,
        needed_bytes: usize,
        tried: Tried,
        request: &Request,
    ) -> Refusal {
        self.arena.statistics.retries += 1;
        self.trim(request);
        Refusal::Short(Shortage { needed_bytes, injected: false, tried: tried.with(Rung::Trim) })
    }

    pub(crate) fn wait_for(&mut self, waits: StreamSet, request: &Request) -> Result<(), Refusal> {
        self.wait_in_order(waits, request).map_err(Refusal::Wait)
    }

    /// Makes the request's stream wait for other streams, if the source keeps streams in order.
    pub(crate) fn wait_in_order(
        &mut self,
        waits: StreamSet,
        request: &Request,
    ) -> Result<(), SourceError> {
        let Some(fence) = self.source.fence() else { return Ok(()) };
        for on in waits.iter() {
            fence.wait(request.stream, on)?;
            self.arena.statistics.waits += 1;
            self.arena.note_wait(request.stream, on);
            self.record(Action::Wait, request, on.index(), 0, 0);
        }
        Ok(())
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
        self.history.push(Record {
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
