//! From a running allocator to a [`Recording`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::Location;

use crate::arena::layout::Extent;
use crate::caching::CachingAllocator;
use crate::caching::history::{Action, History, Moment, Record};
use crate::caching::rules::Rules;
use crate::category::{ByCategory, Category};
use crate::origin::ModulePath;
use crate::statistics::Statistics;
use crate::torch::StreamId;
use crate::trace::recording::{
    EventKind, Piece, RecordedBlock, RecordedRange, Recording, Site, TraceEvent,
};

/// A moment of an allocator: its arena and its history, copied and not yet made sense of.
///
/// Taking one costs as much as copying the records, 64 bytes or so each; everything else happens in
/// [`to_recording`](Self::to_recording), without the allocator's lock.
#[derive(Clone, Debug)]
pub struct Capture {
    history: History,
    statistics: Statistics,
    /// Live blocks with their pieces, by address of the first.
    blocks: Vec<(Record, Vec<Extent>)>,
    charges: ByCategory<usize>,
    is_torch: bool,
    /// Committed runs, by address.
    committed: Vec<Extent>,
    /// Of offset 0.
    address: u64,
}

impl CachingAllocator {
    /// Everything that is needed to explain, draw, export or replay what happened.
    pub fn capture(&self) -> Capture {
        let core = self.core();
        let locked = core.lock();
        let arena = &locked.state.arena;
        let mut charges = ByCategory::<usize>::default();
        for entry in arena.charges.values() {
            charges[entry.category] += entry.size_bytes;
        }
        let live = locked.state.live_with_pieces().into_iter();
        let blocks = live.map(|(offset, live, pieces)| {
            (Record::of_block(Action::Allocate, offset, &live), pieces)
        });
        Capture {
            blocks: blocks.collect(),
            is_torch: matches!(locked.state.rules, Rules::Torch(_)),
            charges,
            committed: arena.pages.all(),
            address: core.segments.memory.address(),
            statistics: arena.statistics,
            history: locked.state.history.snapshot(),
        }
    }

    /// [`capture`](Self::capture), made sense of.
    pub fn recording(&self) -> Recording {
        self.capture().to_recording()
    }
}

impl Capture {
    /// The blocks that were live at that moment.
    pub(crate) fn live_records(&self) -> impl Iterator<Item = &Record> {
        self.blocks.iter().map(|(record, _)| record)
    }

    /// The counters at that moment.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The events up to that moment.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The state before the oldest record that is left, every event since, and the state now.
    pub fn to_recording(&self) -> Recording {
        self.recording_since(0)
    }

    /// The same from event `first_event` on, as [`CachingAllocator::event_count`] counts them: the
    /// state before it, and no word of what came earlier. Of that, only what the history has
    /// overwritten from `first_event` on counts as lost.
    pub fn recording_since(&self, first_event: u64) -> Recording {
        let records = self.history.records();
        let before = records.partition_point(|record| record.sequence < first_event);
        let records = &records[before..];
        // Pieces belong to the record before them, and that one is gone.
        let lost = records.iter().take_while(|record| record.action == Action::Piece).count();
        let records = &records[lost..];
        let mut sites = Sites::new(self.live_records().chain(of(records, Action::Free)));
        let mut recording = Recording {
            policy: if self.is_torch { "torch" } else { "pages" }.to_owned(),
            capacity_bytes: self.statistics.capacity_bytes as u64,
            page_bytes: self.statistics.page_bytes as u64,
            lost_events: self.history.overwritten().saturating_sub(first_event) + lost as u64,
            start: self.start(records, &mut sites),
            start_charges: self.start_charges(records),
            start_reserved_bytes: self.start_reserved_bytes(records),
            end: self.end(&mut sites),
            pieces: self.pieces(records),
            ..Recording::default()
        };
        let mut clock = Clock::new(self.history.moments());
        for record in records {
            let Some(kind) = kind(record) else { continue };
            let event = self.event(record, kind, clock.at(record.sequence), &mut sites);
            recording.events.push(event);
        }
        recording.sites = sites.list;
        recording
    }

    /// How many events of [`recording_since`](Self::recording_since)`(first_event)` come before
    /// `event`, which is counted as `first_event` is: records that belong to another one are none.
    pub fn index_since(&self, first_event: u64, event: u64) -> u64 {
        let records = self.history.records().iter();
        let own = records.filter(|record| (first_event..event).contains(&record.sequence));
        own.filter(|record| kind(record).is_some()).count() as u64
    }

