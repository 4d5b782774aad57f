//! The error of a step whose loss or gradients are not finite, and of a run that ends so.

use std::fmt;

use lowtide_autograd::Anomaly;
use thiserror::Error;

/// A step that was not committed, because its loss or a gradient is not finite: everything is as
/// before the step. Or the end of a run that has learned nothing finite.
#[derive(Clone, Debug, PartialEq, Error)]
pub struct NotFinite {
    /// The step, counted from 1; at the end of a run, its last step.
    pub step: u64,
    /// The value that is not finite.
    pub what: NotFiniteWhat,
    /// Mean loss of the logical batch; at the end of a run, of the last evaluation.
    pub loss: f64,
    /// Indices in the data set of samples whose own loss is not finite; empty if no single sample
    /// is to blame.
    pub samples: Vec<usize>,
    /// The operation that made the first such value from finite inputs, if it was found.
    pub anomaly: Option<Anomaly>,
}

/// A value of a step, or of the end of a run, that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotFiniteWhat {
    /// The loss of a part of the batch.
    Loss,
    /// A gradient; the loss is finite.
    Gradient,
    /// The scaled gradients of several steps in a row. No loss scale is small enough.
    ScaledGradients {
        /// Number of steps skipped in a row.
        skipped: u64,
    },
    /// The loss or gradients of more steps in a row than may be skipped, or of all steps of a run.
    Skipped {
        /// Number of steps skipped in a row.
        skipped: u64,
    },
    /// The loss of a run's last evaluation.
    Score,
}

impl NotFinite {
    /// The error of a step in which `what` was found. The cause is not known yet.
    pub(crate) fn new(step: u64, what: NotFiniteWhat, loss: f64) -> NotFinite {
        NotFinite { step, what, loss, samples: Vec::new(), anomaly: None }
    }
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotFinite { step, what, loss, samples, anomaly } = self;
        let in_a_row = |skipped: &u64| format!("{skipped} steps in a row");
        let problem = match what {
            NotFiniteWhat::Loss => format!("the loss is {loss}"),
            NotFiniteWhat::Gradient => "a gradient is not finite".to_owned(),
            NotFiniteWhat::ScaledGradients { skipped } => {
                in_a_row(skipped) + " had gradients that are not finite, at any loss scale"
            }
            NotFiniteWhat::Skipped { skipped } => {
                in_a_row(skipped) + " were not finite and skipped"
            }
            NotFiniteWhat::Score => {
                write!(f, "the loss of the evaluation after step {step} is {loss}")?;
                return write!(f, ": a smaller learning rate may keep it finite");
            }
        };
        write!(f, "step {step} was not committed: {problem}")?;
        match samples.as_slice() {
            [] => {}
            [sample] => write!(f, "; so is that of sample {sample} alone")?,
            [first, more @ ..] => {
                write!(f, "; so is that of sample {first} alone, and of {} more", more.len())?;
            }
        }
        anomaly.as_ref().map_or(Ok(()), |anomaly| write!(f, "; {anomaly}"))
    }
}
