//! Streams of a simulated device, with clocks that prove that no memory is reused early.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use thiserror::Error;

use crate::lock::{Lock, Locked};
use crate::source::SourceError;
use crate::source::fence::Fence;
use crate::stream::Stream;

/// Streams of a [`SimSource`](crate::SimSource). Clones are handles to the same streams.
///
/// Every stream has a vector clock (Fidge 1988, Mattern 1989). The clock counts the work of each
/// stream that is done before the stream's next work. [`launch`](Self::launch) stands for a kernel,
/// and records which block used which bytes. If work for an earlier owner of the same bytes may
/// still run by then, a real device would mix up the two blocks, so the launch is an error.
///
/// The host has a clock too. Work of the host is done when its call returns, and a launch comes
/// after everything that the host has waited for. [`touch`](Self::touch) stands for a read or a
/// write by the host, which must have waited for every stream that may still work on the same
/// bytes.
#[derive(Clone)]
pub struct SimStreams {
    clocks: Arc<Lock<Clocks>>,
}

/// A block that work uses.
pub(crate) struct UsedBlock {
    pub(crate) serial: u64,
    /// The allocator's shared part, which identifies the allocator.
    pub(crate) owner: Weak<dyn Send + Sync>,
    /// Ranges of the block in the allocator's memory.
    pub(crate) pieces: Vec<Range<usize>>,
}

/// An error: memory got a new owner while work of its last owner could still run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct EarlyReuse {
    /// The stream whose launch came too early; `None` if the host touched the bytes.
    pub stream: Option<Stream>,
    /// Serial of the block of the new owner.
    pub serial: u64,
    /// The first byte in question.
    pub offset: usize,
    /// The stream whose work may still run.
    pub running_on: Stream,
    /// Serial of the block that this work is for.
    pub previous_serial: u64,
}

impl fmt::Display for EarlyReuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stream {
            Some(stream) => write!(f, "{stream} uses ")?,
            None => f.write_str("the host touches ")?,
        }
        let EarlyReuse { serial, offset, running_on, previous_serial, .. } = self;
        write!(f, "byte {offset} of block {serial} while {running_on} may still ")?;
        write!(f, "work on block {previous_serial} there")
    }
}

type Clock = [u64; Stream::COUNT];

/// A byte of an allocator's memory. The allocator has a number: several may use the same streams.
type ClockByte = (usize, usize);

#[derive(Default)]
struct Clocks {
    /// Number of launches of every stream that happen before each stream's next launch.
    known: Vec<Clock>,
    /// Number of launches of every stream that the host has waited for.
    host: Option<Box<Clock>>,
    /// Allocators by their number in a [`ClockByte`]. The references are weak; they keep the
    /// address, so that no other allocator gets it meanwhile.
    owners: Vec<Weak<dyn Send + Sync>>,
    /// The last owner of each range of bytes, by the start of the range.
    uses: BTreeMap<ClockByte, Uses>,
}

impl fmt::Debug for SimStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clocks = self.lock();
        f.debug_struct("SimStreams")
            .field("known", &clocks.known)
            .field("uses", &clocks.uses)
            .finish_non_exhaustive()
    }
}

impl Default for SimStreams {
    fn default() -> SimStreams {
        SimStreams { clocks: Arc::new(Lock::new(Clocks::default())) }
    }
}

/// The launches that used a range on behalf of its last owner.
#[derive(Clone, Debug)]
struct Uses {
    end: usize,
    serial: u64,
    /// The last launch of each stream, as the stream's count of launches.
    launches: Vec<(Stream, u64)>,
}

impl SimStreams {
    /// Streams without any work.
    pub fn new() -> SimStreams {
        SimStreams::default()
    }

    /// Launches a kernel on `stream` that uses blocks.
    ///
    /// # Errors
    /// A block lies where earlier work on another block may still run.
    pub(crate) fn launch_on(&self, stream: Stream, used: Vec<UsedBlock>) -> Result<(), EarlyReuse> {
        let mut clocks = self.lock();
        let host = clocks.host.clone();
        let clock = clocks.clock(stream);
        if let Some(host) = host {
            join(clock, &host[..]);
        }
        clock[stream.index()] += 1;
        let now = clock[stream.index()];
        for UsedBlock { serial, owner, pieces } in used {
            let owner = clocks.number_of(owner);
            for piece in pieces {
                clocks.take(stream, serial, (owner, piece.start)..(owner, piece.end), now)?;
            }
        }
        Ok(())
    }

