//! Serves the requests of a recording again: by any policy, within any capacity.

mod expandable;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use lowtide_allocator::torch::StreamId;
use lowtide_allocator::{
    Action, AllocError, Buffer, CachingAllocator, Category, Charge, Policy, SimSource, SimStreams,
    Stream,
};
use thiserror::Error;

use crate::recording::{EventKind, RecordedBlock, Recording};

/// The page size of GPUs, for recordings that do not name theirs.
const PAGE_BYTES: usize = 2 << 20;
const TIMED_RUNS: usize = 5;

/// The policy and the device that serve a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RerunOptions {
    /// The rules of placement.
    pub policy: Policy,
    /// The budget; `None` for no limit.
    pub capacity_bytes: Option<u64>,
    /// Page size; `None` for the page size of the recording, or 2 MiB if it has none.
    pub page_bytes: Option<usize>,
}

/// The result of serving a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RerunReport {
    /// Number of events of the recording.
    pub events: u64,
    /// Number of blocks that were allocated after the start.
    pub addresses_total: u64,
    /// Number of blocks whose distance from the lowest address is as recorded.
    pub addresses_equal: u64,
    /// Number of times that the recorded source gave memory.
    pub segments_total: u64,
    /// Number of times that this source gave as much memory as the recorded one, call by call.
    pub segments_equal: u64,
    /// True if the distances of the live blocks at the end from the lowest address are as recorded.
    pub final_blocks_equal: bool,
    /// Peak of bytes in use: requests, each rounded up to 512.
    pub peak_active_bytes: u64,
    /// Peak of the bytes from the source, charges included.
    pub peak_reserved_bytes: u64,
    /// Number of source calls after the start.
    pub source_calls: u64,
    /// Number of waits of one stream for another that reuse made necessary.
    pub waits: u64,
    /// Number of blocks that were stitched from pages that lie apart.
    pub stitches: u64,
    /// Time for one request or free through the allocator's front; the median of several runs.
    pub ns_per_op: f64,
    /// The request that ended the run early for lack of memory.
    pub failure: Option<RerunFailure>,
}

/// A request that could not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RerunFailure {
    /// Index of the event; `None` if the blocks of the start did not fit.
    pub event: Option<u64>,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Bytes of capacity that were missing.
    pub missing_bytes: u64,
}

/// Reasons why a recording cannot be served again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RerunError {
    /// A number of the recording is too large for this machine.
    #[error("{value} bytes are more than this machine can address")]
    Number {
        /// Bytes in the recording.
        value: u64,
    },
    /// The recording needs more address space than a simulation has.
    #[error("the recording cannot be simulated")]
    Source(#[source] AllocError),
}

/// Requests and frees with numbered blocks, so that serving them needs no look-up.
struct RequestSequence {
    page_bytes: usize,
    /// Blocks before the first op, by address. Blocks without a number only keep a gap.
    start: Vec<(Option<usize>, usize, Stream, Category)>,
    start_charges: Vec<(Category, usize)>,
    ops: Vec<(u64, Op)>,
    block_count: usize,
    /// The first blocks are the blocks of the start.
    start_count: usize,
    /// Offset of each block in the recording, from its lowest address.
    offsets: Vec<u64>,
    segments: Vec<u64>,
}

#[derive(Clone, Copy)]
enum Op {
    Allocate { block: usize, size_bytes: usize, stream: Stream, category: Category },
    Free { block: usize },
    Charge(Category, usize),
    Discharge(Category, usize),
}

impl Recording {
    /// Serves every request of the recording on a simulated device, and compares the results.
    ///
    /// # Errors
    /// Sizes or addresses are too large for this machine. A lack of memory is no error, but a part
    /// of the report.
    pub fn rerun(&self, options: &RerunOptions) -> Result<RerunReport, RerunError> {
        let program = RequestSequence::compile(self, options)?;
        let (mut report, _) = program.run(options)?;
        report.events = self.events.len() as u64;
        let mut runs = Vec::new();
        for _ in 0..TIMED_RUNS {
            runs.push(program.run(options)?.1);
        }
        runs.sort_unstable();
        let op_count = program.ops.len().max(1) as f64;
        report.ns_per_op = runs[TIMED_RUNS / 2].as_nanos() as f64 / op_count;
        Ok(report)
    }

