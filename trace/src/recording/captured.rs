//! A [`Recording`] from the books of a running allocator.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::Location;

use lowtide_allocator::torch::StreamId;
use lowtide_allocator::{
    Action, Capture, CapturedBlock, Category, Extent, ModulePath, Moment, Record,
};

use crate::recording::{
    EventKind, Piece, RecordedBlock, RecordedRange, Recording, Site, TraceEvent,
};

impl Recording {
    /// A recording of an allocator's history: the state before the oldest record that is left,
    /// every event since, and the state at the end.
    pub fn of(capture: &Capture) -> Recording {
        Recording::since(capture, 0)
    }

    /// A recording from event `first_event` on, in the numbering of
    /// [`CachingAllocator::event_count`]. It has the state before that event, and no earlier
    /// events. Only events from `first_event` on that the history has overwritten count as lost.
    ///
    /// [`CachingAllocator::event_count`]: lowtide_allocator::CachingAllocator::event_count
    pub fn since(capture: &Capture, first_event: u64) -> Recording {
        let records = capture.history.records();
        let before = records.partition_point(|record| record.sequence < first_event);
        let records = &records[before..];
        // Pieces belong to the record before them, which is gone.
        let lost = records.iter().take_while(|record| record.action == Action::Piece).count();
        let records = &records[lost..];
        let part = Part { capture, records };
        let mut sites = Sites::new(part.live().chain(part.of(Action::Free)));
        let mut recording = Recording {
            policy: capture.policy.to_owned(),
            capacity_bytes: capture.statistics.capacity_bytes as u64,
            page_bytes: capture.statistics.page_bytes as u64,
            lost_events: capture.history.overwritten().saturating_sub(first_event) + lost as u64,
            start: part.start(&mut sites),
            start_charges: part.start_charges(),
            start_reserved_bytes: part.start_reserved_bytes(),
            end: part.end(&mut sites),
            pieces: part.pieces(),
            ..Recording::default()
        };
        let mut clock = Clock::new(capture.history.moments());
        for record in records {
            let Some(kind) = kind(record) else { continue };
            let time_us = clock.at(record.sequence);
            recording.events.push(part.event(record, kind, time_us, &mut sites));
        }
        recording.sites = sites.list;
        recording
    }

    /// The index of the allocator's event number `event` in [`events`](Recording::events) of a
    /// recording [`since`](Recording::since) `first_event`. For an event that belongs to another
    /// one, such as a piece: the index of the next event.
    pub fn index_since(capture: &Capture, first_event: u64, event: u64) -> u64 {
        let records = capture.history.records().iter();
        let own = records.filter(|record| (first_event..event).contains(&record.sequence));
        own.filter(|record| kind(record).is_some()).count() as u64
    }
}

/// The end of a capture, from some record on.
#[derive(Clone, Copy)]
struct Part<'a> {
    capture: &'a Capture,
    records: &'a [Record],
}

