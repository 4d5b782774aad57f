//! Errors of requests that no rung could help, with the arena as it is.

use crate::arena::state::Request;
use crate::caching::locked::LockedAllocator;
use crate::caching::shortage::{Refusal, Shortage};
use crate::error::{AllocError, OutOfMemory, Rung, Tried};
use crate::history::Action;
use crate::source::SourceError;
use crate::statistics::Statistics;

impl LockedAllocator<'_> {
    /// Releases the cache before a request is refused for lack of memory.
    #[cold]
    pub(crate) fn shortage(
        &mut self,
        needed_bytes: usize,
        injected: bool,
        request: &Request,
    ) -> Refusal {
        self.state.arena.statistics.retries += 1;
        self.trim(request.category, request.site);
        let tried = Tried::default().with(Rung::Trim);
        Refusal::Short(Shortage { needed_bytes, injected, tried })
    }

    /// The error of a request that no rung could help.
    pub(crate) fn out_of_memory(&mut self, request: &Request, shortage: Shortage) -> AllocError {
        self.state.arena.statistics.ooms += 1;
        let Statistics { capacity_bytes, reserved, .. } = self.state.arena.statistics;
        let left_bytes = capacity_bytes.saturating_sub(reserved.current_bytes);
        self.effects().record(Action::OutOfMemory, request, left_bytes, request.size_bytes, 0);
        let by_module = self.state.by_module();
        let largest_free_bytes = self.state.rules.largest_free_bytes(&self.state.arena, left_bytes);
        let arena = &self.state.arena;
        let statistics = &arena.statistics;
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
            by_category: arena.by_category_bytes(),
            category: request.category,
            site: request.site,
            module: request.module,
            by_module,
            missing_bytes: shortage.needed_bytes.saturating_sub(statistics.capacity_bytes),
            request_index: arena.request_count,
            tried: shortage.tried.to_vec(),
            injected: shortage.injected,
        }))
    }

    /// The out-of-memory error of a driver call outside of the allocator.
    #[cold]
    pub(crate) fn refused_outside(
        &mut self,
        call: &'static str,
        tried: Tried,
        request: &Request,
    ) -> AllocError {
        let shortage = Shortage { needed_bytes: 0, injected: false, tried };
        let mut error = self.out_of_memory(request, shortage);
        if let AllocError::OutOfMemory(ledger) = &mut error {
            ledger.refused_call = Some(call);
        }
        error
    }

    /// The error of a request whose stream could not be made to wait.
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
}
