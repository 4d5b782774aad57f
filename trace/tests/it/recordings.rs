use std::collections::BTreeMap;

use lowtide_allocator::Category;
use lowtide_allocator::torch::{Pool, StreamId};
use lowtide_trace::{
    EventKind, Piece, RecordedBlock, RecordedRange, Recording, SegmentKind, Site, TraceEvent,
};
use proptest::prelude::*;

const GRAIN_BYTES: u64 = 512;
const PAGE_BYTES: u64 = 16 * GRAIN_BYTES;

/// One operation. Indices are taken modulo the number of objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Reserve {
        pages: u64,
        stream: u64,
    },
    /// A segment grows, if there is room behind it.
    Grow {
        index: usize,
        pages: u64,
    },
    /// Free memory at the end of a segment is released, up to `pages` pages.
    Shrink {
        index: usize,
        pages: u64,
    },
    Allocate {
        grains: u64,
        slack_bytes: u64,
        category: Option<Category>,
        site: Option<u32>,
    },
    /// A block that lies in several holes, at most one piece in each.
    Scatter {
        grains: u64,
        slack_bytes: u64,
    },
    RequestFree(usize),
    Free(usize),
    Charge(Option<Category>, u64),
    Discharge(Option<Category>, u64),
    Fail(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let category = || prop::option::of(super::common::category());
    let slack = 0..GRAIN_BYTES;
    let site = prop::option::of(0..SITES.len() as u32);
    prop_oneof![
        2 => (1..5_u64, 0..2_u64).prop_map(|(pages, stream)| Op::Reserve { pages, stream }),
        2 => (any::<usize>(), 1..3_u64).prop_map(|(index, pages)| Op::Grow { index, pages }),
        2 => (any::<usize>(), 1..6_u64).prop_map(|(index, pages)| Op::Shrink { index, pages }),
        6 => (1..20_u64, slack.clone(), category(), site).prop_map(
            |(grains, slack_bytes, category, site)| {
                Op::Allocate { grains, slack_bytes, category, site }
            }
        ),
        1 => (2..40_u64, slack).prop_map(|(grains, slack_bytes)| {
            Op::Scatter { grains, slack_bytes }
        }),
        1 => any::<usize>().prop_map(Op::RequestFree),
        5 => any::<usize>().prop_map(Op::Free),
        1 => (category(), 0..5000_u64).prop_map(|(category, bytes)| Op::Charge(category, bytes)),
        1 => (category(), 0..5000_u64).prop_map(|(category, bytes)| Op::Discharge(category, bytes)),
        1 => any::<u32>().prop_map(|bytes| Op::Fail(bytes.into())),
    ]
}

/// Recordings that hold their laws, with every kind of operation.
pub(crate) fn recording() -> impl Strategy<Value = Recording> {
    let ops = |len| prop::collection::vec(op(), 0..len);
    (ops(60), ops(120)).prop_map(|(before, during)| run(&before, &during))
}

/// The recording of `during`, after `before`.
pub(crate) fn run(before: &[Op], during: &[Op]) -> Recording {
    let mut world = World::default();
    before.iter().for_each(|&op| world.step(op));
    // Charges without a category have no place in the state at the start.
    world.charges.remove(&None);
    world.begin();
    during.iter().for_each(|&op| world.step(op));
    world.finish()
}

const SITES: [(&str, u32, &str); 4] = [
    ("src/model.rs", 12, "forward"),
    ("src/a \"quoted\"\nname.rs", 0, ""),
    ("src/größe.rs", 4_000_000_000, "λ"),
    ("", 1, "main"),
];

#[derive(Clone)]
struct Live {
    block: RecordedBlock,
    places: Vec<Piece>,
    is_pending: bool,
}

#[derive(Default)]
struct World {
    /// Segments: address to length in bytes and stream.
    segments: BTreeMap<u64, (u64, u64)>,
    live: Vec<Live>,
    charges: BTreeMap<Option<Category>, u64>,
    next_id: u64,
    next_address: u64,
    recording: Recording,
}

