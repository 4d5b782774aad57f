//! Ranks with one NVIDIA device each. Tensors travel by NCCL, messages by the engine below.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lowtide_tensor::cuda::gate::{Communicator, Nccl, NcclId};
use lowtide_tensor::{CpuOptions, DType, Device, Tensor, TensorError};

use crate::collectives::{Collectives, Rank, vote};
use crate::error::{Call, RanksError, Result};
use crate::meeting::{Incoming, Meeting, Message, Outgoing, PeerTensors};
use crate::together::slice;
use crate::wire::{NO_MESSAGE, decoded, encoded};

/// Largest size of a message to a single rank. The reason of a failure is cut to fit.
const MESSAGE_BYTES: usize = 1024;

/// Size of the length in front of a message.
const LEN_BYTES: usize = size_of::<u64>();

/// Connects `ranks` by NCCL. Every rank calls this with the NVIDIA device of its tensors.
///
/// From then on tensors travel from device to device. Sums have the bits of every other engine and
/// take the same memory. No rank waits for another one longer than `timeout`.
///
/// # Errors
/// `Tensor` if this rank has no NCCL, if NCCL fails, or if the device is not CUDA; the other ranks
/// get `Refused`, and all can continue without NCCL. Else as for [`Collectives::exchange`].
pub fn nccl(ranks: Arc<dyn Collectives>, device: &Device, timeout: Duration) -> Result<NcclRank> {
    let Rank { index, count } = ranks.rank();
    let found = library_of(device);
    vote_on(&*ranks, &found)?;
    let library = found?;
    let id = if index == 0 { Some(library.new_id()) } else { None }.transpose();
    vote_on(&*ranks, &id)?;
    let ids = ranks.exchange(&id?.map_or_else(Vec::new, |id| id.0.to_vec()))?;
    let id = ids[0].as_slice().try_into().map_err(|_| RanksError::Aborted {
        rank: 0,
        reason: "it sent what is no id of NCCL".to_owned(),
    })?;
    let free_bytes = || -> Result<usize> {
        Ok(library.device().memory().map_err(TensorError::from)?.free_bytes)
    };
    let before_bytes = free_bytes();
    let joined = library.join(&NcclId(id), index, count, timeout);
    vote_on(&*ranks, &joined)?;
    let communicator = joined?;
    let outside_bytes = before_bytes?.saturating_sub(free_bytes()?);
    let host = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
    Ok(NcclRank { ranks, communicator, device: device.clone(), host, outside_bytes })
}

fn library_of(device: &Device) -> std::result::Result<Nccl, TensorError> {
    let Some(cuda) = device.as_cuda() else {
        let (op, device) = ("nccl", "cpu");
        return Err(TensorError::NoKernel { op, device });
    };
    Ok(Nccl::of(cuda.device())?)
}

/// Votes yes if `own` is `Ok`. A rank that votes no gets `Ok`, so that it can return its own error.
///
/// # Errors
/// `Refused` if another rank voted no.
fn vote_on<R, E: fmt::Display>(
    ranks: &dyn Collectives,
    own: &std::result::Result<R, E>,
) -> Result<()> {
    let problem = own.as_ref().err().map(ToString::to_string);
    let agreed = vote(ranks, problem.as_deref().map_or(Ok(()), Err));
    match agreed {
        Err(RanksError::Refused { .. }) if own.is_err() => Ok(()),
        agreed => agreed,
    }
}

/// A rank of [`nccl`].
pub struct NcclRank {
    /// The engine that carries messages.
    ranks: Arc<dyn Collectives>,
    communicator: Communicator,
    device: Device,
    /// The device of messages to single ranks.
    host: Device,
    outside_bytes: usize,
}

impl NcclRank {
    /// Bytes of device memory that NCCL took when the ranks joined. They are outside of any budget.
    pub fn outside_bytes(&self) -> usize {
        self.outside_bytes
    }

