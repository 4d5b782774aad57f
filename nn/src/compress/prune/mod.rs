//! Smaller models: weights that stay zero, and channels and heads that are removed.
//!
//! Weights by magnitude: Han et al., "Learning both weights and connections for efficient neural
//! networks" (2015), `torch.nn.utils.prune`'s `l1_unstructured` and `global_unstructured`. N of M:
//! Mishra et al., "Accelerating sparse deep neural networks" (2021). Channels by the norm of their
//! filters: Li et al., "Pruning filters for efficient ConvNets" (2017). Groups of slices that are
//! cut together, as in Torch-Pruning: Fang et al., "DepGraph: towards any structural pruning"
//! (2023).

mod channels;
pub(crate) mod cut;
mod magnitude;
pub(crate) mod masks;

pub use channels::{ChannelOptions, Norm, channels, keep, left, load};
pub use cut::{Cut, Group, Prunable, Slice, remove};
pub use magnitude::{MagnitudeOptions, Scope, magnitude, n_of_m};
pub use masks::Masks;
