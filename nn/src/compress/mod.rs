//! Smaller models: weights in few bits, and weights and channels that are pruned.

pub mod prune;
mod quantize;
pub(crate) mod quantized_weight;

pub use quantize::{quantize, quantize_all, set_activations};
pub use quantized_weight::Activations;
