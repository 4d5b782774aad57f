//! The state at the beginning of a trace.
//!
//! A snapshot holds the state at its end and the events before it. Undoing the events from the last
//! to the first gives every segment and every taken block at the beginning; the rest was free. The
//! events do not contain the size of a freed block, only the size of its request. In the large pool
//! up to 1 MiB behind the request may belong to the block ([`Tail`]). If the gap to the next block
//! is at most 1 MiB, the whole gap belongs to the block, because free blocks are larger. Otherwise
//! the next block that is cut from the free block behind shows where the free block began. If there
//! is no such block, the replay decides. Blocks of expandable segments have no tails.

use std::collections::{BTreeMap, VecDeque};

use lowtide_allocator::torch::{
    AddressRange, BlockLayout, BlockState, Pool, RangeLayout, SMALL_BYTES_MAX, SMALL_SEGMENT_BYTES,
    SegmentLayout, StreamId, TorchSettings,
};

use super::ranges::{self, Era, Mapped};
use crate::pytorch::replay::error::{MADE_UP_ADDRESS, ReplayError};
use crate::pytorch::snapshot::{Action, RecordedEvent, RecordedSegment};
use crate::recording::spans::Spans;

/// A taken block, while events are undone.
#[derive(Clone, Copy, Debug)]
struct Taken {
    requested_bytes: u64,
    /// Bytes of the block; known if the block is still live at the end.
    size_bytes: Option<u64>,
    state: BlockState,
}

/// The owner of a segment, or of consecutive pages of an expandable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    stream: StreamId,
    pool: Pool,
    is_paged: bool,
}

/// Free memory behind a block of unknown size. A part of the memory may belong to the block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// Address of the block.
    pub(crate) address: u64,
    /// The least possible end of the block.
    pub(crate) end: u64,
    /// Start of the next block, or end of the segment.
    gap_end: u64,
    /// Largest number of bytes that the block may have beyond its request.
    pub(crate) extra_bytes_max: u64,
    /// Bytes that the block is assumed to have beyond its request.
    pub(crate) extra_bytes: u64,
}

/// Segments and taken blocks before the first event.
#[derive(Debug)]
pub(crate) struct InitialState {
    held: Spans<Held>,
    taken: BTreeMap<u64, Taken>,
    /// Tails by their first address.
    pub(crate) tails: BTreeMap<u64, Tail>,
    eras: Vec<Era>,
}

impl InitialState {
    /// Undoes `events`, which led to the segments `end`, and finds the ranges of the pages. The
    /// segments in `expandable` are expandable.
    pub(crate) fn for_replay(
        end: &[SegmentLayout],
        expandable: &[bool],
        events: &[RecordedEvent],
        settings: &TorchSettings,
    ) -> Result<InitialState, ReplayError> {
        let mut pools = ranges::pools(events, settings);
        let mut start = InitialState::at_the_end(end, expandable)?;
        start.rewind(events, settings, |start, index, event| {
            let around = start.held.around(event.address);
            if event.action == Action::SegmentMap && !around.is_some_and(|(.., held)| held.is_paged)
            {
                return Err("the pages are not there afterwards");
            }
            Ok(*pools.entry(index).or_insert_with(|| start.pool_around(event)))
        })?;
        start.find_eras(events, &pools, settings)?;
        Ok(start)
    }

    /// Undoes `events` of any allocator. The pages need not fit PyTorch's rules, and may belong to
    /// a segment that is not expandable. The pools and ranges of pages are not guessed: all pages
    /// count as pages of the large pool.
    pub(crate) fn for_import(
        segments: &[&RecordedSegment],
        events: &[RecordedEvent],
        settings: &TorchSettings,
    ) -> Result<InitialState, ReplayError> {
        let layout = |segment: &&RecordedSegment| {
            let pool = if segment.is_expandable { Pool::Large } else { segment.layout.pool };
            SegmentLayout { pool, ..segment.layout.clone() }
        };
        let end: Vec<SegmentLayout> = segments.iter().map(layout).collect();
        let expandable: Vec<bool> = segments.iter().map(|segment| segment.is_expandable).collect();
        let mut start = InitialState::at_the_end(&end, &expandable)?;
        start.rewind(events, settings, |_, _, _| Ok(Pool::Large))?;
        Ok(start)
    }

