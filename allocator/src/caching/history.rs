//! What happened, in a ring of fixed-size records.

use std::collections::VecDeque;
use std::panic::Location;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::arena::layout::Live;
use crate::category::Category;
use crate::origin::ModulePath;
use crate::stream::Stream;

/// Records kept; older ones are overwritten. 131,072 of 56 bytes are 7 MiB.
pub(crate) const RING_RECORDS: usize = 1 << 17;

/// Bytes of an allocator's history once it is full.
pub const HISTORY_BYTES: usize =
    RING_RECORDS * (size_of::<Record>() + size_of::<Moment>() / RECORDS_PER_TIME as usize);

/// Every so many records the time is taken: a clock costs more than a record.
const RECORDS_PER_TIME: u64 = 64;

/// What a [`Record`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// A block became live.
    Allocate,
    /// A block was dropped; its site is where it was allocated.
    Free,
    /// A piece of the stitched block of the record before, one for each, in order.
    Piece,
    /// The source put pages behind a range.
    Commit,
    /// The source took pages back.
    Decommit,
    /// Pages were mapped at a second address; the offset is theirs, not the view's.
    Map,
    /// They no longer are.
    Unmap,
    /// The stream waits for the one whose number is the offset.
    Wait,
    /// Charged bytes rose by `size_bytes`.
    Charge,
    /// Charged bytes fell by `size_bytes`.
    Discharge,
    /// A request failed; `size_bytes` is what it asked for, the offset what was left of the
    /// capacity.
    OutOfMemory,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Counts from 0 without gaps.
    pub sequence: u64,
    /// What happened.
    pub action: Action,
    /// Of the block or charge, or of the request that made the source move.
    pub category: Category,
    /// On whose behalf.
    pub stream: Stream,
    /// Where it happened; 0 for charges.
    pub offset: usize,
    /// Active bytes for blocks.
    pub size_bytes: usize,
    /// What the caller asked for.
    pub requested_bytes: usize,
    /// Of the block or charge; 0 where there is none.
    pub serial: u64,
    /// The line that asked for it.
    pub site: &'static Location<'static>,
    /// The module that ran; `None` outside of every model.
    pub module: Option<ModulePath>,
}

const _: () = assert!(size_of::<Record>() == 56);

impl Record {
    /// Something that happened to a live block; the sequence comes from the ring.
    #[inline]
    pub(crate) fn of_block(action: Action, offset: usize, live: &Live) -> Record {
        Record {
            sequence: 0,
            action,
            category: live.category,
            stream: live.stream,
            offset,
            size_bytes: live.size_bytes,
            requested_bytes: live.requested_bytes,
            serial: live.serial,
            site: live.site,
            module: live.module,
        }
    }
}

/// A moment at which the time was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The record that was written then.
    pub sequence: u64,
    /// Microseconds since 1970 (UTC).
    pub time_us: u64,
}

/// A copy of the ring, oldest record first.
#[derive(Clone, Debug)]
pub struct History {
    records: Vec<Record>,
    overwritten: u64,
    moments: Vec<Moment>,
}

impl History {
    /// Oldest first.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// How many older records are gone.
    pub fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// When the records were written, for one in 64 of them and the last one.
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }
}

/// The ring. It grows to its full length before it wraps, so a short-lived simulation is small.
#[derive(Debug)]
pub(crate) struct Ring {
    records: Vec<Record>,
    next_sequence: u64,
    moments: VecDeque<Moment>,
    start: Instant,
    start_us: u64,
}

impl Ring {
    pub(crate) fn new() -> Ring {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ring {
            records: Vec::new(),
            next_sequence: 0,
            moments: VecDeque::new(),
            start: Instant::now(),
            start_us: u64::try_from(since_1970.as_micros()).unwrap_or(0),
        }
    }

    /// Events so far, the overwritten ones too.
    #[inline]
    pub(crate) fn event_count(&self) -> u64 {
        self.next_sequence
    }

    /// Writes a record; its sequence is the ring's.
    #[inline]
    pub(crate) fn push(&mut self, record: Record) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let at = sequence as usize % RING_RECORDS;
        if at == self.records.len() {
            self.records.push(Record { sequence, ..record });
        } else {
            self.records[at] = Record { sequence, ..record };
        }
        if sequence.is_multiple_of(RECORDS_PER_TIME) {
            self.take_time(sequence);
        }
    }

    #[cold]
    fn take_time(&mut self, sequence: u64) {
        if self.moments.len() > RING_RECORDS / RECORDS_PER_TIME as usize {
            self.moments.pop_front();
        }
        self.moments.push_back(self.moment(sequence));
    }

    fn moment(&self, sequence: u64) -> Moment {
        let elapsed_us = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        Moment { sequence, time_us: self.start_us.saturating_add(elapsed_us) }
    }

    pub(crate) fn snapshot(&self) -> History {
        let overwritten = self.next_sequence - self.records.len() as u64;
        let oldest = overwritten as usize % RING_RECORDS;
        let (newer, older) = self.records.split_at(oldest.min(self.records.len()));
        let mut moments: Vec<Moment> = self.moments.iter().copied().collect();
        if let Some(last) = self.next_sequence.checked_sub(1)
            && moments.last().is_none_or(|moment| moment.sequence < last)
        {
            moments.push(self.moment(last));
        }
        History { records: [older, newer].concat(), overwritten, moments }
    }
}
