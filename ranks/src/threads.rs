//! Ranks that are threads of one process: for tests, and for several devices in one machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lowtide_tensor::Tensor;

use crate::collectives::Rank;
use crate::error::{Call, RanksError, Result};
use crate::meeting::{Meeting, Message};
use crate::together;

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
    /// By sender and receiver.
    parcels: BTreeMap<(usize, usize), Parcel>,
    /// Ranks that have ended. Who waits for one of them waits for nothing.
    gone: BTreeSet<usize>,
    /// Why nothing more will happen.
    end: Option<End>,
}

/// What is under way between two ranks.
enum Parcel {
    Sent(Box<Message>),
    /// With what the receiver says was wrong.
    Taken(Option<String>),
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

    fn give(&self, x: &Tensor, to: usize) -> Result<()> {
        let key = (self.rank.index, to);
        let call = Call { op: "send", elements: Some((x.dtype(), x.element_count())), root: None };
        let mut state = self.state();
        let message = Message { tensor: Some(x.clone()), ..Message::of(call) };
        state.parcels.insert(key, Parcel::Sent(Box::new(message)));
        self.place.changed.notify_all();
        let take = |state: &mut State| match state.parcels.remove(&key) {
            Some(Parcel::Taken(failure)) => Some(failure),
            other => {
                state.parcels.extend(other.map(|parcel| (key, parcel)));
                None
            }
        };
        match self.wait(state, call.op, take, |_| vec![to]) {
            Ok(None) => Ok(()),
            Ok(Some(reason)) => Err(RanksError::Failed { rank: to, op: "receive", reason }),
            Err(error) => {
                self.state().parcels.remove(&key);
                Err(error)
            }
        }
    }

    fn take(&self, x: &mut Tensor, from: usize) -> Result<()> {
        let key = (from, self.rank.index);
        let own =
            Call { op: "receive", elements: Some((x.dtype(), x.element_count())), root: None };
        let take = |state: &mut State| match state.parcels.get(&key) {
            Some(Parcel::Sent(message)) => Some(Message::clone(message)),
            _ => None,
        };
        let message = self.wait(self.state(), own.op, take, |_| vec![from])?;
        let other = message.call;
        let received = match message.tensor.filter(|_| other.elements == own.elements) {
            Some(sent) => together::copy(&sent, x),
            None => Err(RanksError::Mismatch { rank: from, own, other }),
        };
        let failure = received.as_ref().err().map(ToString::to_string);
        self.state().parcels.insert(key, Parcel::Taken(failure));
        self.place.changed.notify_all();
        received
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
