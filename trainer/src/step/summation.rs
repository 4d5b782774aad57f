//! The order in which a batch is summed: micro-batch after micro-batch, or along a tree of shards
//! whose bits do not depend on how the batch is spread over ranks.

use std::ops::Range;

use lowtide_data::BatchView;

use crate::error::{Result, TrainError};
use crate::options::{MicroBatches, Options};
use crate::step::context::micro_batches;
use crate::task::contract::Task;

/// The order in which losses, gradients and counts of a batch are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Summation {
    /// One micro-batch after the other, in the size of the plan.
    Sequential,
    /// A tree of deterministic shards of this number of samples. The bits are the same on 1, 2, 4
    /// or 8 ranks.
    Shards(usize),
}

impl Summation {
    pub(crate) fn of(options: &Options) -> Summation {
        match options.micro_batches {
            MicroBatches::Shards(len) => Summation::Shards(len.get()),
            MicroBatches::AsNeeded | MicroBatches::Never => Summation::Sequential,
        }
    }

    /// Divisors of the loss, one for each of its terms, counted over the samples of `batch`.
    ///
    /// # Errors
    /// Errors of the task; `Setting` for a batch that is not made of whole shards.
    pub(crate) fn counts(self, task: &impl Task, batch: &BatchView<'_>) -> Result<Vec<f64>> {
        let Summation::Shards(len) = self else { return task.counts(batch) };
        check_whole_shards(batch, len)?;
        let shards: Vec<_> = micro_batches(batch.len(), len).collect();
        let of_shard = &mut |index: usize| task.counts(&batch.slice(shards[index].clone()));
        tree_sum(0..shards.len(), of_shard, &|sum, counts| add_counts(sum, &counts))
    }
}

/// Adds the counts of loss terms.
pub(crate) fn add_counts(own: &mut [f64], other: &[f64]) -> Result<()> {
    own.iter_mut().zip(other).for_each(|(sum, count)| *sum += count);
    Ok(())
}

/// The sum along a tree that halves the range; the first half is the longer one. With a power of
/// two of ranks, each rank has a subtree.
///
/// # Errors
/// Errors of `one` and `add`.
///
/// # Panics
/// If the range is empty.
pub(crate) fn tree_sum<R>(
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
    let mut sum = tree_sum(range.start..middle, one, add)?;
    add(&mut sum, tree_sum(middle..range.end, one, add)?)?;
    Ok(sum)
}

/// # Errors
/// `Setting` unless the batch is made of whole shards of `len` samples.
fn check_whole_shards(batch: &BatchView<'_>, len: usize) -> Result<()> {
    if batch.len().is_multiple_of(len) {
        return Ok(());
    }
    let problem = format!(
        "a rank's share of {} samples is not made of leaves of {len}: batches have to be of as \
         many, and a shorter last one dropped",
        batch.len()
    );
    Err(TrainError::Setting { place: "leaves".to_owned(), problem })
}
