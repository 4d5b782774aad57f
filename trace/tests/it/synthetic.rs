use std::collections::BTreeMap;

use lowtide_allocator::Category;
use lowtide_allocator::torch::StreamId;
use lowtide_trace::{EventKind, RecordedBlock, RecordedRange, Recording, Site, TraceEvent};
use proptest::prelude::*;

pub(crate) const MIB: u64 = 1 << 20;

/// One event of each kind.
pub(crate) const EVERY_KIND: [EventKind; 8] = [
    EventKind::Allocate { id: 1 },
    EventKind::FreeRequested { id: 1 },
    EventKind::Free { id: 1 },
    EventKind::Reserve,
    EventKind::Release,
    EventKind::Charge,
    EventKind::Discharge,
    EventKind::OutOfMemory { free_bytes: 9 },
];

/// Makes a recording from operations: first fit, in segments of 64 MiB.
pub(crate) struct Recorder {
    pub(crate) recording: Recording,
    now_us: u64,
    next_id: u64,
    live: BTreeMap<u64, RecordedBlock>,
    holes: BTreeMap<u64, u64>,
    end: u64,
}

pub(crate) const BASE: u64 = 0x7f00_0000_0000;
const SEGMENT_BYTES: u64 = 64 * MIB;

impl Recorder {
    pub(crate) fn new(capacity_bytes: u64, sites: &[(&str, u32, &str)]) -> Recorder {
        let site = |&(file, line, function): &(&str, u32, &str)| Site {
            file: file.into(),
            line,
            function: function.into(),
            ..Site::default()
        };
        let recording = Recording {
            policy: "pages".into(),
            capacity_bytes,
            page_bytes: 2 * MIB,
            sites: sites.iter().map(site).collect(),
            ..Recording::default()
        };
        let (live, holes) = (BTreeMap::new(), BTreeMap::new());
        Recorder { recording, now_us: 1_700_000_000_000_000, next_id: 0, live, holes, end: BASE }
    }

    pub(crate) fn event(&mut self, kind: EventKind, category: Category, size_bytes: u64) {
        self.now_us += 7 + size_bytes % 13;
        self.recording.events.push(TraceEvent {
            time_us: self.now_us,
            kind,
            size_bytes,
            requested_bytes: size_bytes,
            address: 0,
            stream: StreamId(0),
            category: Some(category),
            site: None,
        });
    }

    /// Makes the present state the beginning of the recording.
    pub(crate) fn begin(&mut self) {
        self.recording.events.clear();
        self.recording.start = self.live.values().cloned().collect();
        self.recording.start.sort_by_key(|block| block.address);
        self.recording.start_reserved_bytes = self.end - BASE;
    }

    pub(crate) fn allocate(&mut self, category: Category, site: u32, requested_bytes: u64) -> u64 {
        let size_bytes = requested_bytes.next_multiple_of(512);
        let address = loop {
            let fit = self.holes.iter().find(|&(_, &hole_bytes)| hole_bytes >= size_bytes);
            if let Some((&address, &hole_bytes)) = fit {
                self.holes.remove(&address);
                if hole_bytes > size_bytes {
                    self.holes.insert(address + size_bytes, hole_bytes - size_bytes);
                }
                break address;
            }
            let grown_bytes = SEGMENT_BYTES.max(size_bytes.next_multiple_of(2 * MIB));
            self.event(EventKind::Reserve, category, grown_bytes);
            self.recording.events.last_mut().unwrap().address = self.end;
            self.put_back(self.end, grown_bytes);
            self.end += grown_bytes;
        };
        let id = self.next_id;
        self.next_id += 1;
        self.event(EventKind::Allocate { id }, category, size_bytes);
        let event = self.recording.events.last_mut().unwrap();
        (event.address, event.requested_bytes, event.site) = (address, requested_bytes, Some(site));
        let block = RecordedBlock {
            id,
            address,
            size_bytes,
            requested_bytes,
            stream: StreamId(0),
            category: Some(category),
            site: Some(site),
        };
        self.live.insert(id, block);
        id
    }

