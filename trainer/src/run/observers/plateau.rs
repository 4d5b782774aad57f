//! A learning rate that falls when nothing becomes better.

use lowtide_nn::Plateau;

use super::Watched;
use crate::error::Result;
use crate::run::observer::{EvaluationReport, Flow, Observer, Training};

/// Lowers the learning rate when a value stops becoming better, as its [`Plateau`] says. What the
/// plateau has seen is not in a checkpoint: after a resume it begins anew.
#[derive(Clone, Debug)]
pub struct ReduceOnPlateau {
    watched: Watched,
    plateau: Plateau,
}

impl ReduceOnPlateau {
    /// Has `plateau` decide, whose options say which of two values is the better one.
    pub fn new(watched: Watched, plateau: Plateau) -> Self {
        ReduceOnPlateau { watched, plateau }
    }
}

impl Observer for ReduceOnPlateau {
    fn on_evaluation(
        &mut self,
        report: &EvaluationReport,
        training: &mut dyn Training,
    ) -> Result<Flow> {
        if let Some(value) = self.watched.value(report) {
            let optimizer = training.optimizer();
            let learning_rate = self.plateau.observe(value, optimizer.learning_rate());
            optimizer.set_learning_rate(learning_rate);
        }
        Ok(Flow::Continue)
    }
}
