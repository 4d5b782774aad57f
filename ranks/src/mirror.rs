//! One rank alone, whose partners all do what it does: what a step of many ranks needs, without
//! them.

use std::sync::Arc;

use lowtide_tensor::Tensor;

use crate::collectives::{Collectives, Rank};
use crate::error::{RanksError, Result};
use crate::meeting::{Meeting, Message};
use crate::together;

/// A rank whose partners are its own mirror images. With tensors of a simulated device it allocates
/// what a rank of [`threads`](crate::threads) does, to the byte.
#[derive(Clone, Copy, Debug)]
pub struct Mirror(Rank);

impl Mirror {
    /// This rank.
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

    fn check(&self, rank: usize) -> Result<()> {
        let Rank { index, count } = self.0;
        match rank < count && rank != index {
            true => Ok(()),
            false => Err(RanksError::NoSuchRank { rank, count }),
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
}

impl Collectives for Mirror {
    fn rank(&self) -> Rank {
        self.0
    }

    fn exchange(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        together::exchange(self, own)
    }

    fn all_reduce(&self, x: &mut Tensor) -> Result<()> {
        together::all_reduce(self, x)
    }

    fn reduce_scatter(&self, from: &Tensor, to: &mut Tensor) -> Result<()> {
        together::reduce_scatter(self, from, to)
    }

    fn all_gather(&self, from: &Tensor, to: &mut Tensor) -> Result<()> {
        together::all_gather(self, from, to)
    }

    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()> {
        together::broadcast(self, x, root)
    }

    fn send(&self, _: &Tensor, to: usize) -> Result<()> {
        self.check(to)
    }

    fn receive(&self, x: &mut Tensor, from: usize) -> Result<()> {
        self.check(from)?;
        let own = x.clone();
        together::copy(&own, 0..own.element_count(), x, 0)
    }

    fn abort(&self, _: &str) {}
}