impl World {
    /// Holes of a segment, or of all segments.
    fn holes(&self, of: Option<u64>) -> Vec<Piece> {
        let mut taken: Vec<Piece> = self.live.iter().flat_map(|live| live.places.clone()).collect();
        taken.sort_by_key(|piece| piece.address);
        let mut holes = Vec::new();
        for (&address, &(size_bytes, _)) in &self.segments {
            if of.is_some_and(|of| of != address) {
                continue;
            }
            let end = address + size_bytes;
            let inside = taken.iter().filter(|piece| (address..end).contains(&piece.address));
            let mut at = address;
            for piece in inside {
                holes.push(Piece { address: at, size_bytes: piece.address - at });
                at = piece.address + piece.size_bytes;
            }
            holes.push(Piece { address: at, size_bytes: end - at });
        }
        holes.retain(|hole| hole.size_bytes > 0);
        holes
    }

    fn segment(&self, index: usize) -> Option<u64> {
        let count = self.segments.len().max(1);
        self.segments.keys().nth(index % count).copied()
    }

    fn push(&mut self, kind: EventKind, address: u64, size_bytes: u64, stream: u64) {
        let time_us = 1_700_000_000_000_000 + 7 * self.recording.events.len() as u64;
        self.recording.events.push(TraceEvent {
            time_us,
            kind,
            size_bytes,
            requested_bytes: size_bytes,
            address,
            stream: StreamId(stream),
            category: None,
            site: None,
        });
    }

