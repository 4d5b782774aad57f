//! What happened, in a ring of fixed-size records.

use std::panic::Location;

use crate::category::{Arena, Category};

/// Records kept; older ones are overwritten. 65,536 of 40 bytes are 2.5 MiB.
pub(crate) const RING_RECORDS: usize = 1 << 16;

/// What a [`Record`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A block became live.
    Allocate,
    /// A block was dropped; its site is where it was allocated.
    Free,
    /// The source put pages behind a range.
    Commit,
    /// The source took pages back.
    Decommit,
    /// Charged bytes rose by `size_bytes`.
    Charge,
    /// Charged bytes fell by `size_bytes`.
    Discharge,
    /// A request failed; `size_bytes` is what it asked for.
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
    /// Where it happened; for charges, the arena of their category.
    pub arena: Arena,
    /// Offset in the arena; 0 for charges and failed requests.
    pub offset: usize,
    /// Active bytes for blocks.
    pub size_bytes: usize,
    /// Who asked.
    pub site: &'static Location<'static>,
}

/// A copy of the ring, oldest record first.
#[derive(Clone, Debug)]
pub struct History {
    records: Vec<Record>,
    overwritten: u64,
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
}

/// The ring. It grows to its full length before it wraps, so a short-lived simulation is small.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    records: Vec<Record>,
    next_sequence: u64,
}

impl Ring {
    /// Events so far, the overwritten ones too.
    pub(crate) fn event_count(&self) -> u64 {
        self.next_sequence
    }

    pub(crate) fn push(
        &mut self,
        action: Action,
        category: Category,
        (arena, offset): (Arena, usize),
        size_bytes: usize,
        site: &'static Location<'static>,
    ) {
        let sequence = self.next_sequence;
        let record = Record { sequence, action, category, arena, offset, size_bytes, site };
        self.next_sequence += 1;
        if self.records.len() < RING_RECORDS {
            self.records.push(record);
        } else {
            self.records[sequence as usize % RING_RECORDS] = record;
        }
    }

    pub(crate) fn snapshot(&self) -> History {
        let overwritten = self.next_sequence - self.records.len() as u64;
        let oldest = overwritten as usize % RING_RECORDS;
        let (newer, older) = self.records.split_at(oldest.min(self.records.len()));
        History { records: [older, newer].concat(), overwritten }
    }
}
