//! One rank alone, whose partners all do what it does: what a step of many ranks needs, without
//! them.

use std::sync::Arc;

use lowtide_tensor::Tensor;

use crate::collectives::Rank;
use crate::error::{Call, RanksError, Result};
use crate::meeting::{Gift, Meeting, Message, Others, Taking};
use crate::together::slice;

/// A rank whose partners are its own mirror images. With tensors of a simulated device it allocates
/// what a rank of [`threads`](crate::threads) does, to the byte.
#[derive(Clone, Copy, Debug)]
pub struct Mirror(Rank);

impl Mirror {
    /// That rank, among mirror images of itself.
    ///
    /// # Errors
    /// `NoSuchRank` unless its index is below the count.
    pub fn new(rank: Rank) -> Result<Self> {
        let Rank { index, count } = rank;
        match index < count {
            true => Ok(Mirror(rank)),
            false => Err(RanksError::NoSuchRank { rank: index, count }),
        }
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

    fn others<'a>(
        &'a self,
        _: Call,
        messages: &'a [Message],
        own: &'a Tensor,
    ) -> Box<dyn Others + 'a> {
        Box::new(Reflected { messages, own })
    }
}

/// Tensors of mirror images. What two ranks trade may differ in size: what is missing is as it was.
struct Reflected<'a> {
    messages: &'a [Message],
    own: &'a Tensor,
}

impl Others for Reflected<'_> {
    fn exchange(&mut self, _: &[Gift], takings: &mut [Taking]) -> Result<()> {
        takings.iter_mut().try_for_each(|Taking { from, piece, place }| {
            let tensor = self.messages.get(*from).and_then(|message| message.tensor.as_ref());
            let tensor = tensor.unwrap_or(self.own);
            let is_there = piece.end <= tensor.element_count() && tensor.dtype() == place.dtype();
            let source = match is_there {
                true => slice(tensor, piece.clone())?,
                false => place.clone(),
            };
            Ok(place.copy_across_(&source)?)
        })
    }
}