    /// Notes that the host reads or writes blocks.
    ///
    /// # Errors
    /// Work on the bytes may still run: the host has not waited for its stream.
    pub(crate) fn touch_by_host(&self, used: Vec<UsedBlock>) -> Result<(), EarlyReuse> {
        let mut clocks = self.lock();
        for UsedBlock { serial, owner, pieces } in used {
            let owner = clocks.number_of(owner);
            for piece in pieces {
                clocks.check_host(serial, (owner, piece.start)..(owner, piece.end))?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> Locked<'_, Clocks> {
        self.clocks.lock()
    }
}

impl Fence for SimStreams {
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError> {
        let mut clocks = self.lock();
        clocks.know(waiter.max(on));
        let pair = [waiter.index(), on.index()];
        // A stream has always waited for itself.
        let met = clocks.known.len();
        if let Ok([own, other]) = clocks.known.get_disjoint_mut(pair) {
            // Streams that were never used have launched nothing.
            join(&mut own[..met], &other[..met]);
        }
        Ok(())
    }

    fn wait_host(&self, on: Stream) -> Result<(), SourceError> {
        let mut clocks = self.lock();
        let other = *clocks.clock(on);
        let host = clocks.host.get_or_insert_with(|| Box::new([0; Stream::COUNT]));
        join(&mut host[..], &other);
        Ok(())
    }
}

impl Clocks {
    fn clock(&mut self, stream: Stream) -> &mut Clock {
        self.know(stream);
        &mut self.known[stream.index()]
    }

    /// Gives a clock to a new stream and to all streams with a smaller number.
    fn know(&mut self, stream: Stream) {
        if self.known.len() <= stream.index() {
            self.known.resize(stream.index() + 1, [0; Stream::COUNT]);
        }
    }

    fn number_of(&mut self, owner: Weak<dyn Send + Sync>) -> usize {
        let known =
            self.owners.iter().position(|known| std::ptr::addr_eq(known.as_ptr(), owner.as_ptr()));
        known.unwrap_or_else(|| {
            self.owners.push(owner);
            self.owners.len() - 1
        })
    }

    /// Checks that the host may use a range of a block.
    fn check_host(&mut self, serial: u64, range: Range<ClockByte>) -> Result<(), EarlyReuse> {
        self.split_at(range.start);
        self.split_at(range.end);
        let host = self.host.as_deref().unwrap_or(&[0; Stream::COUNT]);
        for (&(_, offset), uses) in self.uses.range(range) {
            if let Some(running_on) = uses.running(host) {
                let previous_serial = uses.serial;
                let stream = None;
                return Err(EarlyReuse { stream, serial, offset, running_on, previous_serial });
            }
        }
        Ok(())
    }

    /// Makes a launch use a range on behalf of a block.
    fn take(
        &mut self,
        stream: Stream,
        serial: u64,
        range: Range<ClockByte>,
        now: u64,
    ) -> Result<(), EarlyReuse> {
        let known = *self.clock(stream);
        self.split_at(range.start);
        self.split_at(range.end);
        let mut launches = vec![(stream, now)];
        let mut same_owner = Vec::new();
        for (&(_, offset), uses) in self.uses.range(range.clone()) {
            if uses.serial == serial {
                same_owner.extend(uses.launches.iter().copied());
                continue;
            }
            if let Some(running_on) = uses.running(&known) {
                let (stream, previous_serial) = (Some(stream), uses.serial);
                return Err(EarlyReuse { stream, serial, offset, running_on, previous_serial });
            }
        }
        launches.extend(same_owner.into_iter().filter(|&(on, _)| on != stream));
        launches.sort_unstable();
        // Only the last launch of each stream counts: earlier launches are done before it.
        launches.reverse();
        launches.dedup_by_key(|(on, _)| *on);
        let inside: Vec<ClockByte> =
            self.uses.range(range.clone()).map(|(&place, _)| place).collect();
        for place in inside {
            self.uses.remove(&place);
        }
        let end = range.end.1;
        self.uses.insert(range.start, Uses { end, serial, launches });
        Ok(())
    }

    /// Splits ranges so that one begins at this byte.
    fn split_at(&mut self, (owner, offset): ClockByte) {
        let before = self.uses.range_mut((owner, 0)..(owner, offset)).next_back();
        let Some((_, uses)) = before else { return };
        if uses.end > offset {
            let rest = uses.clone();
            uses.end = offset;
            self.uses.insert((owner, offset), rest);
        }
    }
}

impl Uses {
    /// A stream whose launches may still run, for a stream with this clock.
    fn running(&self, known: &Clock) -> Option<Stream> {
        let running = self.launches.iter().find(|(on, count)| known[on.index()] < *count);
        running.map(|&(on, _)| on)
    }
}

fn join(clock: &mut [u64], other: &[u64]) {
    for (own, other) in clock.iter_mut().zip(other) {
        *own = (*own).max(*other);
    }
}
