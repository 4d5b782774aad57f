//! The engine under test: a wire of queues between threads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lowtide_ranks::{Rank, RanksError, Result, Wire, Wired};

pub(crate) type OneRank = Wired<Queues>;

pub(crate) fn ranks(count: usize, timeout: Duration) -> Vec<OneRank> {
    counted_ranks(count, timeout).0
}

/// Ranks, and a function that returns the bytes that a rank has sent.
pub(crate) fn counted_ranks(
    count: usize,
    timeout: Duration,
) -> (Vec<OneRank>, impl Fn(usize) -> usize) {
    let place = Arc::new(Place { timeout, state: Mutex::default(), changed: Condvar::new() });
    let rank = |index| Queues { rank: Rank { index, count }, place: Arc::clone(&place) };
    let ranks = (0..count).map(|index| Wired::new(rank(index))).collect();
    (ranks, move |rank| place.state.lock().expect("no panic").sent_bytes[&rank])
}

/// The end of a rank at all queues.
pub(crate) struct Queues {
    rank: Rank,
    place: Arc<Place>,
}

struct Place {
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Queues by sender and receiver.
    messages: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    gone: BTreeSet<usize>,
    /// Sent bytes by sender.
    sent_bytes: BTreeMap<usize, usize>,
    /// The error of every further call; `None` while calls can succeed.
    end: Option<RanksError>,
}

impl Queues {
    fn state(&self) -> MutexGuard<'_, State> {
        self.place.state.lock().expect("no panic")
    }
}

impl Wire for Queues {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn send(&self, message: Vec<u8>, to: usize) -> Result<()> {
        let mut state = self.state();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        *state.sent_bytes.entry(self.rank.index).or_default() += message.len();
        let queue = state.messages.entry((self.rank.index, to)).or_default();
        queue.push_back(message);
        assert!(queue.len() < 8, "a rank is only a few messages ahead");
        self.place.changed.notify_all();
        Ok(())
    }

    fn receive(&self, from: usize, op: &'static str) -> Result<Vec<u8>> {
        let deadline = Instant::now() + self.place.timeout;
        let mut state = self.state();
        loop {
            if let Some(end) = &state.end {
                return Err(end.clone());
            }
            let queue = state.messages.entry((from, self.rank.index)).or_default();
            if let Some(message) = queue.pop_front() {
                return Ok(message);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if state.gone.contains(&from) {
                state.end = Some(RanksError::Lost { rank: from });
            } else if remaining.is_zero() {
                let waited = self.place.timeout;
                state.end = Some(RanksError::Late { op, missing: vec![from], waited });
            } else {
                state = self.place.changed.wait_timeout(state, remaining).expect("no panic").0;
                continue;
            }
            self.place.changed.notify_all();
        }
    }

    fn abort(&self, reason: &str) {
        let (rank, reason) = (self.rank.index, reason.to_owned());
        self.state().end.get_or_insert(RanksError::Aborted { rank, reason });
        self.place.changed.notify_all();
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.state().gone.insert(self.rank.index);
        self.place.changed.notify_all();
    }
}