    /// Peak of the bytes that the requests of the recording reserve without a limit; `None` if they
    /// cannot be served.
    pub(super) fn peak_reserved_bytes_by(&self, policy: Policy) -> Option<u64> {
        let options = RerunOptions { policy, ..RerunOptions::default() };
        let (report, _) = RequestSequence::compile(self, &options).ok()?.run(&options).ok()?;
        report.failure.is_none().then_some(report.peak_reserved_bytes)
    }

    /// The least capacity, in whole pages and charges, within which every request is served. Found
    /// by bisection between the peak of bytes in use and the bytes reserved without a limit.
    ///
    /// # Errors
    /// As [`rerun`](Self::rerun).
    pub fn least_capacity_bytes(&self, policy: &Policy) -> Result<u64, RerunError> {
        let unlimited = RerunOptions { policy: policy.clone(), ..RerunOptions::default() };
        let program = RequestSequence::compile(self, &unlimited)?;
        let page_bytes = program.page_bytes as u64;
        let (report, _) = program.run(&unlimited)?;
        let mut enough = report.peak_reserved_bytes;
        // One page below the least possible capacity.
        let mut short = report.peak_active_bytes.saturating_sub(page_bytes);
        while enough - short > page_bytes {
            let steps = (enough - short) / page_bytes;
            let capacity_bytes = enough - steps.div_ceil(2) * page_bytes;
            let options =
                RerunOptions { capacity_bytes: Some(capacity_bytes), ..unlimited.clone() };
            if program.run(&options)?.0.failure.is_none() {
                enough = capacity_bytes;
            } else {
                short = capacity_bytes;
            }
        }
        Ok(enough)
    }
}

impl RequestSequence {
    fn compile(
        recording: &Recording,
        options: &RerunOptions,
    ) -> Result<RequestSequence, RerunError> {
        let recorded = bytes(recording.page_bytes).ok().filter(|bytes| bytes.is_power_of_two());
        let recorded = recorded.filter(|&bytes| bytes >= 512);
        let mut program = RequestSequence {
            page_bytes: options.page_bytes.or(recorded).unwrap_or(PAGE_BYTES),
            start: Vec::new(),
            start_charges: Vec::new(),
            ops: Vec::new(),
            block_count: 0,
            start_count: recording.start.len(),
            offsets: Vec::new(),
            segments: Vec::new(),
        };
        let mut streams = Streams::default();
        let mut blocks: HashMap<u64, usize> = HashMap::new();
        let base = base_address(recording);
        for block in &recording.start {
            program.number(&mut blocks, block.id, block.address.saturating_sub(base));
        }
        program.start_with(recording, base, &mut streams)?;
        for &(category, size_bytes) in &recording.start_charges {
            program.start_charges.push((category, bytes(size_bytes)?));
        }
        for (index, event) in recording.events.iter().enumerate() {
            let category = event.category.unwrap_or(Category::Other);
            let op = match event.kind {
                EventKind::Allocate { id } => {
                    let block = program.number(&mut blocks, id, event.address.saturating_sub(base));
                    let size_bytes = bytes(event.requested_bytes)?;
                    let stream = streams.dense(event.stream);
                    Op::Allocate { block, size_bytes, stream, category }
                }
                EventKind::Free { id } => match blocks.remove(&id) {
                    Some(block) => Op::Free { block },
                    None => continue,
                },
                EventKind::Charge => Op::Charge(category, bytes(event.size_bytes)?),
                EventKind::Discharge => Op::Discharge(category, bytes(event.size_bytes)?),
                EventKind::Reserve => {
                    program.segments.push(event.size_bytes);
                    continue;
                }
                EventKind::FreeRequested { .. }
                | EventKind::Release
                | EventKind::OutOfMemory { .. } => continue,
            };
            program.ops.push((index as u64, op));
        }
        Ok(program)
    }

    fn number(&mut self, blocks: &mut HashMap<u64, usize>, id: u64, offset: u64) -> usize {
        let number = self.block_count;
        self.block_count += 1;
        self.offsets.push(offset);
        blocks.insert(id, number);
        number
    }

