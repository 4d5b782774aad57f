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
/// rounds, or [a run of each batch](Sharded::in_blocks). All ranks have the same number of samples,
/// and must have the same seed. Their batches number `i` together are one batch of the order,
/// `rank_count` times as large.
#[derive(Debug, Clone)]
pub struct Sharded<S> {
    sampler: S,
    rank: usize,
    rank_count: usize,
    remainder: Remainder,
    in_blocks: bool,
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
        Ok(Self { sampler, rank, rank_count, remainder, in_blocks: false })
    }

    /// The same with the samples of a rank one after the other: of each batch of all ranks the
    /// first rank has the first samples, and so on, as it is cut for one rank that splits it.
    #[must_use]
    pub fn in_blocks(self) -> Self {
        Self { in_blocks: true, ..self }
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

    fn rank_count(&self) -> usize {
        self.rank_count.saturating_mul(self.sampler.rank_count())
    }

    fn order(&self, key: EpochKey, len: usize) -> Box<dyn Order> {
        let batch_size = key.batch_size.saturating_mul(self.rank_count);
        let order = self.sampler.order(EpochKey { batch_size, ..key }, len);
        // The loader has asked before, so these are no errors.
        let order_len = self.sampler.samples_per_epoch(len).unwrap_or(len);
        let own_len = self.samples_per_epoch(len).unwrap_or(len);
        let block = self.in_blocks.then_some(key.batch_size);
        let &Self { rank, rank_count, .. } = self;
        Box::new(Shard { order, order_len, own_len, rank, rank_count, block })
    }
}

struct Shard {
    order: Box<dyn Order>,
    order_len: usize,
    /// Samples that this rank visits.
    own_len: usize,
    rank: usize,
    rank_count: usize,
    /// Samples of a rank that follow each other, in a full batch.
    block: Option<usize>,
}

impl Order for Shard {
    fn sample(&self, position: usize) -> usize {
        let place = match self.block {
            None => position * self.rank_count + self.rank,
            Some(block) => {
                let first = position - position % block;
                // The last batch may be smaller, on all ranks alike.
                let block = block.min(self.own_len - first);
                first * self.rank_count + self.rank * block + (position - first)
            }
        };
        self.order.sample(place % self.order_len)
    }
}
