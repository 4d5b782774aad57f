//! Batches of samples of similar length.

use crate::error::DataError;
use crate::sampler::order::{EpochKey, Order, Sampler};
use crate::sampler::rng::{epoch_rng, shuffle};
use std::sync::Arc;

/// Visits every sample once, in a new order in each epoch, with samples of similar length in a
/// batch, so that texts and sounds need less padding.
///
/// The samples are shuffled and cut into pools of `pool_batches` batches. Each pool is sorted by
/// length, and the full batches are shuffled again. Larger pools make the lengths in a batch more
/// similar and the batches less random.
#[derive(Debug, Clone)]
pub struct Bucketed {
    lengths: Arc<[u32]>,
    pool_batches: usize,
}

impl Bucketed {
    /// A sampler for samples with these lengths, in any unit.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for pools of 0 batches.
    pub fn new(lengths: impl Into<Arc<[u32]>>, pool_batches: usize) -> Result<Self, DataError> {
        if pool_batches == 0 {
            return Err(DataError::InvalidOption { option: "pool_batches", value: 0 });
        }
        Ok(Self { lengths: lengths.into(), pool_batches })
    }
}

impl Sampler for Bucketed {
    /// # Errors
    /// [`DataError::SampleCount`] if the number of samples differs from the number of lengths.
    fn samples_per_epoch(&self, len: usize) -> Result<usize, DataError> {
        if len != self.lengths.len() {
            return Err(DataError::SampleCount { sampler: self.lengths.len(), dataset: len });
        }
        Ok(len)
    }

    fn order(&self, key: EpochKey, len: usize) -> Box<dyn Order> {
        let mut rng = epoch_rng(key, b"lowtide::buckets");
        let mut table: Vec<usize> = (0..len).collect();
        shuffle(&mut table, &mut rng);
        for pool in table.chunks_mut(self.pool_batches.saturating_mul(key.batch_size)) {
            // The sort is stable, so that samples of one length stay shuffled.
            pool.sort_by_key(|&index| self.lengths[index]);
        }
        let mut batches: Vec<&[usize]> = table.chunks(key.batch_size).collect();
        // A short batch stays the last one.
        let full_count = len / key.batch_size;
        shuffle(&mut batches[..full_count], &mut rng);
        Box::new(batches.concat())
    }
}
