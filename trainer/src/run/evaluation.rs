//! Evaluations of a model, in parts that fit into memory.

use std::ops::Range;
use std::time::Duration;

use lowtide_allocator::{Category, ModulePath, Origin};
use lowtide_data::{Batch, BatchView, Loader, LoaderState};
use lowtide_nn::optim::Stateful;
use lowtide_ranks::Rank;
use lowtide_tensor::Device;

use crate::error::{Result, TrainError};
use crate::run::score::Score;
use crate::run::waiting::Patience;
use crate::step::context::micro_batches;
use crate::task::contract::Task;

/// Scores a batch, `micro_batch` samples at a time.
pub(crate) fn score_parts(
    task: &(impl Task + ?Sized),
    device: &Device,
    batch: &BatchView<'_>,
    micro_batch: usize,
) -> Result<Score> {
    let _scope = device.category(Category::Activation);
    let _model = Origin { module: Some(ModulePath::ROOT), site: None }.enter();
    let mut total = Score::default();
    for part in micro_batches(batch.len(), micro_batch) {
        total.add(task.score(device, &batch.slice(part))?);
    }
    Ok(total)
}

/// An evaluation of a set.
pub(crate) struct Evaluation<'a, T: ?Sized> {
    pub(crate) task: &'a T,
    pub(crate) device: &'a Device,
    pub(crate) loader: &'a Loader,
    /// Number of samples that are scored at once.
    pub(crate) micro_batch: usize,
    /// [`Options::wait`](crate::Options::wait), before a batch is split.
    pub(crate) wait: Option<Duration>,
}

impl<T: Task + ?Sized> Evaluation<'_, T> {
    /// The score of the whole set.
    ///
    /// # Errors
    /// Out of memory with a single sample. Other errors end the evaluation at once.
    pub(crate) fn score_all(&self) -> Result<Score> {
        let mut total = Score::default();
        self.score_share(Rank::ALONE)?.into_iter().for_each(|own| total.add(own));
        Ok(total)
    }

    /// The score of each batch in a share of the set.
    ///
    /// # Errors
    /// Errors of [`Evaluation::score_all`].
    pub(crate) fn score_share(&self, share: Rank) -> Result<Vec<Score>> {
        let own = shared_batches(share, self.loader.batches_per_epoch());
        let mut epoch = self.loader.epoch(0);
        if own.start > 0 {
            epoch = self.loader.resume(LoaderState { batch: own.start, ..epoch.state() })?;
        }
        let (mut part, mut patience) = (self.micro_batch, Patience::new(self.wait));
        epoch
            .take(own.len())
            .map(|batch| self.score_batch(&batch?, &mut part, &mut patience))
            .collect()
    }

    /// The score of a batch, `part` samples at a time. After a failed allocation the batch is tried
    /// [again](Evaluation::after).
    fn score_batch(
        &self,
        batch: &Batch,
        part: &mut usize,
        patience: &mut Patience,
    ) -> Result<Score> {
        loop {
            match score_parts(self.task, self.device, &batch.view(), *part) {
                Err(error) => *part = self.after(error, *part, patience)?,
                scored => return scored,
            }
        }
    }

    /// The number of samples to score at once after a failure with `part` samples. Drops the
    /// device's cache. The number stays the same as long as memory may be there the next time; then
    /// it is halved, down to one.
    ///
    /// # Errors
    /// `error` itself if it is not out of memory, or after a failure with a single sample.
    pub(crate) fn after(
        &self,
        error: TrainError,
        part: usize,
        patience: &mut Patience,
    ) -> Result<usize> {
        let Some(failure) = error.out_of_memory() else { return Err(error) };
        self.device.allocator().trim();
        match part {
            part if patience.tries_again(failure) => Ok(part),
            0 | 1 => Err(error),
            part => Ok(part.div_ceil(2)),
        }
    }
}

/// The score of everything in `loader`. An allocation that fails drops the device's cache and is
/// tried again, then with half the samples at a time, down to one.
///
/// # Errors
/// Out of memory with a single sample. Other errors end the evaluation at once.
///
/// # Panics
/// If `micro_batch` is 0.
pub fn evaluate(
    task: &(impl Task + ?Sized),
    device: &Device,
    loader: &Loader,
    micro_batch: usize,
) -> Result<Score> {
    Evaluation { task, device, loader, micro_batch, wait: None }.score_all()
}

/// The batches in one share of an evaluation. Shares are runs of batches of equal length; if the
/// division leaves a remainder, the first shares have one batch more.
pub(crate) fn shared_batches(Rank { index, count }: Rank, batches: usize) -> Range<usize> {
    let start_of = |rank: usize| batches / count * rank + rank.min(batches % count);
    start_of(index)..start_of(index + 1)
}

/// Scores with the averages that an optimizer keeps of the parameters, if it keeps averages. The
/// parameters are restored afterwards.
pub(crate) fn with_averages<T: Task>(
    task: &mut T,
    optimizer: &mut impl Stateful,
    score: impl FnOnce(&T) -> Result<Score>,
) -> Result<Score> {
    let is_swapped = optimizer.swap_averages(task.parameters())?;
    let scored = score(task);
    if is_swapped {
        optimizer.swap_averages(task.parameters())?;
    }
    scored
}
