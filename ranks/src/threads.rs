//! Ranks that are threads of one process: for tests, and for several devices in one machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::collectives::Rank;
use crate::error::{RanksError, Result};
use crate::meeting::{Meeting, Message};

/// `count` ranks, each for a thread of its own. One that waits longer than `timeout` for another
/// ends all of them; one that is dropped is lost to those that wait for it.
///
/// # Panics
/// If `count` is 0.
pub fn threads(count: usize, timeout: Duration) -> Vec<ThreadRank> {
    assert!(count > 0, "there is a rank");
    let state = State { slots: vec![None; count], ..State::default() };
    let place = Arc::new(Place { timeout, state: Mutex::new(state), changed: Condvar::new() });
    let rank = |index| ThreadRank { rank: Rank { index, count }, place: Arc::clone(&place) };
    (0..count).map(rank).collect()
}

/// A rank of [`threads`].
pub struct ThreadRank {
    rank: Rank,
    place: Arc<Place>,
}

/// Where the threads meet.
struct Place {
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many meetings have ended.
    met_count: u64,
    /// Who has come to the next one.
    slots: Vec<Option<Message>>,
    /// The messages of the last one. A rank that has not read them has not come to the next one,
    /// which therefore cannot end.
    messages: Option<Arc<[Message]>>,
    /// For one rank each, by sender and receiver.
    posted: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// Ranks that have ended. Who waits for one of them waits for nothing.
    gone: BTreeSet<usize>,
    /// Why nothing more will happen.
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
        // Every change of the state is a single assignment: a panic leaves it whole.
        self.place.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Ends everything for `end`, unless it has ended before.
    fn end(&self, state: &mut State, end: End) {
        state.end.get_or_insert(end);
        self.place.changed.notify_all();
    }

    fn error(&self, end: End) -> RanksError {
        match end {
            End::Late { op, missing } => {
                RanksError::Late { op, missing, waited: self.place.timeout }
            }
            End::Lost { rank } => RanksError::Lost { rank },
            End::Aborted { rank, reason } => RanksError::Aborted { rank, reason },
        }
    }

    /// Waits until `take` finds what it looks for; `missing` says for whom.
    fn wait<R>(
        &self,
        mut state: MutexGuard<'_, State>,
        op: &'static str,
        mut take: impl FnMut(&mut State) -> Option<R>,
        missing: impl Fn(&State) -> Vec<usize>,
    ) -> Result<R> {
        let deadline = Instant::now() + self.place.timeout;
        loop {
            if let Some(found) = take(&mut state) {
                self.place.changed.notify_all();
                return Ok(found);
            }
            if let Some(end) = state.end.clone() {
                return Err(self.error(end));
            }
            let missing = missing(&state);
            if let Some(&rank) = missing.iter().find(|rank| state.gone.contains(rank)) {
                return Err(RanksError::Lost { rank });
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                self.end(&mut state, End::Late { op, missing });
                continue;
            }
            let waited = self.place.changed.wait_timeout(state, remaining);
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
            self.place.changed.notify_all();
        }
        let take = |state: &mut State| state.messages.clone().filter(|_| state.met_count > before);
        let met = self.wait(state, op, take, |state| {
            let slots = state.slots.iter().enumerate();
            slots.filter(|(_, slot)| slot.is_none()).map(|(rank, _)| rank).collect()
        });
        if let Err(error) = &met {
            let mut state = self.state();
            // No other rank may hold its tensor any more.
            state.slots[self.rank.index] = None;
            // All ranks hear of the same one.
            if let &RanksError::Lost { rank } = error {
                self.end(&mut state, End::Lost { rank });
            }
        }
        met
    }

    fn post(&self, message: Message, to: usize) -> Result<()> {
        let mut state = self.state();
        state.posted.entry((self.rank.index, to)).or_default().push_back(message);
        self.place.changed.notify_all();
        Ok(())
    }

    fn fetch(&self, from: usize, own: &Message) -> Result<Message> {
        let key = (from, self.rank.index);
        let take = |state: &mut State| state.posted.get_mut(&key)?.pop_front();
        let fetched = self.wait(self.state(), own.call.op, take, |_| vec![from]);
        if fetched.is_err() {
            // Nor may what it has not fetched hold a tensor of this rank.
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
        self.state().gone.insert(self.rank.index);
        self.place.changed.notify_all();
    }
}
