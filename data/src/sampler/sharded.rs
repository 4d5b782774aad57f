//! The part of an order that one of several processes visits.

use crate::error::DataError;
use crate::sampler::{EpochKey, Order, Sampler};

/// What is done with the samples that do not make a whole round of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remainder {
    /// Every rank gets one more, the first samples of the order a second time: no sample is missed.
    /// PyTorch's `DistributedSampler` with `drop_last=False`.
    Repeat,
    /// They are left out of this epoch: no sample comes twice.
    Drop,
}

/// Every `rank_count`-th sample of another sampler's order, so that the ranks together visit it in
/// rounds. All ranks have the same number of samples, and must have the same seed. Their batches
/// number `i` together are one batch of the order, `rank_count` times as large.
#[derive(Debug, Clone)]
pub struct Sharded<S> {
    sampler: S,
    rank: usize,
    rank_count: usize,
    remainder: Remainder,
}

impl<S: Sampler> Sharded<S> {
    /// The part of `sampler` that rank `rank` of `rank_count` visits.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] if there is no such rank.
    pub fn new(
        sampler: S,
        rank: usize,
        rank_count: usize,
        remainder: Remainder,
    ) -> Result<Self, DataError> {
        if rank >= rank_count {
            return Err(DataError::InvalidOption { option: "rank", value: rank });
        }
        Ok(Self { sampler, rank, rank_count, remainder })
    }
}

impl<S: Sampler> Sampler for Sharded<S> {
    fn samples_per_epoch(&self, len: usize) -> Result<usize, DataError> {
        let whole = self.sampler.samples_per_epoch(len)?;
        Ok(match self.remainder {
            Remainder::Repeat => whole.div_ceil(self.rank_count),
            Remainder::Drop => whole / self.rank_count,
        })
    }

    fn order(&self, key: EpochKey, len: usize) -> Box<dyn Order> {
        let batch_size = key.batch_size.saturating_mul(self.rank_count);
        let order = self.sampler.order(EpochKey { batch_size, ..key }, len);
        // The loader has asked before, so this is no error.
        let order_len = self.sampler.samples_per_epoch(len).unwrap_or(len);
        Box::new(Shard { order, order_len, rank: self.rank, rank_count: self.rank_count })
    }
}

struct Shard {
    order: Box<dyn Order>,
    order_len: usize,
    rank: usize,
    rank_count: usize,
}

impl Order for Shard {
    fn sample(&self, position: usize) -> usize {
        self.order.sample((position * self.rank_count + self.rank) % self.order_len)
    }
}
