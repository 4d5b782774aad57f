//! Ranks that reach each other only by messages, such as processes.

use std::sync::Arc;

use lowtide_tensor::{DType, Tensor};

use crate::collectives::Rank;
use crate::error::{Call, Elements, RanksError, Result};
use crate::meeting::{Incoming, Meeting, Message, Outgoing, PeerTensors, REFUSE};
use crate::together::slice;

/// A transport of messages between ranks. Messages arrive whole. Messages from one rank to another
/// arrive in the order of sending.
pub trait Wire: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Sends a message without waiting for the other rank to receive it. At most a few messages of
    /// up to about 4 MiB are under way from one rank to another.
    ///
    /// # Errors
    /// `Lost`, `Aborted`.
    fn send(&self, message: Vec<u8>, to: usize) -> Result<()>;

    /// Waits for the next message of rank `from`. `op` is the operation that needs the message, for
    /// errors.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`. After one of these every call fails.
    fn receive(&self, from: usize, op: &'static str) -> Result<Vec<u8>>;

    /// Makes every present and later wait of the other ranks fail with `Aborted`.
    fn abort(&self, reason: &str);
}

/// A rank with a [`Wire`]. The rank allocates as a rank of [`threads`](crate::threads) does;
/// messages take host memory in addition.
#[derive(Debug)]
pub struct Wired<W>(W);

impl<W: Wire> Wired<W> {
    /// The rank at this end of `wire`.
    pub fn new(wire: W) -> Self {
        Wired(wire)
    }

    fn send_message(&self, message: &Message, to: usize) -> Result<()> {
        self.0.send(encoded(message), to)
    }

    fn receive_message(&self, from: usize, op: &'static str) -> Result<Message> {
        let bytes = self.0.receive(from, op)?;
        decoded(&bytes)
            .ok_or_else(|| RanksError::Aborted { rank: from, reason: NO_MESSAGE.to_owned() })
    }
}

impl<W: Wire> Meeting for Wired<W> {
    fn rank(&self) -> Rank {
        self.0.rank()
    }

    fn meet(&self, own: Message) -> Result<Arc<[Message]>> {
        let (op, Rank { index, count }) = (own.call.op, self.0.rank());
        self.0.rank().others().try_for_each(|other| self.send_message(&own, other))?;
        let message = |rank: usize| {
            if rank == index { Ok(own.clone()) } else { self.receive_message(rank, op) }
        };
        (0..count).map(message).collect::<Result<Vec<_>>>().map(Arc::from)
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

    fn peer_tensors<'a>(
        &'a self,
        call: Call,
        _: &'a [Message],
        own: &'a Tensor,
    ) -> Box<dyn PeerTensors + 'a> {
        Box::new(ByMessages { wire: &self.0, op: call.op, own })
    }
}

/// Tensors whose pieces travel in messages.
struct ByMessages<'a, W> {
    wire: &'a W,
    op: &'static str,
    own: &'a Tensor,
}

impl<W: Wire> PeerTensors for ByMessages<'_, W> {
    fn exchange(&mut self, outgoing: &[Outgoing], incoming: &mut [Incoming]) -> Result<()> {
        // The other ranks wait for a message even if this rank fails, so this rank sends an empty
        // one.
        let mut outcome = Ok(());
        for Outgoing { to, piece } in outgoing {
            let bytes = slice(self.own, piece.clone()).and_then(|piece| Ok(piece.to_bytes()?));
            let bytes = bytes.unwrap_or_else(|error| {
                outcome = Err(error);
                Vec::new()
            });
            self.wire.send(bytes, *to)?;
        }
        for Incoming { from, place, .. } in incoming {
            let bytes = self.wire.receive(*from, self.op)?;
            outcome = outcome.and(place.set_bytes_(&bytes).map_err(RanksError::from));
        }
        outcome
    }
}

/// The reason for aborting after a message that cannot be decoded.
pub(crate) const NO_MESSAGE: &str = "it sent bytes that are not a message of this version";

/// All operations. A message holds the index of its operation.
const OPS: &[&str] = &[
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

/// Encodes a message without its tensor. Numbers have 64 bits, little-endian.
pub(crate) fn encoded(Message { call, bytes, failure, .. }: &Message) -> Vec<u8> {
    let op = OPS.iter().position(|op| *op == call.op).expect("an operation of this crate");
    let mut text = vec![op as u8];
    let mut add = |number: Option<usize>| {
        // 0 stands for none, so numbers are stored plus one.
        let number = number.map_or(0, |number| number as u64 + 1);
        text.extend(number.to_le_bytes());
    };
    let dtype = call.elements.map(|elements| elements.dtype);
    add(dtype.and_then(|dtype| DType::ALL.iter().position(|candidate| *candidate == dtype)));
    add(call.elements.map(|elements| elements.len));
    add(call.root);
    add(failure.as_ref().map(String::len));
    text.extend(failure.iter().flat_map(|reason| reason.bytes()));
    text.extend(bytes.iter());
    text
}

/// Decodes a message; `None` if the bytes are no message.
pub(crate) fn decoded(bytes: &[u8]) -> Option<Message> {
    let (&op, mut rest) = bytes.split_first()?;
    let op = OPS.get(usize::from(op))?;
    let mut number = || {
        let (word, after) = rest.split_first_chunk()?;
        rest = after;
        Some(u64::from_le_bytes(*word).checked_sub(1).map(|number| number as usize))
    };
    let (dtype, len, root, reason_len) = (number()?, number()?, number()?, number()?);
    let dtype = dtype.map(|dtype| DType::ALL.get(dtype).copied());
    let elements = match (dtype, len) {
        (None, None) => None,
        (Some(dtype), Some(len)) => Some(Elements { dtype: dtype?, len }),
        _ => return None,
    };
    let (reason, bytes) = rest.split_at_checked(reason_len.unwrap_or(0))?;
    let failure = reason_len.map(|_| String::from_utf8_lossy(reason).into_owned());
    let call = Call { op, elements, root };
    Some(Message { bytes: bytes.into(), failure, ..Message::of(call) })
}
