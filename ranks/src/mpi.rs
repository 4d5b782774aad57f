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

/// Tag of a message of a call.
const CALL: Tag = 1;
/// Tag of the reason of a rank that aborts.
const ABORT: Tag = 2;
/// Tag of the last message of a rank that ends.
const END: Tag = 3;

/// Room in the send buffer for messages without tensors. The buffer also has room for two pieces,
/// because a rank may be two pieces ahead of another one.
const MESSAGES_BYTES: usize = 1 << 20;

/// Time that a rank polls for a message before it starts to sleep between polls.
const SPIN: Duration = Duration::from_micros(50);
const PAUSE: Duration = Duration::from_micros(100);

/// Time limit for starting MPI. MPI does not report a process that is killed during the start.
const START: Duration = Duration::from_secs(60);

/// Time that a rank that ends waits until its messages have been received.
const GOODBYE: Duration = Duration::from_secs(10);

/// A process of an MPI world.
pub struct MpiRank {
    rank: Rank,
    timeout: Duration,
    state: Mutex<State>,
    /// The thread that started MPI.
    session: Option<Session>,
}

struct State {
    /// The error of every further call; `None` while calls can succeed.
    end: Option<RanksError>,
    /// For each rank, true if it has sent its last message.
    ended: Vec<bool>,
}

/// The rank of this process among the processes that `mpirun` or `srun` started together. `None` if
/// the process is alone, or if it uses MPI already.
///
/// A wait for another rank that is longer than `timeout` is an error. Each rank has a send buffer
/// of 9 MiB of host memory for each other rank.
///
/// MPI does not report a process that is killed. Most launchers then end the other processes. If a
/// launcher does not, they get `Late`.
///
/// # Errors
/// `Start` if MPI does not start within a minute, for example because another process was killed
/// before. This process then has no MPI.
pub fn mpi(timeout: Duration) -> Result<Option<Wired<MpiRank>>> {
    let waited = timeout.min(START);
    let Some((session, rank)) = Session::start(waited)? else { return Ok(None) };
    let state = Mutex::new(State { end: None, ended: vec![false; rank.count] });
    Ok(Some(Wired::new(MpiRank { rank, timeout, state, session: Some(session) })))
}

/// The thread that starts and finalizes MPI: one thread has to do both. The start may block for
/// ever, so the thread cannot be the caller's.
struct Session {
    /// Tells the thread how to end.
    ends: mpsc::Sender<SessionEnd>,
    thread: JoinHandle<()>,
}

#[derive(PartialEq)]
enum SessionEnd {
    Finalize,
    /// Leave MPI running until the process exits: finalizing would wait for a failed rank.
    Abandon,
}

impl Session {
    /// Starts MPI; `None` if this process is alone.
    ///
    /// # Errors
    /// `Start`.
    fn start(waited: Duration) -> Result<Option<(Session, Rank)>> {
        let (begun, begins) = mpsc::channel();
        let (ends, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let universe = begin();
            // The caller no longer waits if the start took too long.
            _ = begun.send(universe.as_ref().map(|(_, rank)| *rank));
            if ended.recv() != Ok(SessionEnd::Finalize) {
                std::mem::forget(universe);
            }
        });
        match begins.recv_timeout(waited) {
            Ok(Some(rank)) => Ok(Some((Session { ends, thread }, rank))),
            Ok(None) => Ok(None),
            Err(_) => Err(RanksError::Start { waited }),
        }
    }

    fn end(self, end: SessionEnd) {
        // The thread waits for this message until it comes.
        _ = self.ends.send(end);
        drop(self.thread.join());
    }
}

/// Starts MPI, and finalizes it again if this process is alone.
fn begin() -> Option<(Universe, Rank)> {
    let (mut universe, _) = mpi::initialize_with_threading(Threading::Serialized)?;
    let world = universe.world();
    let [index, count] = [world.rank(), world.size()].map(|number| number as usize);
    if count == 1 {
        return None;
    }
    universe.set_buffer_size((count - 1) * (2 * PIECE_BYTES + MESSAGES_BYTES));
    Some((universe, Rank { index, count }))
}

impl MpiRank {
    /// Locks the state. The lock also makes sure that one thread at a time is in MPI.
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is a single assignment, so a panic leaves it consistent.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn world() -> SimpleCommunicator {
    SimpleCommunicator::world()
}

fn post(message: &[u8], to: usize, tag: Tag) {
    world().process_at_rank(to as i32).buffered_send_with_tag(message, tag);
}

/// The sender and the bytes of the next message with this tag, if one has arrived.
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
        post(&message, to, CALL);
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
            // Checked before the messages: once END has arrived, all earlier messages have arrived,
            // too.
            if arrived(&source, END).is_some() {
                state.ended[from] = true;
            }
            if let Some((_, message)) = arrived(&source, CALL) {
                return Ok(message);
            } else if state.ended[from] {
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
    /// Receives the messages that no call waits for any more: MPI finalizes only after all messages
    /// are received.
    fn drop(&mut self) {
        let state = self.state();
        let mut missing = self.rank.others().filter(|&other| !state.ended[other]).count();
        drop(state);
        self.rank.others().for_each(|other| post(&[], other, END));
        let (begin, world) = (Instant::now(), world());
        while missing > 0 && begin.elapsed() < GOODBYE {
            let any = world.any_process();
            missing -= usize::from(arrived(&any, END).is_some());
            let left = [CALL, ABORT].map(|tag| arrived(&any, tag).is_some());
            if left == [false; 2] {
                thread::sleep(PAUSE);
            }
        }
        if let Some(session) = self.session.take() {
            session.end(if missing == 0 { SessionEnd::Finalize } else { SessionEnd::Abandon });
        }
    }
}

impl fmt::Debug for MpiRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpiRank").field("rank", &self.rank).finish_non_exhaustive()
    }
}
