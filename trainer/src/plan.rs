//! The planner: the largest micro-batch whose rehearsal fits the budget.

use std::fmt;

use lowtide_nn::optim::{ByModel, Sgd, SgdOptions, Stateful};

use crate::error::{DoesNotFit, Knob, Result};
use crate::human::format_bytes;
use crate::rehearsal::{Forecast, PlannedEvent, RunInputs};
use crate::task::Task;

/// How a training will run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Samples of a logical batch.
    pub batch_size: usize,
    /// Samples that are on the device at once; gradients of a batch are summed over its parts.
    pub micro_batch: usize,
    /// The memory there is.
    pub budget_bytes: usize,
    /// Bytes of the copy that checkpoints are written from while the run goes on; 0 where the run
    /// waits for them, or the copy is not in the device's memory.
    pub checkpoint_copy_bytes: usize,
    /// Bytes of the device for the first part of the next batch, which is copied during a step; 0
    /// where copies are the host's work, or where there is no room for it.
    pub copy_ahead_bytes: usize,
    /// Bytes of the host that batches are read into by the loaders of the run, outside the budget;
    /// 0 for a plan of single steps.
    pub staging_bytes: usize,
    /// Bytes of the host that the samples of the run are read from, mapped files aside, outside the
    /// budget; 0 for a plan of single steps.
    pub data_bytes: usize,
    /// What the rehearsal of this plan showed.
    pub forecast: Forecast,
    /// Larger micro-batches that were rehearsed and do not fit, with their peaks.
    pub rejected: Vec<(usize, usize)>,
}

impl Plan {
    /// The peak of reserved bytes over the whole run: exact.
    pub fn predicted_peak_bytes(&self) -> usize {
        self.forecast.peak_bytes
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.batch_size.div_ceil(self.micro_batch);
        let peak = self.predicted_peak_bytes();
        write!(
            f,
            "batch {} in {parts} micro-batch{} of {}, peak {} ({peak} bytes) of {}",
            self.batch_size,
            if parts == 1 { "" } else { "es" },
            self.micro_batch,
            format_bytes(peak as u64),
            format_bytes(self.budget_bytes as u64),
        )
    }
}

/// Different ways to cut `batch_size` into equal parts, the largest parts first.
pub(crate) fn part_sizes(batch_size: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=batch_size).map(|parts| batch_size.div_ceil(parts)).collect();
    sizes.dedup();
    sizes
}

/// Whether batches may be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Splitting {
    Allowed,
    Forbidden,
}

/// Finds the largest part of `batch_size`, at most `micro_batch_max`, whose rehearsal stays
/// within `budget_bytes`; where splitting is forbidden, or the rehearsal shows that samples are
/// coupled, the whole or nothing.
///
/// # Errors
/// `DoesNotFit` when none does.
pub(crate) fn find<T: Task + Clone, O: Stateful + Clone>(
    inputs: &RunInputs<'_, T, O>,
    events: &[PlannedEvent<'_>],
    batch_size: usize,
    micro_batch_max: usize,
    splitting: Splitting,
    budget_bytes: usize,
) -> Result<Plan> {
    let sizes = match splitting {
        Splitting::Allowed => part_sizes(batch_size),
        Splitting::Forbidden => vec![batch_size],
    };
    let in_range = |&size: &usize| size <= micro_batch_max || splitting == Splitting::Forbidden;
    let (mut rejected, mut candidates) = (Vec::new(), Vec::new());
    for micro_batch in sizes.into_iter().filter(in_range) {
        let (forecast, copy_ahead_bytes) =
            inputs.rehearse_within(budget_bytes, events, micro_batch)?;
        if forecast.coupling.is_some() && micro_batch < batch_size {
            if candidates.is_empty() {
                candidates.push((batch_size, inputs.rehearse(events, batch_size)?));
            }
            break;
        }
        if forecast.peak_bytes <= budget_bytes {
            let checkpoint_copy_bytes = inputs.held_bytes;
            return Ok(Plan {
                batch_size,
                micro_batch,
                budget_bytes,
                checkpoint_copy_bytes,
                copy_ahead_bytes,
                staging_bytes: 0,
                data_bytes: 0,
                forecast,
                rejected,
            });
        }
        rejected.push((micro_batch, forecast.peak_bytes));
        candidates.push((micro_batch, forecast));
    }
    // Not always the smallest: a second part needs a second set of gradients. On ties the largest
    // is what the planner would take.
    let least = candidates.into_iter().min_by_key(|(_, forecast)| forecast.peak_bytes);
    let (micro_batch, least) = least.expect("a batch has at least one part");
    let Forecast { peak_bytes: needed_bytes, category_peaks, coupling, .. } = least;
    let tried: Vec<usize> = rejected.iter().map(|&(size, _)| size).collect();
    // Parts would help, if they were allowed.
    let can_split = splitting == Splitting::Forbidden && coupling.is_none();
    let knobs = knobs(inputs, events, &tried, needed_bytes, can_split, budget_bytes)?;
    Err(Box::new(DoesNotFit {
        budget_bytes,
        needed_bytes,
        micro_batch,
        category_peaks,
        coupling,
        step: None,
        ledger: None,
        knobs,
    })
    .into())
}

/// What would make it fit. Splitting changes nothing but rounding, more memory nothing at all, and
/// another optimizer changes the training: the cheapest is the first that helps.
fn knobs<T: Task + Clone, O: Stateful + Clone>(
    inputs: &RunInputs<'_, T, O>,
    events: &[PlannedEvent<'_>],
    tried: &[usize],
    needed_bytes: usize,
    can_split: bool,
    budget_bytes: usize,
) -> Result<Vec<Knob>> {
    let mut knobs = Vec::new();
    if can_split {
        let sizes = tried.iter().flat_map(|&whole| part_sizes(whole).into_iter().skip(1));
        for size in sizes {
            if inputs.rehearse(events, size)?.peak_bytes <= budget_bytes {
                knobs.push(Knob::MicroBatch(size));
                break;
            }
        }
    }
    knobs.push(Knob::Budget(needed_bytes));
    let sgd = Sgd::new(SgdOptions::new(inputs.optimizer.learning_rate()))?;
    let stateless: Box<dyn Stateful> = match inputs.task.turns().as_slice() {
        [] => Box::new(sgd),
        models => {
            Box::new(models.iter().fold(ByModel::new(), |all, model| all.with(model, sgd.clone())))
        }
    };
    let &RunInputs { device, task, scaler, options, held_bytes, copies_ahead, .. } = inputs;
    let optimizer = &stateless;
    let with_sgd = RunInputs { device, task, optimizer, scaler, options, held_bytes, copies_ahead };
    // Of all sizes: which one needs least is not the same with and without state.
    let peaks = tried.iter().map(|&size| Ok(with_sgd.rehearse(events, size)?.peak_bytes));
    let least_bytes = peaks.collect::<Result<Vec<usize>>>()?.into_iter().min();
    if let Some(needed_bytes) = least_bytes.filter(|&bytes| bytes <= budget_bytes) {
        knobs.push(Knob::StatelessOptimizer { needed_bytes });
    }
    Ok(knobs)
}
