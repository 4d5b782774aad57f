//! Samplers: the order of the samples of an epoch.

mod bucketed;
pub(crate) mod order;
mod permuted;
pub(crate) mod rng;
mod sequential;
mod sharded;
mod shuffled;
mod weighted;

pub use bucketed::Bucketed;
pub use order::{EpochKey, Order, Sampler};
pub use permuted::Permuted;
pub use sequential::Sequential;
pub use sharded::{Remainder, Sharded};
pub use shuffled::Shuffled;
pub use weighted::Weighted;