    /// The blocks of the start. In a recording of this crate, the gaps between them decide where
    /// later blocks go. So gaps are kept, and stitched blocks come piece by piece. Recordings of
    /// other allocators placed their blocks by other rules, so their gaps are not kept.
    fn start_with(
        &mut self,
        recording: &Recording,
        base: u64,
        streams: &mut Streams,
    ) -> Result<(), RerunError> {
        let mut parts = Vec::new();
        for (number, block) in recording.start.iter().enumerate() {
            let category = block.category.unwrap_or(Category::Other);
            let owner = (Some(number), streams.dense(block.stream), category);
            match recording.pieces.get(&block.id) {
                Some(pieces) => {
                    let pieces = pieces.iter();
                    parts.extend(pieces.map(|p| (p.address, p.size_bytes, p.size_bytes, owner)));
                }
                None => {
                    let RecordedBlock { address, size_bytes, requested_bytes, .. } = *block;
                    parts.push((address, size_bytes, requested_bytes, owner));
                }
            }
        }
        parts.sort_unstable_by_key(|part| part.0);
        let mut end = base;
        for (address, size_bytes, requested_bytes, (number, stream, category)) in parts {
            if recording.policy == "pages" && address > end {
                let gap_bytes = bytes(address - end)?;
                self.start.push((None, gap_bytes, Stream::DEFAULT, Category::Other));
            }
            end = address.saturating_add(size_bytes);
            self.start.push((number, bytes(requested_bytes)?, stream, category));
        }
        Ok(())
    }

    fn run(&self, options: &RerunOptions) -> Result<(RerunReport, Duration), RerunError> {
        if let Policy::Torch(settings) = &options.policy
            && settings.expandable_segments
        {
            return Ok(self.run_expandable(settings, options.capacity_bytes));
        }
        let capacity_bytes = match options.capacity_bytes {
            Some(capacity_bytes) => bytes(capacity_bytes)?,
            None => isize::MAX as usize,
        };
        let source = SimSource::with_capacity(capacity_bytes)
            .page_bytes(self.page_bytes)
            .streams(&SimStreams::new());
        let memory = CachingAllocator::with_policy(source, options.policy.clone());
        let mut run = Run {
            memory: memory.map_err(RerunError::Source)?,
            buffers: (0..self.block_count).map(|_| None).collect(),
            pieces: HashMap::new(),
            offsets: vec![None; self.block_count],
            charges: BTreeMap::new(),
        };
        if let Err(failure) = run.start(self)? {
            let report = RerunReport { failure: Some(failure), ..RerunReport::default() };
            return Ok((report, Duration::ZERO));
        }
        let calls_before = run.memory.statistics().source_calls;
        let events_before = run.memory.event_count();
        let start = Instant::now();
        let mut failure = None;
        for &(event, op) in &self.ops {
            if let Err(error) = run.step(op) {
                failure = Some(failure_of(Some(event), op, error)?);
                break;
            }
        }
        let time = start.elapsed();
        Ok((self.report(&run, calls_before, events_before, failure), time))
    }

    fn report(
        &self,
        run: &Run,
        calls_before: u64,
        events_before: u64,
        failure: Option<RerunFailure>,
    ) -> RerunReport {
        let statistics = run.memory.statistics();
        let first = self.start_count;
        let placed = &run.offsets[first..];
        let as_recorded = |(offset, recorded): &(&Option<u64>, &u64)| **offset == Some(**recorded);
        let equal = placed.iter().zip(&self.offsets[first..]).filter(as_recorded).count();
        let given = run.memory.history();
        let given = given
            .records()
            .iter()
            .filter(|record| record.sequence >= events_before && record.action == Action::Commit);
        let sizes = given.map(|record| record.size_bytes as u64);
        let live = run.buffers.iter().enumerate().filter(|(_, buffer)| buffer.is_some());
        RerunReport {
            events: 0,
            addresses_total: placed.len() as u64,
            addresses_equal: equal as u64,
            segments_total: self.segments.len() as u64,
            segments_equal: self.segments.iter().zip(sizes).filter(|(a, b)| **a == *b).count()
                as u64,
            final_blocks_equal: failure.is_none()
                && live.clone().all(|(block, _)| run.offsets[block] == Some(self.offsets[block])),
            peak_active_bytes: statistics.allocated.peak_bytes as u64,
            peak_reserved_bytes: statistics.reserved.peak_bytes as u64,
            source_calls: statistics.source_calls - calls_before,
            waits: statistics.waits,
            stitches: statistics.stitches,
            ns_per_op: 0.0,
            failure,
        }
    }
}

/// The state of a run.
struct Run {
    memory: CachingAllocator,
    buffers: Vec<Option<Buffer>>,
    /// The blocks of the start, each in its recorded parts.
    pieces: HashMap<usize, Vec<Buffer>>,
    offsets: Vec<Option<u64>>,
    charges: BTreeMap<Category, Vec<Charge>>,
}

