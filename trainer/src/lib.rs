#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod files;
mod json;
mod options;
mod parallel;
mod plan;
mod precision;
pub mod prelude;
mod run;
mod step;
mod task;

// Crates that a training uses, for programs that depend on this crate alone.
pub use lowtide_allocator as allocator;
pub use lowtide_amp as amp;
pub use lowtide_autograd as autograd;
pub use lowtide_data as data;
pub use lowtide_nn as nn;
pub use lowtide_ranks as ranks;
pub use lowtide_tensor as tensor;

pub use error::{DoesNotFit, Remedy, Result, TrainError};
pub use files::checkpoint_folder::{CheckpointFolder, checkpoints_in, take_over_checkpoints};
pub use files::fingerprint::Fingerprint;
pub use files::snapshot::{RunNotes, Snapshot};
pub use files::trained_state::TrainedState;
pub use options::{MicroBatches, NonFinite, Options};
pub use parallel::parallelism::Parallelism;
pub use plan::Plan;
pub use plan::calibration::measure_rates;
pub use plan::forecast::{Forecast, RehearsedEvent};
pub use plan::knobs::Knobs;
pub use plan::planner::PlanOptions;
pub use plan::search::forecasts::Forecasts;
pub use precision::Precision;
pub use run::evaluation::evaluate;
pub use run::fit::{Every, Fit};
pub use run::metrics::Metrics;
pub use run::observer::{
    EvaluationReport, Flow, Observer, Position, Recovery, Retry, RunStart, StepReport, Training,
};
pub use run::observers;
pub use run::page_lock::lock_pages;
#[cfg(feature = "progress")]
pub use run::progress::Progress;
pub use run::score::{Metric, Ratio, Score};
pub use run::trainer::Trainer;
pub use step::not_finite::{NotFinite, NotFiniteWhat};
pub use task::classification::Classification;
pub use task::closures::FnTask;
pub use task::contract::{CloneTask, Task};
pub use task::distillation::{Distillation, DistillationOptions};
pub use task::fields::{field, upload, upload_as, values};
pub use task::language::{LanguageModel, TokenModel};
pub use task::outputs::Outputs;
pub use task::preference::Preference;
pub use task::regression::Regression;
pub use task::segmentation::Segmentation;
pub use task::translation::Translation;

// Items for the command line program, which may change in any version.
#[doc(hidden)]
pub use files::new_file::{NewFile, sync_path};
#[doc(hidden)]
pub use files::reserve::Reserve;
#[doc(hidden)]
pub use files::snapshot::{partial_folder, remove_folder};
#[doc(hidden)]
pub use json::{categories_json, ledger_json, modules_json};
#[doc(hidden)]
pub use parallel::parts::is_undividable;
#[doc(hidden)]
pub use parallel::stages::schedule::seconds_of;
#[doc(hidden)]
pub use parallel::vote::agree;
#[doc(hidden)]
pub use plan::run_shape::Examples;
#[doc(hidden)]
pub use run::metrics::{
    EvaluationLine, METRICS_BYTES_MAX, METRICS_HELP, StepLine, metric_values, partial_of,
    recovery_name,
};
#[doc(hidden)]
pub use run::rehearsed_evaluation::rehearse_evaluation;
#[doc(hidden)]
pub use task::preference::check_beta;