    fn put_back(&mut self, mut address: u64, mut size_bytes: u64) {
        if let Some((&at, &hole_bytes)) = self.holes.range(..address).next_back()
            && at + hole_bytes == address
        {
            (address, size_bytes) = (at, hole_bytes + size_bytes);
        }
        if let Some(next_bytes) = self.holes.remove(&(address + size_bytes)) {
            size_bytes += next_bytes;
        }
        self.holes.insert(address, size_bytes);
    }

    pub(crate) fn request_free(&mut self, id: u64) {
        let block = self.live[&id].clone();
        self.event(EventKind::FreeRequested { id }, block.category.unwrap(), block.size_bytes);
        self.recording.events.last_mut().unwrap().address = block.address;
    }

    pub(crate) fn free(&mut self, id: u64) {
        let block = self.live.remove(&id).expect("a live block");
        self.event(EventKind::Free { id }, block.category.unwrap(), block.size_bytes);
        let event = self.recording.events.last_mut().unwrap();
        (event.address, event.site) = (block.address, block.site);
        self.put_back(block.address, block.size_bytes);
    }

    pub(crate) fn finish(mut self) -> Recording {
        let mut blocks: Vec<RecordedBlock> = self.live.into_values().collect();
        blocks.sort_by_key(|block| block.address);
        let size_bytes = self.end - BASE;
        let range = RecordedRange { address: BASE, size_bytes, stream: StreamId(0), blocks };
        self.recording.end = vec![range];
        self.recording
    }
}

const SITES: [(&str, u32, &str); 10] = [
    ("src/model/embedding.rs", 41, "Embedding::new"),
    ("src/model/attention.rs", 118, "Attention::forward"),
    ("src/model/attention.rs", 131, "softmax"),
    ("src/model/mlp.rs", 57, "Mlp::forward"),
    ("src/autograd/tape.rs", 203, "Tape::backward"),
    ("src/optim/adamw.rs", 88, "AdamW::prepare"),
    ("src/tensor/ops/matmul/mod.rs", 140, "matmul"),
    ("src/data/loader.rs", 71, "Loader::next"),
    ("src/train/metrics.rs", 19, "Metrics::push"),
    ("src/train/loss.rs", 33, "cross_entropy"),
];

/// A recording of training steps with `event_count` events: a saw tooth of activations, an
/// allocation that grows a little in each step, and one request that is too large.
pub(crate) fn training(event_count: usize) -> Recording {
    use Category::{Activation, Gradient, Input, OptimizerState, Other, Parameter, Workspace};
    const LAYERS: u64 = 12;
    let layer_bytes = |layer: u64| 14 * MIB + layer % 3 * 700_000 + 123;
    let mut recorder = Recorder::new(3 << 30, &SITES);
    for layer in 0..LAYERS {
        recorder.allocate(Parameter, (layer % 4) as u32, layer_bytes(layer));
    }
    recorder.begin();
    let mut has_state = false;
    let mut has_failed = false;
    while recorder.recording.events.len() < event_count {
        let step = recorder.now_us;
        let input = recorder.allocate(Input, 7, 8 * MIB);
        recorder.event(EventKind::Charge, Workspace, 9 * MIB);
        let mut saved = Vec::new();
        for layer in 0..LAYERS {
            let jitter = step.wrapping_mul(layer + 1) % 9 * 100_001;
            saved.push(recorder.allocate(Activation, 1, 22 * MIB + jitter));
            let scratch = recorder.allocate(Workspace, 6, 17 * MIB + jitter);
            for part in 0..4 {
                saved.push(recorder.allocate(Activation, 2 + part % 2, 3 * MIB + jitter / 2));
                let small = recorder.allocate(Workspace, 6, 300_000 * u64::from(part + 1));
                recorder.free(small);
            }
            recorder.free(scratch);
        }
        if !has_failed && recorder.recording.events.len() > event_count * 4 / 5 {
            has_failed = true;
            let free_bytes = (3 << 30) - (recorder.end - BASE) - 9 * MIB;
            recorder.event(EventKind::OutOfMemory { free_bytes }, Activation, 2 << 30);
            recorder.recording.events.last_mut().unwrap().site = Some(9);
        }
        recorder.request_free(input);
        let mut grads = Vec::new();
        while let Some(id) = saved.pop() {
            recorder.free(id);
            if saved.len() % 5 == 2 {
                grads.push(recorder.allocate(Gradient, 4, layer_bytes(grads.len() as u64)));
            }
        }
        recorder.free(input);
        if !has_state {
            has_state = true;
            for layer in 0..LAYERS {
                recorder.allocate(OptimizerState, 5, 2 * layer_bytes(layer));
            }
        }
        recorder.event(EventKind::Discharge, Workspace, 9 * MIB);
        for id in grads {
            recorder.free(id);
        }
        recorder.allocate(Other, 8, 96 << 10);
    }
    recorder.finish()
}

