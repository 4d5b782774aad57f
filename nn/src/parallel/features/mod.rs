//! Tensor parallelism: several ranks share the attention heads, the hidden features and the
//! vocabulary of a model (Megatron-LM, Shoeybi et al. 2019).
//!
//! Ranks share branches. A branch has layers whose outputs are units (heads or hidden features),
//! and a linear layer at the end, whose inputs are the units. Each rank has some units, and all
//! ranks have the same samples. The forward pass sums the output of the last layer over the ranks.
//! The backward pass sums the gradient of the branch's input. Each rank computes everything else,
//! such as norms and the sums of branches, for itself, with the same bits.

pub(crate) mod branch;
pub(crate) mod layer_share;
pub(crate) mod shard;
mod share_layers;
pub(crate) mod sum;
pub(crate) mod vocabulary;

pub use branch::{Branch, Shared};
pub use shard::Shard;
pub use share_layers::{set_sum, share_layers};
pub use sum::Sum;
pub use vocabulary::VocabularyShare;
