//! Ranks that reach each other by messages alone, such as processes.

use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_tensor::{DType, Device, Tensor};

use crate::collectives::Rank;
use crate::error::{Call, RanksError, Result};
use crate::meeting::{Meeting, Message, Others, REFUSE};
use crate::together::{pieces, slice, write};

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

    fn others_than_this(&self) -> impl Iterator<Item = usize> + use<W> {
        let Rank { index, count } = self.0.rank();
        (0..count).filter(move |&other| other != index)
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
        self.others_than_this().try_for_each(|other| self.send_message(&own, other))?;
        let of_rank = |rank: usize| match rank == index {
            true => Ok(own.clone()),
            false => self.receive_message(rank, op),
        };
        (0..count).map(of_rank).collect::<Result<Vec<_>>>().map(Arc::from)
    }

    fn give(&self, x: &Tensor, to: usize) -> Result<()> {
        let elements = Some((x.dtype(), x.element_count()));
        let call = Call { op: "send", elements, root: None };
        self.send_message(&Message::of(call), to)?;
        let failed = |reason| RanksError::Failed { rank: to, op: "receive", reason };
        // Whether it takes that, and whether it could.
        if let Some(reason) = self.receive_message(to, call.op)?.failure {
            return Err(failed(reason));
        }
        for piece in pieces(x) {
            self.0.send(slice(x, piece)?.to_bytes()?, to)?;
        }
        self.receive_message(to, call.op)?.failure.map_or(Ok(()), |reason| Err(failed(reason)))
    }

    fn take(&self, x: &mut Tensor, from: usize) -> Result<()> {
        let elements = Some((x.dtype(), x.element_count()));
        let own = Call { op: "receive", elements, root: None };
        let answer = |outcome: &Result<()>| {
            let failure = outcome.as_ref().err().map(ToString::to_string);
            self.send_message(&Message { failure, ..Message::of(own) }, from)
        };
        let other = self.receive_message(from, own.op)?.call;
        let checked = match other.op == "send" && other.elements == elements {
            true => Ok(()),
            false => Err(RanksError::Mismatch { rank: from, own, other }),
        };
        answer(&checked)?;
        checked?;
        let mut outcome = Ok(());
        for piece in pieces(x) {
            let bytes = self.0.receive(from, own.op)?;
            if outcome.is_ok() {
                outcome = unpacked(&bytes, piece.len(), x.dtype(), x.device())
                    .and_then(|received| write(&received, x, piece.start));
            }
        }
        answer(&outcome)?;
        outcome
    }

    fn give_up(&self, reason: &str) {
        self.0.abort(reason);
    }

    fn others(&self, messages: &[Message]) -> Box<dyn Others + '_> {
        let own = &messages[self.0.rank().index];
        let tensor = own.tensor.clone().expect("what this rank gives");
        Box::new(BehindTheWire { wire: &self.0, op: own.call.op, tensor })
    }
}

/// Tensors that come in messages.
struct BehindTheWire<'a, W> {
    wire: &'a W,
    op: &'static str,
    /// The own one.
    tensor: Tensor,
}

impl<W: Wire> Others for BehindTheWire<'_, W> {
    fn give(&mut self, to: usize, piece: Range<usize>) -> Result<()> {
        self.wire.send(slice(&self.tensor, piece)?.to_bytes()?, to)
    }

    fn take(&mut self, from: usize, piece: Range<usize>, device: &Device) -> Result<Tensor> {
        let bytes = self.wire.receive(from, self.op)?;
        unpacked(&bytes, piece.len(), self.tensor.dtype(), device)
    }

    fn leave(&mut self, from: usize) -> Result<()> {
        self.wire.receive(from, self.op).map(drop)
    }
}

/// Elements of a message on a device.
fn unpacked(bytes: &[u8], len: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let mut tensor = Tensor::empty_in(device, Category::Workspace, [len], dtype)?;
    tensor.set_bytes_(bytes)?;
    Ok(tensor)
}

/// What a call may be.
const OPS: [&str; 10] = [
    "exchange",
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "reduce_part",
    "gather_parts",
    "broadcast",
    "send",
    "receive",
    REFUSE,
];

/// A message without its tensor: lengths are 64 bits, little-endian.
fn encoded(Message { call, bytes, failure, .. }: &Message) -> Vec<u8> {
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

fn decoded(bytes: &[u8]) -> Option<Message> {
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
