//! A single rank that simulates the others, to find the memory that a step of many ranks needs.

use std::sync::Arc;

use lowtide_tensor::Tensor;

use crate::collectives::Rank;
use crate::error::{Call, RanksError, Result};
use crate::meeting::{Incoming, Meeting, Message, Outgoing, PeerTensors};
use crate::together::slice;

/// A rank whose peers are copies of itself. With tensors of a simulated device it allocates exactly
/// the bytes that a rank of [`threads`](crate::threads) allocates.
#[derive(Clone, Copy, Debug)]
pub struct Mirror(Rank);

impl Mirror {
    /// The given rank among copies of itself.
    ///
    /// # Errors
    /// `NoSuchRank` unless the index is below the count.
    pub fn new(rank: Rank) -> Result<Self> {
        let Rank { index, count } = rank;
        if index >= count {
            return Err(RanksError::NoSuchRank { rank: index, count });
        }
        Ok(Mirror(rank))
    }
}

impl Meeting for Mirror {
    fn rank(&self) -> Rank {
        self.0
    }

    fn meet(&self, own: Message) -> Result<Arc<[Message]>> {
        Ok(std::iter::repeat_n(own, self.0.count).collect())
    }

    fn post(&self, _: Message, _: usize) -> Result<()> {
        Ok(())
    }

    fn fetch(&self, _: usize, own: &Message) -> Result<Message> {
        Ok(own.clone())
    }

    fn give_up(&self, _: &str) {}

    fn peer_tensors<'a>(
        &'a self,
        _: Call,
        messages: &'a [Message],
        own: &'a Tensor,
    ) -> Box<dyn PeerTensors + 'a> {
        Box::new(MirroredTensors { messages, own })
    }
}

/// Copies of the own tensor. If a trade asks for other elements than the own tensor has, the
/// incoming tensor keeps its elements.
struct MirroredTensors<'a> {
    messages: &'a [Message],
    own: &'a Tensor,
}

impl PeerTensors for MirroredTensors<'_> {
    fn exchange(&mut self, _: &[Outgoing], incoming: &mut [Incoming]) -> Result<()> {
        incoming.iter_mut().try_for_each(|Incoming { from, piece, place }| {
            let tensor = self.messages.get(*from).and_then(|message| message.tensor.as_ref());
            let tensor = tensor.unwrap_or(self.own);
            let has_piece = piece.end <= tensor.element_count() && tensor.dtype() == place.dtype();
            let source = if has_piece { slice(tensor, piece.clone())? } else { place.clone() };
            Ok(place.copy_across_(&source)?)
        })
    }
}
