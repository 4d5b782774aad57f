//! Runs a recorded trace through the policy and compares.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::report::ReplayReport;
use super::snapshot::{Action, RecordedEvent, RecordedSegment, Snapshot};
use super::start::Start;
use crate::torch::{
    LayoutError, SegmentLayout, SegmentSource, StreamId, TorchPolicy, TorchSettings,
};

/// Restarts with another guess at a block that the trace leaves open.
const GUESSES_MAX: usize = 64;
const TIMED_RUNS: usize = 5;
/// Where segments lie that the recording has not; above the addresses of any device.
pub(super) const MADE_UP_ADDRESS: u64 = 1 << 62;

/// Why a snapshot cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The snapshot says nothing of the device.
    #[error("no trace of device {device}")]
    NoTrace {
        /// The device.
        device: usize,
    },
    /// Expandable segments are not replayed.
    #[error("the segment at {address:#x} is expandable: such traces are not replayed")]
    Expandable {
        /// A segment.
        address: u64,
    },
    /// The events do not lead to the state at the end.
    #[error("event {event} ({address:#x}) contradicts what follows: {problem}")]
    Inconsistent {
        /// Index in the trace.
        event: u64,
        /// Its address.
        address: u64,
        /// How.
        problem: &'static str,
    },
    /// A block or segment that cannot be where it is said to be.
    #[error("what is recorded at {address:#x} cannot be there")]
    Impossible {
        /// The block or segment.
        address: u64,
    },
}

impl From<LayoutError> for ReplayError {
    fn from(LayoutError { address }: LayoutError) -> Self {
        ReplayError::Impossible { address }
    }
}

/// A trace of one device, from its reconstructed start to its recorded end.
#[derive(Debug)]
pub struct Replay {
    settings: TorchSettings,
    events: Vec<RecordedEvent>,
    end: Vec<SegmentLayout>,
    start: Start,
}

impl Replay {
    /// The device with the longest trace, the first of them.
    pub fn busiest_device(snapshot: &Snapshot) -> usize {
        let traces = snapshot.device_traces.iter().enumerate();
        traces.rev().max_by_key(|(_, trace)| trace.len()).map_or(0, |(device, _)| device)
    }

    /// Reconstructs the state before the first event of `device`.
    ///
    /// # Errors
    /// If segments are expandable, or the events do not lead to the recorded end.
    pub fn new(snapshot: &Snapshot, device: usize) -> Result<Replay, ReplayError> {
        let trace = snapshot.device_traces.get(device).ok_or(ReplayError::NoTrace { device })?;
        let is_map = |action| matches!(action, Action::SegmentMap | Action::SegmentUnmap);
        if let Some(event) = trace.iter().find(|event| is_map(event.action)) {
            return Err(ReplayError::Expandable { address: event.address });
        }
        let segments = snapshot.segments.iter().filter(|segment| segment.device == device);
        if let Some(segment) = segments.clone().find(|segment| segment.is_expandable) {
            return Err(ReplayError::Expandable { address: segment.layout.address });
        }
        let mut lanes = Lanes::default();
        let end: Vec<SegmentLayout> = segments.map(|segment| lanes.enter(segment)).collect();
        let events: Vec<RecordedEvent> =
            trace.iter().map(|event| RecordedEvent { stream: lanes.of(event), ..*event }).collect();
        // What a request may take was decided by the source that recorded it.
        let settings = TorchSettings { limit_bytes: None, ..snapshot.settings.clone() };
        let start = Start::rewind(&end, &BTreeSet::new(), &events, &settings)?;
        Ok(Replay { settings, events, end, start })
    }

    /// Runs every event, compares, and measures the time of the policy alone.
    ///
    /// # Errors
    /// If the reconstructed start has blocks that overlap.
    pub fn run(&mut self) -> Result<ReplayReport, ReplayError> {
        let mut report = self.settle()?.report;
        let (runs, ops) = self.time()?;
        report.set_time(runs, ops);
        Ok(report)
    }

