//! Tensor parallelism: several ranks share the attention heads, the hidden features and the
//! vocabulary of a model (Megatron-LM, Shoeybi et al. 2019).
//!
//! Ranks share branches: layers whose outputs are heads or hidden features, the units, and a linear
//! layer whose inputs the units are, which ends the branch. A rank has some units; all ranks have
//! the same samples. The results of the last layer for the units of each rank are summed over the
//! ranks in the forward pass. The gradient of the branch's input is summed in the backward pass.
//! Each rank computes everything else, such as norms and the sums of branches, for itself, to the
//! same bits.

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
