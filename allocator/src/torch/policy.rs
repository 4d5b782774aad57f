//! Allocate and free.

use std::collections::BTreeSet;

use super::block::{BlockState, Pool, SegmentLayout, StreamId};
use super::error::{LayoutError, TorchError};
use super::heap::{Heap, Slot};
use super::settings::{self, REQUEST_BYTES_END, TorchSettings};

/// Where segments come from.
pub trait SegmentSource {
    /// The address of a new segment of `size_bytes`; `None` if there is no room.
    fn reserve(&mut self, size_bytes: u64) -> Option<u64>;
    /// Takes back a segment that [`reserve`](Self::reserve) gave.
    fn release(&mut self, address: u64, size_bytes: u64);
}

/// What became of a block that its owner freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// It may be reused at once.
    Completed,
    /// Other streams used it: it stays active until
    /// [`complete_free`](TorchPolicy::complete_free).
    Pending,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TorchCounters {
    /// Segments asked of the source, whether it gave them or not.
    pub reserve_calls: u64,
    /// Segments given back to the source.
    pub release_calls: u64,
    /// Requests that were tried again after the whole cache was released (`num_alloc_retries`).
    pub retries: u64,
}

/// What is looked for.
#[derive(Clone, Copy)]
pub(super) struct Want {
    pub(super) size_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) pool: Pool,
    segment_bytes: u64,
}

/// PyTorch's caching allocator without the memory: it decides where blocks are.
///
/// Invariants: blocks tile their segment; a free block touches no free block; a stream's blocks are
/// in segments of that stream.
#[derive(Clone, Debug)]
pub struct TorchPolicy {
    pub(super) settings: TorchSettings,
    pub(super) heap: Heap,
    /// Blocks freed by their owner and used by other streams, by address.
    pub(super) pending: BTreeSet<u64>,
    pub(super) active_bytes: u64,
    pub(super) counters: TorchCounters,
}

impl TorchPolicy {
    /// Holds no segment yet.
    pub fn new(settings: TorchSettings) -> Self {
        TorchPolicy {
            settings,
            heap: Heap::default(),
            pending: BTreeSet::new(),
            active_bytes: 0,
            counters: TorchCounters::default(),
        }
    }

