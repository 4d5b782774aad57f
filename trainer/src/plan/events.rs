//! The events of a run, steps and evaluations, in the form that a rehearsal runs.

use lowtide_data::BatchView;

use crate::run::upcoming::bytes_ahead;

/// A step or an evaluation that is rehearsed, in the order of the run.
#[derive(Clone, Copy)]
pub(crate) enum PlannedEvent<'a> {
    /// A training step on this batch.
    Step(BatchView<'a>),
    /// The evaluation of this batch.
    Evaluate(BatchView<'a>),
}

/// Bytes for the largest first micro-batch of any step but the first, because it is copied ahead.
pub(crate) fn bytes_ahead_of(events: &[PlannedEvent<'_>], micro_batch: usize) -> usize {
    let steps = events.iter().filter_map(|event| match event {
        PlannedEvent::Step(batch) => Some(batch),
        PlannedEvent::Evaluate(_) => None,
    });
    let next = steps.skip(1).map(|batch| bytes_ahead(batch, batch.len().min(micro_batch)));
    next.max().unwrap_or(0)
}
