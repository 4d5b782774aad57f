//! Ranks that are threads of one process, for tests and for several devices in one machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::collectives::Rank;
use crate::error::{RanksError, Result};
use crate::meeting::{Meeting, Message};

/// Makes `count` ranks, each for a thread of its own.
///
/// A rank that waits for another one longer than `timeout` ends the collectives of all ranks with
/// `Late`. Ranks that wait for a dropped rank get `Lost`.
///
/// # Panics
/// If `count` is 0.
pub fn threads(count: usize, timeout: Duration) -> Vec<ThreadRank> {
    assert!(count > 0, "there is at least one rank");
    let state = State { slots: vec![None; count], ..State::default() };
    let hub = Arc::new(Hub { timeout, state: Mutex::new(state), changed: Condvar::new() });
    let rank = |index| ThreadRank { rank: Rank { index, count }, hub: Arc::clone(&hub) };
    (0..count).map(rank).collect()
}

/// A rank of [`threads`].
pub struct ThreadRank {
    rank: Rank,
    hub: Arc<Hub>,
}

/// The state that the threads share.
struct Hub {
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of meetings that have taken place.
    met_count: u64,
    /// The messages of the ranks that have arrived at the next meeting, by rank.
    slots: Vec<Option<Message>>,
    /// The messages of the last meeting. The next meeting cannot replace them before all ranks have
    /// read them, because a rank reads them before it arrives at the next meeting.
    messages: Option<Arc<[Message]>>,
    /// Messages to single ranks, by sender and receiver.
    posted: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// Ranks that have been dropped.
    ended: BTreeSet<usize>,
    /// The reason why every further call fails; `None` while calls can succeed.
    end: Option<End>,
}

#[derive(Clone)]
enum End {
    Late { op: &'static str, missing: Vec<usize> },
    Lost { rank: usize },
    Aborted { rank: usize, reason: String },
}

impl ThreadRank {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is a single assignment, so a panic leaves it consistent.
        self.hub.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes every further call of all ranks fail with `end`, unless they fail already.
    fn end(&self, state: &mut State, end: End) {
        state.end.get_or_insert(end);
        self.hub.changed.notify_all();
    }

    fn error(&self, end: End) -> RanksError {
        match end {
            End::Late { op, missing } => RanksError::Late { op, missing, waited: self.hub.timeout },
            End::Lost { rank } => RanksError::Lost { rank },
            End::Aborted { rank, reason } => RanksError::Aborted { rank, reason },
        }
    }

    /// Waits until `take` returns a value. `missing` lists the ranks that the call waits for.
    fn wait<R>(
        &self,
        mut state: MutexGuard<'_, State>,
        op: &'static str,
        mut take: impl FnMut(&mut State) -> Option<R>,
        missing: impl Fn(&State) -> Vec<usize>,
    ) -> Result<R> {
        let deadline = Instant::now() + self.hub.timeout;
        loop {
            if let Some(found) = take(&mut state) {
                self.hub.changed.notify_all();
                return Ok(found);
            }
            if let Some(end) = state.end.clone() {
                return Err(self.error(end));
            }
            let missing = missing(&state);
            if let Some(&rank) = missing.iter().find(|rank| state.ended.contains(rank)) {
                return Err(RanksError::Lost { rank });
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                self.end(&mut state, End::Late { op, missing });
                continue;
            }
            let waited = self.hub.changed.wait_timeout(state, remaining);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

impl Meeting for ThreadRank {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn meet(&self, own: Message) -> Result<Arc<[Message]>> {
        let op = own.call.op;
        let mut state = self.state();
        if let Some(end) = state.end.clone() {
            return Err(self.error(end));
        }
        let before = state.met_count;
        state.slots[self.rank.index] = Some(own);
        if state.slots.iter().all(Option::is_some) {
            state.messages = Some(state.slots.iter_mut().filter_map(Option::take).collect());
            state.met_count += 1;
            self.hub.changed.notify_all();
        }
        let take = |state: &mut State| state.messages.clone().filter(|_| state.met_count > before);
        let met = self.wait(state, op, take, |state| {
            let slots = state.slots.iter().enumerate();
            slots.filter(|(_, slot)| slot.is_none()).map(|(rank, _)| rank).collect()
        });
        if let Err(error) = &met {
            let mut state = self.state();
            // The slot would keep this rank's tensor alive.
            state.slots[self.rank.index] = None;
            // All ranks report the same lost rank.
            if let &RanksError::Lost { rank } = error {
                self.end(&mut state, End::Lost { rank });
            }
        }
        met
    }

    fn post(&self, message: Message, to: usize) -> Result<()> {
        let mut state = self.state();
        state.posted.entry((self.rank.index, to)).or_default().push_back(message);
        self.hub.changed.notify_all();
        Ok(())
    }

    fn fetch(&self, from: usize, own: &Message) -> Result<Message> {
        let key = (from, self.rank.index);
        let take = |state: &mut State| state.posted.get_mut(&key)?.pop_front();
        let fetched = self.wait(self.state(), own.call.op, take, |_| vec![from]);
        if fetched.is_err() {
            // Messages that the other rank has not fetched would keep this rank's tensor alive.
            self.state().posted.remove(&(self.rank.index, from));
        }
        fetched
    }

    fn give_up(&self, reason: &str) {
        let (rank, reason) = (self.rank.index, reason.to_owned());
        self.end(&mut self.state(), End::Aborted { rank, reason });
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        self.state().ended.insert(self.rank.index);
        self.hub.changed.notify_all();
    }
}
