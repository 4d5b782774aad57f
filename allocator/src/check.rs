//! The laws, checked against a recount.

use crate::caching::CachingAllocator;
use crate::category::{Arena, ByCategory};

impl CachingAllocator {
    /// Recounts everything, in time linear in the blocks.
    ///
    /// # Panics
    /// If blocks and holes do not tile each arena up to its top, two holes touch, a counter is not
    /// what a recount gives, `reserved` is not committed plus charged bytes, something is cached
    /// beyond the capacity, or the source was told of other pages. Each is a bug of this crate.
    pub fn check_invariants(&self) {
        let core = self.core();
        let engine = core.lock();
        let policy = &engine.state.policy;
        let statistics = &policy.statistics;
        let (mut requested_bytes, mut allocated_bytes) = (0, 0);
        let mut by_category = ByCategory::<usize>::default();
        for arena in Arena::ALL {
            policy.layout(arena).check();
            for (node, live) in policy.layout(arena).live() {
                assert_eq!(live.category.arena(), arena, "{} strayed", live.category);
                assert!(live.requested_bytes <= node.size_bytes, "short block at {}", node.offset);
                requested_bytes += live.requested_bytes;
                allocated_bytes += node.size_bytes;
                by_category[live.category] += node.size_bytes;
            }
            let committed_bytes = policy.committed_bytes[arena.index()];
            assert_eq!(committed_bytes % statistics.page_bytes, 0, "{arena} has part of a page");
            assert!(committed_bytes >= policy.layout(arena).top(), "{arena} has no pages");
            assert!(committed_bytes <= policy.limit_bytes[arena.index()], "{arena} is too long");
            let told_bytes = core.segments[arena.index()].committed_bytes();
            assert_eq!(committed_bytes, told_bytes, "the source knows of other {arena} pages");
        }
        let charged_bytes: usize = policy.charges.values().map(|entry| entry.size_bytes).sum();
        for entry in policy.charges.values() {
            by_category[entry.category] += entry.size_bytes;
        }
        let committed_bytes: usize = policy.committed_bytes.iter().sum();
        let reserved_bytes = statistics.reserved.current_bytes;
        assert_eq!(statistics.requested.current_bytes, requested_bytes, "requested");
        assert_eq!(statistics.allocated.current_bytes, allocated_bytes, "allocated");
        assert_eq!(statistics.charged.current_bytes, charged_bytes, "charged");
        assert_eq!(policy.by_category_bytes(), by_category, "by category");
        assert_eq!(reserved_bytes, committed_bytes + charged_bytes, "reserved");
        let kept_bytes: usize = Arena::ALL.iter().map(|&arena| policy.kept_bytes(arena)).sum();
        assert!(
            reserved_bytes <= statistics.capacity_bytes || committed_bytes == kept_bytes,
            "{} bytes are cached beyond the capacity of {}",
            committed_bytes - kept_bytes,
            statistics.capacity_bytes,
        );
    }
}
