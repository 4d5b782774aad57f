//! Steps whose loss or gradients are not finite: the error, and the search for where it began.

use std::fmt;

use lowtide_allocator::Category;
use lowtide_autograd::{Anomaly, Attempt, AutogradError, Pass, Turn};
use lowtide_data::BatchView;
use lowtide_nn::NnError;
use lowtide_tensor::{DType, Device, RandomKey};
use thiserror::Error;

use crate::error::{Result, TrainError};
use crate::precision::Precision;
use crate::step::{micro_batches, training_pass, turns_of, with_precision};
use crate::task::Task;

/// A step that was not committed, because what it computed is not finite. Everything is as before
/// the step.
#[derive(Clone, Debug, PartialEq, Error)]
pub struct NotFinite {
    /// The step, counted from 1.
    pub step: u64,
    /// What is not finite.
    pub what: NotFiniteWhat,
    /// Mean loss of the logical batch.
    pub loss: f64,
    /// Samples whose loss is not finite by itself, as indices of the data set; empty where no
    /// single one is to blame.
    pub samples: Vec<usize>,
    /// The operation that made the first such value from finite ones, if it was found.
    pub anomaly: Option<Anomaly>,
}

/// What of a step is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotFiniteWhat {
    /// The loss of a part of the batch.
    Loss,
    /// A gradient; the loss is finite.
    Gradient,
    /// The scaled gradients of so many steps in a row: no loss scale is small enough.
    ScaledGradients {
        /// Steps skipped in a row.
        skipped: u64,
    },
    /// The loss or gradients of more steps in a row than may be skipped.
    Skipped {
        /// Steps skipped in a row.
        skipped: u64,
    },
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

/// How the second look at a step computes: as the step did.
pub(crate) struct Look<'a> {
    pub(crate) device: &'a Device,
    /// The run's key at this step.
    pub(crate) key: RandomKey,
    pub(crate) precision: Precision,
}

impl Look<'_> {
    fn pass(&self, attempt: &Attempt, turn: Option<&Turn>, first_sample: usize) -> Pass {
        let pass = training_pass(self.key, attempt, turn, first_sample, self.device);
        with_precision(pass, self.precision)
    }
}

impl NotFinite {
    /// Adds which samples are to blame, and the operation that began it, as far as they are found
    /// by computing `batch` again with a look at every value.
    pub(crate) fn explain(
        &mut self,
        task: &mut impl Task,
        look: &Look<'_>,
        batch: &BatchView<'_>,
        micro_batch: usize,
    ) {
        let &Look { device, .. } = look;
        let _scope = device.category(Category::Activation);
        let Ok(turns) = turns_of(task) else { return };
        let parts = || micro_batches(batch.len(), micro_batch);
        for (turn, part) in turns.iter().flat_map(|turn| parts().map(move |part| (turn, part))) {
            let attempt = Attempt::new();
            let pass = look.pass(&attempt, turn.as_ref(), part.start).with_anomaly_detection();
            let computed = task.loss(&pass, device, &batch.slice(part)).and_then(|loss| {
                pass.backward(loss.sum)?;
                Ok(())
            });
            if let Err(TrainError::Nn(NnError::Autograd(AutogradError::NonFinite(anomaly)))) =
                computed
            {
                self.anomaly = Some(anomaly);
                break;
            }
        }
        if self.what == NotFiniteWhat::Loss {
            let is_bad = |&index: &usize| {
                turns.iter().any(|turn| {
                    let loss = loss_of(task, look, turn.as_ref(), batch, index);
                    // What cannot be computed alone is not to blame.
                    loss.is_ok_and(|loss| !loss.is_finite())
                })
            };
            let bad = (0..batch.len()).filter(is_bad);
            self.samples = bad.map(|index| batch.sample_indices()[index]).collect();
        }
    }
}

/// The loss of one sample of a batch, alone.
fn loss_of(
    task: &impl Task,
    look: &Look<'_>,
    turn: Option<&Turn>,
    batch: &BatchView<'_>,
    index: usize,
) -> Result<f64> {
    let pass = look.pass(&Attempt::new(), turn, index);
    let loss = task.loss(&pass, look.device, &batch.slice(index..index + 1))?;
    Ok(loss.sum.value().to_dtype(DType::F64)?.item::<f64>()?)
}