    /// What every block takes, if the policy does what is recorded.
    pub(super) fn block_sizes(&mut self) -> Result<Option<BlockSizes>, ReplayError> {
        let pass = self.settle()?;
        if !pass.report.is_exact() {
            return Ok(None);
        }
        let layout = self.start.layout();
        let blocks = layout.iter().flat_map(|segment| &segment.blocks);
        let at_the_start = blocks.map(|block| (block.address, block.size_bytes)).collect();
        Ok(Some(BlockSizes { at_the_start, handed_out: pass.sizes }))
    }

    /// One run to the end, after as many guesses as it takes.
    fn settle(&mut self) -> Result<Pass, ReplayError> {
        let mut guesses = 0;
        let mut pass = loop {
            let mut pass = Pass::new(self)?;
            let mut guessed = false;
            for (index, event) in self.events.iter().enumerate() {
                let had_difference = pass.report.first_difference.is_some();
                pass.step(index, event);
                let differs = pass.report.first_difference.is_some() && !had_difference;
                if differs && guesses < GUESSES_MAX {
                    guessed = refute(&mut self.start, &pass, event);
                    if guessed {
                        break;
                    }
                }
            }
            if !guessed {
                break pass;
            }
            guesses += 1;
        };
        pass.report.events = self.events.len() as u64;
        pass.report.inferred_blocks = self.start.tails.len() as u64;
        pass.report.final_blocks_equal = pass.policy.segments() == self.end;
        let counters = pass.policy.counters();
        pass.report.source_calls = counters.reserve_calls + counters.release_calls;
        Ok(pass)
    }

    fn restored(&self) -> Result<(TorchPolicy, Segments), ReplayError> {
        let layout = self.start.layout();
        let policy = TorchPolicy::restore(self.settings.clone(), &layout)?;
        let held = layout.iter().map(|segment| (segment.address, segment.size_bytes)).collect();
        let made_up = MADE_UP_ADDRESS;
        Ok((policy, Segments { held, offered: VecDeque::new(), made_up, equal: 0 }))
    }

    /// Several timed runs, and the operations in each.
    fn time(&self) -> Result<(Vec<Duration>, usize), ReplayError> {
        let program = Program::compile(&self.events);
        let mut runs = Vec::new();
        for _ in 0..TIMED_RUNS {
            let (policy, segments) = self.restored()?;
            runs.push(program.run(policy, segments));
        }
        Ok((runs, program.ops.len()))
    }
}

/// Sizes of blocks that a trace does not state.
#[derive(Debug, Default)]
pub(super) struct BlockSizes {
    /// By address.
    pub(super) at_the_start: BTreeMap<u64, u64>,
    /// Of each `Alloc` in turn.
    pub(super) handed_out: Vec<u64>,
}

/// After the policy took a block that the recording did not: was it taken for too large, because
/// the block before it is larger than assumed? If so, assumes as much as the recording needs.
fn refute(start: &mut Start, pass: &Pass, event: &RecordedEvent) -> bool {
    let Some(address) = pass.last_address.filter(|_| event.action == Action::Alloc) else {
        return false;
    };
    let Some(tail) = start.tail_before(address) else { return false };
    let was_free_bytes =
        pass.policy.block_bytes(address).unwrap_or(0) + pass.policy.free_bytes_after(address);
    let size_bytes = pass.policy.settings().round(event.size_bytes);
    let Some(surplus_bytes) = was_free_bytes.checked_sub(size_bytes) else { return false };
    let extra_bytes = tail.extra_bytes + surplus_bytes.next_multiple_of(512) + 512;
    let is_possible = extra_bytes <= tail.extra_bytes_max;
    if is_possible {
        tail.extra_bytes = extra_bytes;
    }
    is_possible
}

/// Private pools of graph captures share nothing with others, as if they were streams.
#[derive(Default)]
struct Lanes {
    ids: BTreeMap<((i64, i64), StreamId), StreamId>,
    /// Private segments: address → end and lane.
    private: BTreeMap<u64, (u64, StreamId)>,
}

