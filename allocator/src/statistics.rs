//! Counters: current, peak, total.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::category::ByCategory;
use crate::origin::ModulePath;

/// One quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The value now.
    pub current_bytes: usize,
    /// Largest value since the start or the last
    /// [`reset_peaks`](crate::CachingAllocator::reset_peaks).
    pub peak_bytes: usize,
    /// Sum of all additions.
    pub total_bytes: usize,
}

impl Counter {
    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        self.current_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.current_bytes);
        self.total_bytes = self.total_bytes.saturating_add(bytes);
    }

    #[inline]
    pub(crate) fn subtract(&mut self, bytes: usize) {
        self.current_bytes -= bytes;
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak_bytes = self.current_bytes;
    }
}

/// A copy of an allocator's counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes that the owners of live blocks asked for.
    pub requested: Counter,
    /// Bytes of live blocks, rounded up to 512: PyTorch's *active*.
    pub allocated: Counter,
    /// Committed plus charged bytes. The capacity limits this sum.
    pub reserved: Counter,
    /// Bytes taken elsewhere and charged against the budget.
    pub charged: Counter,
    /// Allocated and charged bytes by category.
    pub by_category: ByCategory<Counter>,
    /// Number of allocations that succeeded.
    pub allocations: u64,
    /// Number of blocks that were dropped.
    pub frees: u64,
    /// Number of source calls after the reservation of the address ranges: commits and mappings,
    /// including failed ones, decommits and unmappings.
    pub source_calls: u64,
    /// Number of blocks that were stitched from the pages of several holes.
    pub stitches: u64,
    /// Number of waits of one stream for another that a reuse of memory made necessary.
    pub waits: u64,
    /// Number of requests that released the whole cache and searched again.
    pub retries: u64,
    /// Number of requests that failed with out of memory.
    pub ooms: u64,
    /// Bytes that may be reserved.
    pub capacity_bytes: usize,
    /// Granularity of commits.
    pub page_bytes: usize,
}

impl Statistics {
    /// Committed bytes under no live block: holes, trailing pages and the rest of the last page.
    pub fn cached_bytes(&self) -> usize {
        self.reserved.current_bytes - self.allocated.current_bytes - self.charged.current_bytes
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.counters_mut().for_each(Counter::reset_peak);
    }

    /// Raises every peak to at least the peak of `other`.
    pub(crate) fn raise_peaks_to(&mut self, other: &Statistics) {
        let mut other = *other;
        for (own, other) in self.counters_mut().zip(other.counters_mut()) {
            own.peak_bytes = own.peak_bytes.max(other.peak_bytes);
        }
    }

    fn counters_mut(&mut self) -> impl Iterator<Item = &mut Counter> {
        let whole =
            [&mut self.requested, &mut self.allocated, &mut self.reserved, &mut self.charged];
        whole.into_iter().chain(self.by_category.values_mut())
    }
}

/// The live blocks of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleShare {
    /// The module; `None` for blocks made outside of every model.
    pub module: Option<ModulePath>,
    /// Number of live blocks of the module.
    pub blocks: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
}

impl ModuleShare {
    /// The module's path, `(root)` for the model itself, `(none)` for blocks outside of every
    /// model.
    pub fn name(&self) -> String {
        self.module.map_or_else(|| "(none)".to_owned(), |module| module.to_string())
    }
}

/// Blocks and bytes by module, most bytes first; equal ones by name.
pub(crate) fn shares(blocks: impl Iterator<Item = (Option<ModulePath>, u64)>) -> Vec<ModuleShare> {
    let mut by_module: HashMap<Option<ModulePath>, ModuleShare> = HashMap::new();
    for (module, size_bytes) in blocks {
        let share = by_module.entry(module).or_insert(ModuleShare { module, blocks: 0, bytes: 0 });
        share.blocks += 1;
        share.bytes += size_bytes;
    }
    let mut shares: Vec<ModuleShare> = by_module.into_values().collect();
    shares.sort_by_cached_key(|share| (Reverse(share.bytes), share.name()));
    shares
}