    /// Undoes all events. `pool_of` returns the pool of an event that maps or unmaps pages.
    fn rewind(
        &mut self,
        events: &[RecordedEvent],
        settings: &TorchSettings,
        mut pool_of: impl FnMut(&InitialState, usize, &RecordedEvent) -> Result<Pool, &'static str>,
    ) -> Result<(), ReplayError> {
        for (index, event) in events.iter().enumerate().rev() {
            let is_paged = matches!(event.action, Action::SegmentMap | Action::SegmentUnmap);
            let pool = is_paged.then(|| pool_of(self, index, event)).transpose();
            pool.and_then(|pool| self.undo(event, pool)).map_err(|problem| {
                ReplayError::Inconsistent { event: index as u64, address: event.address, problem }
            })?;
        }
        self.settle_sizes(settings)?;
        self.find_evidence(events);
        Ok(())
    }

    fn at_the_end(end: &[SegmentLayout], expandable: &[bool]) -> Result<InitialState, ReplayError> {
        let mut start = InitialState {
            held: Spans::default(),
            taken: BTreeMap::new(),
            tails: BTreeMap::new(),
            eras: Vec::new(),
        };
        for (segment, &is_paged) in end.iter().zip(expandable) {
            let SegmentLayout { address, size_bytes, stream, pool, .. } = *segment;
            if !start.hold(address, size_bytes, Held { stream, pool, is_paged }) {
                return Err(ReplayError::Impossible { address });
            }
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Free) {
                let BlockLayout { address, size_bytes, requested_bytes, state } = *block;
                let size_bytes = Some(size_bytes);
                start.taken.insert(address, Taken { requested_bytes, size_bytes, state });
            }
        }
        Ok(start)
    }

    /// Adds a segment or pages. Pages are merged with pages that they touch. Returns false if the
    /// addresses are held already.
    fn hold(&mut self, address: u64, size_bytes: u64, held: Held) -> bool {
        let end = address.saturating_add(size_bytes);
        let is_held = end <= MADE_UP_ADDRESS && self.held.insert(address, end, held);
        if is_held && held.is_paged {
            self.held.merge_around(address);
        }
        is_held
    }

    /// Removes a segment or pages. Fails if they are not held, or have blocks.
    fn let_go(&mut self, address: u64, size_bytes: u64) -> Result<(), &'static str> {
        let end = address.saturating_add(size_bytes);
        if self.held.cut(address, end).is_none() {
            return Err("the memory is not there afterwards");
        }
        match self.taken.range(address..end).next() {
            Some(_) => Err("the memory has blocks before it is there"),
            None => Ok(()),
        }
    }

    /// Undoes an event. `pool` is the pool of the pages, if the event is about pages.
    fn undo(&mut self, event: &RecordedEvent, pool: Option<Pool>) -> Result<(), &'static str> {
        let RecordedEvent { action, address, size_bytes, stream, .. } = *event;
        match action {
            Action::Alloc => match self.taken.remove(&address) {
                Some(Taken { state: BlockState::Active, .. }) => {}
                _ => return Err("the block is not there afterwards"),
            },
            Action::FreeRequested => match self.taken.get_mut(&address) {
                Some(taken) if taken.state == BlockState::Pending => {
                    taken.state = BlockState::Active;
                }
                _ => return Err("the block is not waiting to be freed afterwards"),
            },
            Action::FreeCompleted => {
                let state = BlockState::Pending;
                let taken = Taken { requested_bytes: size_bytes, size_bytes: None, state };
                if self.taken.insert(address, taken).is_some() {
                    return Err("the block is still there afterwards");
                }
            }
            Action::SegmentAlloc => {
                let is_it = |&(at, end, held): &(u64, u64, Held)| {
                    !held.is_paged && (at, end - at) == (address, size_bytes)
                };
                if self.held.around(address).filter(is_it).is_none() {
                    return Err("the segment is not there afterwards");
                }
                self.let_go(address, size_bytes)?;
            }
            Action::SegmentMap => self.let_go(address, size_bytes)?,
            Action::SegmentFree | Action::SegmentUnmap => {
                // Segments of the large pool are larger than this.
                let is_small = size_bytes == SMALL_SEGMENT_BYTES;
                let of_size = if is_small { Pool::Small } else { Pool::Large };
                let is_paged = action == Action::SegmentUnmap;
                let held = Held { stream, pool: pool.unwrap_or(of_size), is_paged };
                if !self.hold(address, size_bytes, held) {
                    return Err("the memory is still there afterwards");
                }
            }
            Action::Snapshot | Action::Oom | Action::UserDefined => {}
        }
        Ok(())
    }

    /// The pool of pages without a request: the pool of the pages that they touch or lie between;
    /// else the large pool, whose pages make up most memory.
    fn pool_around(&self, event: &RecordedEvent) -> Pool {
        let end = event.address.saturating_add(event.size_bytes);
        let is_like =
            |(_, _, held): &(u64, u64, Held)| held.is_paged && held.stream == event.stream;
        let below = self.held.last_from(event.address).filter(is_like);
        let above = self.held.first_from(end).filter(is_like);
        match (below, above) {
            (Some((_, below_end, held)), _) if below_end >= event.address => held.pool,
            (_, Some((at, _, held))) if at == end => held.pool,
            (Some((_, _, below)), Some((_, _, above))) if below.pool == above.pool => below.pool,
            _ => Pool::Large,
        }
    }

    fn find_eras(
        &mut self,
        events: &[RecordedEvent],
        pools: &BTreeMap<usize, Pool>,
        settings: &TorchSettings,
    ) -> Result<(), ReplayError> {
        let (paged, whole): (Vec<_>, Vec<_>) =
            self.held.iter().partition(|(_, _, held)| held.is_paged);
        let mapped = paged.into_iter().map(|(address, end, Held { stream, pool, .. })| {
            let pages = AddressRange { address, size_bytes: end - address };
            Mapped { pages, stream, pool }
        });
        let mapped: Vec<Mapped> = mapped.collect();
        let whole = whole.into_iter().map(|(address, ..)| address);
        let reserved = events.iter().filter(|event| event.action == Action::SegmentAlloc);
        let others: Vec<u64> = whole.chain(reserved.map(|event| event.address)).collect();
        self.eras = ranges::eras(&mapped, events, pools, &others, settings)?;
        Ok(())
    }

    /// Gives every block its least size, and finds blocks that may be larger.
    fn settle_sizes(&mut self, settings: &TorchSettings) -> Result<(), ReplayError> {
        let addresses: Vec<u64> = self.taken.keys().copied().collect();
        for (index, &address) in addresses.iter().enumerate() {
            let impossible = ReplayError::Impossible { address };
            let Some((_, end, held)) = self.held.around(address) else { return Err(impossible) };
            let next = addresses.get(index + 1).copied().unwrap_or(u64::MAX);
            let gap_end = next.min(end);
            let room_bytes = gap_end - address;
            let taken = self.taken.get_mut(&address).expect("a taken block");
            if let Some(size_bytes) = taken.size_bytes {
                if size_bytes > room_bytes {
                    return Err(impossible);
                }
                continue;
            }
            // A request never exceeds its block, so this also keeps the rounding in range.
            if taken.requested_bytes > room_bytes.min(1 << 59) {
                return Err(impossible);
            }
            let size_bytes = settings.round(taken.requested_bytes);
            let Some(gap_bytes) = room_bytes.checked_sub(size_bytes) else {
                return Err(impossible);
            };
            // Blocks of expandable segments are cut to their exact size.
            let has_tail = held.pool == Pool::Large && !settings.expandable_segments;
            let is_tail =
                has_tail && (gap_bytes <= SMALL_BYTES_MAX || settings.is_oversize(size_bytes));
            taken.size_bytes = Some(if is_tail { room_bytes } else { size_bytes });
            if has_tail && !is_tail {
                let end = address + size_bytes;
                let extra_bytes_max =
                    SMALL_BYTES_MAX.min((gap_bytes - SMALL_BYTES_MAX - 1) / 512 * 512);
                let tail = Tail { address, end, gap_end, extra_bytes_max, extra_bytes: 0 };
                self.tails.insert(end, tail);
            }
        }
        Ok(())
    }

    /// Finds the ends of blocks: the first block that is cut from the free memory behind a live
    /// block begins at the live block's end.
    fn find_evidence(&mut self, events: &[RecordedEvent]) {
        let mut open: BTreeMap<u64, Tail> = self.tails.clone();
        let ends: BTreeMap<u64, u64> = open.values().map(|tail| (tail.address, tail.end)).collect();
        for event in events {
            match event.action {
                Action::Alloc => {
                    let behind = open.range(..=event.address).next_back();
                    let Some((&end, &tail)) = behind else { continue };
                    if event.address < tail.gap_end {
                        open.remove(&end);
                        let extra_bytes = event.address - end;
                        if extra_bytes <= tail.extra_bytes_max {
                            self.tails.insert(end, Tail { extra_bytes, ..tail });
                        }
                    }
                }
                Action::FreeCompleted => {
                    if let Some(end) = ends.get(&event.address) {
                        open.remove(end);
                    }
                }
                _ => {}
            }
        }
    }

    /// The tail that ends at `address`, by current knowledge.
    pub(crate) fn tail_before(&mut self, address: u64) -> Option<&mut Tail> {
        let (_, tail) = self.tails.range_mut(..=address).next_back()?;
        (tail.end + tail.extra_bytes == address).then_some(tail)
    }

    /// Held segments and pages, with their blocks.
    pub(crate) fn held(&self) -> Vec<SegmentLayout> {
        self.layouts(|_| true)
    }

    /// Segments that were reserved as a whole, with their blocks, and with free blocks in the gaps.
    pub(crate) fn segments(&self) -> Vec<SegmentLayout> {
        self.layouts(|held| !held.is_paged)
    }

    /// Expandable segments, with the blocks on their pages.
    pub(crate) fn ranges(&self) -> Vec<RangeLayout> {
        let mut ranges: Vec<RangeLayout> = Vec::new();
        for era in self.eras.iter().filter(|era| era.is_at_start) {
            let Era { range, page_bytes, stream, pool, .. } = *era;
            let mapped =
                self.layouts(|held| held.is_paged && (held.stream, held.pool) == (stream, pool));
            ranges.push(RangeLayout { range, page_bytes, stream, pool, mapped });
        }
        ranges
    }

    /// The ranges that come with an event.
    pub(crate) fn eras_to_come(&self) -> VecDeque<Era> {
        self.eras.iter().filter(|era| !era.is_at_start).cloned().collect()
    }

    fn layouts(&self, is_it: impl Fn(&Held) -> bool) -> Vec<SegmentLayout> {
        let extra: BTreeMap<u64, u64> =
            self.tails.values().map(|tail| (tail.address, tail.extra_bytes)).collect();
        let held = self.held.iter().filter(|(_, _, held)| is_it(held));
        held.map(|(address, end, held)| self.layout(address, end, held, &extra)).collect()
    }

    /// A segment with its blocks. `extra` has the bytes of each block beyond its request, by
    /// address.
    fn layout(
        &self,
        address: u64,
        end: u64,
        held: Held,
        extra: &BTreeMap<u64, u64>,
    ) -> SegmentLayout {
        let mut blocks = Vec::new();
        let mut at = address;
        let gap = |at: u64, to: u64| BlockLayout {
            address: at,
            size_bytes: to - at,
            requested_bytes: 0,
            state: BlockState::Free,
        };
        for (&start, taken) in self.taken.range(address..end) {
            if start > at {
                blocks.push(gap(at, start));
            }
            let least_bytes = taken.size_bytes.expect("sizes are settled");
            let size_bytes = least_bytes + extra.get(&start).copied().unwrap_or(0);
            let Taken { requested_bytes, state, .. } = *taken;
            blocks.push(BlockLayout { address: start, size_bytes, requested_bytes, state });
            at = start + size_bytes;
        }
        if end > at {
            blocks.push(gap(at, end));
        }
        let Held { stream, pool, .. } = held;
        SegmentLayout { address, size_bytes: end - address, stream, pool, blocks }
    }

    /// Bytes in use at the start: requests, each rounded up to 512.
    pub(crate) fn active_bytes(&self) -> u64 {
        self.taken.values().map(|taken| taken.requested_bytes.next_multiple_of(512)).sum()
    }
}
