//! Running a training: the loop, its observers, and its evaluations.

pub(crate) mod ending;
pub(crate) mod evaluation;
pub(crate) mod fit;
pub(crate) mod hooks;
pub(crate) mod metrics;
pub(crate) mod observer;
pub mod observers;
pub(crate) mod page_lock;
#[cfg(feature = "progress")]
pub(crate) mod progress;
pub(crate) mod rehearsed_evaluation;
pub(crate) mod score;
pub(crate) mod trainer;
pub(crate) mod training;
pub(crate) mod upcoming;
pub(crate) mod view;
pub(crate) mod waiting;
