//! A [`Recording`] from a memory snapshot of PyTorch.
//!
//! The events are undone from the last to the first, which gives the state at the beginning. Then
//! they are applied forwards, and every block gets an id. A trace has the size of each request, but
//! not of its block. The sizes of blocks at the end are known. Other sizes come from a replay, if
//! the replay agrees with the recording; if not, the request is rounded up. Markers (`snapshot`,
//! and notes of users) are left out. A free that completes at once is one event.

use std::collections::{BTreeMap, HashMap, HashSet};

use lowtide_allocator::torch::{BlockLayout, BlockState, SegmentLayout};

use super::replay::error::ReplayError;
use super::replay::start::InitialState;
use super::replay::{BlockSizes, Replay};
use super::snapshot::{Action, RecordedEvent, RecordedSegment, Snapshot};
use crate::recording::{
    EventKind, RecordedBlock, RecordedRange, Recording, SegmentKind, TraceEvent,
};

impl Recording {
    /// A recording of one device of `snapshot`. The budget is unknown. Expandable segments become
    /// reserved and released ranges.
    ///
    /// # Errors
    /// The device has no trace, or the events do not lead to the recorded end.
    pub fn from_snapshot(snapshot: &Snapshot, device: usize) -> Result<Recording, ReplayError> {
        let trace = snapshot.device_traces.get(device).ok_or(ReplayError::NoTrace { device })?;
        let segments: Vec<&RecordedSegment> =
            snapshot.segments.iter().filter(|segment| segment.device == device).collect();
        let start = InitialState::for_import(&segments, trace, &snapshot.settings)?;
        // A snapshot is imported even if PyTorch's rules could not have led to it.
        let replayed = Replay::new(snapshot, device).and_then(|mut replay| replay.block_sizes());
        let sizes = replayed.ok().flatten();
        let mut import = Import::new(snapshot, &segments);
        let BlockSizes { at_the_start, handed_out } = sizes.unwrap_or_default();
        let freed = trace.iter().filter(|event| event.action == Action::FreeCompleted);
        let freed: HashSet<u64> = freed.map(|event| event.address).collect();
        import.start(&start.held(), &at_the_start, &freed);
        import.events(trace, &handed_out)?;
        import.end(&segments)?;
        import.recording.check().map_err(|error| ReplayError::Inconsistent {
            event: error.index,
            address: 0,
            problem: "the blocks overlap, or are not as large as at the end",
        })?;
        Ok(import.recording)
    }
}

struct Import<'a> {
    snapshot: &'a Snapshot,
    recording: Recording,
    /// Live blocks by address.
    live: HashMap<u64, RecordedBlock>,
    /// Blocks at the end, with their sites.
    last: BTreeMap<u64, (&'a BlockLayout, Option<u32>)>,
    next_id: u64,
}

