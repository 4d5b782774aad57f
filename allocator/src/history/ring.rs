//! The ring that records are written to.

use std::collections::VecDeque;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::history::{History, Moment, Record};

/// Number of records kept; older ones are overwritten. 131,072 records of 56 bytes are 7 MiB.
const RING_RECORDS: usize = 1 << 17;

/// Bytes of an allocator's history once it is full.
pub const HISTORY_BYTES: usize =
    RING_RECORDS * (size_of::<Record>() + size_of::<Moment>() / RECORDS_PER_TIME as usize);

/// Number of records from one reading of the clock to the next: a reading costs more than a record.
const RECORDS_PER_TIME: u64 = 64;

/// The last records. The ring grows to its full length before it wraps, so that a short-lived
/// simulation is small.
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

    /// Number of events so far, including overwritten ones.
    #[inline]
    pub(crate) fn event_count(&self) -> u64 {
        self.next_sequence
    }

    /// Writes a record; the ring gives the sequence.
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
