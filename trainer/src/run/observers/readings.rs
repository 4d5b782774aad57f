//! The speed of a run, and the lengths of its gradients.

use crate::error::Result;
use crate::run::observer::{Flow, Observer, StepReport, Training};

/// Records the speed of a run and the lengths of its gradients.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    samples: usize,
    seconds: f64,
    gradient_norms: Vec<f64>,
}

impl Readings {
    /// Samples per second spent in steps; NaN before the first step.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.seconds
    }

    /// Lengths of the gradients of all steps that report a length, see
    /// [`Options::gradient_norm`](crate::Options::gradient_norm).
    pub fn gradient_norms(&self) -> &[f64] {
        &self.gradient_norms
    }
}

impl Observer for Readings {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.samples += report.batch;
        self.seconds += report.seconds;
        self.gradient_norms.extend(report.gradient_norm);
        Ok(Flow::Continue)
    }
}
