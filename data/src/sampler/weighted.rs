//! Samples as often as their weights say.

use crate::error::DataError;
use crate::sampler::stream::stream;
use crate::sampler::{EpochKey, Order, Sampler};
use rand_core::Rng;
use std::sync::Arc;

/// Draws each sample of an epoch by weight, with replacement: for classes of different sizes.
///
/// PyTorch's `WeightedRandomSampler` with `replacement=True`. The draw at a position is a function
/// of seed, epoch and position, so an epoch holds nothing beside the sums of the weights.
#[derive(Debug, Clone)]
pub struct Weighted {
    /// Sums of the weights up to and with each sample.
    sums: Arc<[f64]>,
    draw_count: usize,
}

impl Weighted {
    /// `draw_count` samples per epoch, each with the probability of its weight divided by the sum
    /// of all weights; there is one weight per sample of the dataset.
    ///
    /// # Errors
    /// [`DataError::Weight`] for a weight that is negative or not finite, or whose sum with those
    /// before it is not finite; [`DataError::InvalidOption`] if their sum is 0.
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
    /// [`DataError::SampleCount`] unless there are as many samples as weights.
    fn samples_per_epoch(&self, len: usize) -> Result<usize, DataError> {
        if len != self.sums.len() {
            return Err(DataError::SampleCount { sampler: self.sums.len(), dataset: len });
        }
        Ok(self.draw_count)
    }

    fn order(&self, key: EpochKey, _len: usize) -> Box<dyn Order> {
        Box::new(Draws { sums: Arc::clone(&self.sums), key })
    }
}

struct Draws {
    sums: Arc<[f64]>,
    key: EpochKey,
}

impl Order for Draws {
    fn sample(&self, position: usize) -> usize {
        let mut stream = stream(self.key, b"lowtide::weights");
        // Two words of 4 bytes each.
        stream.set_word_pos(2 * position as u128);
        // The upper 53 bits, which f64 holds: from 0 to below 1.
        let unit = (stream.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let total = self.sums.last().copied().unwrap_or(0.0);
        let drawn = unit * total;
        // The first sum above the number drawn; a sample without weight adds nothing to the sum
        // before it. Rounding may make `drawn` the total, which is the last one with a weight.
        let at = self.sums.partition_point(|&sum| sum <= drawn);
        if at < self.sums.len() { at } else { self.sums.partition_point(|&sum| sum < total) }
    }
}
