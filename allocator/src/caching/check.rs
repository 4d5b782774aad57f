//! The laws, checked against a recount.

use std::collections::BTreeMap;

use crate::caching::CachingAllocator;
use crate::category::ByCategory;

impl CachingAllocator {
    /// Recounts everything, in time linear in the blocks.
    ///
    /// # Panics
    /// If blocks and holes do not tile the memory up to the top, two holes that should be merged
    /// touch, a page of a live block is not committed, a counter differs from its recount,
    /// `reserved` is not committed plus charged bytes, or bytes are cached beyond the capacity.
    /// Each is a bug of this crate.
    pub fn check_invariants(&self) {
        let core = self.core();
        let locked = core.lock();
        let arena = &locked.state.arena;
        let statistics = &arena.statistics;
        let (mut requested_bytes, mut allocated_bytes, mut live_count) = (0, 0, 0);
        let mut by_category = ByCategory::<usize>::default();
        let mut views: BTreeMap<u32, usize> = BTreeMap::new();
        locked.state.rules.check(arena);
        for (_, live) in locked.state.live() {
            assert!(live.requested_bytes <= live.size_bytes, "block {} is short", live.serial);
            live_count += 1;
            requested_bytes += live.requested_bytes;
            allocated_bytes += live.size_bytes;
            by_category[live.category] += live.size_bytes;
            if live.is_stitched() {
                *views.entry(live.view).or_default() += 1;
            }
        }
        arena.views.check(&views);
        arena.pages.check();
        if let Some(checks) = &arena.checks {
            checks.check(&arena.layout);
        }
        let committed_bytes = arena.pages.committed_bytes();
        for (extent, _) in arena.layout.live_extents() {
            let missing = arena.pages.missing_in(extent);
            assert!(missing.is_empty(), "a block at {} has no pages", extent.offset);
        }
        let charged_bytes: usize = arena.charges.values().map(|entry| entry.size_bytes).sum();
        for entry in arena.charges.values() {
            by_category[entry.category] += entry.size_bytes;
        }
        let reserved_bytes = statistics.reserved.current_bytes;
        assert_eq!(statistics.allocations - statistics.frees, live_count, "live blocks");
        assert_eq!(statistics.requested.current_bytes, requested_bytes, "requested");
        assert_eq!(statistics.allocated.current_bytes, allocated_bytes, "allocated");
        assert_eq!(statistics.charged.current_bytes, charged_bytes, "charged");
        assert_eq!(arena.by_category_bytes(), by_category, "by category");
        assert_eq!(reserved_bytes, committed_bytes + charged_bytes, "reserved");
        assert!(
            reserved_bytes <= statistics.capacity_bytes || arena.free_page_bytes() == 0,
            "{} bytes are cached beyond the capacity of {}",
            arena.free_page_bytes(),
            statistics.capacity_bytes,
        );
    }
}