impl<'a> Import<'a> {
    fn new(snapshot: &'a Snapshot, segments: &[&'a RecordedSegment]) -> Self {
        let mut last = BTreeMap::new();
        for segment in segments {
            let sites = segment.block_sites.iter().copied().chain(std::iter::repeat(None));
            for (block, site) in segment.layout.blocks.iter().zip(sites) {
                if block.state != BlockState::Free {
                    last.insert(block.address, (block, site));
                }
            }
        }
        let recording = Recording {
            policy: "torch".to_owned(),
            sites: snapshot.sites.clone(),
            ..Recording::default()
        };
        Import { snapshot, recording, live: HashMap::new(), last, next_id: 0 }
    }

    /// Records the blocks of the start. For blocks that are freed later, `sizes` are more exact
    /// than the layout.
    fn start(
        &mut self,
        layout: &[SegmentLayout],
        sizes: &BTreeMap<u64, u64>,
        freed: &HashSet<u64>,
    ) {
        for segment in layout {
            self.recording.start_reserved_bytes += segment.size_bytes;
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Free) {
                let rounded_bytes = || self.round(block.requested_bytes).min(block.size_bytes);
                let size_bytes = match sizes.get(&block.address) {
                    Some(&size_bytes) => size_bytes,
                    None if freed.contains(&block.address) => rounded_bytes(),
                    None => block.size_bytes,
                };
                let id = self.id();
                let block_at_start = RecordedBlock {
                    id,
                    address: block.address,
                    size_bytes,
                    requested_bytes: block.requested_bytes,
                    stream: segment.stream,
                    category: None,
                    site: None,
                };
                if block.state == BlockState::Pending {
                    self.recording.start_pending.insert(id);
                }
                self.live.insert(block.address, block_at_start.clone());
                self.recording.start.push(block_at_start);
            }
        }
    }

    fn events(&mut self, trace: &[RecordedEvent], sizes: &[u64]) -> Result<(), ReplayError> {
        let lasts = last_allocations(trace);
        let mut sizes = sizes.iter().copied();
        let mut index = 0;
        while let Some(event) = trace.get(index) {
            let (at, next) = (index, trace.get(index + 1));
            let inconsistent = move |problem| ReplayError::Inconsistent {
                event: at as u64,
                address: event.address,
                problem,
            };
            match event.action {
                Action::Alloc => {
                    let is_last = lasts.get(&event.address) == Some(&index);
                    self.allocate(event, sizes.next(), is_last);
                }
                Action::FreeRequested => {
                    let completes = next.filter(|next| {
                        next.action == Action::FreeCompleted && next.address == event.address
                    });
                    match completes {
                        Some(&completed) => {
                            index += 1;
                            let site = completed.site.or(event.site);
                            self.free(&RecordedEvent { site, ..completed })
                        }
                        None => self.free(event),
                    }
                    .map_err(inconsistent)?;
                }
                Action::FreeCompleted => self.free(event).map_err(inconsistent)?,
                Action::SegmentAlloc | Action::SegmentMap => self.push(event, EventKind::Reserve),
                Action::SegmentFree | Action::SegmentUnmap => self.push(event, EventKind::Release),
                Action::Oom => {
                    let free_bytes = event.device_free_bytes;
                    self.push(event, EventKind::OutOfMemory { free_bytes });
                }
                Action::Snapshot | Action::UserDefined => {}
            }
            index += 1;
        }
        Ok(())
    }

    /// Records a block. If `is_last`, no later block lies at its address, and the block may be live
    /// at the end.
    fn allocate(&mut self, event: &RecordedEvent, size_bytes: Option<u64>, is_last: bool) {
        let at_the_end = self.last.get(&event.address).filter(|_| is_last);
        let size_bytes = match at_the_end {
            Some((block, _)) => block.size_bytes,
            None => size_bytes.unwrap_or_else(|| self.round(event.size_bytes)),
        };
        let id = self.id();
        let block = RecordedBlock {
            id,
            address: event.address,
            size_bytes,
            requested_bytes: event.size_bytes,
            stream: event.stream,
            category: event.category,
            site: event.site,
        };
        self.push_block(event, EventKind::Allocate { id }, &block);
        self.live.insert(event.address, block);
    }

    fn free(&mut self, event: &RecordedEvent) -> Result<(), &'static str> {
        let block = match event.action {
            Action::FreeCompleted => self.live.remove(&event.address),
            _ => self.live.get(&event.address).cloned(),
        };
        let block = block.ok_or("the block is not there before")?;
        let kind = match event.action {
            Action::FreeCompleted => EventKind::Free { id: block.id },
            _ => EventKind::FreeRequested { id: block.id },
        };
        self.push_block(event, kind, &block);
        Ok(())
    }

    fn end(&mut self, segments: &[&'a RecordedSegment]) -> Result<(), ReplayError> {
        for segment in segments {
            let mut range = RecordedRange {
                address: segment.layout.address,
                size_bytes: segment.layout.size_bytes,
                stream: segment.layout.stream,
                blocks: Vec::new(),
            };
            for block in &segment.layout.blocks {
                if block.state == BlockState::Free {
                    continue;
                }
                let BlockLayout { address, .. } = *block;
                let live = self.live.get(&address).ok_or(ReplayError::Impossible { address })?;
                let site = live.site.or(self.last[&address].1);
                range.blocks.push(RecordedBlock { site, ..live.clone() });
            }
            let kind = SegmentKind {
                pool: segment.layout.pool,
                pool_id: segment.pool_id,
                is_expandable: segment.is_expandable,
            };
            if kind != SegmentKind::default() {
                self.recording.segment_kinds.insert(range.address, kind);
            }
            self.recording.end.push(range);
        }
        self.sites_of_the_start();
        Ok(())
    }

    /// Gives the blocks of the start that are live at the end the sites that they have there.
    fn sites_of_the_start(&mut self) {
        let blocks = self.recording.end.iter().flat_map(|range| &range.blocks);
        let sites: HashMap<u64, Option<u32>> = blocks.map(|block| (block.id, block.site)).collect();
        for block in &mut self.recording.start {
            block.site = sites.get(&block.id).copied().flatten();
        }
    }

    fn push(&mut self, event: &RecordedEvent, kind: EventKind) {
        self.recording.events.push(TraceEvent {
            time_us: event.time_us,
            kind,
            size_bytes: event.size_bytes,
            requested_bytes: event.size_bytes,
            address: event.address,
            stream: event.stream,
            category: event.category,
            site: event.site,
        });
    }

    fn push_block(&mut self, event: &RecordedEvent, kind: EventKind, block: &RecordedBlock) {
        self.push(event, kind);
        if let Some(pushed) = self.recording.events.last_mut() {
            pushed.size_bytes = block.size_bytes;
            pushed.category = event.category.or(block.category);
        }
    }

    fn round(&self, requested_bytes: u64) -> u64 {
        self.snapshot.settings.round(requested_bytes.min(1 << 59))
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}

/// The index of the last `Alloc` at each address without a later free.
fn last_allocations(trace: &[RecordedEvent]) -> HashMap<u64, usize> {
    let mut lasts = HashMap::new();
    for (index, event) in trace.iter().enumerate() {
        match event.action {
            Action::Alloc => {
                lasts.insert(event.address, index);
            }
            Action::FreeCompleted => {
                lasts.remove(&event.address);
            }
            _ => {}
        }
    }
    lasts
}
