//! The laws, checked against a recount.

use std::collections::BTreeMap;

use crate::caching::CachingAllocator;
use crate::category::ByCategory;

impl CachingAllocator {
    /// Recounts everything, in time linear in the blocks.
    ///
    /// # Panics
    /// If blocks and holes do not tile the memory up to the top, two holes that merge touch, a
    /// counter is not what a recount gives, `reserved` is not committed plus charged bytes,
    /// something is cached beyond the capacity, or the source was told of other pages. Each is a
    /// bug of this crate.
    pub fn check_invariants(&self) {
        let core = self.core();
        let engine = core.lock();
        let policy = &engine.state.policy;
        let statistics = &policy.statistics;
        let (mut requested_bytes, mut allocated_bytes) = (0, 0);
        let mut by_category = ByCategory::<usize>::default();
        let mut views: BTreeMap<u32, usize> = BTreeMap::new();
        policy.layout.check();
        for (_, live) in policy.layout.live() {
            assert!(live.requested_bytes <= live.size_bytes, "block {} is short", live.serial);
            requested_bytes += live.requested_bytes;
            allocated_bytes += live.size_bytes;
            by_category[live.category] += live.size_bytes;
            if live.is_stitched() {
                *views.entry(live.view).or_default() += 1;
            }
        }
        policy.views.check(&views);
        policy.pages.check();
        let committed_bytes = policy.pages.committed_bytes();
        for (extent, _) in policy.layout.live_extents() {
            let missing = policy.pages.missing_in(extent);
            assert!(missing.is_empty(), "a block at {} has no pages", extent.offset);
        }
        let charged_bytes: usize = policy.charges.values().map(|entry| entry.size_bytes).sum();
        for entry in policy.charges.values() {
            by_category[entry.category] += entry.size_bytes;
        }
        let reserved_bytes = statistics.reserved.current_bytes;
        assert_eq!(statistics.requested.current_bytes, requested_bytes, "requested");
        assert_eq!(statistics.allocated.current_bytes, allocated_bytes, "allocated");
        assert_eq!(statistics.charged.current_bytes, charged_bytes, "charged");
        assert_eq!(policy.by_category_bytes(), by_category, "by category");
        assert_eq!(reserved_bytes, committed_bytes + charged_bytes, "reserved");
        assert!(
            reserved_bytes <= statistics.capacity_bytes || policy.free_page_bytes() == 0,
            "{} bytes are cached beyond the capacity of {}",
            policy.free_page_bytes(),
            statistics.capacity_bytes,
        );
    }
}
