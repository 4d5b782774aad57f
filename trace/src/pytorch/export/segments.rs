//! Segments of a recording and their events, in PyTorch's words.
//!
//! A viewer goes backwards from the last state. A segment that was reserved in one piece and
//! released in one piece becomes `segment_alloc` and `segment_free`, which name the segment
//! exactly. Ranges that grow and shrink become `segment_map` and `segment_unmap`, which name a
//! part: a block in them can lie across two reservations. A trace has only one of the two kinds. If
//! a whole segment behind all others were released in a trace of parts, the viewer's list would get
//! out of order, and the viewer would find no parts.

use lowtide_allocator::torch::StreamId;

use super::ExportError;
use crate::recording::spans::Spans;
use crate::recording::{EventKind, Piece, RecordedBlock, Recording, SegmentKind, TraceEvent};

/// A segment of the snapshot.
#[derive(Debug)]
pub(super) struct SnapshotSegment<'a> {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) kind: SegmentKind,
    pub(super) blocks: Vec<&'a RecordedBlock>,
}

/// Ranges that touch, merged into one.
#[derive(Clone, Copy, Debug)]
struct Cluster {
    address: u64,
    end: u64,
    is_expandable: bool,
}

/// The segments at the end, and the ranges of the events.
#[derive(Debug)]
pub(super) struct Segments<'a> {
    clusters: Vec<Cluster>,
    /// True if the events name parts of segments.
    pub(super) has_parts: bool,
    pub(super) end: Vec<SnapshotSegment<'a>>,
}

impl<'a> Segments<'a> {
    pub(super) fn of(recording: &'a Recording) -> Result<Self, ExportError> {
        let clusters = clusters(recording);
        let mut segments = Segments { clusters, has_parts: false, end: Vec::new() };
        segments.find_expandable(recording)?;
        segments.has_parts = segments.clusters.iter().any(|cluster| cluster.is_expandable);
        segments.list_end(recording);
        if segments.has_parts {
            segments.rewind_parts(recording)?;
        }
        Ok(segments)
    }

    /// True if a range is a part of a segment that grows.
    fn is_part(&self, address: u64) -> bool {
        self.cluster(address).is_some_and(|index| self.clusters[index].is_expandable)
    }

    fn cluster(&self, address: u64) -> Option<usize> {
        self.clusters.partition_point(|cluster| cluster.address <= address).checked_sub(1)
    }

    fn mark(&mut self, address: u64) {
        if let Some(index) = self.cluster(address) {
            self.clusters[index].is_expandable = true;
        }
    }

    /// Marks the clusters whose events do not name whole segments.
    fn find_expandable(&mut self, recording: &Recording) -> Result<(), ExportError> {
        let mut held = Spans::default();
        for segment in &recording.end {
            let (address, end) = (segment.address, end(segment.address, segment.size_bytes));
            if !held.insert(address, end, ()) {
                return Err(ExportError::End { address });
            }
        }
        for (address, kind) in &recording.segment_kinds {
            if kind.is_expandable {
                self.mark(*address);
            }
        }
        for event in recording.events.iter().rev() {
            let (address, end) = (event.address, end(event.address, event.size_bytes));
            let is_whole = match event.kind {
                EventKind::Reserve => {
                    held.end_of(address) == Some(end) && held.cut(address, end).is_some()
                }
                EventKind::Release => held.insert(address, end, ()),
                EventKind::Free { id } => {
                    let whole = Piece { address: event.address, size_bytes: event.size_bytes };
                    match recording.pieces.get(&id) {
                        Some(pieces) => {
                            pieces.iter().for_each(|piece| self.mark_if_between(&held, piece));
                        }
                        None => self.mark_if_between(&held, &whole),
                    }
                    true
                }
                _ => true,
            };
            if !is_whole {
                self.mark(address);
            }
        }
        Ok(())
    }

    /// Marks the cluster of a block that lies in no single range, because its segment grew.
    fn mark_if_between(&mut self, held: &Spans<()>, block: &Piece) {
        let block_end = end(block.address, block.size_bytes);
        let is_inside = |(_, end, ()): (u64, u64, ())| block_end <= end;
        if !held.around(block.address).is_some_and(is_inside) {
            self.mark(block.address);
        }
    }

    /// Lists the segments at the end of the recording. Adjacent ranges of an expandable segment
    /// with the same stream become one segment.
    fn list_end(&mut self, recording: &'a Recording) {
        for range in &recording.end {
            let is_part = self.is_part(range.address);
            let mut kind = recording.segment_kinds.get(&range.address).copied().unwrap_or_default();
            kind.is_expandable |= is_part;
            let blocks = range.blocks.iter();
            match self.end.last_mut() {
                Some(last)
                    if is_part
                        && end(last.address, last.size_bytes) == range.address
                        && (last.stream, last.kind) == (range.stream, kind) =>
                {
                    last.size_bytes += range.size_bytes;
                    last.blocks.extend(blocks);
                }
                _ => self.end.push(SnapshotSegment {
                    address: range.address,
                    size_bytes: range.size_bytes,
                    stream: range.stream,
                    kind,
                    blocks: blocks.collect(),
                }),
            }
        }
    }

    /// Checks that a viewer can go backwards through the events.
    fn rewind_parts(&self, recording: &Recording) -> Result<(), ExportError> {
        let mut held = Spans::default();
        for segment in &self.end {
            let end = end(segment.address, segment.size_bytes);
            if !held.insert(segment.address, end, segment.stream) {
                return Err(ExportError::End { address: segment.address });
            }
        }
        let is_range =
            |event: &TraceEvent| matches!(event.kind, EventKind::Reserve | EventKind::Release);
        let events = recording.events.iter().enumerate().rev();
        for (index, event) in events.filter(|(_, event)| is_range(event)) {
            let (address, end) = (event.address, end(event.address, event.size_bytes));
            let is_possible = if event.kind == EventKind::Reserve {
                held.cut(address, end).is_some()
            } else {
                let is_free = held.insert(address, end, event.stream);
                held.merge_around(address);
                is_free
            };
            if !is_possible {
                return Err(ExportError::Segment { event: index as u64, address });
            }
        }
        Ok(())
    }
}

fn end(address: u64, size_bytes: u64) -> u64 {
    address.saturating_add(size_bytes)
}

fn clusters(recording: &Recording) -> Vec<Cluster> {
    let segments = recording.end.iter().map(|range| (range.address, range.size_bytes));
    let events = recording.events.iter().filter_map(|event| match event.kind {
        EventKind::Reserve | EventKind::Release => Some((event.address, event.size_bytes)),
        _ => None,
    });
    let mut ranges: Vec<(u64, u64)> = segments.chain(events).collect();
    ranges.sort_unstable();
    let mut clusters: Vec<Cluster> = Vec::new();
    for (address, size_bytes) in ranges {
        let range_end = end(address, size_bytes);
        match clusters.last_mut() {
            Some(last) if address <= last.end => last.end = last.end.max(range_end),
            _ => clusters.push(Cluster { address, end: range_end, is_expandable: false }),
        }
    }
    clusters
}
