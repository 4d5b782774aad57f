//! Errors that end a run, and changes that would help.

use std::fmt;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;

use lowtide_allocator::{Bytes, Category, ModulePath, OutOfMemory};
use lowtide_amp::{AmpError, GradientError};
use lowtide_autograd::{AutogradError, Coupling, Foreign, Role};
use lowtide_data::DataError;
use lowtide_nn::NnError;
use lowtide_pretrained::PretrainedError;
use lowtide_ranks::RanksError;
use lowtide_tensor::TensorError;
use thiserror::Error;

use crate::plan::knobs::Knobs;
use crate::step::not_finite::NotFinite;

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
    /// The folder of a pretrained model, its configuration or its weights are not usable.
    #[error(transparent)]
    Pretrained(PretrainedError),
    /// No plan of this training fits into the memory.
    #[error(transparent)]
    DoesNotFit(#[from] Box<DoesNotFit>),
    /// The task computed with a tensor that does not belong to the device of this call.
    #[error("{source}: {foreign} {}", origin(foreign))]
    Foreign {
        /// The tensor, and the device that holds it.
        foreign: Box<Foreign>,
        /// The error that the tensor led to.
        source: Box<TrainError>,
    },
    /// A step that was rolled back left blocks behind: a handle to one of its tensors outlives it.
    #[error(
        "step {step} was rolled back, but {} at {site}{} is still held",
        blocks(*count),
        in_module(*module)
    )]
    LeftOver {
        /// The step, counted from 1.
        step: u64,
        /// Number of blocks that were left over.
        count: usize,
        /// The source line that allocated the last of the blocks.
        site: &'static Location<'static>,
        /// The module of the last of the blocks.
        module: Option<ModulePath>,
    },
    /// The device failed while the step was written: some parameters have been updated, others have
    /// not. No step can follow until an earlier state is restored.
    #[error("step {step} was cut off while it was written, the model is not whole: {source}")]
    Torn {
        /// The step, counted from 1.
        step: u64,
        /// The error that the device reported.
        source: Arc<NnError>,
    },
    /// The loss or a gradient is not finite, so the step was not committed; or too many steps in a
    /// row were skipped because of that.
    #[error(transparent)]
    NotFinite(#[from] Box<NotFinite>),
    /// Another rank failed, or the ranks are no longer together.
    #[error(transparent)]
    Ranks(RanksError),
    /// A file of the run could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error that the system returned.
        source: std::io::Error,
    },
    /// A checkpoint is damaged, or belongs to another training.
    #[error("{}: {problem}", path.display())]
    Checkpoint {
        /// Path of the file.
        path: PathBuf,
        /// The defect of the file.
        problem: String,
    },
    /// A recipe, summary or option has an unusable value.
    #[error("{place}: {problem}")]
    Setting {
        /// The file and line, or the option.
        place: String,
        /// The reason why the value is unusable.
        problem: String,
    },
}

/// The origin of a tensor that does not belong to the device of the pass.
fn origin(foreign: &Foreign) -> &'static str {
    if foreign.device.is_simulated() {
        return "belongs to a rehearsal: a task also runs on a simulated device, and must not keep \
                a tensor from one call for the next";
    }
    match foreign.role {
        Role::Parameter | Role::Buffer => "is none of those that the model's `visit_nodes` names",
        Role::Value => {
            "was not made in this call: a task also runs on a simulated device, so what it keeps \
             has to be a buffer of the model"
        }
    }
}

fn in_module(module: Option<ModulePath>) -> String {
    module.map_or_else(String::new, |module| format!(" in {module}"))
}

fn blocks(count: usize) -> String {
    match count {
        1 => "a block allocated".to_owned(),
        _ => format!("the last of {count} blocks, allocated"),
    }
}

impl From<PretrainedError> for TrainError {
    fn from(error: PretrainedError) -> Self {
        match error {
            PretrainedError::Nn(error) => TrainError::Nn(error),
            error => TrainError::Pretrained(error),
        }
    }
}

impl From<RanksError> for TrainError {
    fn from(error: RanksError) -> Self {
        match error {
            RanksError::Tensor(error) => error.into(),
            error => TrainError::Ranks(error),
        }
    }
}

impl From<AutogradError> for TrainError {
    fn from(error: AutogradError) -> Self {
        TrainError::Nn(error.into())
    }
}

impl From<AmpError> for TrainError {
    fn from(error: AmpError) -> Self {
        TrainError::Setting { place: "loss scaler".to_owned(), problem: error.to_string() }
    }
}

impl From<GradientError> for TrainError {
    fn from(error: GradientError) -> Self {
        match error {
            GradientError::Scaler(error) => error.into(),
            GradientError::Tensor(error) => error.into(),
            other => {
                TrainError::Setting { place: "loss scaler".to_owned(), problem: other.to_string() }
            }
        }
    }
}

impl From<TensorError> for TrainError {
    fn from(error: TensorError) -> Self {
        TrainError::Nn(error.into())
    }
}

impl TrainError {
    /// Returns the error, or the cause that explains it: a tensor of another device.
    pub(crate) fn because_of(self, foreign: Option<Foreign>) -> TrainError {
        match foreign.map(Box::new) {
            Some(foreign) if self.out_of_memory().is_none() => {
                TrainError::Foreign { foreign, source: Box::new(self) }
            }
            _ => self,
        }
    }

