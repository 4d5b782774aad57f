//! The part of an order that one of several ranks visits.

use crate::error::DataError;
use crate::sampler::order::{EpochKey, Order, Sampler};

/// The treatment of samples at the end of an epoch that do not suffice for all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remainder {
    /// Every rank gets one more sample: the first samples of the order are visited twice. No sample
    /// is missed. PyTorch's `DistributedSampler` with `drop_last=False` does the same.
    Repeat,
    /// The samples are left out of this epoch. No sample is visited twice.
    Drop,
}

/// A rank's part of another sampler's order.
///
/// A rank visits every `rank_count`-th sample of the order, or [a block of each
/// batch](Sharded::in_blocks). All ranks visit equally many samples and must use one seed. The
/// batches with index `i` of all ranks together are one batch of the order, `rank_count` times as
/// large.
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

    /// Changes this part to consecutive samples: each batch of all ranks is cut into one block per
    /// rank, as a single rank cuts a batch into micro-batches.
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
        // The loader has checked both numbers before, so neither call fails.
        let order_len = self.sampler.samples_per_epoch(len).unwrap_or(len);
        let own_len = self.samples_per_epoch(len).unwrap_or(len);
        let block = self.in_blocks.then_some(key.batch_size);
        let &Self { rank, rank_count, .. } = self;
        Box::new(ShardedOrder { order, order_len, own_len, rank, rank_count, block })
    }
}

struct ShardedOrder {
    order: Box<dyn Order>,
    order_len: usize,
    /// Number of samples that this rank visits.
    own_len: usize,
    rank: usize,
    rank_count: usize,
    /// Present if samples are visited in blocks: the size of a block in a full batch.
    block: Option<usize>,
}

impl Order for ShardedOrder {
    fn sample(&self, position: usize) -> usize {
        let place = match self.block {
            None => position * self.rank_count + self.rank,
            Some(block) => {
                let first = position - position % block;
                // The last batch may be smaller, equally on all ranks.
                let block = block.min(self.own_len - first);
                first * self.rank_count + self.rank * block + (position - first)
            }
        };
        self.order.sample(place % self.order_len)
    }
}