impl<'a> Part<'a> {
    /// Records of one kind, in order.
    fn of(self, action: Action) -> impl Iterator<Item = &'a Record> {
        self.records.iter().filter(move |record| record.action == action)
    }

    /// The blocks that are live at the end.
    fn live(self) -> impl Iterator<Item = &'a Record> {
        self.capture.blocks.iter().map(|block| &block.record)
    }

    /// The device address of an offset.
    fn address(self, offset: usize) -> u64 {
        self.capture.address + offset as u64
    }

    fn piece(self, offset: usize, size_bytes: usize) -> Piece {
        Piece { address: self.address(offset), size_bytes: size_bytes as u64 }
    }

    fn event(
        self,
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
            address: if has_address { self.address(record.offset) } else { 0 },
            stream: StreamId(record.stream.index() as u64),
            category: Some(record.category),
            site: Some(sites.index(record)),
        }
    }

    fn block(self, record: &Record, sites: &mut Sites) -> RecordedBlock {
        RecordedBlock {
            id: record.serial,
            address: self.address(record.offset),
            size_bytes: record.size_bytes as u64,
            requested_bytes: record.requested_bytes as u64,
            stream: StreamId(record.stream.index() as u64),
            category: Some(record.category),
            site: Some(sites.index(record)),
        }
    }

    /// The blocks before the first record: blocks that are live at the end or were freed, without
    /// those that were allocated in between.
    fn start(self, sites: &mut Sites) -> Vec<RecordedBlock> {
        let new: HashSet<u64> = self.of(Action::Allocate).map(|record| record.serial).collect();
        let is_old = |record: &&Record| !new.contains(&record.serial);
        let old = self.live().chain(self.of(Action::Free)).filter(is_old);
        let mut start: Vec<RecordedBlock> = old.map(|record| self.block(record, sites)).collect();
        start.sort_unstable_by_key(|block| block.address);
        start
    }

    fn start_charges(self) -> Vec<(Category, u64)> {
        let mut charges = self.capture.charges;
        // Discharges come first: a sum must not fall below 0 on the way.
        for record in self.of(Action::Discharge) {
            charges[record.category] += record.size_bytes;
        }
        for record in self.of(Action::Charge) {
            charges[record.category] -= record.size_bytes;
        }
        let some = charges.iter().filter(|&(_, &bytes)| bytes > 0);
        some.map(|(category, &bytes)| (category, bytes as u64)).collect()
    }

    fn start_reserved_bytes(self) -> u64 {
        let sum = |action| self.of(action).map(|record| record.size_bytes).sum::<usize>();
        let end_bytes = self.capture.statistics.reserved.current_bytes;
        let with_lost_bytes = end_bytes + sum(Action::Decommit) + sum(Action::Discharge);
        (with_lost_bytes - sum(Action::Commit) - sum(Action::Charge)) as u64
    }

    fn end(self, sites: &mut Sites) -> Vec<RecordedRange> {
        let mut parts: Vec<RecordedBlock> = Vec::new();
        for CapturedBlock { record, pieces } in &self.capture.blocks {
            let block = self.block(record, sites);
            if pieces.is_empty() {
                parts.push(block);
                continue;
            }
            parts.extend(pieces.iter().map(|piece| RecordedBlock {
                address: self.address(piece.offset),
                size_bytes: piece.size_bytes as u64,
                ..block.clone()
            }));
        }
        parts.sort_unstable_by_key(|block| block.address);
        let mut parts = parts.into_iter().peekable();
        let range = |run: &Extent| {
            let (address, size_bytes) = (self.address(run.offset), run.size_bytes as u64);
            let mut blocks = Vec::new();
            while let Some(block) = parts.next_if(|block| block.address < address + size_bytes) {
                blocks.push(block);
            }
            RecordedRange { address, size_bytes, stream: StreamId(0), blocks }
        };
        self.capture.committed.iter().map(range).collect()
    }

    fn pieces(self) -> BTreeMap<u64, Vec<Piece>> {
        let mut all: BTreeMap<u64, Vec<Piece>> = BTreeMap::new();
        for (index, record) in self.records.iter().enumerate() {
            let rest = &self.records[index + 1..];
            let is_first = record.action != Action::Piece;
            if is_first && rest.first().is_some_and(|next| next.action == Action::Piece) {
                let own = rest.iter().take_while(|next| next.action == Action::Piece);
                let own = own.map(|next| self.piece(next.offset, next.size_bytes)).collect();
                all.insert(record.serial, own);
            }
        }
        let stitched = self.capture.blocks.iter().filter(|block| !block.pieces.is_empty());
        for CapturedBlock { record, pieces } in stitched {
            let own = pieces.iter().map(|run| self.piece(run.offset, run.size_bytes)).collect();
            all.insert(record.serial, own);
        }
        all
    }
}

/// The kind of a record's event; `None` if the record is about addresses and not about memory.
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

/// A list with each line and module once. Lines are few and static, so their addresses identify
/// them. Equal lines of different code generation units are merged by their text.
struct Sites {
    list: Vec<Site>,
    by_address: HashMap<(*const Location<'static>, Option<ModulePath>), u32>,
    by_name: HashMap<(&'static str, u32, u32, Option<ModulePath>), u32>,
    /// Modules of blocks by serial: a block may get its module after its allocation.
    modules: HashMap<u64, ModulePath>,
}

impl Sites {
    /// The list of sites, at first empty. `last` are the last records of blocks.
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

/// Times of records, interpolated between the moments at which the clock was read.
struct Clock<'a> {
    moments: &'a [Moment],
    next: usize,
}

impl<'a> Clock<'a> {
    fn new(moments: &'a [Moment]) -> Clock<'a> {
        Clock { moments, next: 0 }
    }

    /// The time of a record. Calls must be in the order of the records.
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
