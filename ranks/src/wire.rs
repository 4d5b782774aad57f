//! Ranks that reach each other by messages alone, such as processes.

use std::sync::Arc;

use lowtide_tensor::{DType, Tensor};

use crate::collectives::Rank;
use crate::error::{Call, RanksError, Result};
use crate::meeting::{Gift, Meeting, Message, Others, REFUSE, Taking};
use crate::together::slice;

/// What carries messages between ranks. They come whole, and those of one rank in the order in
/// which it sent them.
pub trait Wire: Send + Sync {
    /// Which rank this is.
    fn rank(&self) -> Rank;

    /// Hands a message over, without waiting for the other rank to take it. A rank has no more than
    /// a few of them under way to each other rank, of some 4 MiB at most.
    ///
    /// # Errors
    /// `Lost`, `Aborted`.
    fn send(&self, message: Vec<u8>, to: usize) -> Result<()>;

    /// The next message of another rank; `op` is what it is waited for in.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`. So for every message after it.
    fn receive(&self, from: usize, op: &'static str) -> Result<Vec<u8>>;

    /// Ends what other ranks wait for with `Aborted`, now and later.
    fn abort(&self, reason: &str);
}

/// A rank behind a [`Wire`]. It allocates what one of [`threads`](crate::threads) does; beside that
/// there are the messages, in memory of the host.
#[derive(Debug)]
pub struct Wired<W>(W);

impl<W: Wire> Wired<W> {
    /// The rank of a wire.
    pub fn new(wire: W) -> Self {
        Wired(wire)
    }

    fn send_message(&self, message: &Message, to: usize) -> Result<()> {
        self.0.send(encoded(message), to)
    }

    fn receive_message(&self, from: usize, op: &'static str) -> Result<Message> {
        let bytes = self.0.receive(from, op)?;
        decoded(&bytes).ok_or_else(|| RanksError::Aborted {
            rank: from,
            reason: "it sent what is no message of this version".to_owned(),
        })
    }
}

impl<W: Wire> Meeting for Wired<W> {
    fn rank(&self) -> Rank {
        self.0.rank()
    }

    fn meet(&self, own: Message) -> Result<Arc<[Message]>> {
        let (op, Rank { index, count }) = (own.call.op, self.0.rank());
        self.0.rank().others().try_for_each(|other| self.send_message(&own, other))?;
        let of_rank = |rank: usize| match rank == index {
            true => Ok(own.clone()),
            false => self.receive_message(rank, op),
        };
        (0..count).map(of_rank).collect::<Result<Vec<_>>>().map(Arc::from)
    }

    fn post(&self, message: Message, to: usize) -> Result<()> {
        self.send_message(&message, to)
    }

    fn fetch(&self, from: usize, own: &Message) -> Result<Message> {
        self.receive_message(from, own.call.op)
    }

    fn give_up(&self, reason: &str) {
        self.0.abort(reason);
    }

    fn others<'a>(&'a self, call: Call, _: &'a [Message], own: &'a Tensor) -> Box<dyn Others + 'a> {
        Box::new(BehindTheWire { wire: &self.0, op: call.op, own })
    }
}

/// Tensors that come in messages.
struct BehindTheWire<'a, W> {
    wire: &'a W,
    op: &'static str,
    own: &'a Tensor,
}

impl<W: Wire> Others for BehindTheWire<'_, W> {
    fn exchange(&mut self, gifts: &[Gift], takings: &mut [Taking]) -> Result<()> {
        // The other ranks wait for a message, and send theirs, whatever becomes of this one's.
        let mut outcome = Ok(());
        for Gift { to, piece } in gifts {
            let bytes = slice(self.own, piece.clone()).and_then(|piece| Ok(piece.to_bytes()?));
            let bytes = bytes.unwrap_or_else(|error| {
                outcome = Err(error);
                Vec::new()
            });
            self.wire.send(bytes, *to)?;
        }
        for Taking { from, place, .. } in takings {
            let bytes = self.wire.receive(*from, self.op)?;
            outcome = outcome.and(place.set_bytes_(&bytes).map_err(RanksError::from));
        }
        outcome
    }
}

/// What a call may be.
const OPS: [&str; 9] = [
    "exchange",
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "reduce_part",
    "gather_parts",
    "broadcast",
    "trade",
    REFUSE,
];

/// A message without its tensor: lengths are 64 bits, little-endian.
pub(crate) fn encoded(Message { call, bytes, failure, .. }: &Message) -> Vec<u8> {
    let op = OPS.iter().position(|op| *op == call.op).expect("an operation of this crate");
    let mut text = vec![op as u8];
    let mut add = |number: Option<usize>| {
        // One more than it is, so that there is one for none.
        let number = number.map_or(0, |number| number as u64 + 1);
        text.extend(number.to_le_bytes());
    };
    let dtype = call.elements.map(|(dtype, _)| dtype);
    add(dtype.and_then(|dtype| DType::ALL.iter().position(|of_all| *of_all == dtype)));
    add(call.elements.map(|(_, count)| count));
    add(call.root);
    add(failure.as_ref().map(String::len));
    text.extend(failure.iter().flat_map(|reason| reason.bytes()));
    text.extend(bytes.iter());
    text
}

pub(crate) fn decoded(bytes: &[u8]) -> Option<Message> {
    let (&op, mut rest) = bytes.split_first()?;
    let op = OPS.get(usize::from(op))?;
    let mut number = || {
        let (word, after) = rest.split_first_chunk()?;
        rest = after;
        Some(u64::from_le_bytes(*word).checked_sub(1).map(|number| number as usize))
    };
    let (dtype, count, root, reason_len) = (number()?, number()?, number()?, number()?);
    let dtype = dtype.map(|dtype| DType::ALL.get(dtype).copied());
    let elements = match (dtype, count) {
        (None, None) => None,
        (Some(dtype), Some(count)) => Some((dtype?, count)),
        _ => return None,
    };
    let (reason, bytes) = rest.split_at_checked(reason_len.unwrap_or(0))?;
    let failure = reason_len.map(|_| String::from_utf8_lossy(reason).into_owned());
    let call = Call { op, elements, root };
    Some(Message { bytes: bytes.into(), failure, ..Message::of(call) })
}
