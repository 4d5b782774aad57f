//! Where ranks give each other messages.

use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_tensor::{Device, Tensor};

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

    /// [`Collectives::send`](crate::Collectives::send) to another rank that exists.
    fn give(&self, x: &Tensor, to: usize) -> Result<()>;

    /// [`Collectives::receive`](crate::Collectives::receive) from another rank that exists.
    fn take(&self, x: &mut Tensor, from: usize) -> Result<()>;

    /// [`Collectives::abort`](crate::Collectives::abort).
    fn give_up(&self, reason: &str);

    /// The tensors of the ranks that have met.
    fn others(&self, messages: &[Message]) -> Box<dyn Others + '_> {
        let tensors = messages.iter().map(|message| message.tensor.clone().expect("one of each"));
        Box::new(InThisProcess(tensors.collect()))
    }
}

/// The tensors of other ranks, in a call. Each rank gives each other the pieces that it takes or
/// leaves, in the same order.
pub(crate) trait Others {
    /// Gives a piece of the own tensor to a rank.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`.
    fn give(&mut self, to: usize, piece: Range<usize>) -> Result<()>;

    /// A copy on `device` of the piece that a rank gives next.
    ///
    /// # Errors
    /// Those of [`Others::give`]; `Tensor`, and the piece is left then.
    fn take(&mut self, from: usize, piece: Range<usize>, device: &Device) -> Result<Tensor>;

    /// Leaves the piece that a rank gives next.
    ///
    /// # Errors
    /// Those of [`Others::give`].
    fn leave(&mut self, from: usize) -> Result<()>;
}

/// Tensors that can be read where they are.
struct InThisProcess(Vec<Tensor>);

impl Others for InThisProcess {
    fn give(&mut self, _: usize, _: Range<usize>) -> Result<()> {
        Ok(())
    }

    fn take(&mut self, from: usize, piece: Range<usize>, device: &Device) -> Result<Tensor> {
        Ok(slice(&self.0[from], piece)?.to_device(device, Category::Workspace)?)
    }

    fn leave(&mut self, _: usize) -> Result<()> {
        Ok(())
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
        drop(messages);
        ranks.meet(Message::of(REFUSED))?;
        return Err(RanksError::Failed { rank, op: call.op, reason });
    }
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
    first_failure(&messages, call, own)
}

/// `Ok` if no rank has failed.
///
/// # Errors
/// The own one; `Failed` of the first other rank.
pub(crate) fn first_failure(messages: &[Message], call: Call, own: Result<()>) -> Result<()> {
    own?;
    let failures = messages.iter().enumerate();
    let mut failures =
        failures.filter_map(|(rank, message)| Some((rank, message.failure.clone()?)));
    match failures.next() {
        Some((rank, reason)) => Err(RanksError::Failed { rank, op: call.op, reason }),
        None => Ok(()),
    }
}
