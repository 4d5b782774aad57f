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
    /// No way of running this training fits in the memory there is.
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
        /// How many blocks are too many.
        count: usize,
        /// Where the last of them was allocated.
        site: &'static Location<'static>,
        /// The module that it belongs to.
        module: Option<ModulePath>,
    },
    /// The device failed while a step was written: some parameters are those after it, some those
    /// before. No step comes after it, unless an earlier state is restored.
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
    /// A checkpoint is damaged, or of another training.
    #[error("{}: {problem}", path.display())]
    Checkpoint {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
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

/// Where a tensor comes from that the pass should not have got.
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
    /// This error, or what explains it: a tensor of another device that the pass got.
    pub(crate) fn because_of(self, foreign: Option<Foreign>) -> TrainError {
        match foreign.map(Box::new) {
            Some(foreign) if self.out_of_memory().is_none() => {
                TrainError::Foreign { foreign, source: Box::new(self) }
            }
            _ => self,
        }
    }

    /// The error and its causes in one line, unless a cause is part of the text already. Of names
    /// from files, which may be a stranger's, it has no more than a reader needs, and nothing that
    /// a terminal obeys.
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

    /// The ledger of the failed allocation that this is or that led to it.
    pub fn ledger(&self) -> Option<&OutOfMemory> {
        match self {
            TrainError::DoesNotFit(error) => error.ledger.as_deref(),
            _ => self.out_of_memory(),
        }
    }

    /// The out-of-memory ledger, if this is a failed allocation, which a retry may serve.
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
    /// The knobs of that plan.
    pub knobs: Knobs,
    /// The peak of each category under that plan, at whatever moment it was reached.
    pub category_peaks: Vec<(Category, usize)>,
    /// Where the samples of a batch are coupled, which is why it may not be split.
    pub coupling: Option<Coupling>,
    /// The step that could not be completed; absent before the first one.
    pub step: Option<u64>,
    /// The allocation that failed in that step.
    pub ledger: Option<Box<OutOfMemory>>,
    /// Changes that would make the training fit, the cheapest first.
    pub remedies: Vec<Remedy>,
}

/// Something that a user can change to make a training fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Allow batches to be split as far as this.
    MicroBatch(usize),
    /// Give it this much memory.
    Budget(usize),
    /// Let the process have this much memory.
    ProcessBudget(usize),
    /// Let what blocks keep for backward wait in so much memory of the host.
    OffloadBudget(usize),
    /// An optimizer without state; changes the training.
    StatelessOptimizer {
        /// The peak of the smallest plan with it.
        needed_bytes: usize,
    },
    /// States of the optimizer in 8 bits; changes the numbers.
    EightBitStates {
        /// The peak of the smallest plan with it.
        needed_bytes: usize,
    },
    /// Products in bf16; changes the numbers.
    HalfPrecision {
        /// The peak of the smallest plan with it.
        needed_bytes: usize,
    },
}

impl DoesNotFit {
    /// The error of memory beside the device's, of which only the size is known, and what would
    /// help.
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
        let DoesNotFit { budget_bytes, needed_bytes, knobs, .. } = *self;
        let (needed, budget) = (Bytes(needed_bytes as u64), Bytes(budget_bytes as u64));
        write!(f, "{knobs} need least, {needed} ({needed_bytes} bytes), ")?;
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
