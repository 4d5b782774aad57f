//! Streams of a simulated device, with clocks that prove that no memory is reused early.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use thiserror::Error;

use crate::buffer::Buffer;
use crate::source::SourceError;
use crate::stream::{Fence, Stream};
use crate::sync::{Mutex, MutexGuard};

/// Streams of a [`SimSource`](crate::SimSource). Clones are handles to the same ones.
///
/// Every stream has a vector clock (Fidge 1988, Mattern 1989): how much of each stream's work is
/// done before what it does next. [`launch`](Self::launch) stands for a kernel and remembers who
/// used which bytes; if the work of an earlier owner of the same bytes need not be done by then,
/// a real device would mix the two up, and the launch is an error.
#[derive(Clone, Debug, Default)]
pub struct SimStreams {
    clocks: Arc<Mutex<Clocks>>,
}

/// Memory was given to somebody while its last owner's work could still be running.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{stream} uses byte {offset} of block {serial} while {running_on} may still work on block \
     {previous_serial} there"
)]
pub struct EarlyReuse {
    /// Whose launch came too early.
    pub stream: Stream,
    /// The block that it was for.
    pub serial: u64,
    /// The first byte in question.
    pub offset: usize,
    /// Who may not be done.
    pub running_on: Stream,
    /// With which block.
    pub previous_serial: u64,
}

type Clock = [u64; Stream::COUNT];

#[derive(Debug, Default)]
struct Clocks {
    /// For each stream, how many launches of every stream happen before its next one.
    known: BTreeMap<Stream, Box<Clock>>,
    /// Start of a range of bytes to its last owner.
    uses: BTreeMap<usize, Uses>,
}

/// The launches that used a range on behalf of its last owner.
#[derive(Clone, Debug)]
struct Uses {
    end: usize,
    serial: u64,
    /// The last launch of each stream, by the stream's count.
    launches: Vec<(Stream, u64)>,
}

impl SimStreams {
    /// Streams on which nothing happened yet.
    pub fn new() -> SimStreams {
        SimStreams::default()
    }

    /// A kernel on `stream` that uses `buffers`.
    ///
    /// # Errors
    /// A buffer lies where earlier work on another block need not be done.
    pub fn launch(&self, stream: Stream, buffers: &[&Buffer]) -> Result<(), EarlyReuse> {
        // Before the clocks are locked: an allocator locks itself first and then the clocks.
        let pieces = |buffer: &&Buffer| (buffer.serial(), buffer.pieces());
        let used: Vec<_> = buffers.iter().map(pieces).collect();
        let mut clocks = self.lock();
        let clock = clocks.clock(stream);
        clock[stream.index()] += 1;
        let now = clock[stream.index()];
        for (serial, pieces) in used {
            for piece in pieces {
                clocks.take(stream, serial, piece.start, piece.end, now)?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Clocks> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fence for SimStreams {
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError> {
        let mut clocks = self.lock();
        let other = **clocks.known.entry(on).or_insert_with(|| Box::new([0; Stream::COUNT]));
        let clock = clocks.clock(waiter);
        for (own, other) in clock.iter_mut().zip(other) {
            *own = (*own).max(other);
        }
        Ok(())
    }
}

impl Clocks {
    fn clock(&mut self, stream: Stream) -> &mut Clock {
        self.known.entry(stream).or_insert_with(|| Box::new([0; Stream::COUNT]))
    }

    /// A launch uses a range for a block.
    fn take(
        &mut self,
        stream: Stream,
        serial: u64,
        start: usize,
        end: usize,
        now: u64,
    ) -> Result<(), EarlyReuse> {
        let known = **self.known.get(&stream).expect("a launch has a clock");
        self.split_at(start);
        self.split_at(end);
        let mut launches = vec![(stream, now)];
        let mut same_owner = Vec::new();
        for (&offset, uses) in self.uses.range(start..end) {
            if uses.serial == serial {
                same_owner.extend(uses.launches.iter().copied());
                continue;
            }
            let running = uses.launches.iter().find(|(on, count)| known[on.index()] < *count);
            if let Some(&(running_on, _)) = running {
                let previous_serial = uses.serial;
                return Err(EarlyReuse { stream, serial, offset, running_on, previous_serial });
            }
        }
        launches.extend(same_owner.into_iter().filter(|&(on, _)| on != stream));
        launches.sort_unstable();
        // Only the last launch of a stream counts: those before it are done earlier.
        launches.reverse();
        launches.dedup_by_key(|(on, _)| *on);
        let inside: Vec<usize> = self.uses.range(start..end).map(|(&offset, _)| offset).collect();
        for offset in inside {
            self.uses.remove(&offset);
        }
        self.uses.insert(start, Uses { end, serial, launches });
        Ok(())
    }

    /// Makes `offset` a border of the ranges.
    fn split_at(&mut self, offset: usize) {
        let Some((_, uses)) = self.uses.range_mut(..offset).next_back() else { return };
        if uses.end > offset {
            let rest = uses.clone();
            uses.end = offset;
            self.uses.insert(offset, rest);
        }
    }
}
