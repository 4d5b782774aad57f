//! Private pools of graph captures, as streams of their own.

use std::collections::BTreeMap;

use lowtide_allocator::torch::{SegmentLayout, StreamId};

use crate::pytorch::snapshot::{RecordedEvent, RecordedSegment};

/// Stream numbers for private pools. A private pool shares memory with no other pool.
#[derive(Default)]
pub(crate) struct PoolStreams {
    ids: BTreeMap<((i64, i64), StreamId), StreamId>,
    /// Private segments: address → end and stream.
    private: BTreeMap<u64, (u64, StreamId)>,
}

impl PoolStreams {
    pub(crate) fn layout_of(&mut self, segment: &RecordedSegment) -> SegmentLayout {
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

    pub(crate) fn of(&self, event: &RecordedEvent) -> StreamId {
        let private = self.private.range(..=event.address).next_back();
        let inside = private.filter(|(_, (end, _))| event.address < *end);
        inside.map_or(event.stream, |(_, (_, stream))| *stream)
    }
}