impl Lanes {
    fn enter(&mut self, segment: &RecordedSegment) -> SegmentLayout {
        let mut layout = segment.layout.clone();
        if segment.pool_id != (0, 0) {
            let next = StreamId(u64::MAX - self.ids.len() as u64);
            let key = (segment.pool_id, layout.stream);
            layout.stream = *self.ids.entry(key).or_insert(next);
            let end = layout.address.saturating_add(layout.size_bytes);
            self.private.insert(layout.address, (end, layout.stream));
        }
        layout
    }

    fn of(&self, event: &RecordedEvent) -> StreamId {
        let private = self.private.range(..=event.address).next_back();
        let inside = private.filter(|(_, (end, _))| event.address < *end);
        inside.map_or(event.stream, |(_, (_, lane))| *lane)
    }
}

/// Hands out the recorded segments.
struct Segments {
    held: BTreeMap<u64, u64>,
    /// Recorded as reserved, not yet asked for.
    offered: VecDeque<(u64, u64)>,
    made_up: u64,
    /// How many were asked for as recorded.
    equal: u64,
}

impl Segments {
    fn is_vacant(&self, address: u64, size_bytes: u64) -> bool {
        let before = self.held.range(..address.saturating_add(size_bytes)).next_back();
        before.is_none_or(|(at, held_bytes)| at + held_bytes <= address)
    }
}

impl SegmentSource for Segments {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        // Not always the first one: PyTorch can let another thread in while the driver works.
        let fits = |&(_, offered_bytes): &(u64, u64)| offered_bytes == size_bytes;
        let offer = self.offered.iter().position(fits).and_then(|at| self.offered.remove(at));
        let address = match offer {
            Some((address, _)) if self.is_vacant(address, size_bytes) => {
                self.equal += 1;
                address
            }
            _ => {
                let address = self.made_up;
                self.made_up = address.checked_add(size_bytes)?;
                address
            }
        };
        self.held.insert(address, size_bytes);
        Some(address)
    }

    fn release(&mut self, address: u64, _size_bytes: u64) {
        self.held.remove(&address);
    }
}

/// One run over the events.
struct Pass {
    policy: TorchPolicy,
    segments: Segments,
    /// Recorded address → the policy's, where they differ.
    moved: BTreeMap<u64, u64>,
    active_bytes: u64,
    last_address: Option<u64>,
    /// Of the blocks handed out, in turn.
    sizes: Vec<u64>,
    report: ReplayReport,
}

impl Pass {
    fn new(replay: &Replay) -> Result<Pass, ReplayError> {
        let (policy, segments) = replay.restored()?;
        let active_bytes = replay.start.active_bytes();
        let report = ReplayReport {
            peak_active_bytes: active_bytes,
            peak_block_bytes: policy.active_bytes(),
            peak_reserved_bytes: policy.reserved_bytes(),
            ..ReplayReport::default()
        };
        let (moved, sizes, last_address) = (BTreeMap::new(), Vec::new(), None);
        Ok(Pass { policy, segments, moved, active_bytes, last_address, sizes, report })
    }

    fn step(&mut self, index: usize, event: &RecordedEvent) {
        let is_as_recorded = match event.action {
            Action::Alloc => self.allocate(event),
            Action::FreeRequested => self.policy.request_free(self.at(event)).is_ok(),
            Action::FreeCompleted => {
                let address = self.at(event);
                self.moved.remove(&event.address);
                let freed_bytes = event.size_bytes.next_multiple_of(512);
                self.active_bytes = self.active_bytes.saturating_sub(freed_bytes);
                self.policy.complete_free(address).is_ok()
            }
            Action::SegmentAlloc => {
                self.report.segments_total += 1;
                self.segments.offered.push_back((event.address, event.size_bytes));
                true
            }
            Action::SegmentFree => {
                let released = self.policy.release_segment(event.address).is_ok();
                if released {
                    self.segments.release(event.address, event.size_bytes);
                }
                released
            }
            _ => true,
        };
        if !is_as_recorded {
            self.report.first_difference.get_or_insert(index as u64);
        }
        self.report.segments_equal = self.segments.equal;
    }

