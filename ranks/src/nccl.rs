//! Ranks with an NVIDIA device each: what they say goes as it did, tensors go by NCCL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lowtide_tensor::cuda::gate::{Communicator, Nccl, NcclId};
use lowtide_tensor::{CpuOptions, DType, Device, Tensor, TensorError};

use crate::collectives::{Collectives, Rank, vote};
use crate::error::{Call, RanksError, Result};
use crate::meeting::{Gift, Meeting, Message, Others, Taking};
use crate::together::{is_the_end, slice};
use crate::wire::{decoded, encoded};

/// What one rank says to another alone, at most. The reason of a failure is cut to fit.
const WORDS_BYTES: usize = 1024;

/// Their length, which goes before them.
const LEN_BYTES: usize = size_of::<u64>();

/// The same ranks, each of which calls this with the NVIDIA device that its tensors are on. From
/// then on these go from device to device by NCCL, with the sums and the memory of any other
/// engine. No rank waits for another for longer than `timeout`.
///
/// # Errors
/// `Tensor` if this rank has no NCCL, if it fails, or if the device is of another kind; `Refused`
/// if it is so on another rank: the ranks may go on as they are. Those of
/// [`Collectives::exchange`].
pub fn nccl(ranks: Arc<dyn Collectives>, device: &Device, timeout: Duration) -> Result<NcclRank> {
    let Rank { index, count } = ranks.rank();
    let found = library_of(device);
    together(&*ranks, &found)?;
    let library = found?;
    let id = if index == 0 { Some(library.new_id()) } else { None }.transpose();
    together(&*ranks, &id)?;
    let said = ranks.exchange(&id?.map_or_else(Vec::new, |id| id.0.to_vec()))?;
    let id = said[0].as_slice().try_into().map_err(|_| RanksError::Aborted {
        rank: 0,
        reason: "it sent what is no id of NCCL".to_owned(),
    })?;
    let free_bytes = || -> Result<usize> {
        Ok(library.device().memory().map_err(TensorError::from)?.free_bytes)
    };
    let before_bytes = free_bytes();
    let joined = library.join(&NcclId(id), index, count, timeout);
    together(&*ranks, &joined)?;
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

/// `Ok` if every rank has it, and on a rank that does not.
///
/// # Errors
/// `Refused` of another rank.
fn together<R, E: fmt::Display>(
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
    /// How ranks meet.
    ranks: Arc<dyn Collectives>,
    communicator: Communicator,
    device: Device,
    /// For what is said to one rank alone.
    host: Device,
    outside_bytes: usize,
}

impl NcclRank {
    /// What NCCL took of the device's memory when the ranks joined, which no budget knows of.
    pub fn outside_bytes(&self) -> usize {
        self.outside_bytes
    }

    /// The result; if it is the end, work that waits for other ranks ends as well.
    fn or_end<R>(&self, result: Result<R>) -> Result<R> {
        if result.as_ref().is_err_and(is_the_end) {
            self.communicator.give_up();
        }
        result
    }

    fn words(&self, bytes: &[u8]) -> Result<Tensor> {
        let mut padded = vec![0; LEN_BYTES + WORDS_BYTES];
        padded[..LEN_BYTES].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        padded[LEN_BYTES..][..bytes.len()].copy_from_slice(bytes);
        Ok(Tensor::from_bytes(&self.host, [padded.len()], DType::U8, &padded)?)
    }

    fn received(&self, bytes: &[u8], from: usize) -> Result<Message> {
        decoded(bytes).ok_or_else(|| RanksError::Aborted {
            rank: from,
            reason: "it sent what is no message of this version".to_owned(),
        })
    }
}

impl Meeting for NcclRank {
    fn rank(&self) -> Rank {
        self.ranks.rank()
    }

    fn meet(&self, own: Message) -> Result<Arc<[Message]>> {
        let said = self.or_end(self.ranks.exchange(&encoded(&own)))?;
        let messages = said.iter().enumerate().map(|(from, bytes)| self.received(bytes, from));
        messages.collect::<Result<Vec<_>>>().map(Arc::from)
    }

    fn post(&self, mut message: Message, to: usize) -> Result<()> {
        if let Some(reason) = &mut message.failure {
            let end = (0..=WORDS_BYTES / 2).rev().find(|&end| reason.is_char_boundary(end));
            reason.truncate(end.unwrap_or(0));
        }
        let words = self.words(&encoded(&message))?;
        self.or_end(self.ranks.send(&words, to))
    }

    fn fetch(&self, from: usize, _: &Message) -> Result<Message> {
        let mut words = self.words(&[])?;
        self.or_end(self.ranks.receive(&mut words, from))?;
        let words = words.to_bytes()?;
        let words = words
            .split_first_chunk::<LEN_BYTES>()
            .and_then(|(len, words)| words.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?));
        self.received(words.unwrap_or_default(), from)
    }

    fn give_up(&self, reason: &str) {
        self.communicator.give_up();
        self.ranks.abort(reason);
    }

    fn others<'a>(&'a self, _: Call, _: &'a [Message], own: &'a Tensor) -> Box<dyn Others + 'a> {
        Box::new(ByNccl { rank: self, own })
    }
}

impl Drop for NcclRank {
    fn drop(&mut self) {
        // Some rank may have ended without a word, which those that wait for it are told.
        if std::thread::panicking() {
            self.communicator.give_up();
        }
    }
}

/// Tensors that come from other devices.
struct ByNccl<'a> {
    rank: &'a NcclRank,
    own: &'a Tensor,
}

impl Others for ByNccl<'_> {
    fn exchange(&mut self, gifts: &[Gift], takings: &mut [Taking]) -> Result<()> {
        if gifts.is_empty() && takings.is_empty() {
            return Ok(());
        }
        let gift = |Gift { to, piece }: &Gift| Ok((*to, slice(self.own, piece.clone())?));
        let gifts = gifts.iter().map(gift).collect::<Result<Vec<_>>>()?;
        let takings: Vec<_> =
            takings.iter().map(|taking| (taking.from, taking.place.clone())).collect();
        let NcclRank { ranks, communicator, device, .. } = self.rank;
        device.exchange(communicator, &gifts, &takings).map_err(|error| {
            // Nothing is known of what the other ranks have by now.
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
