//! Invariants, checked against a recount.

use super::block::{BlockState, Pool};
use super::heap::{Backing, Block, Slot};
use super::policy::TorchPolicy;

#[derive(Default)]
struct Count {
    active_bytes: u64,
    reserved_bytes: u64,
    free: usize,
    unmapped: usize,
    taken: usize,
}

impl TorchPolicy {
    /// Recounts everything.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check_invariants(&self) {
        let mut count = Count::default();
        let mut spans = Vec::new();
        for (&address, &first) in &self.heap.segments {
            spans.push((address, self.check_chain(address, first, &mut count)));
        }
        for (&address, range) in &self.heap.ranges {
            let end = self.check_chain(address, range.first, &mut count);
            assert_eq!(end, address + range.size_bytes, "blocks tile the range at {address:#x}");
            for (_, block) in self.heap.chain(range.first) {
                let is_paged = (block.address - address).is_multiple_of(range.page_bytes)
                    && block.size_bytes.is_multiple_of(range.page_bytes);
                assert!(
                    is_paged || block.backing == Backing::Pages,
                    "pages lack memory as a whole"
                );
            }
            spans.push((address, end));
        }
        spans.sort_unstable();
        for pair in spans.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "the segment at {:#x} overlaps", pair[0].0);
        }
        let heap = &self.heap;
        let held = (self.active_bytes, heap.reserved_bytes);
        assert_eq!((count.active_bytes, count.reserved_bytes), held);
        assert_eq!(count.taken, heap.taken.len());
        assert_eq!(count.taken + count.free + count.unmapped, heap.block_count());
        let [small, large] = [Pool::Small, Pool::Large];
        assert_eq!(count.free, heap.free(small).len() + heap.free(large).len());
        assert_eq!(count.unmapped, heap.unmapped(small).len() + heap.unmapped(large).len());
    }

    /// Checks a chain of blocks. Returns its end.
    fn check_chain(&self, address: u64, first: Slot, count: &mut Count) -> u64 {
        let (mut end, mut prev) = (address, None);
        let mut free_before: Option<Backing> = None;
        for (slot, block) in self.heap.chain(first) {
            assert_eq!((block.address, block.prev), (end, prev), "blocks tile their segment");
            assert!(block.size_bytes > 0, "the block at {end:#x} is not empty");
            let free = block.is_free().then_some(block.backing);
            assert!(free.is_none() || free != free_before, "free blocks at {end:#x} are merged");
            self.check_listed(slot, block);
            let has_memory = block.backing != Backing::Nothing;
            assert!(has_memory || block.is_free(), "the block at {end:#x} has memory");
            count.reserved_bytes += if has_memory { block.size_bytes } else { 0 };
            count.active_bytes += if block.is_free() { 0 } else { block.size_bytes };
            count.taken += usize::from(!block.is_free());
            count.unmapped += usize::from(!has_memory);
            count.free += usize::from(block.is_free() && has_memory);
            end = block.end();
            (free_before, prev) = (free, Some(slot));
        }
        end
    }

    fn check_listed(&self, slot: Slot, block: &Block) {
        let at = block.address;
        let has_memory = block.backing != Backing::Nothing;
        let is_in_free = self.heap.free(block.pool).get(&block.key()) == Some(&slot);
        assert_eq!(is_in_free, block.is_free() && has_memory, "the block at {at:#x} is listed");
        let unmapped = self.heap.unmapped(block.pool);
        let is_in_unmapped = unmapped.get(&(block.stream, at)) == Some(&slot);
        assert_eq!(is_in_unmapped, !has_memory, "the block at {at:#x} is listed");
        assert_eq!(self.heap.taken.get(&at) == Some(&slot), !block.is_free());
        assert_eq!(self.pending.contains(&at), block.state == BlockState::Pending);
    }
}
