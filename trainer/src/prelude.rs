//! Names for a glob import, which most training programs use: `use lowtide_trainer::prelude::*`.
//!
//! Layers, models and optimizers are in [`crate::nn`], samplers and datasets in [`crate::data`].

pub use lowtide_autograd::{Pass, Var};
pub use lowtide_data::{Dataset, Loader, LoaderOptions};
pub use lowtide_nn::{Module, Parameter, Parameters, Segment};
pub use lowtide_tensor::{CpuOptions, DType, Device, RandomKey, SimSpec, Tensor};

pub use crate::error::TrainError;
pub use crate::options::{MicroBatches, NonFinite, Options};
pub use crate::precision::Precision;
pub use crate::run::fit::{Every, Fit};
pub use crate::run::observer::{EvaluationReport, Flow, Observer, StepReport, Training};
#[cfg(feature = "progress")]
pub use crate::run::progress::Progress;
pub use crate::run::score::{Metric, Score};
pub use crate::run::trainer::Trainer;
pub use crate::task::classification::Classification;
pub use crate::task::closures::FnTask;
pub use crate::task::contract::Task;
pub use crate::task::language::LanguageModel;
pub use crate::task::regression::Regression;
pub use crate::task::segmentation::Segmentation;
