//! Random splits of a dataset.

use crate::dataset::Dataset;
use crate::sampler::order::EpochKey;
use crate::sampler::rng::{epoch_rng, shuffle};
use crate::subset::Subset;
use std::sync::Arc;

/// Splits a dataset at random into parts with the given fractions, such as `[0.9, 0.1]`. Every
/// sample is in one part. Within a part the samples are in the order of the dataset. The parts
/// depend only on the seed, on neither platform nor version.
///
/// # Errors
/// [`BadFractions`] unless the fractions are from 0 to 1 and their sum is 1.
pub fn split_at_random<D: Dataset + ?Sized>(
    dataset: &Arc<D>,
    fractions: &[f64],
    seed: u64,
) -> Result<Vec<Subset<Arc<D>>>, BadFractions> {
    let is_fraction = |fraction: &f64| (0.0..=1.0).contains(fraction);
    let sum: f64 = fractions.iter().sum();
    if !fractions.iter().all(is_fraction) || (sum - 1.0).abs() > SUM_TOLERANCE {
        return Err(BadFractions { fractions: fractions.to_vec() });
    }
    let len = dataset.len();
    let mut indices: Vec<usize> = (0..len).collect();
    let key = EpochKey { seed, epoch: 0, batch_size: 1 };
    shuffle(&mut indices, &mut epoch_rng(key, b"lowtide::split__"));
    let (mut parts, mut start, mut sum) = (Vec::with_capacity(fractions.len()), 0, 0.0);
    for (at, fraction) in fractions.iter().enumerate() {
        sum += fraction;
        let is_last = at + 1 == fractions.len();
        let end = if is_last { len } else { (len as f64 * sum).round() as usize };
        let end = end.clamp(start, len);
        let mut part = indices[start..end].to_vec();
        part.sort_unstable();
        let part = Subset::new(Arc::clone(dataset), part);
        parts.push(part.expect("indexes below the length of the dataset"));
        start = end;
    }
    Ok(parts)
}

/// Allowed deviation of the sum from 1: binary fractions are not exact, as in ten times 0.1.
const SUM_TOLERANCE: f64 = 1e-9;

/// Fractions that are outside of [0, 1] or whose sum is not 1.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("fractions must be from 0 to 1 and have the sum 1, not {fractions:?}")]
pub struct BadFractions {
    /// The given fractions.
    pub fractions: Vec<f64>,
}