    /// Returns `result`. After a fatal error, work on the device that waits for other ranks ends.
    fn or_end<R>(&self, result: Result<R>) -> Result<R> {
        if result.as_ref().is_err_and(RanksError::is_fatal) {
            self.communicator.give_up();
        }
        result
    }

    /// The bytes of a message as a tensor of fixed size.
    fn padded(&self, bytes: &[u8]) -> Result<Tensor> {
        let mut padded = vec![0; LEN_BYTES + MESSAGE_BYTES];
        padded[..LEN_BYTES].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        padded[LEN_BYTES..][..bytes.len()].copy_from_slice(bytes);
        Ok(Tensor::from_bytes(&self.host, [padded.len()], DType::U8, &padded)?)
    }

    fn received(&self, bytes: &[u8], from: usize) -> Result<Message> {
        decoded(bytes)
            .ok_or_else(|| RanksError::Aborted { rank: from, reason: NO_MESSAGE.to_owned() })
    }
}

impl Meeting for NcclRank {
    fn rank(&self) -> Rank {
        self.ranks.rank()
    }

    fn meet(&self, own: Message) -> Result<Arc<[Message]>> {
        let encoded = self.or_end(self.ranks.exchange(&encoded(&own)))?;
        let messages = encoded.iter().enumerate().map(|(from, bytes)| self.received(bytes, from));
        messages.collect::<Result<Vec<_>>>().map(Arc::from)
    }

    fn post(&self, mut message: Message, to: usize) -> Result<()> {
        if let Some(reason) = &mut message.failure {
            let end = (0..=MESSAGE_BYTES / 2).rev().find(|&end| reason.is_char_boundary(end));
            reason.truncate(end.unwrap_or(0));
        }
        let padded = self.padded(&encoded(&message))?;
        self.or_end(self.ranks.send(&padded, to))
    }

    fn fetch(&self, from: usize, _: &Message) -> Result<Message> {
        let mut padded = self.padded(&[])?;
        self.or_end(self.ranks.receive(&mut padded, from))?;
        let padded = padded.to_bytes()?;
        let bytes = padded
            .split_first_chunk::<LEN_BYTES>()
            .and_then(|(len, bytes)| bytes.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?));
        self.received(bytes.unwrap_or_default(), from)
    }

    fn give_up(&self, reason: &str) {
        self.communicator.give_up();
        self.ranks.abort(reason);
    }

    fn peer_tensors<'a>(
        &'a self,
        _: Call,
        _: &'a [Message],
        own: &'a Tensor,
    ) -> Box<dyn PeerTensors + 'a> {
        Box::new(ByNccl { rank: self, own })
    }
}

impl Drop for NcclRank {
    fn drop(&mut self) {
        // Another rank may have ended, and work on this device would wait for it without end.
        if std::thread::panicking() {
            self.communicator.give_up();
        }
    }
}

/// Tensors whose pieces travel from device to device.
struct ByNccl<'a> {
    rank: &'a NcclRank,
    own: &'a Tensor,
}

impl PeerTensors for ByNccl<'_> {
    fn exchange(&mut self, outgoing: &[Outgoing], incoming: &mut [Incoming]) -> Result<()> {
        if outgoing.is_empty() && incoming.is_empty() {
            return Ok(());
        }
        let piece = |Outgoing { to, piece }: &Outgoing| Ok((*to, slice(self.own, piece.clone())?));
        let outgoing = outgoing.iter().map(piece).collect::<Result<Vec<_>>>()?;
        let incoming: Vec<_> =
            incoming.iter().map(|incoming| (incoming.from, incoming.place.clone())).collect();
        let NcclRank { ranks, communicator, device, .. } = self.rank;
        device.exchange(communicator, &outgoing, &incoming).map_err(|error| {
            // The other ranks may have some of the pieces and not others.
            self.rank.give_up(&error.to_string());
            let Rank { index, .. } = ranks.rank();
            RanksError::Aborted { rank: index, reason: error.to_string() }
        })
    }
}

impl fmt::Debug for NcclRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclRank").field("communicator", &self.communicator).finish_non_exhaustive()
    }
}
