//! PyTorch's placement under the allocator's front.
//!
//! [`TorchPolicy`] decides; its segments are blocks of the arena, which stands for the driver: a
//! segment is committed when it is reserved and given back when it is released. What PyTorch does
//! by polling events is done here in program order: a block that other streams used makes its own
//! stream wait for them when it is freed, and is free at once. Expandable segments need a source of
//! pages and are not used live; recorded ones replay (see [`trace`](crate::trace)).

use std::collections::BTreeMap;

use crate::books::Request;
use crate::category::Category;
use crate::engine::{Engine, Granted, Refusal};
use crate::history::Action;
use crate::holes::NONE;
use crate::layout::{Live, Want, active_bytes};
use crate::stream::{Stream, StreamSet};
use crate::torch::{SegmentSource, StreamId, TorchPolicy, TorchSettings};

/// PyTorch's rules and what the front has to know of each block.
#[derive(Clone, Debug)]
pub(crate) struct TorchFront {
    rules: TorchPolicy,
    blocks: Vec<Option<(usize, Live)>>,
    vacant: Vec<u32>,
    /// Segments by offset, with their slots in the arena's layout.
    segments: BTreeMap<usize, u32>,
}

impl TorchFront {
    pub(crate) fn new(settings: TorchSettings) -> TorchFront {
        TorchFront {
            rules: TorchPolicy::new(settings),
            blocks: Vec::new(),
            vacant: Vec::new(),
            segments: BTreeMap::new(),
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

    fn block_mut(&mut self, slot: u32) -> &mut (usize, Live) {
        self.blocks[slot as usize].as_mut().expect("a live block")
    }

    /// Bytes of segments.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.rules.reserved_bytes() as usize
    }

    /// # Panics
    /// If the rules, the front and the arena do not agree.
    pub(crate) fn check(&self, arena_bytes: usize) {
        self.rules.check_invariants();
        assert_eq!(self.reserved_bytes(), arena_bytes, "segments and arena");
        let blocks = self.rules.live_blocks();
        assert_eq!(blocks.count(), self.live().len(), "blocks of the rules and the front");
    }

    fn enter(&mut self, offset: usize, live: Live) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            u32::try_from(self.blocks.len() - 1).expect("fewer than 2^32 blocks")
        });
        self.blocks[slot as usize] = Some((offset, live));
        slot
    }
}

fn stream_id(stream: Stream) -> StreamId {
    StreamId(stream.index() as u64)
}

impl Engine<'_> {
    /// A block by PyTorch's rules.
    #[cold]
    pub(crate) fn allocate_by_torch(&mut self, request: &Request) -> Result<Granted, Refusal> {
        let Some(size_bytes) = active_bytes(request.size_bytes) else {
            return Err(self.shortage(usize::MAX, false, request));
        };
        let mut torch = self.state.torch.take().expect("the torch policy is in force");
        // PyTorch gives no block for nothing; here a block of nothing is a block.
        let requested_bytes = request.size_bytes.max(1) as u64;
        let mut driver = Driver { engine: self, segments: &mut torch.segments, request };
        let placed = torch.rules.place(requested_bytes, stream_id(request.stream), &mut driver);
        let offset = match placed {
            Ok(Some(placement)) => placement.address as usize,
            _ => {
                let segment_bytes = torch.rules.settings().segment_bytes(size_bytes as u64);
                let needed_bytes = torch.reserved_bytes().saturating_add(segment_bytes as usize);
                self.state.torch = Some(torch);
                return Err(self.short_of(needed_bytes));
            }
        };
        let live = self.state.policy.note_block(size_bytes, request);
        let slot = torch.enter(offset, live);
        self.state.torch = Some(torch);
        self.record(Action::Allocate, request, offset, size_bytes, live.serial);
        Ok(Granted { offset, view_offset: None, slot, serial: live.serial })
    }

    #[cold]
    pub(crate) fn free_by_torch(&mut self, slot: u32) {
        let mut torch = self.state.torch.take().expect("the torch policy is in force");
        let (offset, live) = *torch.block(slot);
        torch.blocks[slot as usize] = None;
        torch.vacant.push(slot);
        let request = Request {
            category: live.category,
            size_bytes: live.requested_bytes,
            stream: live.stream,
            site: live.site,
        };
        self.record(Action::Free, &request, offset, live.size_bytes, live.serial);
        self.state.policy.forget_block(&live);
        let others = live.users.without(live.stream);
        // A source that cannot make its streams wait has failed; the error reaches the next
        // request on them.
        let _ = self.wait_for(others, &request);
        let freed = torch.rules.free(offset as u64);
        debug_assert!(freed.is_ok(), "the block at {offset} is not the rules'");
        self.state.torch = Some(torch);
        self.settle(live.category, live.site);
    }

    #[cold]
    pub(crate) fn record_use_by_torch(&mut self, slot: u32, stream: Stream) {
        let torch = self.state.torch.as_mut().expect("the torch policy is in force");
        let (_, live) = torch.block_mut(slot);
        live.users = live.users.union(StreamSet::of(stream));
    }

    /// Releases every segment that is free.
    pub(crate) fn empty_torch_cache(&mut self, request: &Request) -> usize {
        let Some(mut torch) = self.state.torch.take() else { return 0 };
        let before_bytes = torch.reserved_bytes();
        let mut driver = Driver { engine: self, segments: &mut torch.segments, request };
        torch.rules.empty_cache(&mut driver);
        let released_bytes = before_bytes - torch.reserved_bytes();
        self.state.torch = Some(torch);
        released_bytes
    }
}

/// The arena as the driver that PyTorch's rules ask for segments.
struct Driver<'a, 'b> {
    engine: &'a mut Engine<'b>,
    segments: &'a mut BTreeMap<usize, u32>,
    request: &'a Request,
}

impl SegmentSource for Driver<'_, '_> {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        let size_bytes = usize::try_from(size_bytes).ok()?;
        let policy = &mut self.engine.state.policy;
        let stream = Stream::DEFAULT;
        let want = Want { size_bytes, stream, waits: &policy.waits, stitches: false };
        let place = policy.layout.place(&want)?;
        self.engine.commit_for(&place, self.request).ok()?;
        let live = Live {
            requested_bytes: size_bytes,
            size_bytes,
            category: Category::Other,
            stream,
            users: StreamSet::of(stream),
            site: self.request.site,
            serial: 0,
            view: NONE,
            next_piece: NONE,
        };
        let policy = &mut self.engine.state.policy;
        let slot = policy.layout.insert(&place, live, policy.current_event());
        self.segments.insert(place.offset(), slot);
        Some(place.offset() as u64)
    }

    fn release(&mut self, address: u64, _size_bytes: u64) {
        let slot = self.segments.remove(&(address as usize)).expect("a segment of the rules");
        let policy = &mut self.engine.state.policy;
        policy.layout.remove(slot, policy.current_event());
        self.engine.pay(usize::MAX, &[], self.request);
    }
}
