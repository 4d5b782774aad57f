//! Release of segments to the source.

use super::block::{BlockState, Pool};
use super::error::TorchError;
use super::heap::{Backing, Slot};
use super::policy::{Request, TorchPolicy};
use super::source::SegmentSource;

impl TorchPolicy {
    /// Waits for all streams, completes every pending free, and releases all cached memory
    /// (`torch.cuda.empty_cache`). Returns the bytes.
    ///
    /// # Panics
    /// If pages are mapped, but the source no longer has [`pages`](SegmentSource::pages).
    pub fn empty_cache(&mut self, source: &mut (impl SegmentSource + ?Sized)) -> u64 {
        source.synchronize();
        self.counters.synchronizations += 1;
        self.complete_all_frees();
        self.release_cached(source)
    }

    /// Releases every segment that is one free block, and the whole pages of every free block of
    /// expandable segments. Returns the bytes.
    ///
    /// Blocks that are pending stay; [`empty_cache`](Self::empty_cache) waits for them.
    ///
    /// # Panics
    /// If pages are mapped, but the source no longer has [`pages`](SegmentSource::pages).
    pub fn release_cached(&mut self, source: &mut (impl SegmentSource + ?Sized)) -> u64 {
        let mut released_bytes = 0;
        for pool in [Pool::Large, Pool::Small] {
            for slot in self.whole_free_blocks(pool) {
                released_bytes += self.release(slot, source);
            }
            let paged = self.heap.free(pool).values().copied();
            let paged = paged.filter(|&slot| self.heap.block(slot).backing == Backing::Pages);
            for slot in paged.collect::<Vec<_>>() {
                released_bytes += self.unmap(slot, source);
            }
        }
        released_bytes
    }

    /// Forgets the segment at `address` without telling a source. Returns its size.
    ///
    /// # Errors
    /// `NotThere`, unless the segment is one free block.
    pub fn release_segment(&mut self, address: u64) -> Result<u64, TorchError> {
        let slot = self.heap.segments.get(&address).copied().filter(|&slot| {
            let block = self.heap.block(slot);
            block.is_whole() && block.state == BlockState::Free
        });
        let slot = slot.ok_or(TorchError::NotThere { address, verb: "released" })?;
        self.counters.release_calls += 1;
        Ok(self.heap.remove_segment(slot))
    }

    fn whole_free_blocks(&self, pool: Pool) -> Vec<Slot> {
        let slots = self.heap.free(pool).values().copied();
        slots.filter(|&slot| self.heap.block(slot).is_whole()).collect()
    }

    fn release(&mut self, slot: Slot, source: &mut (impl SegmentSource + ?Sized)) -> u64 {
        let address = self.heap.block(slot).address;
        let size_bytes = self.heap.remove_segment(slot);
        self.counters.release_calls += 1;
        source.release(address, size_bytes);
        size_bytes
    }

    /// Releases the free segments of the large pool that are at least of average age. Repeats this
    /// until reserved memory is below the threshold or no segment is left. Age counts searches of
    /// the pool.
    pub(super) fn collect_garbage(&mut self, source: &mut (impl SegmentSource + ?Sized)) {
        let Some(threshold_bytes) = self.settings.collect_above_bytes() else { return };
        let Some(target_bytes) = self.heap.reserved_bytes.checked_sub(threshold_bytes) else {
            return;
        };
        let searches = self.heap.searches[Pool::Large as usize];
        let mut blocks: Vec<(u64, Slot)> = self
            .whole_free_blocks(Pool::Large)
            .into_iter()
            .map(|slot| (searches - self.heap.block(slot).born, slot))
            .collect();
        let mut reclaimed_bytes = 0;
        while reclaimed_bytes < target_bytes && !blocks.is_empty() {
            let total_age: u64 = blocks.iter().map(|(age, _)| age).sum();
            let mean_age = total_age as f64 / blocks.len() as f64;
            // Does not stop at the target: otherwise collections become frequent.
            let (old, young) = blocks.into_iter().partition(|&(age, _)| age as f64 >= mean_age);
            let old: Vec<_> = old;
            for (_, slot) in old {
                reclaimed_bytes += self.release(slot, source);
            }
            blocks = young;
        }
    }

    /// Releases oversize blocks of the stream, if there is a split limit: the smallest block that
    /// is enough, else the largest blocks until their sum is enough. Returns true if enough was
    /// released.
    ///
    /// A block of an expandable segment is not released. If such a block is the smallest one that
    /// is enough, PyTorch looks at no larger block.
    pub(super) fn release_oversize(
        &mut self,
        want: &Request,
        source: &mut (impl SegmentSource + ?Sized),
    ) -> bool {
        let Some(max_split_bytes) = self.settings.max_split_bytes else { return false };
        let target_bytes = want.size_bytes.max(max_split_bytes);
        let free = self.heap.free(want.pool);
        let target = (want.stream, target_bytes, 0);
        let last = (want.stream, u64::MAX, u64::MAX);
        let is_whole = |slot: &Slot| self.heap.block(*slot).is_whole();
        let fit = free.range(target..=last).map(|(_, &slot)| slot).next();
        if let Some(slot) = fit.filter(is_whole) {
            self.release(slot, source);
            return true;
        }
        let oversize = free.range((want.stream, max_split_bytes, 0)..target);
        let oversize: Vec<Slot> = oversize.rev().map(|(_, &slot)| slot).filter(is_whole).collect();
        let mut released_bytes = 0;
        for slot in oversize {
            if released_bytes >= target_bytes {
                break;
            }
            released_bytes += self.release(slot, source);
        }
        released_bytes >= target_bytes
    }
}
