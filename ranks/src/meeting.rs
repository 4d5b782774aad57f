//! Where ranks give each other messages.

use std::ops::Range;
use std::sync::Arc;

use lowtide_tensor::Tensor;

use crate::collectives::Rank;
use crate::error::{Call, RanksError, Result};
use crate::together::slice;

/// The call of a rank that has failed, in place of any other; then all meet once more in it, so
/// that none holds a tensor of another any more.
pub(crate) const REFUSED: Call = Call { op: REFUSE, elements: None, root: None };
pub(crate) const REFUSE: &str = "refuse";

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

/// Ranks that can meet: what an engine has to provide.
pub(crate) trait Meeting: Send + Sync {
    /// Which rank this is.
    fn rank(&self) -> Rank;

    /// Waits for all ranks; their messages, by rank.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`, of this meeting and of all after it.
    fn meet(&self, own: Message) -> Result<Arc<[Message]>>;

    /// Leaves a message for one other rank.
    ///
    /// # Errors
    /// `Lost`, `Aborted`.
    fn post(&self, message: Message, to: usize) -> Result<()>;

    /// Waits for the next message that a rank has [left](Meeting::post) for this one, which is in
    /// `own`.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`.
    fn fetch(&self, from: usize, own: &Message) -> Result<Message>;

    /// [`Collectives::abort`](crate::Collectives::abort).
    fn give_up(&self, reason: &str);

    /// The tensors of other ranks in a call, of which these are the messages, by rank; the own one
    /// is given to them.
    fn others<'a>(
        &'a self,
        call: Call,
        messages: &'a [Message],
        own: &'a Tensor,
    ) -> Box<dyn Others + 'a> {
        let _ = (call, own);
        Box::new(InThisProcess(messages))
    }
}

/// Elements of the own tensor for another rank.
pub(crate) struct Gift {
    pub(crate) to: usize,
    pub(crate) piece: Range<usize>,
}

/// Elements of another rank's tensor, and a place that is as large.
pub(crate) struct Taking {
    pub(crate) from: usize,
    pub(crate) piece: Range<usize>,
    pub(crate) place: Tensor,
}

/// The tensors of other ranks, in a call.
pub(crate) trait Others {
    /// Gives and takes pieces, at most one to and from each rank: those that one gives, the other
    /// takes in its own exchange, which is its next with this rank.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`; what a device says, and everything was given then all the same.
    fn exchange(&mut self, gifts: &[Gift], takings: &mut [Taking]) -> Result<()>;
}

/// Tensors that can be read where they are.
struct InThisProcess<'a>(&'a [Message]);

impl Others for InThisProcess<'_> {
    fn exchange(&mut self, _: &[Gift], takings: &mut [Taking]) -> Result<()> {
        takings.iter_mut().try_for_each(|Taking { from, piece, place }| {
            let tensor = self.0[*from].tensor.as_ref().expect("one of each");
            Ok(place.copy_across_(&slice(tensor, piece.clone())?)?)
        })
    }
}

/// The messages of a meeting, all of the same call.
///
/// # Errors
/// `Failed` if a rank has in place of the call; `Mismatch` on every rank if two are in different
/// calls.
pub(crate) fn meet_in(ranks: &impl Meeting, own: Message) -> Result<Arc<[Message]>> {
    let call = own.call;
    let messages = ranks.meet(own)?;
    if let Some(rank) = messages.iter().position(|message| message.call.op == REFUSE) {
        let reason = messages[rank].failure.clone().unwrap_or_default();
        release(ranks, messages)?;
        return Err(RanksError::Failed { rank, op: call.op, reason });
    }
    // Each rank looks at all others, so that all of them find one.
    if let Some(rank) = messages.iter().position(|message| message.call != call) {
        let other = messages[rank].call;
        release(ranks, messages)?;
        return Err(RanksError::Mismatch { rank, own: call, other });
    }
    Ok(messages)
}

/// Gives the messages of a meeting up, and waits until every rank has: none has a tensor of another
/// one then, and a step that is rolled back finds its memory free.
pub(crate) fn release(ranks: &impl Meeting, messages: Arc<[Message]>) -> Result<()> {
    drop(messages);
    ranks.meet(Message::of(REFUSED)).map(drop)
}

/// Tells all ranks how the own part of a call went: `Ok` if it went well everywhere.
///
/// # Errors
/// The own one; `Failed` of the first other rank.
pub(crate) fn settle(ranks: &impl Meeting, call: Call, own: Result<()>) -> Result<()> {
    let failure = own.as_ref().err().map(ToString::to_string);
    let messages = meet_in(ranks, Message { failure, ..Message::of(call) })?;
    first_failure(&messages, call, own)
}

/// What this rank has, if no rank has failed.
///
/// # Errors
/// The own one; `Failed` of the first other rank.
pub(crate) fn first_failure<T>(messages: &[Message], call: Call, own: Result<T>) -> Result<T> {
    let own = own?;
    let failures = messages.iter().enumerate();
    let mut failures =
        failures.filter_map(|(rank, message)| Some((rank, message.failure.clone()?)));
    match failures.next() {
        Some((rank, reason)) => Err(RanksError::Failed { rank, op: call.op, reason }),
        None => Ok(own),
    }
}
