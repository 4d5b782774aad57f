//! Observers that many trainings need. Each uses only the public trait
//! [`Observer`](crate::Observer).

mod checkpoint_every;
mod checkpoints;
mod early_stopping;
mod plateau;
mod readings;
mod tensorboard;

pub use checkpoint_every::CheckpointEvery;
pub use checkpoints::Checkpoints;
pub use early_stopping::EarlyStopping;
pub use plateau::ReduceOnPlateau;
pub use readings::Readings;
pub use tensorboard::TensorBoard;

use lowtide_nn::Better;

use crate::run::observer::EvaluationReport;

/// A value of an evaluation that an observer watches: a metric of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    set: String,
    metric: String,
}

impl Watched {
    /// The metric `metric`, or `loss`, of the set `set`.
    pub fn new(set: impl Into<String>, metric: impl Into<String>) -> Self {
        Watched { set: set.into(), metric: metric.into() }
    }

    /// The watched value in a report; `None` if the set is not evaluated or the value is NaN.
    pub(crate) fn value(&self, report: &EvaluationReport) -> Option<f64> {
        report.value(&self.set, &self.metric).filter(|value| !value.is_nan())
    }

    /// The value as a cost: lower is better. A value is negated if higher values are better.
    pub(crate) fn cost(&self, report: &EvaluationReport) -> Option<f64> {
        let (_, score) = report.scores.iter().find(|(set, _)| *set == self.set)?;
        let metric = score.metrics().iter().find(|metric| metric.name() == self.metric);
        let is_gain = metric.is_some_and(|metric| metric.is_better_when() == Better::Higher);
        self.value(report).map(|value| if is_gain { -value } else { value })
    }
}