    /// Where the policy has the block of an event.
    fn at(&self, event: &RecordedEvent) -> u64 {
        self.moved.get(&event.address).copied().unwrap_or(event.address)
    }

    fn allocate(&mut self, event: &RecordedEvent) -> bool {
        self.report.addresses_total += 1;
        let placed = self.policy.allocate(event.size_bytes, event.stream, &mut self.segments);
        // Only a request of nothing, or of an exabyte, gets nothing; none of them is recorded.
        let Ok(Some(address)) = placed else {
            self.last_address = None;
            return false;
        };
        self.last_address = Some(address);
        self.sizes.push(self.policy.block_bytes(address).unwrap_or(0));
        let is_equal = address == event.address;
        if is_equal {
            self.report.addresses_equal += 1;
        } else {
            self.moved.insert(event.address, address);
        }
        // A file may free less than it allocated.
        let taken_bytes = event.size_bytes.next_multiple_of(512);
        self.active_bytes = self.active_bytes.saturating_add(taken_bytes);
        let report = &mut self.report;
        report.peak_active_bytes = report.peak_active_bytes.max(self.active_bytes);
        report.peak_block_bytes = report.peak_block_bytes.max(self.policy.active_bytes());
        report.peak_reserved_bytes = report.peak_reserved_bytes.max(self.policy.reserved_bytes());
        is_equal
    }
}

/// A request or a free of a block that has a number, so that the clock sees the policy only.
enum Op {
    Allocate { block: usize, size_bytes: u64, stream: StreamId },
    Free(usize),
    FreeAtStart(u64),
    ReleaseSegment(u64),
}

struct Program {
    ops: Vec<Op>,
    offered: VecDeque<(u64, u64)>,
    block_count: usize,
}

impl Program {
    /// Frees count when they are complete.
    fn compile(events: &[RecordedEvent]) -> Program {
        let mut program = Program { ops: Vec::new(), offered: VecDeque::new(), block_count: 0 };
        let mut numbers: BTreeMap<u64, usize> = BTreeMap::new();
        for event in events {
            let RecordedEvent { action, address, size_bytes, stream, .. } = *event;
            match action {
                Action::Alloc => {
                    let block = program.block_count;
                    program.block_count += 1;
                    numbers.insert(address, block);
                    program.ops.push(Op::Allocate { block, size_bytes, stream });
                }
                Action::FreeCompleted => {
                    let op = numbers.remove(&address).map_or(Op::FreeAtStart(address), Op::Free);
                    program.ops.push(op);
                }
                Action::SegmentAlloc => program.offered.push_back((address, size_bytes)),
                Action::SegmentFree => program.ops.push(Op::ReleaseSegment(address)),
                _ => {}
            }
        }
        program
    }

    fn run(&self, mut policy: TorchPolicy, mut segments: Segments) -> Duration {
        segments.offered.clone_from(&self.offered);
        policy.complete_all_frees();
        let mut addresses = vec![0; self.block_count];
        let start = Instant::now();
        for op in &self.ops {
            match *op {
                Op::Allocate { block, size_bytes, stream } => {
                    let placed = policy.allocate(size_bytes, stream, &mut segments);
                    addresses[block] = placed.ok().flatten().unwrap_or(0);
                }
                // A block that was pending at the start is free already.
                Op::Free(block) => drop(policy.free(addresses[block])),
                Op::FreeAtStart(address) => drop(policy.free(address)),
                Op::ReleaseSegment(address) => {
                    if let Ok(size_bytes) = policy.release_segment(address) {
                        segments.release(address, size_bytes);
                    }
                }
            }
        }
        start.elapsed()
    }
}