pub(crate) fn maybe_category() -> impl Strategy<Value = Option<Category>> {
    prop::option::of(crate::common::category())
}

/// Recordings with blocks that are allocated and freed in any order. Some events contradict others.
pub(crate) fn recording() -> impl Strategy<Value = Recording> {
    let step = (0..12_u8, 0..40_u64, 1..50_000_u64, 0..600_u64, maybe_category(), 0..6_u32);
    let steps = prop::collection::vec(step, 0..120);
    let pending = prop::collection::btree_set(0..20_u64, 0..4);
    (steps, 0..12_u64, pending, any::<bool>()).prop_map(
        |(steps, start_len, pending, has_charges)| {
            let mut recording = Recording {
                policy: "torch".into(),
                capacity_bytes: 1 << 20,
                lost_events: start_len,
                start_reserved_bytes: start_len << 16,
                start_pending: pending,
                ..Recording::default()
            };
            for line in 0..5 {
                let (file, function) = (format!("file {line}"), String::new());
                recording.sites.push(Site { file, line, function, ..Site::default() });
            }
            if has_charges {
                recording.start_charges = vec![(Category::Workspace, 3000), (Category::Input, 10)];
            }
            for id in 0..start_len {
                recording.start.push(RecordedBlock {
                    id,
                    address: id << 20,
                    size_bytes: 512 * (id + 1),
                    requested_bytes: 512 * (id + 1) - id,
                    stream: StreamId(id % 3),
                    category: Category::ALL.get(id as usize).copied(),
                    site: Some(id as u32),
                });
            }
            for (index, (what, id, size_bytes, less_bytes, category, site)) in
                steps.into_iter().enumerate()
            {
                let kind = match what {
                    0..=3 => {
                        EventKind::Allocate { id: if what == 0 { id } else { 100 + index as u64 } }
                    }
                    4 | 5 => EventKind::Free { id: 100 + id },
                    6 => EventKind::Free { id },
                    7 => EventKind::FreeRequested { id: if id < 20 { id } else { 80 + id } },
                    8 => EventKind::Reserve,
                    9 => EventKind::Release,
                    10 if site < 3 => EventKind::Charge,
                    10 => EventKind::Discharge,
                    _ => EventKind::OutOfMemory { free_bytes: less_bytes },
                };
                recording.events.push(TraceEvent {
                    time_us: 1_000_000 + index as u64 * less_bytes,
                    kind,
                    size_bytes,
                    requested_bytes: size_bytes.saturating_sub(less_bytes),
                    address: (1 << 40) + ((index as u64) << 20),
                    stream: StreamId(u64::from(site)),
                    category,
                    site: (site < 5).then_some(site),
                });
            }
            recording
        },
    )
}

/// A block's life, found by a search for its last event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lived {
    pub(crate) block: RecordedBlock,
    pub(crate) from: usize,
    pub(crate) waits_from: Option<usize>,
    pub(crate) to: Option<usize>,
}

impl Lived {
    pub(crate) fn is_live_at(&self, moment: usize) -> bool {
        self.from <= moment && self.to.is_none_or(|to| moment < to)
    }
}

