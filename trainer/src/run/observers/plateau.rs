//! A learning rate that falls when a value stops improving.

use lowtide_nn::Plateau;

use super::Watched;
use crate::error::Result;
use crate::run::observer::{EvaluationReport, Flow, Observer, Training};

/// Lowers the learning rate when a value stops improving, as its [`Plateau`] decides. Checkpoints
/// do not contain the state of the plateau: it begins anew after a resume.
#[derive(Clone, Debug)]
pub struct ReduceOnPlateau {
    watched: Watched,
    plateau: Plateau,
}

impl ReduceOnPlateau {
    /// Lets `plateau` decide. The options of `plateau` say whether higher or lower values are
    /// better.
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
