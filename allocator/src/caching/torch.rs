//! PyTorch's placement under the allocator's front.
//!
//! [`TorchPolicy`] decides. Its segments are blocks of the arena, which stands for the driver: a
//! segment is committed when it is reserved and decommitted when it is released. PyTorch polls
//! events; here the order of the program decides. When a block is freed that other streams used,
//! its own stream is made to wait for them, and the block is free at once. Expandable segments need
//! a source of pages and are not used live.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::arena::extent::active_bytes;
use crate::arena::layout::node::{Live, NONE};
use crate::arena::state::Request;
use crate::caching::block::BlockRef;
use crate::caching::effects::Effects;
use crate::caching::shortage::{Refusal, Shortage};
use crate::category::Category;
use crate::error::{Rung, Tried};
use crate::history::{Action, Record};
use crate::stream::{Stream, StreamSet};
use crate::torch::{
    BlockState, REQUEST_BYTES_END, SMALL_BYTES_MAX, SMALL_SEGMENT_BYTES, SegmentSource, StreamId,
    TorchPolicy, TorchSettings,
};

/// PyTorch's rules, and the properties of each block that the front needs.
#[derive(Clone, Debug)]
pub(crate) struct TorchFront {
    rules: TorchPolicy,
    blocks: Vec<Option<(usize, Live)>>,
    vacant: Vec<u32>,
    /// Segments by offset, with their slots in the arena's layout.
    segments: BTreeMap<usize, u32>,
    /// Number of freed blocks that may not be reused, because their own stream could not be made to
    /// wait for the streams that used them.
    stranded_count: usize,
}

impl TorchFront {
    pub(crate) fn new(settings: TorchSettings) -> TorchFront {
        TorchFront {
            rules: TorchPolicy::new(settings),
            blocks: Vec::new(),
            vacant: Vec::new(),
            segments: BTreeMap::new(),
            stranded_count: 0,
        }
    }

    /// Live blocks with their offsets, by address.
    pub(crate) fn live(&self) -> Vec<(usize, Live)> {
        let mut live: Vec<(usize, Live)> = self.blocks.iter().flatten().copied().collect();
        live.sort_unstable_by_key(|&(offset, _)| offset);
        live
    }

    pub(crate) fn block(&self, slot: u32) -> &(usize, Live) {
        self.blocks[slot as usize].as_ref().expect("a live block")
    }

    pub(crate) fn block_mut(&mut self, slot: u32) -> &mut (usize, Live) {
        self.blocks[slot as usize].as_mut().expect("a live block")
    }

    /// Bytes of all segments.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.rules.reserved_bytes() as usize
    }

    /// # Panics
    /// If the rules, the front and the arena do not agree.
    pub(crate) fn check(&self, arena_bytes: usize) {
        self.rules.check_invariants();
        assert_eq!(self.reserved_bytes(), arena_bytes, "segments and arena");
        let block_count = self.live().len() + self.stranded_count;
        let rules_count = self.rules.live_blocks().count();
        assert_eq!(rules_count, block_count, "blocks of the rules and the front");
    }

    /// Bytes of all segments after one more segment for a request that fits in no segment.
    fn needed_bytes(&self, requested_bytes: u64) -> usize {
        if requested_bytes >= REQUEST_BYTES_END {
            return usize::MAX;
        }
        let settings = self.rules.settings();
        let segment_bytes = settings.segment_bytes(settings.round(requested_bytes));
        self.reserved_bytes().saturating_add(segment_bytes as usize)
    }

    /// Size of a large block that the default stream could still get with `room_bytes` more of
    /// segments: the largest of a cached block, a segment that fills the room, and a small segment.
    pub(crate) fn largest_free_bytes(&self, room_bytes: usize) -> usize {
        let room_bytes = (room_bytes as u64).min(REQUEST_BYTES_END - 1);
        let segments = self.rules.segments();
        let own = segments.iter().filter(|segment| segment.stream == StreamId(0));
        let blocks = own.flat_map(|segment| &segment.blocks);
        let free = blocks.filter(|block| block.state == BlockState::Free);
        let mut candidates: Vec<u64> = free.map(|block| block.size_bytes).collect();
        let whole_bytes = room_bytes / SMALL_SEGMENT_BYTES * SMALL_SEGMENT_BYTES;
        candidates.extend([room_bytes, whole_bytes, SMALL_BYTES_MAX]);
        candidates.sort_unstable();
        let could_be_had = |&size_bytes: &u64| {
            let placed =
                self.rules.clone().allocate(size_bytes, StreamId(0), &mut Room(room_bytes));
            matches!(placed, Ok(Some(_)))
        };
        candidates.into_iter().rev().find(could_be_had).unwrap_or(0) as usize
    }

    fn insert(&mut self, offset: usize, live: Live) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            u32::try_from(self.blocks.len() - 1).expect("fewer than 2^32 blocks")
        });
        self.blocks[slot as usize] = Some((offset, live));
        slot
    }
}

