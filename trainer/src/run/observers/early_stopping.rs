//! Early stopping: the end of a run that no longer improves.

use super::Watched;
use crate::error::Result;
use crate::run::observer::{EvaluationReport, Flow, Observer, Training};

/// Ends a run when a value has not improved for several evaluations.
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    watched: Watched,
    patience: u64,
    least_change: f64,
    best_cost: f64,
    /// Number of evaluations since the best one.
    since: u64,
}

impl EarlyStopping {
    /// Ends a run after more than `patience` evaluations in a row that are not better than the best
    /// earlier one.
    pub fn new(watched: Watched, patience: u64) -> Self {
        EarlyStopping { watched, patience, least_change: 0.0, best_cost: f64::INFINITY, since: 0 }
    }

    /// Counts a value as better only if it improves by more than `change`.
    #[must_use]
    pub fn with_least_change(mut self, change: f64) -> Self {
        self.least_change = change;
        self
    }
}

impl Observer for EarlyStopping {
    fn on_evaluation(&mut self, report: &EvaluationReport, _: &mut dyn Training) -> Result<Flow> {
        match self.watched.cost(report) {
            Some(cost) if cost < self.best_cost - self.least_change => {
                (self.best_cost, self.since) = (cost, 0);
            }
            _ => self.since += 1,
        }
        Ok(if self.since > self.patience { Flow::Stop } else { Flow::Continue })
    }
}
