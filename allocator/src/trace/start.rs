//! The state at the beginning of a trace.
//!
//! A snapshot holds the state at its end and what led there. Undoing the events from the last to
//! the first gives every segment and every taken block at the beginning; the rest was free. One
//! thing the events do not say: a free records what was requested, not how large the block was. In
//! the large pool up to 1 MiB behind the request may belong to the block ([`Tail`]). Where no more
//! than that is between two blocks it must, because free blocks are larger. Else the first block
//! that is cut from the free one behind shows where that began; if there is none, the replay
//! settles it.

use std::collections::{BTreeMap, BTreeSet};

use super::ranges::Ranges;
use super::replay::{MADE_UP_ADDRESS, ReplayError};
use super::snapshot::{Action, RecordedEvent};
use crate::torch::{
    BlockLayout, BlockState, Pool, SMALL_BYTES_MAX, SMALL_SEGMENT_BYTES, SegmentLayout, StreamId,
    TorchSettings,
};

/// A taken block while events are undone.
#[derive(Clone, Copy, Debug)]
struct Taken {
    requested_bytes: u64,
    /// Known if it is still there at the end.
    size_bytes: Option<u64>,
    state: BlockState,
}

/// Whose a held range is. The events do not say which pool an expandable one serves; `Large` stands
/// for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    stream: StreamId,
    pool: Pool,
    is_expandable: bool,
}

impl Held {
    /// Whether up to 1 MiB stays with a block that it was not asked for.
    fn leaves_tails(self) -> bool {
        self.pool == Pool::Large && !self.is_expandable
    }
}

/// Free memory behind a block whose size is not known; part of it may belong to the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// The block.
    pub(super) address: u64,
    /// Where it ends at least.
    pub(super) end: u64,
    /// The next block, or the end of the segment.
    gap_end: u64,
    /// How much more it may have.
    pub(super) extra_bytes_max: u64,
    /// How much more it is taken to have.
    pub(super) extra_bytes: u64,
}

/// Segments and taken blocks before the first event.
#[derive(Debug)]
pub(super) struct Start {
    held: Ranges<Held>,
    taken: BTreeMap<u64, Taken>,
    /// By where they begin.
    pub(super) tails: BTreeMap<u64, Tail>,
}

impl Start {
    /// Undoes `events`, which led to `end`; the segments at the addresses in `expandable` are so.
    pub(super) fn rewind(
        end: &[SegmentLayout],
        expandable: &BTreeSet<u64>,
        events: &[RecordedEvent],
        settings: &TorchSettings,
    ) -> Result<Start, ReplayError> {
        let mut start = Start::at_the_end(end, expandable)?;
        for (index, event) in events.iter().enumerate().rev() {
            start.undo(event).map_err(|problem| ReplayError::Inconsistent {
                event: index as u64,
                address: event.address,
                problem,
            })?;
        }
        start.settle_sizes(settings)?;
        start.find_evidence(events);
        Ok(start)
    }

    fn at_the_end(end: &[SegmentLayout], expandable: &BTreeSet<u64>) -> Result<Start, ReplayError> {
        let mut start =
            Start { held: Ranges::default(), taken: BTreeMap::new(), tails: BTreeMap::new() };
        for segment in end {
            let SegmentLayout { address, size_bytes, stream, pool, .. } = *segment;
            let is_expandable = expandable.contains(&address);
            let pool = if is_expandable { Pool::Large } else { pool };
            if !start.hold(address, size_bytes, Held { stream, pool, is_expandable }) {
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

    /// Whether there is room for the segment.
    fn hold(&mut self, address: u64, size_bytes: u64, held: Held) -> bool {
        let end = address.saturating_add(size_bytes);
        if end > MADE_UP_ADDRESS {
            return false;
        }
        let is_held = self.held.insert(address, end, held);
        if is_held && held.is_expandable {
            self.held.merge_around(address);
        }
        is_held
    }

    /// Whether the range was held and has no blocks.
    fn drop_held(&mut self, address: u64, size_bytes: u64) -> Result<(), &'static str> {
        let end = address.saturating_add(size_bytes);
        if self.held.cut(address, end).is_none() {
            return Err("the segment is not there afterwards");
        }
        match self.taken.range(address..end).next() {
            Some(_) => Err("the segment has blocks before it is there"),
            None => Ok(()),
        }
    }

    fn undo(&mut self, event: &RecordedEvent) -> Result<(), &'static str> {
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
                if self.held.end_of(address) != address.checked_add(size_bytes) {
                    return Err("the segment is not there afterwards");
                }
                self.drop_held(address, size_bytes)?;
            }
            Action::SegmentMap => self.drop_held(address, size_bytes)?,
            Action::SegmentFree | Action::SegmentUnmap => {
                // Segments of the large pool are never this small.
                let is_small = size_bytes == SMALL_SEGMENT_BYTES;
                let is_expandable = action == Action::SegmentUnmap;
                let pool = if is_small && !is_expandable { Pool::Small } else { Pool::Large };
                if !self.hold(address, size_bytes, Held { stream, pool, is_expandable }) {
                    return Err("the segment is still there afterwards");
                }
            }
            Action::Snapshot | Action::Oom | Action::UserDefined => {}
        }
        Ok(())
    }

    /// Gives every block its least size, and finds those that may be larger.
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
            let is_tail = held.leaves_tails()
                && (gap_bytes <= SMALL_BYTES_MAX || settings.is_oversize(size_bytes));
            taken.size_bytes = Some(if is_tail { room_bytes } else { size_bytes });
            if held.leaves_tails() && !is_tail {
                let end = address + size_bytes;
                let extra_bytes_max =
                    SMALL_BYTES_MAX.min((gap_bytes - SMALL_BYTES_MAX - 1) / 512 * 512);
                let tail = Tail { address, end, gap_end, extra_bytes_max, extra_bytes: 0 };
                self.tails.insert(end, tail);
            }
        }
        Ok(())
    }

    /// While a block is there, the first one that is cut from behind it begins where it ends.
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

    /// The tail that ends at `address`, as far as is known.
    pub(super) fn tail_before(&mut self, address: u64) -> Option<&mut Tail> {
        let (_, tail) = self.tails.range_mut(..=address).next_back()?;
        (tail.end + tail.extra_bytes == address).then_some(tail)
    }

    /// Segments with their blocks, free ones in the gaps.
    pub(super) fn layout(&self) -> Vec<SegmentLayout> {
        let mut extra: BTreeMap<u64, u64> = BTreeMap::new();
        for tail in self.tails.values() {
            extra.insert(tail.address, tail.extra_bytes);
        }
        let segment = |(address, end, held): (u64, u64, Held)| {
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
        };
        self.held.iter().map(segment).collect()
    }

    /// What is in use at the start, in requests rounded up to 512 bytes.
    pub(super) fn active_bytes(&self) -> u64 {
        self.taken.values().map(|taken| taken.requested_bytes.next_multiple_of(512)).sum()
    }
}
