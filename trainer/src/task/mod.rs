//! Tasks: a model with a loss and a score.

pub(crate) mod classification;
pub(crate) mod closures;
pub(crate) mod contract;
pub(crate) mod distillation;
pub(crate) mod fields;
pub(crate) mod language;
pub(crate) mod outputs;
pub(crate) mod preference;
pub(crate) mod regression;
pub(crate) mod segmentation;
pub(crate) mod translation;
