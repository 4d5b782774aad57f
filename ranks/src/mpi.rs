//! Ranks that are processes, started by `mpirun` or `srun`.

use std::fmt;
use std::sync::{Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mpi::environment::Universe;
use mpi::point_to_point::MatchedReceiveVec;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Source};
use mpi::{Tag, Threading};

use crate::collectives::Rank;
use crate::error::{RanksError, Result};
use crate::together::PIECE_BYTES;
use crate::wire::{Wire, Wired};

/// A message of a call.
const OF_CALL: Tag = 1;
/// Why a rank gives up.
const ABORT: Tag = 2;
/// A rank sends nothing more.
const END: Tag = 3;

/// Beside two pieces, as many as a rank is ahead of another: what ranks say of a call.
const WORDS_BYTES: usize = 1 << 20;

/// How long a rank looks for a message again and again before it lets others compute.
const SPIN: Duration = Duration::from_micros(50);
const PAUSE: Duration = Duration::from_micros(100);

/// How long MPI may take to begin: while it does, nothing tells of a process that was killed.
const START: Duration = Duration::from_secs(60);

/// How long a rank that ends waits until what it has sent is there.
const GOODBYE: Duration = Duration::from_secs(10);

/// A process of an MPI world.
pub struct MpiRank {
    rank: Rank,
    timeout: Duration,
    state: Mutex<State>,
    /// The thread in which MPI has begun.
    session: Option<Session>,
}

struct State {
    /// Why nothing more will come.
    end: Option<RanksError>,
    /// Whether a rank has said that it sends nothing more.
    gone: Vec<bool>,
}

/// This process's rank among those that `mpirun` or `srun` has started together; `None` if it is
/// alone, or if MPI is in use already. A wait for another that is longer than `timeout` is an
/// error. Each rank has a buffer of 9 MiB for each other one, in memory of the host.
///
/// MPI does not tell of a process that is killed. Most starters then end all of its partners; where
/// they are told not to, these get `Late`.
///
/// # Errors
/// `Start` if MPI does not begin within a minute, as where another process is killed before it has
/// begun. There is no MPI in this process then.
pub fn mpi(timeout: Duration) -> Result<Option<Wired<MpiRank>>> {
    let waited = timeout.min(START);
    let Some((session, rank)) = Session::start(waited)? else { return Ok(None) };
    let state = Mutex::new(State { end: None, gone: vec![false; rank.count] });
    Ok(Some(Wired::new(MpiRank { rank, timeout, state, session: Some(session) })))
}

/// A thread of its own in which MPI begins, which may take for ever, and ends, as it has to in the
/// same one.
struct Session {
    /// Is told whether MPI is to end, or is left as it is.
    ends: mpsc::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Session {
    /// MPI, if this process is one of several.
    ///
    /// # Errors
    /// `Start`.
    fn start(waited: Duration) -> Result<Option<(Session, Rank)>> {
        let (begun, begins) = mpsc::channel();
        let (ends, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let universe = begin();
            // The caller has gone on if that was late.
            _ = begun.send(universe.as_ref().map(|(_, rank)| *rank));
            if ended.recv() != Ok(true) {
                std::mem::forget(universe);
            }
        });
        match begins.recv_timeout(waited) {
            Ok(Some(rank)) => Ok(Some((Session { ends, thread }, rank))),
            Ok(None) => Ok(None),
            Err(_) => Err(RanksError::Start { waited }),
        }
    }

    fn end(self, is_whole: bool) {
        // It waits for nothing else.
        _ = self.ends.send(is_whole);
        drop(self.thread.join());
    }
}

/// Begins MPI, and ends it again if this process is alone.
fn begin() -> Option<(Universe, Rank)> {
    let (mut universe, _) = mpi::initialize_with_threading(Threading::Serialized)?;
    let world = universe.world();
    let [index, count] = [world.rank(), world.size()].map(|number| number as usize);
    if count == 1 {
        return None;
    }
    universe.set_buffer_size((count - 1) * (2 * PIECE_BYTES + WORDS_BYTES));
    Some((universe, Rank { index, count }))
}

impl MpiRank {
    /// One thread at a time is in MPI.
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is a single assignment: a panic leaves it whole.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn world() -> SimpleCommunicator {
    SimpleCommunicator::world()
}

fn post(message: &[u8], to: usize, tag: Tag) {
    world().process_at_rank(to as i32).buffered_send_with_tag(message, tag);
}

/// The next message of this kind, if it is there: who sent it, and what it is.
fn arrived(source: &impl Source, tag: Tag) -> Option<(usize, Vec<u8>)> {
    let (bytes, status) = source.immediate_matched_probe_with_tag(tag)?.matched_receive_vec();
    Some((status.source_rank() as usize, bytes))
}

impl Wire for MpiRank {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn send(&self, message: Vec<u8>, to: usize) -> Result<()> {
        let state = self.state();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        post(&message, to, OF_CALL);
        Ok(())
    }

    fn receive(&self, from: usize, op: &'static str) -> Result<Vec<u8>> {
        let begin = Instant::now();
        loop {
            let mut state = self.state();
            if let Some(end) = &state.end {
                return Err(end.clone());
            }
            let world = world();
            let source = world.process_at_rank(from as i32);
            if let Some((rank, reason)) = arrived(&world.any_process(), ABORT) {
                let reason = String::from_utf8_lossy(&reason).into_owned();
                state.end = Some(RanksError::Aborted { rank, reason });
                continue;
            }
            // Before its messages: after its end all of them are here.
            if arrived(&source, END).is_some() {
                state.gone[from] = true;
            }
            if let Some((_, message)) = arrived(&source, OF_CALL) {
                return Ok(message);
            } else if state.gone[from] {
                state.end = Some(RanksError::Lost { rank: from });
            } else if begin.elapsed() > self.timeout {
                let (missing, waited) = (vec![from], self.timeout);
                state.end = Some(RanksError::Late { op, missing, waited });
            } else {
                drop(state);
                if begin.elapsed() > SPIN {
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    fn abort(&self, reason: &str) {
        let mut state = self.state();
        if state.end.is_some() {
            return;
        }
        self.rank.others().for_each(|other| post(reason.as_bytes(), other, ABORT));
        let (rank, reason) = (self.rank.index, reason.to_owned());
        state.end = Some(RanksError::Aborted { rank, reason });
    }
}

impl Drop for MpiRank {
    /// MPI ends when all messages are taken: those that no call waits for any more are taken here.
    fn drop(&mut self) {
        let state = self.state();
        let mut missing = self.rank.others().filter(|&other| !state.gone[other]).count();
        drop(state);
        self.rank.others().for_each(|other| post(&[], other, END));
        let (begin, world) = (Instant::now(), world());
        while missing > 0 && begin.elapsed() < GOODBYE {
            let any = world.any_process();
            missing -= usize::from(arrived(&any, END).is_some());
            let left = [OF_CALL, ABORT].map(|tag| arrived(&any, tag).is_some());
            if left == [false; 2] {
                thread::sleep(PAUSE);
            }
        }
        // The end of MPI would wait for a rank that does not come.
        if let Some(session) = self.session.take() {
            session.end(missing == 0);
        }
    }
}

impl fmt::Debug for MpiRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpiRank").field("rank", &self.rank).finish_non_exhaustive()
    }
}
