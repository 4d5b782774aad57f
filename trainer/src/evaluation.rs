//! How good the model is, in parts that fit.

use std::ops::Range;
use std::time::Duration;

use lowtide_allocator::{Category, ModulePath, Origin};
use lowtide_data::{Batch, BatchView, Loader, LoaderState};
use lowtide_nn::optim::Stateful;
use lowtide_ranks::{Collectives, Rank, RanksError};
use lowtide_tensor::Device;

use crate::agreement::{Ranks, agree};
use crate::error::{Result, TrainError};
use crate::score::{Score, decoded, encoded};
use crate::step::micro_batches;
use crate::task::Task;
use crate::waiting::Waiting;

/// The score of a batch, `micro_batch` samples at a time.
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

/// The score of everything in `loader`. An allocation that fails drops the device's cache and is
/// tried again, then with half the samples at a time, down to one.
///
/// # Errors
/// Out of memory with a single sample; anything else at once.
///
/// # Panics
/// If `micro_batch` is 0.
pub fn evaluate(
    task: &(impl Task + ?Sized),
    device: &Device,
    loader: &Loader,
    micro_batch: usize,
) -> Result<Score> {
    evaluate_within(task, device, loader, (micro_batch, Duration::ZERO), None)
}

/// [`evaluate`], waiting that long for memory to come back before a batch is cut. Each of several
/// `ranks` has [some of the batches](shared_batches), and all have the score of everything. It is
/// added up in the order of the batches: where these are evaluated in the same parts, as leaves
/// are, it has the bits of one rank alone.
///
/// # Errors
/// Those of [`evaluate`]; `Ranks`.
pub(crate) fn evaluate_within(
    task: &(impl Task + ?Sized),
    device: &Device,
    loader: &Loader,
    (micro_batch, wait): (usize, Duration),
    ranks: Ranks<'_>,
) -> Result<Score> {
    let score_all = || {
        let own = shared_batches(ranks.map(Collectives::rank), loader.batches_per_epoch());
        let mut epoch = loader.epoch(0);
        if own.start > 0 {
            epoch = loader.resume(LoaderState { batch: own.start, ..epoch.state() })?;
        }
        let score = |batch: Batch| {
            with_retries(device, micro_batch, wait, |micro_batch| {
                score_parts(task, device, &batch.view(), micro_batch)
            })
        };
        epoch.take(own.len()).map(|batch| score(batch?)).collect::<Result<Vec<Score>>>()
    };
    let own = agree(ranks, score_all())?;
    let mut total = Score::default();
    match ranks {
        None => own.into_iter().for_each(|score| total.add(score)),
        Some(ranks) => {
            for (rank, words) in ranks.exchange(&encoded(&own))?.iter().enumerate() {
                let scores = decoded(words).ok_or_else(|| {
                    let reason = "it sent what are no scores of this version".to_owned();
                    RanksError::Aborted { rank, reason }
                })?;
                scores.into_iter().for_each(|score| total.add(score));
            }
        }
    }
    Ok(total)
}

/// Which of an evaluation's batches one of several ranks has: as many as any other, in order; where
/// that does not come out even the first ranks have one more.
pub(crate) fn shared_batches(rank: Option<Rank>, batches: usize) -> Range<usize> {
    let Some(Rank { index, count }) = rank else { return 0..batches };
    let start_of = |rank: usize| batches / count * rank + rank.min(batches % count);
    start_of(index)..start_of(index + 1)
}

/// Evaluates by the averages that an optimizer keeps of the parameters, if it does; afterwards the
/// parameters are as before.
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

fn with_retries(
    device: &Device,
    micro_batch: usize,
    wait: Duration,
    mut score: impl FnMut(usize) -> Result<Score>,
) -> Result<Score> {
    let is_out_of_memory = |error: &TrainError| error.out_of_memory().is_some();
    let mut waiting = Waiting::new(wait);
    loop {
        match score(micro_batch) {
            Err(error) if is_out_of_memory(&error) => drop(device.allocator().trim()),
            done => return done,
        }
        if !waiting.pause() {
            break;
        }
    }
    let mut part = micro_batch;
    loop {
        match score(part) {
            Err(error) if is_out_of_memory(&error) && part > 1 => part = part.div_ceil(2),
            done => return done,
        }
    }
}
