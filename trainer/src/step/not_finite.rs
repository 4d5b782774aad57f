//! The error of a step whose loss or gradients are not finite.

use std::fmt;

use lowtide_autograd::Anomaly;
use thiserror::Error;

/// A step that was not committed, because its loss or a gradient is not finite. Everything is as
/// before the step.
#[derive(Clone, Debug, PartialEq, Error)]
pub struct NotFinite {
    /// The step, counted from 1.
    pub step: u64,
    /// The value that is not finite.
    pub what: NotFiniteWhat,
    /// Mean loss of the logical batch.
    pub loss: f64,
    /// Indices in the data set of samples whose own loss is not finite; empty if no single sample
    /// is to blame.
    pub samples: Vec<usize>,
    /// The operation that made the first such value from finite inputs, if it was found.
    pub anomaly: Option<Anomaly>,
}

/// A value of a step that is not finite.
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
    /// The loss or gradients of more steps in a row than may be skipped.
    Skipped {
        /// Number of steps skipped in a row.
        skipped: u64,
    },
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
        write!(f, "step {step} was not committed: ")?;
        match what {
            NotFiniteWhat::Loss => write!(f, "the loss is {loss}")?,
            NotFiniteWhat::Gradient => write!(f, "a gradient is not finite")?,
            NotFiniteWhat::ScaledGradients { skipped } => write!(
                f,
                "{skipped} steps in a row had gradients that are not finite, at any loss scale"
            )?,
            NotFiniteWhat::Skipped { skipped } => {
                write!(f, "{skipped} steps in a row were not finite and skipped")?;
            }
        }
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