impl Run {
    fn start(&mut self, program: &RequestSequence) -> Result<Result<(), RerunFailure>, RerunError> {
        let mut gaps = Vec::new();
        for &(number, size_bytes, stream, category) in &program.start {
            match self.memory.allocate_on(stream, category, size_bytes) {
                Ok(buffer) => match number {
                    Some(number) => {
                        self.offsets[number] = Some(buffer.offset() as u64);
                        self.pieces.entry(number).or_default().push(buffer);
                    }
                    None => gaps.push(buffer),
                },
                Err(error) => {
                    let op = Op::Allocate { block: 0, size_bytes, stream, category };
                    return failure_of(None, op, error).map(Err);
                }
            }
        }
        if !gaps.is_empty() {
            drop(gaps);
            self.memory.trim();
        }
        for &(category, size_bytes) in &program.start_charges {
            if let Err(error) = self.step(Op::Charge(category, size_bytes)) {
                return failure_of(None, Op::Charge(category, size_bytes), error).map(Err);
            }
        }
        self.memory.reset_peaks();
        Ok(Ok(()))
    }

    fn step(&mut self, op: Op) -> Result<(), AllocError> {
        match op {
            Op::Allocate { block, size_bytes, stream, category } => {
                let buffer = self.memory.allocate_on(stream, category, size_bytes)?;
                self.offsets[block] = Some(buffer.offset() as u64);
                self.buffers[block] = Some(buffer);
            }
            Op::Free { block } => {
                if self.buffers[block].take().is_none() {
                    self.pieces.remove(&block);
                }
            }
            Op::Charge(category, size_bytes) => {
                let charge = self.memory.charge(category, size_bytes)?;
                self.charges.entry(category).or_default().push(charge);
            }
            Op::Discharge(category, size_bytes) => self.discharge(category, size_bytes)?,
        }
        Ok(())
    }

    /// Discharges bytes from any charges of the category, because a recording does not name the
    /// charge.
    fn discharge(&mut self, category: Category, size_bytes: usize) -> Result<(), AllocError> {
        let charges = self.charges.entry(category).or_default();
        let mut left_bytes = size_bytes;
        while left_bytes > 0 {
            let Some(charge) = charges.pop() else { break };
            let rest_bytes = charge.size_bytes().saturating_sub(left_bytes);
            left_bytes = left_bytes.saturating_sub(charge.size_bytes());
            drop(charge);
            if rest_bytes > 0 {
                charges.push(self.memory.charge(category, rest_bytes)?);
                break;
            }
        }
        Ok(())
    }
}

/// Streams by their number in the recording. If a recording has more streams than an allocator, the
/// extra ones share the last stream.
#[derive(Default)]
struct Streams(BTreeMap<StreamId, Stream>);

impl Streams {
    fn dense(&mut self, id: StreamId) -> Stream {
        let next = self.0.len().min(Stream::COUNT - 1);
        *self.0.entry(id).or_insert_with(|| Stream::new(next).unwrap_or(Stream::DEFAULT))
    }
}

fn base_address(recording: &Recording) -> u64 {
    let blocks = recording.start.iter().map(|block| block.address);
    let ends = recording.end.iter().map(|range| range.address);
    let events = recording.events.iter().filter_map(|event| match event.kind {
        EventKind::Allocate { .. } | EventKind::Reserve => Some(event.address),
        _ => None,
    });
    blocks.chain(ends).chain(events).min().unwrap_or(0)
}

fn bytes(value: u64) -> Result<usize, RerunError> {
    let is_sane = value <= isize::MAX as u64;
    usize::try_from(value).ok().filter(|_| is_sane).ok_or(RerunError::Number { value })
}

fn failure_of(event: Option<u64>, op: Op, error: AllocError) -> Result<RerunFailure, RerunError> {
    let requested_bytes = match op {
        Op::Allocate { size_bytes, .. } | Op::Charge(_, size_bytes) => size_bytes as u64,
        Op::Free { .. } | Op::Discharge(..) => 0,
    };
    match error {
        AllocError::OutOfMemory(ledger) => {
            let missing_bytes = ledger.missing_bytes as u64;
            Ok(RerunFailure { event, requested_bytes, missing_bytes })
        }
        error => Err(RerunError::Source(error)),
    }
}