    fn push_block(&mut self, kind: EventKind, block: &RecordedBlock) {
        self.push(kind, block.address, block.size_bytes, block.stream.0);
        let event = self.recording.events.last_mut().expect("the event");
        event.requested_bytes = block.requested_bytes;
        event.category = block.category;
        event.site = block.site;
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Reserve { pages, stream } => {
                // Some segments touch, others do not.
                let address = self.next_address + PAGE_BYTES * (1 + self.next_id % 3);
                let size_bytes = pages * PAGE_BYTES;
                self.next_address = address + size_bytes - PAGE_BYTES * (self.next_id % 2);
                self.segments.insert(address, (size_bytes, stream));
                self.push(EventKind::Reserve, address, size_bytes, stream);
            }
            Op::Grow { index, pages } => {
                let Some(address) = self.segment(index) else { return };
                let (size_bytes, stream) = self.segments[&address];
                let (end, grown_bytes) = (address + size_bytes, pages * PAGE_BYTES);
                let next = self.segments.range(address + 1..).next().map(|(&next, _)| next);
                if next.is_none_or(|next| end + grown_bytes <= next) {
                    self.next_address = self.next_address.max(end + grown_bytes);
                    self.segments.insert(address, (size_bytes + grown_bytes, stream));
                    self.push(EventKind::Reserve, end, grown_bytes, stream);
                }
            }
            Op::Shrink { index, pages } => {
                let Some(address) = self.segment(index) else { return };
                let (size_bytes, stream) = self.segments[&address];
                let end = address + size_bytes;
                let hole =
                    self.holes(Some(address)).pop().filter(|h| h.address + h.size_bytes == end);
                let free_pages = hole.map_or(0, |hole| hole.size_bytes / PAGE_BYTES);
                let gone_bytes = pages.min(free_pages) * PAGE_BYTES;
                if gone_bytes > 0 {
                    self.segments.insert(address, (size_bytes - gone_bytes, stream));
                    self.segments.retain(|_, (size_bytes, _)| *size_bytes > 0);
                    self.push(EventKind::Release, end - gone_bytes, gone_bytes, stream);
                }
            }
            Op::Allocate { grains, slack_bytes, category, site } => {
                let size_bytes = grains * GRAIN_BYTES;
                let holes = self.holes(None);
                let Some(hole) = holes.iter().find(|hole| hole.size_bytes >= size_bytes) else {
                    return;
                };
                let places = vec![Piece { address: hole.address, size_bytes }];
                self.allocate(places, slack_bytes, category, site);
            }
            Op::Scatter { grains, slack_bytes } => {
                let mut left_bytes = grains * GRAIN_BYTES;
                let mut places = self.holes(None);
                places.reverse();
                places.retain_mut(|place| {
                    place.size_bytes = place.size_bytes.min(left_bytes);
                    left_bytes -= place.size_bytes;
                    place.size_bytes > 0
                });
                if left_bytes == 0 && places.len() > 1 {
                    self.allocate(places, slack_bytes, Some(Category::Activation), None);
                }
            }
            Op::RequestFree(index) => {
                let count = self.live.len().max(1);
                let Some(live) = self.live.get_mut(index % count) else { return };
                if !std::mem::replace(&mut live.is_pending, true) {
                    let block = live.block.clone();
                    self.push_block(EventKind::FreeRequested { id: block.id }, &block);
                }
            }
            Op::Free(index) => {
                if !self.live.is_empty() {
                    let live = self.live.swap_remove(index % self.live.len());
                    self.push_block(EventKind::Free { id: live.block.id }, &live.block);
                }
            }
            Op::Charge(category, bytes) => {
                *self.charges.entry(category).or_default() += bytes;
                self.charge(EventKind::Charge, category, bytes);
            }
            Op::Discharge(category, bytes) => {
                let charged_bytes = self.charges.entry(category).or_default();
                let bytes = bytes.min(*charged_bytes);
                *charged_bytes -= bytes;
                self.charge(EventKind::Discharge, category, bytes);
            }
            Op::Fail(bytes) => {
                self.push(EventKind::OutOfMemory { free_bytes: bytes / 2 }, 0, bytes, 0);
            }
        }
    }

    fn charge(&mut self, kind: EventKind, category: Option<Category>, bytes: u64) {
        self.push(kind, 0, bytes, 0);
        self.recording.events.last_mut().expect("the event").category = category;
    }

    fn allocate(
        &mut self,
        places: Vec<Piece>,
        slack_bytes: u64,
        category: Option<Category>,
        site: Option<u32>,
    ) {
        let id = self.next_id;
        self.next_id += 1;
        let size_bytes = places.iter().map(|piece| piece.size_bytes).sum();
        let is_scattered = places.len() > 1;
        if is_scattered {
            self.recording.pieces.insert(id, places.clone());
        }
        let block = RecordedBlock {
            id,
            address: if is_scattered { (1 << 50) + (id << 30) } else { places[0].address },
            size_bytes,
            requested_bytes: size_bytes - slack_bytes,
            stream: StreamId(id % 2),
            category,
            site,
        };
        self.push_block(EventKind::Allocate { id }, &block);
        self.live.push(Live { block, places, is_pending: false });
    }

    /// Makes the present state the start of the recording.
    fn begin(&mut self) {
        let recording = &mut self.recording;
        recording.policy = "test".to_owned();
        recording.capacity_bytes = 1 << 40;
        recording.page_bytes = PAGE_BYTES;
        recording.lost_events = recording.events.len() as u64;
        recording.events.clear();
        recording.sites = SITES
            .map(|(file, line, function)| Site {
                file: file.to_owned(),
                line,
                function: function.to_owned(),
                ..Site::default()
            })
            .to_vec();
        recording.start = self.live.iter().map(|live| live.block.clone()).collect();
        recording.start.sort_by_key(|block| block.address);
        let pending = self.live.iter().filter(|live| live.is_pending);
        recording.start_pending = pending.map(|live| live.block.id).collect();
        let live: Vec<u64> = self.live.iter().map(|live| live.block.id).collect();
        recording.pieces.retain(|id, _| live.contains(id));
        for (&category, &bytes) in &self.charges {
            recording.start_charges.push((category.expect("somebody"), bytes));
        }
        let charged_bytes: u64 = self.charges.values().sum();
        let held_bytes: u64 = self.segments.values().map(|(size_bytes, _)| size_bytes).sum();
        recording.start_reserved_bytes = charged_bytes + held_bytes;
    }

    fn finish(mut self) -> Recording {
        for (&address, &(size_bytes, stream)) in &self.segments {
            let mut blocks = Vec::new();
            for live in &self.live {
                for place in &live.places {
                    if (address..address + size_bytes).contains(&place.address) {
                        let Piece { address, size_bytes } = *place;
                        blocks.push(RecordedBlock { address, size_bytes, ..live.block.clone() });
                    }
                }
            }
            blocks.sort_by_key(|block| block.address);
            let stream_id = StreamId(stream);
            self.recording.end.push(RecordedRange {
                address,
                size_bytes,
                stream: stream_id,
                blocks,
            });
            if stream == 1 {
                let kind = SegmentKind { pool: Pool::Small, pool_id: (0, 3), is_expandable: false };
                self.recording.segment_kinds.insert(address, kind);
            }
        }
        self.recording
    }
}
