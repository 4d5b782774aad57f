//! Where ranks give each other messages.

use std::sync::Arc;

use lowtide_tensor::Tensor;

use crate::collectives::Rank;
use crate::error::{Call, RanksError, Result};

/// What a rank brings to a meeting.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) call: Call,
    /// What the others read while the call lasts.
    pub(crate) tensor: Option<Tensor>,
    pub(crate) bytes: Arc<[u8]>,
    /// Why this rank's part of the call has failed.
    pub(crate) failure: Option<String>,
}

impl Message {
    pub(crate) fn of(call: Call) -> Self {
        Message { call, tensor: None, bytes: Arc::default(), failure: None }
    }
}

/// Ranks that can meet: the one thing that an engine inside a process has to provide.
pub(crate) trait Meeting: Send + Sync {
    /// Which rank this is.
    fn rank(&self) -> Rank;

    /// Waits for all ranks; their messages, by rank.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`, of this meeting and of all after it.
    fn meet(&self, own: Message) -> Result<Arc<[Message]>>;

    /// [`Collectives::send`](crate::Collectives::send) to another rank that exists.
    fn give(&self, x: &Tensor, to: usize) -> Result<()>;

    /// [`Collectives::receive`](crate::Collectives::receive) from another rank that exists.
    fn take(&self, x: &mut Tensor, from: usize) -> Result<()>;

    /// [`Collectives::abort`](crate::Collectives::abort).
    fn give_up(&self, reason: &str);
}

/// The messages of a meeting, all of the same call.
///
/// # Errors
/// `Mismatch` on every rank if two are in different calls.
pub(crate) fn meet_in(ranks: &impl Meeting, own: Message) -> Result<Arc<[Message]>> {
    let call = own.call;
    let messages = ranks.meet(own)?;
    let Rank { index, .. } = ranks.rank();
    // Each rank looks at all others, so that all of them find one.
    let differs = |message: &Message| message.call != call;
    let first = messages.iter().position(differs);
    match first {
        Some(rank) => {
            debug_assert_ne!(rank, index, "a rank is in its own call");
            Err(RanksError::Mismatch { rank, own: call, other: messages[rank].call })
        }
        None => Ok(messages),
    }
}

/// Tells all ranks how the own part of a call went: `Ok` if it went well everywhere.
///
/// # Errors
/// The own one; `Failed` of the first other rank.
pub(crate) fn settle(ranks: &impl Meeting, call: Call, own: Result<()>) -> Result<()> {
    let failure = own.as_ref().err().map(ToString::to_string);
    let messages = meet_in(ranks, Message { failure, ..Message::of(call) })?;
    own?;
    let failures = messages.iter().enumerate();
    let mut failures =
        failures.filter_map(|(rank, message)| Some((rank, message.failure.clone()?)));
    match failures.next() {
        Some((rank, reason)) => Err(RanksError::Failed { rank, op: call.op, reason }),
        None => Ok(()),
    }
}
