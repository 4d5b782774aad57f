//! Low-rank adapters, which fine-tune a frozen model with two small matrices for each weight.
//!
//! Hu et al., "LoRA: low-rank adaptation of large language models" (2021). Scale by the rank:
//! Kalajdzievski, "A rank stabilization scaling factor for fine-tuning with LoRA" (2023).
//! Magnitudes: Liu et al., "DoRA: weight-decomposed low-rank adaptation" (2024). Names, defaults
//! and files are PEFT's.

pub(crate) mod adapt;
pub(crate) mod adapter;
mod file;
mod merge;
pub(crate) mod options;
pub(crate) mod targets;

pub use adapt::{adapt, adapted, remove_adapters};
pub use adapter::Adapter;
pub use file::{load_adapters, save_adapters};
pub use merge::merge;
pub use options::{LoraOptions, LoraScaling};
pub use targets::{Targets, is_output_layer};
