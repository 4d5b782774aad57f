//! Sums whose bits do not depend on how a batch is spread over ranks.

use std::ops::Range;

use lowtide_autograd::{BufferUpdates, Coupling, Gradients};
use lowtide_data::BatchView;
use lowtide_tensor::Tensor;

use crate::agreement::Ranks;
use crate::error::{Result, TrainError};

/// What COMPUTE makes of samples.
pub(crate) struct Computed {
    /// Of the losses; to be divided by the goal's count.
    pub(crate) loss_sum: Tensor,
    pub(crate) gradients: Gradients,
    /// Those of floats are sums, too, over the leaves.
    pub(crate) buffers: BufferUpdates,
    /// Where samples were coupled.
    pub(crate) coupling: Option<Coupling>,
    /// How many were computed on their own and then added.
    pub(crate) leaf_count: usize,
}

impl Computed {
    /// Adds what other samples came to.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn add(&mut self, other: Computed) -> Result<()> {
        self.loss_sum.add_(&other.loss_sum)?;
        self.gradients.add(other.gradients)?;
        for (id, value) in other.buffers.iter().filter(|(_, value)| value.dtype().is_float()) {
            // Every pass writes the same ones.
            let Some(own) = self.buffers.get(id) else { continue };
            own.clone().add_(value)?;
        }
        self.coupling = self.coupling.take().or(other.coupling);
        self.leaf_count += other.leaf_count;
        Ok(())
    }

    /// Buffers of floats, in the order in which they were made.
    pub(crate) fn float_buffers(&self) -> Vec<Tensor> {
        let values = self.buffers.iter().map(|(_, value)| value.clone());
        values.filter(|value| value.dtype().is_float()).collect()
    }
}

/// Adds counts of the terms of a loss.
pub(crate) fn add_counts(own: &mut [f64], other: &[f64]) -> Result<()> {
    own.iter_mut().zip(other).for_each(|(sum, count)| *sum += count);
    Ok(())
}

/// The sum along a tree that halves the range, the first half being the longer one: what each half
/// of a power of two of ranks has is a subtree.
///
/// # Errors
/// Those of `one` and `add`.
///
/// # Panics
/// If the range is empty.
pub(crate) fn summed<R>(
    range: Range<usize>,
    one: &mut impl FnMut(usize) -> Result<R>,
    add: &impl Fn(&mut R, R) -> Result<()>,
) -> Result<R> {
    let count = range.len();
    assert!(count > 0, "there is something to sum");
    if count == 1 {
        return one(range.start);
    }
    let middle = range.start + count.div_ceil(2);
    let mut sum = summed(range.start..middle, one, add)?;
    add(&mut sum, summed(middle..range.end, one, add)?)?;
    Ok(sum)
}

/// # Errors
/// `Setting` unless the batch and the ranks are such that every number of ranks has the same leaves
/// along the same tree.
pub(crate) fn check(ranks: Ranks<'_>, batch: &BatchView<'_>, leaf: usize) -> Result<()> {
    let wrong = |problem| Err(TrainError::Setting { place: "leaves".to_owned(), problem });
    let (count, len) = (ranks.map_or(1, |ranks| ranks.rank().count), batch.len());
    if !count.is_power_of_two() {
        return wrong(format!("{count} ranks have no common tree: 1, 2, 4, 8 and so on have"));
    }
    if !len.is_multiple_of(leaf) {
        return wrong(format!(
            "a rank's share of {len} samples is not made of leaves of {leaf}: batches have to be \
             of as many, and a shorter last one dropped"
        ));
    }
    Ok(())
}