    /// Continues from `segments`.
    ///
    /// # Errors
    /// If blocks do not tile their segment, or segments overlap.
    pub fn restore<'a>(
        settings: TorchSettings,
        segments: impl IntoIterator<Item = &'a SegmentLayout>,
    ) -> Result<Self, LayoutError> {
        let mut policy = TorchPolicy::new(settings);
        for segment in segments {
            policy.heap.add_layout(segment)?;
            for block in &segment.blocks {
                if block.state != BlockState::Free {
                    policy.active_bytes += block.size_bytes;
                }
                if block.state == BlockState::Pending {
                    policy.pending.insert(block.address);
                }
            }
        }
        Ok(policy)
    }

    /// The address of a block of at least `requested_bytes` for `stream`; `None` for a request of
    /// nothing, which gets no block.
    ///
    /// The ladder is PyTorch's: best fit; collect old segments; a new segment; release oversize
    /// blocks and try again; wait for pending blocks, release every free segment and try again.
    /// Like PyTorch, it does not search the cache again after the wait.
    ///
    /// # Errors
    /// `OutOfMemory` or `TooLarge`.
    ///
    /// # Panics
    /// If the source gives memory that is in a segment already.
    pub fn allocate(
        &mut self,
        requested_bytes: u64,
        stream: StreamId,
        source: &mut impl SegmentSource,
    ) -> Result<Option<u64>, TorchError> {
        if requested_bytes == 0 {
            return Ok(None);
        }
        if requested_bytes >= REQUEST_BYTES_END {
            return Err(TorchError::TooLarge { requested_bytes });
        }
        let size_bytes = self.settings.round(requested_bytes);
        let segment_bytes = self.settings.segment_bytes(size_bytes);
        let want = Want { size_bytes, stream, pool: settings::pool(size_bytes), segment_bytes };
        let slot = match self.best_fit(&want) {
            Some(slot) => slot,
            None => self.grow(&want, source).ok_or(TorchError::OutOfMemory {
                requested_bytes,
                segment_bytes,
                reserved_bytes: self.heap.reserved_bytes,
                active_bytes: self.active_bytes,
                limit_bytes: self.settings.limit_bytes,
            })?,
        };
        Ok(Some(self.place(slot, &want, requested_bytes)))
    }

    fn best_fit(&mut self, want: &Want) -> Option<Slot> {
        if self.settings.collect_above_bytes().is_some() {
            self.heap.searches[want.pool as usize] += 1;
        }
        let from = (want.stream, want.size_bytes, 0);
        let (&(stream, size_bytes, _), &slot) = self.heap.free(want.pool).range(from..).next()?;
        // A candidate that is refused ends the search: PyTorch looks at no other.
        if stream != want.stream || !self.settings.accepts(want.size_bytes, size_bytes) {
            return None;
        }
        self.heap.pick(slot);
        Some(slot)
    }

    fn grow(&mut self, want: &Want, source: &mut impl SegmentSource) -> Option<Slot> {
        self.collect_garbage(source);
        if let Some(slot) = self.reserve(want, source) {
            return Some(slot);
        }
        if self.release_oversize(want, source)
            && let Some(slot) = self.reserve(want, source)
        {
            return Some(slot);
        }
        self.complete_all_frees();
        self.release_cached(source);
        self.counters.retries += 1;
        self.reserve(want, source)
    }

    fn reserve(&mut self, want: &Want, source: &mut impl SegmentSource) -> Option<Slot> {
        let after_bytes = self.heap.reserved_bytes + want.segment_bytes;
        if self.settings.limit_bytes.is_some_and(|limit_bytes| after_bytes > limit_bytes) {
            return None;
        }
        self.counters.reserve_calls += 1;
        let address = source.reserve(want.segment_bytes)?;
        Some(self.heap.add_segment(address, want.segment_bytes, want.stream, want.pool))
    }

    fn place(&mut self, slot: Slot, want: &Want, requested_bytes: u64) -> u64 {
        let remainder_bytes = self.heap.block(slot).size_bytes - want.size_bytes;
        if self.settings.splits(want.pool, want.size_bytes, remainder_bytes) {
            let rest = self.heap.split(slot, want.size_bytes);
            self.heap.put(rest);
        }
        self.heap.take(slot, requested_bytes, BlockState::Active);
        let block = self.heap.block(slot);
        self.active_bytes += block.size_bytes;
        block.address
    }

    fn find(
        &self,
        address: u64,
        state: BlockState,
        verb: &'static str,
    ) -> Result<Slot, TorchError> {
        let slot = self.heap.taken.get(&address).copied();
        slot.filter(|&slot| self.heap.block(slot).state == state)
            .ok_or(TorchError::NotThere { address, verb })
    }

    /// Notes that `stream` uses the block at `address`; its own stream needs no note.
    ///
    /// # Errors
    /// `NotThere`.
    pub fn record_use(&mut self, address: u64, stream: StreamId) -> Result<(), TorchError> {
        let slot = self.find(address, BlockState::Active, "used")?;
        let block = self.heap.block_mut(slot);
        if block.stream != stream && !block.uses.contains(&stream) {
            block.uses.push(stream);
        }
        Ok(())
    }

    /// Gives a block back, at once if only its own stream used it.
    ///
    /// # Errors
    /// `NotThere`.
    pub fn free(&mut self, address: u64) -> Result<Freed, TorchError> {
        let slot = self.find(address, BlockState::Active, "freed")?;
        if self.heap.block(slot).uses.is_empty() {
            self.give(slot);
            return Ok(Freed::Completed);
        }
        self.request_free(address)?;
        Ok(Freed::Pending)
    }

    /// The owner gives a block back, but it stays active until
    /// [`complete_free`](Self::complete_free), whoever used it.
    ///
    /// # Errors
    /// `NotThere`.
    pub fn request_free(&mut self, address: u64) -> Result<(), TorchError> {
        let slot = self.find(address, BlockState::Active, "freed")?;
        self.heap.block_mut(slot).state = BlockState::Pending;
        self.pending.insert(address);
        Ok(())
    }

    /// The streams that used a pending block have passed: it may be reused.
    ///
    /// # Errors
    /// `NotThere`.
    pub fn complete_free(&mut self, address: u64) -> Result<(), TorchError> {
        let slot = self.find(address, BlockState::Pending, "freed for good")?;
        self.pending.remove(&address);
        self.give(slot);
        Ok(())
    }

    /// [`complete_free`](Self::complete_free) for every pending block.
    pub fn complete_all_frees(&mut self) {
        for address in std::mem::take(&mut self.pending) {
            let slot = self.heap.taken[&address];
            self.give(slot);
        }
    }

    fn give(&mut self, slot: Slot) {
        self.active_bytes -= self.heap.block(slot).size_bytes;
        self.heap.give(slot);
    }

    /// Bytes held from the source.
    pub fn reserved_bytes(&self) -> u64 {
        self.heap.reserved_bytes
    }

    /// Bytes under active and pending blocks.
    pub fn active_bytes(&self) -> u64 {
        self.active_bytes
    }

    /// What happened so far.
    pub fn counters(&self) -> TorchCounters {
        self.counters
    }

    /// The rules in force.
    pub fn settings(&self) -> &TorchSettings {
        &self.settings
    }

    /// The size of the block at `address`, if it is active or pending.
    pub fn block_bytes(&self, address: u64) -> Option<u64> {
        self.heap.taken.get(&address).map(|&slot| self.heap.block(slot).size_bytes)
    }

    /// The free block right behind the taken one at `address`; 0 if there is none.
    pub(crate) fn free_bytes_after(&self, address: u64) -> u64 {
        let slot = self.heap.taken.get(&address);
        let next = slot.and_then(|&slot| self.heap.block(slot).next);
        let next = next.map(|next| self.heap.block(next));
        next.filter(|next| next.state == BlockState::Free).map_or(0, |next| next.size_bytes)
    }

    /// Every segment and block, by address.
    pub fn segments(&self) -> Vec<SegmentLayout> {
        self.heap.layout()
    }

    /// Recounts everything.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check_invariants(&self) {
        let (mut active, mut reserved, mut free, mut taken, mut blocks) = (0, 0, 0, 0, 0);
        let mut end = 0;
        for (&address, &first) in &self.heap.segments {
            assert!(address >= end, "the segment at {address:#x} overlaps the one before");
            end = address;
            let (mut was_free, mut prev) = (false, None);
            let mut slot = Some(first);
            while let Some(at) = slot {
                let block = self.heap.block(at);
                assert_eq!((block.address, block.prev), (end, prev), "blocks tile their segment");
                assert!(block.size_bytes > 0, "the block at {end:#x} is not empty");
                let is_free = block.state == BlockState::Free;
                assert!(!(is_free && was_free), "free blocks at {end:#x} are merged");
                let key = (block.stream, block.size_bytes, block.address);
                let listed = self.heap.free(block.pool).get(&key) == Some(&at);
                assert_eq!(listed, is_free, "the block at {end:#x} is listed as what it is");
                assert_eq!(self.heap.taken.get(&end) == Some(&at), !is_free);
                let is_pending = block.state == BlockState::Pending;
                assert_eq!(self.pending.contains(&end), is_pending);
                active += if is_free { 0 } else { block.size_bytes };
                free += usize::from(is_free);
                taken += usize::from(!is_free);
                blocks += 1;
                end = block.end();
                (was_free, prev, slot) = (is_free, Some(at), block.next);
            }
            reserved += end - address;
        }
        assert_eq!((active, reserved), (self.active_bytes, self.heap.reserved_bytes));
        assert_eq!(taken, self.heap.taken.len());
        assert_eq!(blocks, self.heap.block_count());
        let listed = self.heap.free(Pool::Small).len() + self.heap.free(Pool::Large).len();
        assert_eq!(free, listed);
    }
}
