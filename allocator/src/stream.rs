//! Order of use: streams, sets of streams, and the waits between them.

use std::fmt;

/// A queue of work on a device. Work on one stream runs in the order in which it was enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(u8);

impl Stream {
    /// Largest number of streams of an allocator.
    pub const COUNT: usize = 64;

    /// The stream of requests that do not name one.
    pub const DEFAULT: Stream = Stream(0);

    /// The stream with this number; `None` from [`COUNT`](Self::COUNT) on.
    pub const fn new(index: usize) -> Option<Stream> {
        if index < Stream::COUNT { Some(Stream(index as u8)) } else { None }
    }

    /// Index of the stream, below 64.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// A set of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamSet(u64);

impl StreamSet {
    pub(crate) const EMPTY: StreamSet = StreamSet(0);

    #[inline]
    pub(crate) const fn of(stream: Stream) -> StreamSet {
        StreamSet(1 << stream.0)
    }

    #[inline]
    pub(crate) fn union(self, other: StreamSet) -> StreamSet {
        StreamSet(self.0 | other.0)
    }

    #[inline]
    pub(crate) fn with(self, stream: Stream) -> StreamSet {
        StreamSet(self.0 | 1 << stream.0)
    }

    #[inline]
    pub(crate) fn without(self, stream: Stream) -> StreamSet {
        StreamSet(self.0 & !(1 << stream.0))
    }

    #[inline]
    fn minus(self, other: StreamSet) -> StreamSet {
        StreamSet(self.0 & !other.0)
    }

    fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Stream> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let index = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(Stream(index as u8))
        })
    }
}

/// The streams that may still work on free memory, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastUse {
    pub(crate) streams: StreamSet,
    /// Event at which the last owner gave the memory back.
    pub(crate) since: u64,
}

impl LastUse {
    #[inline]
    pub(crate) fn union(self, other: LastUse) -> LastUse {
        LastUse { streams: self.streams.union(other.streams), since: self.since.max(other.since) }
    }
}

/// For each stream, the event up to which it has waited for each other stream, directly or through
/// a third stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamOrder {
    /// One row for each waiter, with one entry for each stream. Missing entries of a short row are
    /// 0.
    until: Vec<Vec<u64>>,
}

impl StreamOrder {
    /// The streams that `waiter` has to wait for before it may use memory with this last use.
    #[inline]
    pub(crate) fn missing(&self, waiter: Stream, last_use: LastUse) -> StreamSet {
        let others = last_use.streams.without(waiter);
        if others == StreamSet::EMPTY {
            return others;
        }
        self.fewest(waiter, others, |_| last_use.since)
    }

    /// The streams of `of` that need no wait of their own after a wait for `by`, with respect to
    /// their work up to the event `since`.
    #[inline]
    pub(crate) fn covered(
        &self,
        by: Stream,
        of: StreamSet,
        since: impl Fn(Stream) -> u64,
    ) -> StreamSet {
        let row = self.until.get(by.index()).map_or(&[][..], Vec::as_slice);
        let is_covered = |on: &Stream| row.get(on.index()).copied().unwrap_or(0) > since(*on);
        of.iter().filter(is_covered).fold(StreamSet::EMPTY, StreamSet::with)
    }

    /// The streams of `others` that `waiter` has to wait for. Each may still work on memory that it
    /// gave back at its event `since`. A stream that has itself waited for another stream covers
    /// both.
    pub(crate) fn fewest(
        &self,
        waiter: Stream,
        others: StreamSet,
        since: impl Fn(Stream) -> u64,
    ) -> StreamSet {
        let covered = |by: Stream, of: StreamSet| self.covered(by, of, &since);
        let mut left = others.minus(covered(waiter, others));
        let mut chosen = StreamSet::EMPTY;
        while left != StreamSet::EMPTY {
            // Chooses the stream that covers most, the latest on ties. No stream covers more than
            // are left. If streams take turns, the latest has waited for all others.
            let (mut best, mut best_stands_for) = (waiter, StreamSet::EMPTY);
            let mut untried = left;
            while best_stands_for != left
                && let Some(on) = latest(untried, &since)
            {
                let stands_for = covered(on, left).with(on);
                if stands_for.len() > best_stands_for.len() {
                    (best, best_stands_for) = (on, stands_for);
                }
                untried = untried.without(on);
            }
            chosen = chosen.with(best);
            left = left.minus(best_stands_for);
        }
        chosen
    }

    /// Notes that `waiter` waited for all work of `on` before `event`, and so for all work that
    /// `on` waited for.
    pub(crate) fn note(&mut self, waiter: Stream, on: Stream, event: u64) {
        let rows = waiter.index().max(on.index()) + 1;
        if self.until.len() < rows {
            self.until.resize(rows, Vec::new());
        }
        let Ok([row, known]) = self.until.get_disjoint_mut([waiter.index(), on.index()]) else {
            return;
        };
        let len = row.len().max(known.len()).max(on.index() + 1);
        row.resize(len, 0);
        for (own, known) in row.iter_mut().zip(&*known) {
            *own = (*own).max(*known);
        }
        row[on.index()] = event;
    }
}

/// The stream with the highest event, the first stream on ties.
fn latest(streams: StreamSet, since: impl Fn(Stream) -> u64) -> Option<Stream> {
    streams.iter().reduce(|latest, on| if since(on) > since(latest) { on } else { latest })
}
