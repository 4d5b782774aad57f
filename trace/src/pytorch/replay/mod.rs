//! Runs a recorded trace through PyTorch's rules, and compares the results.

pub(crate) mod error;
pub(crate) mod offers;
pub(crate) mod pass;
pub(crate) mod pools;
pub(crate) mod ranges;
pub(crate) mod report;
pub(crate) mod start;

use std::collections::BTreeMap;

use lowtide_allocator::torch::{SegmentLayout, TorchPolicy, TorchSettings};

use self::error::ReplayError;
use self::offers::Offers;
use self::pass::Pass;
use self::pools::PoolStreams;
use self::report::ReplayReport;
use self::start::InitialState;
use super::snapshot::{Action, RecordedEvent, Snapshot};

/// Largest number of restarts with another guess of a block's size.
const GUESSES_MAX: usize = 64;

/// A trace of one device, from its reconstructed start to its recorded end.
#[derive(Debug)]
pub struct Replay {
    settings: TorchSettings,
    events: Vec<RecordedEvent>,
    end: Vec<SegmentLayout>,
    start: InitialState,
}

impl Replay {
    /// The device with the longest trace; the first one on ties.
    pub fn busiest_device(snapshot: &Snapshot) -> usize {
        let traces = snapshot.device_traces.iter().enumerate();
        traces.rev().max_by_key(|(_, trace)| trace.len()).map_or(0, |(device, _)| device)
    }

    /// Reconstructs the state before the first event of `device`.
    ///
    /// # Errors
    /// The events do not lead to the recorded end, or their pages are impossible.
    pub fn new(snapshot: &Snapshot, device: usize) -> Result<Replay, ReplayError> {
        let trace = snapshot.device_traces.get(device).ok_or(ReplayError::NoTrace { device })?;
        let segments = snapshot.segments.iter().filter(|segment| segment.device == device);
        let mut pools = PoolStreams::default();
        let (mut end, mut expandable) = (Vec::new(), Vec::new());
        for segment in segments {
            end.push(pools.layout_of(segment));
            expandable.push(segment.is_expandable);
        }
        let events: Vec<RecordedEvent> =
            trace.iter().map(|event| RecordedEvent { stream: pools.of(event), ..*event }).collect();
        // There is no limit: the recorded source has applied it already. Old snapshots lack the
        // setting of expandable segments, but their events show it.
        let maps = events.iter().any(|event| event.action == Action::SegmentMap);
        let settings = TorchSettings {
            limit_bytes: None,
            expandable_segments: snapshot.settings.expandable_segments || maps,
            ..snapshot.settings.clone()
        };
        let start = InitialState::for_replay(&end, &expandable, &events, &settings)?;
        Ok(Replay { settings, events, end, start })
    }

    /// Runs every event, and compares the results with the recording.
    ///
    /// # Errors
    /// The reconstructed start has blocks that overlap.
    pub fn run(&mut self) -> Result<ReplayReport, ReplayError> {
        Ok(self.settle()?.report)
    }

    /// The size of every block; `None` if the policy differs from the recording.
    pub(super) fn block_sizes(&mut self) -> Result<Option<BlockSizes>, ReplayError> {
        let pass = self.settle()?;
        if !pass.report.is_exact() {
            return Ok(None);
        }
        let layouts = self.start.held();
        let blocks = layouts.iter().flat_map(|layout| &layout.blocks);
        let at_the_start = blocks.map(|block| (block.address, block.size_bytes)).collect();
        Ok(Some(BlockSizes { at_the_start, handed_out: pass.sizes }))
    }

    /// Runs to the end, restarting with other guesses as needed.
    fn settle(&mut self) -> Result<Pass, ReplayError> {
        let mut guesses = 0;
        let mut pass = loop {
            let (policy, offers) = self.restored()?;
            let mut pass = Pass::new(policy, offers, self.start.active_bytes());
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
        let whole = counters.reserve_calls + counters.release_calls;
        pass.report.source_calls = whole + counters.map_calls + counters.unmap_calls;
        Ok(pass)
    }

    fn restored(&self) -> Result<(TorchPolicy, Offers), ReplayError> {
        let segments = self.start.segments();
        let mut policy = TorchPolicy::restore(self.settings.clone(), &segments)?;
        let ranges = self.start.ranges();
        ranges.iter().try_for_each(|range| policy.restore_range(range))?;
        let segments = segments.iter().map(|segment| (segment.address, segment.size_bytes));
        let ranges = ranges.iter().map(|layout| (layout.range.address, layout.range.size_bytes));
        Ok((policy, Offers::new(segments.chain(ranges).collect(), self.start.eras_to_come())))
    }
}

/// Sizes of blocks that a trace does not contain.
#[derive(Debug, Default)]
pub(super) struct BlockSizes {
    /// Sizes of blocks at the start, by address.
    pub(super) at_the_start: BTreeMap<u64, u64>,
    /// Sizes of the blocks of `Alloc` events, in order.
    pub(super) handed_out: Vec<u64>,
}

/// Corrects a guess after the policy took another block than the recording. The cause may be a free
/// block that was assumed too large, because the block before it is larger than guessed. Returns
/// false if no larger guess is possible.
fn refute(start: &mut InitialState, pass: &Pass, event: &RecordedEvent) -> bool {
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
