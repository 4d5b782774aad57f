//! The lines of the format for serde: an object with one key, the kind of the line.

use std::borrow::Cow;

use lowtide_allocator::Category;
use lowtide_allocator::torch::{Pool, StreamId};
use serde::{Deserialize, Serialize};

use super::{FORMAT, VERSION};
use crate::recording::{
    EventKind, Piece, RecordedBlock, RecordedRange, Recording, SegmentKind, Site, TraceEvent,
};

/// The part of the first line that every version has.
#[derive(Deserialize)]
pub(super) struct Magic<'a> {
    #[serde(borrow)]
    pub(super) format: Cow<'a, str>,
    pub(super) version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header<'a> {
    #[serde(borrow)]
    format: Cow<'a, str>,
    version: u32,
    #[serde(borrow)]
    pub(super) policy: Cow<'a, str>,
    pub(super) capacity_bytes: u64,
    pub(super) page_bytes: u64,
    pub(super) lost_events: u64,
    pub(super) start_reserved_bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Line<'a> {
    Site {
        #[serde(borrow)]
        file: Cow<'a, str>,
        line: u32,
        #[serde(borrow)]
        function: Cow<'a, str>,
        #[serde(borrow, default, skip_serializing_if = "is_empty")]
        module: Cow<'a, str>,
    },
    Piece {
        id: u64,
        address: u64,
        size_bytes: u64,
    },
    #[serde(borrow)]
    Start(Block<'a>),
    ChargeAtStart {
        #[serde(borrow)]
        category: Cow<'a, str>,
        size_bytes: u64,
    },
    #[serde(borrow)]
    Allocate(Event<'a>),
    #[serde(borrow)]
    FreeRequested(Event<'a>),
    #[serde(borrow)]
    Free(Event<'a>),
    #[serde(borrow)]
    Reserve(Event<'a>),
    #[serde(borrow)]
    Release(Event<'a>),
    #[serde(borrow)]
    Charge(Event<'a>),
    #[serde(borrow)]
    Discharge(Event<'a>),
    #[serde(borrow)]
    OutOfMemory(Event<'a>),
    #[serde(borrow)]
    Segment(Range<'a>),
    #[serde(borrow)]
    Live(Block<'a>),
    End(Counts),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Block<'a> {
    id: u64,
    address: u64,
    size_bytes: u64,
    requested_bytes: u64,
    stream: u64,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) category: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<u32>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) pending: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Event<'a> {
    time_us: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<u64>,
    address: u64,
    size_bytes: u64,
    requested_bytes: u64,
    stream: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) free_bytes: Option<u64>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) category: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Range<'a> {
    address: u64,
    size_bytes: u64,
    stream: u64,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<RangeKind<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RangeKind<'a> {
    #[serde(borrow)]
    pub(super) pool: Cow<'a, str>,
    pub(super) pool_id: (i64, i64),
    pub(super) is_expandable: bool,
}

/// Number of lines of each kind before the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    pub(super) sites: u64,
    pub(super) pieces: u64,
    pub(super) start: u64,
    pub(super) charges: u64,
    pub(super) events: u64,
    pub(super) segments: u64,
    pub(super) live: u64,
}

impl<'a> Header<'a> {
    pub(super) fn of(recording: &'a Recording) -> Self {
        Header {
            format: FORMAT.into(),
            version: VERSION,
            policy: recording.policy.as_str().into(),
            capacity_bytes: recording.capacity_bytes,
            page_bytes: recording.page_bytes,
            lost_events: recording.lost_events,
            start_reserved_bytes: recording.start_reserved_bytes,
        }
    }
}

impl<'a> Line<'a> {
    pub(super) fn of_site(site: &'a Site) -> Self {
        let Site { file, line, function, module } = site;
        let (file, function, module) = (file.into(), function.into(), module.into());
        Line::Site { file, line: *line, function, module }
    }

    pub(super) fn of_piece(id: u64, piece: &Piece) -> Self {
        Line::Piece { id, address: piece.address, size_bytes: piece.size_bytes }
    }

    pub(super) fn of_event(event: &TraceEvent) -> Self {
        let wire = Event {
            time_us: event.time_us,
            id: None,
            address: event.address,
            size_bytes: event.size_bytes,
            requested_bytes: event.requested_bytes,
            stream: event.stream.0,
            free_bytes: None,
            category: event.category.map(|category| category.name().into()),
            site: event.site,
        };
        match event.kind {
            EventKind::Allocate { id } => Line::Allocate(Event { id: Some(id), ..wire }),
            EventKind::FreeRequested { id } => Line::FreeRequested(Event { id: Some(id), ..wire }),
            EventKind::Free { id } => Line::Free(Event { id: Some(id), ..wire }),
            EventKind::Reserve => Line::Reserve(wire),
            EventKind::Release => Line::Release(wire),
            EventKind::Charge => Line::Charge(wire),
            EventKind::Discharge => Line::Discharge(wire),
            EventKind::OutOfMemory { free_bytes } => {
                Line::OutOfMemory(Event { free_bytes: Some(free_bytes), ..wire })
            }
        }
    }
}

impl Event<'_> {
    pub(super) fn to_event(&self, kind: EventKind, category: Option<Category>) -> TraceEvent {
        TraceEvent {
            time_us: self.time_us,
            kind,
            size_bytes: self.size_bytes,
            requested_bytes: self.requested_bytes,
            address: self.address,
            stream: StreamId(self.stream),
            category,
            site: self.site,
        }
    }
}

impl Block<'_> {
    pub(super) fn of(block: &RecordedBlock) -> Self {
        Block {
            id: block.id,
            address: block.address,
            size_bytes: block.size_bytes,
            requested_bytes: block.requested_bytes,
            stream: block.stream.0,
            category: block.category.map(|category| category.name().into()),
            site: block.site,
            pending: false,
        }
    }

    pub(super) fn to_block(&self, category: Option<Category>) -> RecordedBlock {
        RecordedBlock {
            id: self.id,
            address: self.address,
            size_bytes: self.size_bytes,
            requested_bytes: self.requested_bytes,
            stream: StreamId(self.stream),
            category,
            site: self.site,
        }
    }
}

impl Range<'_> {
    pub(super) fn of(range: &RecordedRange, kind: Option<SegmentKind>) -> Self {
        let RecordedRange { address, size_bytes, stream, .. } = *range;
        let kind = kind.map(|SegmentKind { pool, pool_id, is_expandable }| RangeKind {
            pool: pool_name(pool).into(),
            pool_id,
            is_expandable,
        });
        Range { address, size_bytes, stream: stream.0, kind }
    }

    pub(super) fn to_range(&self) -> RecordedRange {
        let Range { address, size_bytes, stream, .. } = *self;
        RecordedRange { address, size_bytes, stream: StreamId(stream), blocks: Vec::new() }
    }
}

impl Counts {
    pub(super) fn of(recording: &Recording) -> Self {
        let count = |len: usize| len as u64;
        Counts {
            sites: count(recording.sites.len()),
            pieces: count(recording.pieces.values().map(Vec::len).sum()),
            start: count(recording.start.len()),
            charges: count(recording.start_charges.len()),
            events: count(recording.events.len()),
            segments: count(recording.end.len()),
            live: count(recording.end.iter().map(|range| range.blocks.len()).sum()),
        }
    }
}

pub(super) fn pool_name(pool: Pool) -> &'static str {
    match pool {
        Pool::Small => "small",
        Pool::Large => "large",
    }
}

fn is_empty(text: &str) -> bool {
    text.is_empty()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}
