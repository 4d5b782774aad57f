//! One rank alone, whose partners all do what it does: what a step of many ranks needs, without
//! them.

use std::sync::Arc;

use crate::collectives::Rank;
use crate::error::{Call, RanksError, Result};
use crate::meeting::{Meeting, Message};
use crate::together::SEND;

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
        Ok(Message { call: Call { op: SEND, ..own.call }, ..own.clone() })
    }

    fn give_up(&self, _: &str) {}
}
