//! The policy: allocate and free.

use std::collections::BTreeSet;

use super::block::{BlockState, LiveBlock, Pool, RangeLayout, SegmentLayout, StreamId};
use super::error::{LayoutError, TorchError};
use super::heap::{Backing, Heap, Slot};
use super::settings::{self, REQUEST_BYTES_END, TorchSettings};
use super::source::{Noted, SegmentSource, SourceCall};

/// The state of a block after its owner freed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The block may be reused at once.
    Completed,
    /// Other streams used the block: it stays active until
    /// [`complete_free`](TorchPolicy::complete_free).
    Pending,
}

/// Counters of events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TorchCounters {
    /// Number of requests for a segment to the source, including refused ones.
    pub reserve_calls: u64,
    /// Number of segments given back to the source.
    pub release_calls: u64,
    /// Number of requests for a run of pages to the source, including refused ones.
    pub map_calls: u64,
    /// Number of runs of pages given back to the source.
    pub unmap_calls: u64,
    /// Number of requests that were tried again after the whole cache was released
    /// (`num_alloc_retries`).
    pub retries: u64,
    /// Number of waits for all streams (`num_sync_all_streams`).
    pub synchronizations: u64,
    /// Number of requests that failed for lack of memory (`num_ooms`).
    pub failures: u64,
}

/// A block that was allocated, and the memory that the request took from the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// First address.
    pub address: u64,
    /// Size, including bytes beyond the request.
    pub size_bytes: u64,
    /// Calls of the source for the block, in order; none if the block came from the cache.
    pub source_calls: Vec<SourceCall>,
}

/// A request with its rounded size and its pool.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) size_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) pool: Pool,
    /// True if expandable segments are in force for the request.
    pub(super) is_expandable: bool,
    segment_bytes: u64,
}