/// Room for segments, at addresses beyond every arena.
struct Room(u64);

impl SegmentSource for Room {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        self.0 = self.0.checked_sub(size_bytes)?;
        Some(u64::MAX / 2 + self.0)
    }

    fn release(&mut self, _address: u64, size_bytes: u64) {
        self.0 += size_bytes;
    }
}

fn stream_id(stream: Stream) -> StreamId {
    StreamId(stream.index() as u64)
}

impl TorchFront {
    /// A block by PyTorch's rules.
    #[cold]
    pub(crate) fn allocate(
        &mut self,
        effects: &mut Effects<'_>,
        request: &Request,
    ) -> Result<BlockRef, Refusal> {
        let Some(size_bytes) = active_bytes(request.size_bytes) else {
            self.empty_cache(effects, request);
            return Err(effects.shortage(usize::MAX, Tried::default(), request));
        };
        // PyTorch gives no block for 0 bytes; this allocator does.
        let requested_bytes = request.size_bytes.max(1) as u64;
        let segments = &mut self.segments;
        let mut driver = Driver { effects, segments, request, failure: None };
        let placed = self.rules.place(requested_bytes, stream_id(request.stream), &mut driver);
        let failure = driver.failure;
        let Ok(Some(placement)) = placed else {
            let charged_bytes = effects.arena.statistics.charged.current_bytes;
            let needed_bytes = self.needed_bytes(requested_bytes).saturating_add(charged_bytes);
            // The rules have released all cached segments that they could.
            let tried = Tried::default().with(Rung::Search).with(Rung::Trim);
            let short = Shortage { needed_bytes, injected: false, tried };
            return Err(failure.unwrap_or(Refusal::Short(short)));
        };
        let offset = placement.address as usize;
        let live = effects.arena.count_block(size_bytes, request);
        let slot = self.insert(offset, live);
        effects.record(Action::Allocate, request, offset, size_bytes, live.serial);
        Ok(BlockRef::whole(offset, slot, live.serial, request))
    }

    /// Frees the block in a slot. Returns the block's properties.
    #[cold]
    pub(crate) fn free(&mut self, effects: &mut Effects<'_>, slot: u32) -> Live {
        let (offset, live) = *self.block(slot);
        self.blocks[slot as usize] = None;
        self.vacant.push(slot);
        let request = Request {
            category: live.category,
            size_bytes: live.requested_bytes,
            stream: live.stream,
            site: live.site,
            module: live.module,
        };
        effects.history.push(Record::of_block(Action::Free, offset, &live));
        effects.arena.count_free(&live);
        let others = live.users.without(live.stream);
        if effects.wait_in_order(others, &request).is_ok() {
            let freed = self.rules.free(offset as u64);
            debug_assert!(freed.is_ok(), "the block at {offset} is not the rules'");
        } else {
            // A drop cannot fail, so memory whose streams are not ordered is never reused.
            self.stranded_count += 1;
        }
        live
    }

    /// Releases every free segment. Returns the released bytes.
    pub(crate) fn empty_cache(&mut self, effects: &mut Effects<'_>, request: &Request) -> usize {
        let before_bytes = self.reserved_bytes();
        let segments = &mut self.segments;
        let mut driver = Driver { effects, segments, request, failure: None };
        self.rules.empty_cache(&mut driver);
        before_bytes - self.reserved_bytes()
    }
}

/// The arena, as the driver from which PyTorch's rules reserve segments.
struct Driver<'a, 'b> {
    effects: &'a mut Effects<'b>,
    segments: &'a mut BTreeMap<usize, u32>,
    request: &'a Request,
    /// A failure of the source, other than a lack of memory.
    failure: Option<Refusal>,
}

impl SegmentSource for Driver<'_, '_> {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        let size_bytes = usize::try_from(size_bytes).ok()?;
        let stream = Stream::DEFAULT;
        let tried = Cell::default();
        let mut place = self.effects.arena.place_whole(size_bytes, stream, &tried)?;
        match self.effects.commit_for(&place, tried.get(), self.request) {
            Ok(()) => {}
            Err(Refusal::Short(_)) => return None,
            Err(refusal) => {
                self.failure = Some(refusal);
                return None;
            }
        }
        let live = Live {
            requested_bytes: size_bytes,
            size_bytes,
            category: Category::Other,
            stream,
            users: StreamSet::of(stream),
            site: self.request.site,
            module: None,
            serial: 0,
            view: NONE,
        };
        let arena = &mut *self.effects.arena;
        let slot = arena.layout.insert(&mut place, &live, arena.current_event());
        self.segments.insert(place.offset(), slot);
        Some(place.offset() as u64)
    }

    fn release(&mut self, address: u64, _size_bytes: u64) {
        let slot = self.segments.remove(&(address as usize)).expect("a segment of the rules");
        let arena = &mut *self.effects.arena;
        arena.layout.remove(slot, arena.current_event());
        self.effects.release_cached(usize::MAX, &[], self.request);
    }
}
