//! What can end a run, and what would help.

use std::fmt;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;

use lowtide_allocator::OutOfMemory;
use lowtide_autograd::AutogradError;
use lowtide_data::DataError;
use lowtide_nn::NnError;
use lowtide_tensor::TensorError;
use thiserror::Error;

use crate::human::format_bytes;

/// An error of a training run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The model, a loss or the optimizer failed.
    #[error(transparent)]
    Nn(#[from] NnError),
    /// The data could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// No way of running this training fits in the memory there is.
    #[error(transparent)]
    DoesNotFit(#[from] Box<DoesNotFit>),
    /// A step that was rolled back left blocks behind: a handle to one of its tensors outlives it.
    #[error("step {step} was rolled back, but {} at {site} is still held", blocks(*count))]
    LeftOver {
        /// The step, counted from 1.
        step: u64,
        /// How many blocks are too many.
        count: usize,
        /// Where the last of them was allocated.
        site: &'static Location<'static>,
    },
    /// The device failed while a step was written: some parameters are those after it, some those
    /// before. No step comes after it.
    #[error("step {step} was cut off while it was written, the model is not whole: {source}")]
    Torn {
        /// The step, counted from 1.
        step: u64,
        /// What the device reported.
        source: Arc<NnError>,
    },
    /// A file of the run could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A recipe, summary or option does not say what it should.
    #[error("{place}: {problem}")]
    Setting {
        /// The file and line, or the option.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
}

fn blocks(count: usize) -> String {
    match count {
        1 => "a block allocated".to_owned(),
        _ => format!("the last of {count} blocks, allocated"),
    }
}

impl From<AutogradError> for TrainError {
    fn from(error: AutogradError) -> Self {
        TrainError::Nn(error.into())
    }
}

impl From<TensorError> for TrainError {
    fn from(error: TensorError) -> Self {
        TrainError::Nn(error.into())
    }
}

impl TrainError {
    /// The out-of-memory ledger, if that is what this is.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            TrainError::Nn(error) => error.out_of_memory(),
            _ => None,
        }
    }
}

/// Why a training cannot run, with what it lacks and what would help.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct DoesNotFit {
    /// The memory there is.
    pub budget_bytes: usize,
    /// The peak of the smallest plan, reserved bytes.
    pub needed_bytes: usize,
    /// The micro-batch of that plan.
    pub micro_batch: usize,
    /// The step that could not be completed; absent before the first one.
    pub step: Option<u64>,
    /// What would make it fit, the cheapest first.
    pub knobs: Vec<Knob>,
}

/// Something that a user can change to make a training fit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Knob {
    /// Allow batches to be split as far as this.
    MicroBatch(usize),
    /// Give it this much memory.
    Budget(usize),
    /// An optimizer without state; changes the training.
    StatelessOptimizer {
        /// The peak of the smallest plan with it.
        needed_bytes: usize,
    },
}

impl DoesNotFit {
    /// Bytes by which the smallest plan is over.
    pub fn missing_bytes(&self) -> usize {
        self.needed_bytes.saturating_sub(self.budget_bytes)
    }
}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing_bytes();
        write!(f, "does not fit: ")?;
        if let Some(step) = self.step {
            write!(f, "at step {step}, ")?;
        }
        let DoesNotFit { budget_bytes, needed_bytes, micro_batch, .. } = *self;
        let (needed, budget) =
            (format_bytes(needed_bytes as u64), format_bytes(budget_bytes as u64));
        write!(f, "a micro-batch of {micro_batch} needs {needed} ({needed_bytes} bytes), ")?;
        write!(f, "{missing} bytes more than the {budget} there are; cheapest: ")?;
        for (index, knob) in self.knobs.iter().enumerate() {
            let separator = if index > 0 { ", or " } else { "" };
            write!(f, "{separator}{knob}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Knob::MicroBatch(len) => write!(f, "allow micro-batches of {len}"),
            Knob::Budget(bytes) => write!(f, "--budget {bytes}B"),
            Knob::StatelessOptimizer { needed_bytes } => {
                write!(f, "optimizer sgd without momentum (needs {needed_bytes} bytes)")
            }
        }
    }
}