/// PyTorch's caching allocator without the memory: the policy decides where blocks lie.
///
/// A front that has memory drives the policy. It calls [`place`](Self::place) and
/// [`free`](Self::free); [`record_use`](Self::record_use) and
/// [`complete_free`](Self::complete_free) for streams; and [`empty_cache`](Self::empty_cache). A
/// clone over a simulated source predicts the effect of calls.
///
/// Invariants: blocks tile their segment; a free block touches no free block of the same backing; a
/// stream's blocks are in segments of that stream; ranges without memory are whole pages of an
/// expandable segment.
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
    /// A policy that holds no segment.
    pub fn new(settings: TorchSettings) -> Self {
        TorchPolicy {
            settings,
            heap: Heap::default(),
            pending: BTreeSet::new(),
            active_bytes: 0,
            counters: TorchCounters::default(),
        }
    }

    /// A policy that continues from `segments`.
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
            policy.count_taken(segment);
        }
        Ok(policy)
    }

    /// Adds an expandable segment to the policy's segments.
    ///
    /// # Errors
    /// If its parts are not whole pages, blocks do not tile a part, or the range overlaps a
    /// segment. The policy is as before.
    pub fn restore_range(&mut self, range: &RangeLayout) -> Result<(), LayoutError> {
        self.heap.add_range_layout(range)?;
        range.mapped.iter().for_each(|part| self.count_taken(part));
        Ok(())
    }

    fn count_taken(&mut self, segment: &SegmentLayout) {
        for block in segment.blocks.iter().filter(|block| block.state != BlockState::Free) {
            self.active_bytes += block.size_bytes;
            if block.state == BlockState::Pending {
                self.pending.insert(block.address);
            }
        }
    }

    /// The address of a block of at least `requested_bytes` for `stream`; `None` for a request of 0
    /// bytes, which gets no block.
    ///
    /// The ladder is PyTorch's: best fit; collect old segments; reserve a segment, or map pages of
    /// an expandable one; release oversize blocks and try again; wait for all streams, release
    /// every free segment and page and try again. Like PyTorch, the policy does not search the
    /// cache again after the wait.
    ///
    /// # Errors
    /// `OutOfMemory` or `TooLarge`.
    ///
    /// # Panics
    /// If the source gives a range that is not a multiple of the page, or takes no pages back.
    pub fn allocate(
        &mut self,
        requested_bytes: u64,
        stream: StreamId,
        source: &mut (impl SegmentSource + ?Sized),
    ) -> Result<Option<u64>, TorchError> {
        if requested_bytes == 0 {
            return Ok(None);
        }
        if requested_bytes >= REQUEST_BYTES_END {
            return Err(TorchError::TooLarge { requested_bytes });
        }
        let size_bytes = self.settings.round(requested_bytes);
        let segment_bytes = self.settings.segment_bytes(size_bytes);
        let pool = settings::pool(size_bytes);
        let is_expandable = self.settings.expandable_segments && source.pages().is_some();
        let want = Request { size_bytes, stream, pool, is_expandable, segment_bytes };
        let slot = self.best_fit(&want).or_else(|| self.grow(&want, source));
        let Some(slot) = slot else {
            self.counters.failures += 1;
            return Err(TorchError::OutOfMemory {
                requested_bytes,
                segment_bytes,
                reserved_bytes: self.heap.reserved_bytes,
                active_bytes: self.active_bytes,
                limit_bytes: self.settings.limit_bytes,
            });
        };
        Ok(Some(self.hand_out(slot, &want, requested_bytes)))
    }

    /// [`allocate`](Self::allocate), for a front that needs the calls of the source.
    ///
    /// # Errors
    /// `OutOfMemory` or `TooLarge`.
    ///
    /// # Panics
    /// If the source gives a range that is not a multiple of the page, or takes no pages back.
    pub fn place(
        &mut self,
        requested_bytes: u64,
        stream: StreamId,
        source: &mut (impl SegmentSource + ?Sized),
    ) -> Result<Option<Placement>, TorchError> {
        let mut noted = Noted::new(source);
        let Some(address) = self.allocate(requested_bytes, stream, &mut noted)? else {
            return Ok(None);
        };
        let size_bytes = self.heap.block(self.heap.taken[&address]).size_bytes;
        Ok(Some(Placement { address, size_bytes, source_calls: noted.calls }))
    }

    fn best_fit(&mut self, want: &Request) -> Option<Slot> {
        if self.settings.collect_above_bytes().is_some() {
            self.heap.searches[want.pool as usize] += 1;
        }
        let from = (want.stream, want.size_bytes, 0);
        let to = (want.stream, u64::MAX, u64::MAX);
        let mut fits = self.heap.free(want.pool).range(from..=to).map(|(_, &slot)| slot);
        let mut slot = fits.next()?;
        let is_segment = |&slot: &Slot| self.heap.block(slot).backing == Backing::Segment;
        if !is_segment(&slot) {
            if want.is_expandable {
                // A block that can grow in place counts with its size after growth.
                for next in fits {
                    let is_better = self.heap.room_bytes(next) < self.heap.room_bytes(slot);
                    if !is_better || is_segment(&slot) {
                        break;
                    }
                    slot = next;
                }
            } else {
                slot = fits.find(is_segment)?;
            }
        }
        // A refused candidate ends the search: PyTorch looks at no other one.
        if !self.settings.accepts(want.size_bytes, self.heap.block(slot).size_bytes) {
            return None;
        }
        self.heap.pick(slot);
        Some(slot)
    }

    fn grow(&mut self, want: &Request, source: &mut (impl SegmentSource + ?Sized)) -> Option<Slot> {
        self.collect_garbage(source);
        if let Some(slot) = self.reserve(want, source) {
            return Some(slot);
        }
        if self.release_oversize(want, source)
            && let Some(slot) = self.reserve(want, source)
        {
            return Some(slot);
        }
        self.empty_cache(source);
        self.counters.retries += 1;
        self.reserve(want, source)
    }

    fn reserve(
        &mut self,
        want: &Request,
        source: &mut (impl SegmentSource + ?Sized),
    ) -> Option<Slot> {
        // The limit counts a whole segment, even if expandable segments need less.
        let after_bytes = self.heap.reserved_bytes + want.segment_bytes;
        if self.settings.limit_bytes.is_some_and(|limit_bytes| after_bytes > limit_bytes) {
            return None;
        }
        if want.is_expandable {
            return self.expand(want, source);
        }
        self.counters.reserve_calls += 1;
        let address = source.reserve(want.segment_bytes)?;
        Some(self.heap.add_segment(address, want.segment_bytes, want.stream, want.pool))
    }

    fn hand_out(&mut self, slot: Slot, want: &Request, requested_bytes: u64) -> u64 {
        let remainder_bytes = self.heap.block(slot).size_bytes - want.size_bytes;
        if self.settings.splits(want, remainder_bytes) {
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

    /// Notes that `stream` uses the block at `address`. The block's own stream needs no note.
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

    /// Frees a block. It is free at once if only its own stream used it.
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

    /// Notes that the owner gives a block back. The block stays active until
    /// [`complete_free`](Self::complete_free), even if no other stream used it.
    ///
    /// # Errors
    /// `NotThere`.
    pub fn request_free(&mut self, address: u64) -> Result<(), TorchError> {
        let slot = self.find(address, BlockState::Active, "freed")?;
        self.heap.block_mut(slot).state = BlockState::Pending;
        self.pending.insert(address);
        Ok(())
    }

    /// Makes a pending block reusable: the streams that used it are done with it.
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

    /// Bytes of all segments that are held from the source.
    pub fn reserved_bytes(&self) -> u64 {
        self.heap.reserved_bytes
    }

    /// Bytes under active and pending blocks.
    pub fn active_bytes(&self) -> u64 {
        self.active_bytes
    }

    /// Counters of events so far.
    pub fn counters(&self) -> TorchCounters {
        self.counters
    }

    /// The rules in force.
    pub fn settings(&self) -> &TorchSettings {
        &self.settings
    }

    /// Changes the rules from now on (`torch.cuda.memory._set_allocator_settings`); blocks and
    /// segments stay as they are.
    pub fn set_settings(&mut self, settings: TorchSettings) {
        self.settings = settings;
    }

    /// Size of the block at `address`; `None` if no active or pending block is there.
    pub fn block_bytes(&self, address: u64) -> Option<u64> {
        self.heap.taken.get(&address).map(|&slot| self.heap.block(slot).size_bytes)
    }

    /// Size of the free block directly behind the active or pending block at `address`; 0 if there
    /// is none.
    pub fn free_bytes_after(&self, address: u64) -> u64 {
        let slot = self.heap.taken.get(&address);
        let next = slot.and_then(|&slot| self.heap.block(slot).next);
        let next = next.map(|next| self.heap.block(next));
        next.filter(|next| next.state == BlockState::Free).map_or(0, |next| next.size_bytes)
    }

    /// Blocks that are active or pending, by address.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> {
        let mut taken: Vec<(u64, Slot)> =
            self.heap.taken.iter().map(|(&at, &slot)| (at, slot)).collect();
        taken.sort_unstable();
        taken.into_iter().map(|(_, slot)| {
            let block = self.heap.block(slot);
            LiveBlock { layout: block.into(), stream: block.stream, pool: block.pool }
        })
    }

    /// Segments, and parts of expandable segments that have memory, with their blocks, by address.
    /// PyTorch's snapshot has the same list.
    pub fn segments(&self) -> Vec<SegmentLayout> {
        self.heap.layout()
    }

    /// Expandable segments, by address.
    pub fn ranges(&self) -> Vec<RangeLayout> {
        self.heap.range_layout()
    }
}