/// A slow computation of the crate's lives of blocks.
pub(crate) fn lives(recording: &Recording) -> Vec<Lived> {
    let mut blocks: Vec<(usize, RecordedBlock)> =
        recording.start.iter().map(|block| (0, block.clone())).collect();
    for (index, event) in recording.events.iter().enumerate() {
        if let EventKind::Allocate { id } = event.kind {
            let TraceEvent { address, size_bytes, requested_bytes, stream, category, site, .. } =
                *event;
            let block =
                RecordedBlock { id, address, size_bytes, requested_bytes, stream, category, site };
            blocks.push((index + 1, block));
        }
    }
    let live = |(from, block): (usize, RecordedBlock)| {
        let find = |is_it: &dyn Fn(EventKind) -> bool| {
            let later = recording.events.iter().skip(from).position(|event| is_it(event.kind))?;
            Some(from + later + 1)
        };
        let id = block.id;
        let to = find(&|kind| kind == EventKind::Free { id } || kind == EventKind::Allocate { id });
        let is_pending = from == 0 && recording.start_pending.contains(&id);
        let waits_from = find(&|kind| kind == EventKind::FreeRequested { id });
        let waits_from = if is_pending { Some(0) } else { waits_from };
        let waits_from = waits_from.filter(|&waits| to.is_none_or(|to| waits < to));
        let site = block.site.filter(|&site| (site as usize) < recording.sites.len());
        Lived { block: RecordedBlock { site, ..block }, from, waits_from, to }
    };
    blocks.into_iter().map(live).collect()
}

/// Charged bytes by category, the unknown category last, counted from the start of the recording.
pub(crate) fn charges_at(recording: &Recording, moment: usize) -> [u64; 8] {
    let mut charges = [0_u64; 8];
    let band = |category: Option<Category>| category.map_or(7, |category| category as usize);
    for &(category, bytes) in &recording.start_charges {
        charges[band(Some(category))] += bytes;
    }
    for event in &recording.events[..moment] {
        let level = &mut charges[band(event.category)];
        match event.kind {
            EventKind::Charge => *level += event.size_bytes,
            EventKind::Discharge => *level = level.saturating_sub(event.size_bytes),
            _ => {}
        }
    }
    charges
}

pub(crate) fn reserved_at(recording: &Recording, moment: usize) -> u64 {
    recording.events[..moment].iter().fold(recording.start_reserved_bytes, |level, event| {
        match event.kind {
            EventKind::Reserve | EventKind::Charge => level + event.size_bytes,
            EventKind::Release | EventKind::Discharge => level.saturating_sub(event.size_bytes),
            _ => level,
        }
    })
}

/// A recording of one event.
pub(crate) fn one_event(kind: EventKind, size_bytes: u64) -> Recording {
    let event = TraceEvent {
        time_us: 5,
        kind,
        size_bytes,
        requested_bytes: size_bytes,
        address: u64::MAX - 7,
        stream: StreamId(u64::MAX),
        category: None,
        site: Some(3),
    };
    Recording { events: vec![event], ..Recording::default() }
}

/// A recording with one item of each kind, with the largest possible numbers.
pub(crate) fn largest() -> Recording {
    let mut recording = one_event(EventKind::Allocate { id: 1 }, u64::MAX);
    recording.start_reserved_bytes = u64::MAX;
    recording.capacity_bytes = u64::MAX;
    recording.lost_events = u64::MAX;
    recording.start_charges = vec![(Category::Input, u64::MAX), (Category::Other, u64::MAX)];
    let kinds = [
        EventKind::Reserve,
        EventKind::Charge,
        EventKind::Allocate { id: 2 },
        EventKind::OutOfMemory { free_bytes: u64::MAX },
        EventKind::FreeRequested { id: 2 },
        EventKind::Free { id: 1 },
        EventKind::Discharge,
        EventKind::Release,
        EventKind::Free { id: 2 },
    ];
    for kind in kinds {
        let first = recording.events[0].clone();
        recording.events.push(TraceEvent { kind, time_us: u64::MAX, ..first });
    }
    recording
}
