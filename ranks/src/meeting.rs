//! The seam below the collectives: how ranks meet, exchange messages and read each other's tensors.

use std::ops::Range;
use std::sync::Arc;

use lowtide_tensor::Tensor;

use crate::collectives::Rank;
use crate::error::{Call, RanksError, Result};
use crate::together::slice;

/// The call that a failed rank makes in place of the call of the other ranks. All ranks then meet
/// in this call once more, so that no rank holds a tensor of another one.
pub(crate) const REFUSED: Call = Call::new(REFUSE);
pub(crate) const REFUSE: &str = "refuse";

/// The message of a rank at a meeting.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) call: Call,
    /// The tensor that the other ranks may read during the call.
    pub(crate) tensor: Option<Tensor>,
    pub(crate) bytes: Arc<[u8]>,
    /// The reason of a failure of this rank's part of the call; `None` if there is none.
    pub(crate) failure: Option<String>,
}

impl Message {
    pub(crate) fn of(call: Call) -> Self {
        Message { call, tensor: None, bytes: Arc::default(), failure: None }
    }
}

/// A rank that can meet the others. Every engine implements it; the collectives are built on it.
pub(crate) trait Meeting: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Waits until all ranks have called `meet`. Returns their messages, by rank.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`. After one of these every meeting fails.
    fn meet(&self, own: Message) -> Result<Arc<[Message]>>;

    /// Sends a message to one other rank.
    ///
    /// # Errors
    /// `Lost`, `Aborted`.
    fn post(&self, message: Message, to: usize) -> Result<()>;

    /// Waits for the next message that rank `from` has [posted](Meeting::post) to this rank. `own`
    /// is this rank's message in the same call.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`.
    fn fetch(&self, from: usize, own: &Message) -> Result<Message>;

    /// As [`Collectives::abort`](crate::Collectives::abort).
    fn give_up(&self, reason: &str);

    /// Access to the tensors of the other ranks during `call`. `messages` are the messages of the
    /// call, by rank. The other ranks read `own`.
    fn peer_tensors<'a>(
        &'a self,
        call: Call,
        messages: &'a [Message],
        own: &'a Tensor,
    ) -> Box<dyn PeerTensors + 'a> {
        let _ = (call, own);
        Box::new(SharedMemory(messages))
    }
}

/// Elements of the own tensor that another rank gets.
pub(crate) struct Outgoing {
    pub(crate) to: usize,
    pub(crate) piece: Range<usize>,
}

/// Elements of another rank's tensor, and the tensor that they are copied to.
pub(crate) struct Incoming {
    pub(crate) from: usize,
    pub(crate) piece: Range<usize>,
    pub(crate) place: Tensor,
}

/// The tensors of the other ranks during a call.
pub(crate) trait PeerTensors {
    /// Exchanges pieces of tensors, at most one to and one from each rank. Two ranks that exchange
    /// with each other have to call `exchange` equally often.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`; errors of the device. After an error of the device the outgoing
    /// pieces have been sent all the same.
    fn exchange(&mut self, outgoing: &[Outgoing], incoming: &mut [Incoming]) -> Result<()>;
}

/// Tensors of ranks in this process. They are read in place.
struct SharedMemory<'a>(&'a [Message]);

impl PeerTensors for SharedMemory<'_> {
    fn exchange(&mut self, _: &[Outgoing], incoming: &mut [Incoming]) -> Result<()> {
        incoming.iter_mut().try_for_each(|Incoming { from, piece, place }| {
            let tensor = self.0[*from].tensor.as_ref().expect("every rank gives a tensor");
            Ok(place.copy_across_(&slice(tensor, piece.clone())?)?)
        })
    }
}

/// Meets, and returns the messages of all ranks, whose calls are equal.
///
/// # Errors
/// `Failed` if a rank has refused; `Mismatch` on every rank if two calls differ; errors of
/// [`Meeting::meet`].
pub(crate) fn meet_in(ranks: &impl Meeting, own: Message) -> Result<Arc<[Message]>> {
    let call = own.call;
    let messages = ranks.meet(own)?;
    if let Some(rank) = messages.iter().position(|message| message.call.op == REFUSE) {
        let reason = messages[rank].failure.clone().unwrap_or_default();
        release(ranks, messages)?;
        return Err(RanksError::Failed { rank, op: call.op, reason });
    }
    // Each rank compares its call with those of all others, so all ranks find a mismatch.
    if let Some(rank) = messages.iter().position(|message| message.call != call) {
        let other = messages[rank].call;
        release(ranks, messages)?;
        return Err(RanksError::Mismatch { rank, own: call, other });
    }
    Ok(messages)
}

/// Drops the messages of a meeting, and waits until every rank has dropped them. Afterwards no rank
/// holds a tensor of another one, so a step that is rolled back finds its memory free.
pub(crate) fn release(ranks: &impl Meeting, messages: Arc<[Message]>) -> Result<()> {
    drop(messages);
    ranks.meet(Message::of(REFUSED)).map(drop)
}

/// Exchanges the outcomes of a call: `Ok` if all ranks have succeeded.
///
/// # Errors
/// The own error, or `Failed` for the first other rank that failed.
pub(crate) fn share_outcome(ranks: &impl Meeting, call: Call, own: Result<()>) -> Result<()> {
    let failure = own.as_ref().err().map(ToString::to_string);
    let messages = meet_in(ranks, Message { failure, ..Message::of(call) })?;
    first_failure(&messages, call, own)
}

/// The value of `own`, if no message reports a failure.
///
/// # Errors
/// The own error, or `Failed` for the first rank whose message reports a failure.
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
