//! One rank alone, whose partners all do what it does: what a step of many ranks needs, without
//! them.

use std::sync::Arc;

use lowtide_tensor::Tensor;

use crate::collectives::Rank;
use crate::error::{RanksError, Result};
use crate::meeting::{Meeting, Message};
use crate::together;

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

    fn give(&self, _: &Tensor, _: usize) -> Result<()> {
        Ok(())
    }

    fn take(&self, x: &mut Tensor, _: usize) -> Result<()> {
        let own = x.clone();
        together::copy(&own, x)
    }

    fn give_up(&self, _: &str) {}
}
