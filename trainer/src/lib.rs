#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod admission;
mod calibration;
mod checkpoint;
mod checkpoint_folder;
mod error;
mod evaluation;
mod fit;
mod json;
mod knobs;
mod learned;
mod metrics;
mod new_file;
mod observer;
pub mod observers;
mod options;
mod outline;
mod page_lock;
mod parallel;
mod plan;
mod precision;
pub mod prelude;
#[cfg(feature = "progress")]
mod progress;
mod proofs;
mod recovery;
mod rehearsal;
mod reserve;
mod score;
mod search;
mod state_hash;
mod step;
mod task;
mod trainer;
mod upcoming;
mod waiting;

// What a training is made of, for programs that depend on this crate alone.
pub use lowtide_allocator as allocator;
pub use lowtide_amp as amp;
pub use lowtide_autograd as autograd;
pub use lowtide_data as data;
pub use lowtide_nn as nn;
pub use lowtide_ranks as ranks;
pub use lowtide_tensor as tensor;

pub use calibration::measure_rates;
pub use checkpoint::{Snapshot, saved_recipe};
pub use checkpoint_folder::{CheckpointFolder, checkpoints_in};
pub use error::{DoesNotFit, Remedy, Result, TrainError};
pub use evaluation::evaluate;
pub use knobs::Knobs;
pub use learned::Learned;
pub use metrics::Metrics;
pub use observer::{
    EvaluationReport, Flow, Observer, Recovery, Retry, RunStart, StepReport, Training,
};
pub use options::{MicroBatches, NonFinite, Options};
pub use outline::{Every, Fit};
pub use page_lock::lock_pages;
pub use parallel::parallelism::Zero;
pub use plan::Plan;
pub use precision::Precision;
#[cfg(feature = "progress")]
pub use progress::Progress;
pub use rehearsal::{Forecast, RehearsedEvent};
pub use score::{Metric, Ratio, Score};
pub use step::not_finite::{NotFinite, NotFiniteWhat};
pub use task::{
    Classification, CloneTask, Distillation, DistillationOptions, FnTask, LanguageModel, Outputs,
    Preference, Regression, Segmentation, Task, TokenModel, Translation, field, upload, upload_as,
    values,
};
pub use trainer::{Position, Trainer};

// Parts that the command is made of as well. They may change in any version.
#[doc(hidden)]
pub use checkpoint::{partial_folder, remove_folder};
#[doc(hidden)]
pub use json::{categories_json, ledger_json, modules_json};
#[doc(hidden)]
pub use metrics::{
    EvaluationLine, METRICS_HELP, StepLine, metric_values, partial_of, recovery_name,
};
#[doc(hidden)]
pub use new_file::{NewFile, sync_path};
#[doc(hidden)]
pub use outline::Examples;
#[doc(hidden)]
pub use parallel::parts::is_undividable;
#[doc(hidden)]
pub use parallel::stages::schedule::seconds_of;
#[doc(hidden)]
pub use parallel::vote::agree;
#[doc(hidden)]
pub use reserve::Reserve;
#[doc(hidden)]
pub use search::Forecasts;
#[doc(hidden)]
pub use task::check_beta;