    /// The error and its causes in one line. A cause that the text contains already is not
    /// repeated. The line is at most 1000 characters long and its control characters are escaped,
    /// because names in it may come from a stranger's file.
    pub fn one_line(&self) -> String {
        let mut line = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let text = error.to_string();
            if !line.contains(&text) {
                line = format!("{line}: {text}");
            }
            cause = error.source();
        }
        const CHARACTERS_MAX: usize = 1000;
        let line = line.lines().collect::<Vec<_>>().join(" ");
        let shown = line.chars().take(CHARACTERS_MAX).map(|it| {
            if it.is_control() { it.escape_default().to_string() } else { it.to_string() }
        });
        shown.collect()
    }

    /// The ledger of the failed allocation that is this error, or that led to it.
    pub fn ledger(&self) -> Option<&OutOfMemory> {
        match self {
            TrainError::DoesNotFit(error) => error.ledger.as_deref(),
            _ => self.out_of_memory(),
        }
    }

    /// The ledger of a failed allocation; `None` for any other error. A retry may help against a
    /// failed allocation.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            TrainError::Nn(error) => error.out_of_memory(),
            _ => None,
        }
    }
}

/// The reason why a training does not fit: the memory that it lacks, and the changes that would
/// help.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct DoesNotFit {
    /// The capacity of the device.
    pub budget_bytes: usize,
    /// The peak of the smallest plan, reserved bytes.
    pub needed_bytes: usize,
    /// The knobs of the smallest plan; [`Knobs::default`] for a work without a plan.
    pub knobs: Knobs,
    /// The peak of each category under the smallest plan. Categories reach their peaks at different
    /// moments.
    pub category_peaks: Vec<(Category, usize)>,
    /// The module that couples the samples of a batch. Such a batch may not be split.
    pub coupling: Option<Coupling>,
    /// The step that could not be completed; absent before the first step.
    pub step: Option<u64>,
    /// The allocation that failed in the step.
    pub ledger: Option<Box<OutOfMemory>>,
    /// Changes that would make the training fit, the cheapest first.
    pub remedies: Vec<Remedy>,
}

/// Something that a user can change to make a training fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Allow micro-batches of this number of samples.
    MicroBatch(usize),
    /// Raise the memory limit of the device to this number of bytes.
    Budget(usize),
    /// Raise the memory limit of the process to this number of bytes.
    ProcessBudget(usize),
    /// Offload saved tensors of blocks to this number of bytes of host memory.
    OffloadBudget(usize),
    /// Use an optimizer without state. The training changes.
    StatelessOptimizer {
        /// The peak of the smallest plan with such an optimizer.
        needed_bytes: usize,
    },
    /// Keep the states of the optimizer in 8 bits. The numbers change.
    EightBitStates {
        /// The peak of the smallest plan with 8-bit states.
        needed_bytes: usize,
    },
    /// Compute products in bf16. The numbers change.
    HalfPrecision {
        /// The peak of the smallest plan with bf16.
        needed_bytes: usize,
    },
}

impl DoesNotFit {
    /// An error about memory other than the device's. Only the size of that memory and the remedy
    /// are known.
    pub fn beside(
        budget_bytes: usize,
        needed_bytes: usize,
        knobs: Knobs,
        remedy: Remedy,
    ) -> DoesNotFit {
        DoesNotFit {
            budget_bytes,
            needed_bytes,
            knobs,
            category_peaks: Vec::new(),
            coupling: None,
            step: None,
            ledger: None,
            remedies: vec![remedy],
        }
    }

    /// Bytes that the smallest plan needs beyond the budget.
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
        let DoesNotFit { budget_bytes, needed_bytes, knobs, .. } = *self;
        let (needed, budget) = (Bytes(needed_bytes as u64), Bytes(budget_bytes as u64));
        if knobs == Knobs::default() {
            write!(f, "{needed} ({needed_bytes} bytes) are needed, ")?;
        } else {
            write!(f, "{knobs} need least, {needed} ({needed_bytes} bytes), ")?;
        }
        write!(f, "{missing} bytes more than the {budget} there are; cheapest: ")?;
        for (index, remedy) in self.remedies.iter().enumerate() {
            let separator = if index > 0 { ", or " } else { "" };
            write!(f, "{separator}{remedy}")?;
        }
        if let Some(coupling) = &self.coupling {
            write!(f, "; no smaller parts: samples are coupled in {coupling}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needs = |bytes: &usize| format!("needs {}", Bytes(*bytes as u64));
        match self {
            Remedy::MicroBatch(len) => write!(f, "allow micro-batches of {len}"),
            Remedy::Budget(bytes) => write!(f, "--budget {bytes}B"),
            Remedy::ProcessBudget(bytes) => write!(f, "--process-budget {bytes}B"),
            Remedy::OffloadBudget(bytes) => write!(f, "--offload-budget {bytes}B"),
            Remedy::StatelessOptimizer { needed_bytes } => {
                write!(f, "optimizer sgd without momentum ({})", needs(needed_bytes))
            }
            Remedy::EightBitStates { needed_bytes } => {
                write!(f, "--allow 8bit-states ({})", needs(needed_bytes))
            }
            Remedy::HalfPrecision { needed_bytes } => {
                write!(f, "--precision bf16 ({})", needs(needed_bytes))
            }
        }
    }
}

/// The result of an operation of this crate.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;