    fn event(
        &self,
        record: &Record,
        kind: EventKind,
        time_us: u64,
        sites: &mut Sites,
    ) -> TraceEvent {
        let has_address = !matches!(
            kind,
            EventKind::Charge | EventKind::Discharge | EventKind::OutOfMemory { .. }
        );
        TraceEvent {
            time_us,
            kind,
            size_bytes: record.size_bytes as u64,
            requested_bytes: record.requested_bytes as u64,
            address: if has_address { self.address + record.offset as u64 } else { 0 },
            stream: StreamId(record.stream.index() as u64),
            category: Some(record.category),
            site: Some(sites.index(record)),
        }
    }

    fn block(&self, record: &Record, sites: &mut Sites) -> RecordedBlock {
        RecordedBlock {
            id: record.serial,
            address: self.address + record.offset as u64,
            size_bytes: record.size_bytes as u64,
            requested_bytes: record.requested_bytes as u64,
            stream: StreamId(record.stream.index() as u64),
            category: Some(record.category),
            site: Some(sites.index(record)),
        }
    }

    /// What was live before the first record: what is live now or was freed since, and was not
    /// allocated since.
    fn start(&self, records: &[Record], sites: &mut Sites) -> Vec<RecordedBlock> {
        let new: HashSet<u64> = of(records, Action::Allocate).map(|record| record.serial).collect();
        let is_old = |record: &&Record| !new.contains(&record.serial);
        let live = self.blocks.iter().map(|(record, _)| record);
        let old = live.chain(of(records, Action::Free)).filter(is_old);
        let mut start: Vec<RecordedBlock> = old.map(|record| self.block(record, sites)).collect();
        start.sort_unstable_by_key(|block| block.address);
        start
    }

    fn start_charges(&self, records: &[Record]) -> Vec<(Category, u64)> {
        let mut charges = self.charges;
        // Discharges first: a sum may not fall below nothing on the way.
        for record in of(records, Action::Discharge) {
            charges[record.category] += record.size_bytes;
        }
        for record in of(records, Action::Charge) {
            charges[record.category] -= record.size_bytes;
        }
        let some = charges.iter().filter(|&(_, &bytes)| bytes > 0);
        some.map(|(category, &bytes)| (category, bytes as u64)).collect()
    }

    fn start_reserved_bytes(&self, records: &[Record]) -> u64 {
        let sum = |actions: [Action; 2]| -> usize {
            let counted = records.iter().filter(|record| actions.contains(&record.action));
            counted.map(|record| record.size_bytes).sum()
        };
        let now =
            self.statistics.reserved.current_bytes + sum([Action::Decommit, Action::Discharge]);
        (now - sum([Action::Commit, Action::Charge])) as u64
    }

    fn end(&self, sites: &mut Sites) -> Vec<RecordedRange> {
        let mut parts: Vec<RecordedBlock> = Vec::new();
        for (record, pieces) in &self.blocks {
            let block = self.block(record, sites);
            if pieces.is_empty() {
                parts.push(block);
                continue;
            }
            parts.extend(pieces.iter().map(|piece| RecordedBlock {
                address: self.address + piece.offset as u64,
                size_bytes: piece.size_bytes as u64,
                ..block.clone()
            }));
        }
        parts.sort_unstable_by_key(|block| block.address);
        let mut parts = parts.into_iter().peekable();
        let range = |run: &Extent| {
            let end = self.address + run.end() as u64;
            let mut blocks = Vec::new();
            while let Some(block) = parts.next_if(|block| block.address < end) {
                blocks.push(block);
            }
            let (address, size_bytes) = (self.address + run.offset as u64, run.size_bytes as u64);
            RecordedRange { address, size_bytes, stream: StreamId(0), blocks }
        };
        self.committed.iter().map(range).collect()
    }

