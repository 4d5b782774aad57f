//! Random samples with weights.

use crate::error::DataError;
use crate::sampler::order::{EpochKey, Order, Sampler};
use crate::sampler::rng::epoch_rng;
use rand_core::Rng;
use std::sync::Arc;

/// Draws the samples of an epoch by weight, with replacement, for classes of different sizes.
///
/// The sampler corresponds to PyTorch's `WeightedRandomSampler` with `replacement=True`. The draw
/// at a position depends only on seed, epoch and position, so an epoch needs no memory beyond the
/// sums of the weights.
#[derive(Debug, Clone)]
pub struct Weighted {
    /// For each sample, the sum of the weights up to and including it.
    sums: Arc<[f64]>,
    draw_count: usize,
}

impl Weighted {
    /// A sampler that draws `draw_count` samples per epoch. The probability of a sample is its
    /// weight divided by the sum of all weights. `weights` has one weight for each sample.
    ///
    /// # Errors
    /// [`DataError::Weight`] for a weight that is negative or not finite, or that makes the sum
    /// infinite. [`DataError::InvalidOption`] if the sum is 0.
    pub fn new(weights: &[f64], draw_count: usize) -> Result<Self, DataError> {
        let mut sum = 0.0;
        let mut sums = Vec::with_capacity(weights.len());
        for (index, &weight) in weights.iter().enumerate() {
            sum += weight;
            if weight < 0.0 || !f64::is_finite(sum) {
                return Err(DataError::Weight { index, weight });
            }
            sums.push(sum);
        }
        if sum == 0.0 && draw_count > 0 {
            return Err(DataError::InvalidOption { option: "sum of weights", value: 0 });
        }
        Ok(Self { sums: sums.into(), draw_count })
    }
}

impl Sampler for Weighted {
    /// # Errors
    /// [`DataError::SampleCount`] if the number of samples differs from the number of weights.
    fn samples_per_epoch(&self, len: usize) -> Result<usize, DataError> {
        if len != self.sums.len() {
            return Err(DataError::SampleCount { sampler: self.sums.len(), dataset: len });
        }
        Ok(self.draw_count)
    }

    fn order(&self, key: EpochKey, _len: usize) -> Box<dyn Order> {
        Box::new(WeightedOrder { sums: Arc::clone(&self.sums), key })
    }
}

struct WeightedOrder {
    sums: Arc<[f64]>,
    key: EpochKey,
}

impl Order for WeightedOrder {
    fn sample(&self, position: usize) -> usize {
        let mut rng = epoch_rng(self.key, b"lowtide::weights");
        // A draw takes two words of 4 bytes.
        rng.set_word_pos(2 * position as u128);
        // The upper 53 bits, which an f64 holds exactly, as a number from [0, 1).
        let unit = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let total = self.sums.last().copied().unwrap_or(0.0);
        let drawn = unit * total;
        // The drawn sample is the first sample whose sum is above `drawn`, so a sample of weight 0
        // is never chosen. If rounding makes `drawn` equal to the total, the last sample with a
        // weight is chosen.
        let at = self.sums.partition_point(|&sum| sum <= drawn);
        if at < self.sums.len() { at } else { self.sums.partition_point(|&sum| sum < total) }
    }
}