    fn pieces(&self, records: &[Record]) -> BTreeMap<u64, Vec<Piece>> {
        let piece = |offset: usize, size_bytes: usize| Piece {
            address: self.address + offset as u64,
            size_bytes: size_bytes as u64,
        };
        let mut all: BTreeMap<u64, Vec<Piece>> = BTreeMap::new();
        for (index, record) in records.iter().enumerate() {
            let is_first = record.action != Action::Piece;
            let follows = records.get(index + 1).is_some_and(|next| next.action == Action::Piece);
            if is_first && follows {
                let rest = records[index + 1..].iter();
                let own = rest.take_while(|next| next.action == Action::Piece);
                let own = own.map(|next| piece(next.offset, next.size_bytes)).collect();
                all.insert(record.serial, own);
            }
        }
        for (record, pieces) in self.blocks.iter().filter(|(_, pieces)| !pieces.is_empty()) {
            let own = pieces.iter().map(|run| piece(run.offset, run.size_bytes)).collect();
            all.insert(record.serial, own);
        }
        all
    }
}

fn of(records: &[Record], action: Action) -> impl Iterator<Item = &Record> {
    records.iter().filter(move |record| record.action == action)
}

/// What a record says in a recording; nothing if it is about addresses and not about memory.
fn kind(record: &Record) -> Option<EventKind> {
    Some(match record.action {
        Action::Allocate => EventKind::Allocate { id: record.serial },
        Action::Free => EventKind::Free { id: record.serial },
        Action::Commit => EventKind::Reserve,
        Action::Decommit => EventKind::Release,
        Action::Charge => EventKind::Charge,
        Action::Discharge => EventKind::Discharge,
        Action::OutOfMemory => EventKind::OutOfMemory { free_bytes: record.offset as u64 },
        Action::Piece | Action::Map | Action::Unmap | Action::Wait => return None,
    })
}

/// Each line and module once. Lines are few and static, so their addresses tell them apart; equal
/// ones of different code generation units are merged by what they say.
struct Sites {
    list: Vec<Site>,
    by_address: HashMap<(*const Location<'static>, Option<ModulePath>), u32>,
    by_name: HashMap<(&'static str, u32, u32, Option<ModulePath>), u32>,
    /// By serial, for blocks of a module; some are told theirs after they were allocated.
    modules: HashMap<u64, ModulePath>,
}

impl Sites {
    /// `last` are the last records of blocks.
    fn new<'a>(last: impl Iterator<Item = &'a Record>) -> Sites {
        let modules = last.filter_map(|record| Some((record.serial, record.module?))).collect();
        let (list, by_address, by_name) = (Vec::new(), HashMap::new(), HashMap::new());
        Sites { list, by_address, by_name, modules }
    }

    fn index(&mut self, record: &Record) -> u32 {
        let site = record.site;
        let is_of_block = matches!(record.action, Action::Allocate | Action::Free);
        let named = self.modules.get(&record.serial).filter(|_| is_of_block);
        let module = named.copied().or(record.module);
        if let Some(&index) = self.by_address.get(&(std::ptr::from_ref(site), module)) {
            return index;
        }
        let list = &mut self.list;
        let name = (site.file(), site.line(), site.column(), module);
        let index = *self.by_name.entry(name).or_insert_with(|| {
            let (file, line) = (site.file().to_owned(), site.line());
            let module = module.map_or_else(String::new, |module| module.to_string());
            list.push(Site { file, line, module, ..Site::default() });
            u32::try_from(list.len() - 1).expect("fewer sites than events")
        });
        self.by_address.insert((std::ptr::from_ref(site), module), index);
        index
    }
}

/// Times between the moments at which they were taken, on a straight line.
struct Clock<'a> {
    moments: &'a [Moment],
    next: usize,
}

impl<'a> Clock<'a> {
    fn new(moments: &'a [Moment]) -> Clock<'a> {
        Clock { moments, next: 0 }
    }

    /// The time of a record; records are asked for in order.
    fn at(&mut self, sequence: u64) -> u64 {
        while self.moments.get(self.next).is_some_and(|moment| moment.sequence <= sequence) {
            self.next += 1;
        }
        let before = self.next.checked_sub(1).map(|index| self.moments[index]);
        match (before, self.moments.get(self.next)) {
            (Some(before), Some(after)) => {
                let part = u128::from(sequence - before.sequence);
                let whole = u128::from(after.sequence - before.sequence);
                let span_us = u128::from(after.time_us.saturating_sub(before.time_us));
                before.time_us + u64::try_from(span_us * part / whole).unwrap_or(0)
            }
            (Some(moment), None) => moment.time_us,
            (None, Some(moment)) => moment.time_us,
            (None, None) => 0,
        }
    }
}
