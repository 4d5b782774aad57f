//! The order in which an epoch visits the samples.

mod bucketed;
mod permuted;
mod sharded;
mod shuffled;
pub(crate) mod stream;
mod weighted;

pub use bucketed::Bucketed;
pub use permuted::Permuted;
pub use sharded::{Remainder, Sharded};
pub use shuffled::Shuffled;
pub(crate) use stream::below;
pub use weighted::Weighted;

use crate::error::DataError;

/// Decides the order of an epoch, as a function of its arguments alone.
pub trait Sampler: Send + Sync {
    /// How many samples an epoch visits of a dataset of `len`: all, unless this says otherwise.
    ///
    /// # Errors
    /// A dataset that the sampler was not made for.
    fn samples_per_epoch(&self, len: usize) -> Result<usize, DataError> {
        Ok(len)
    }

    /// How many loaders share each batch: one, unless this says otherwise. A
    /// [`LoaderState`](crate::LoaderState) is that of all of them together.
    fn rank_count(&self) -> usize {
        1
    }

    /// The order of an epoch of a dataset of `len` samples.
    ///
    /// An order may repeat an index and leave others out; every index must be below `len`. It is
    /// asked for once per epoch, and again when an epoch is resumed: equal arguments must give
    /// equal orders.
    fn order(&self, key: EpochKey, len: usize) -> Box<dyn Order>;
}

/// What an order may depend on beside the number of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EpochKey {
    /// Seed of the loader.
    pub seed: u64,
    /// Number of the epoch, from 0.
    pub epoch: u64,
    /// Samples in a full batch.
    pub batch_size: usize,
}

/// The order of one epoch; a vector of the indexes is one.
pub trait Order: Send + Sync {
    /// The index of the sample at `position`, which is below
    /// [`samples_per_epoch`](Sampler::samples_per_epoch).
    fn sample(&self, position: usize) -> usize;
}

impl Order for Vec<usize> {
    fn sample(&self, position: usize) -> usize {
        self[position]
    }
}

impl<S: Sampler + ?Sized> Sampler for Box<S> {
    fn samples_per_epoch(&self, len: usize) -> Result<usize, DataError> {
        (**self).samples_per_epoch(len)
    }

    fn rank_count(&self) -> usize {
        (**self).rank_count()
    }

    fn order(&self, key: EpochKey, len: usize) -> Box<dyn Order> {
        (**self).order(key, len)
    }
}

/// Visits the samples in the order of the dataset, in every epoch: for evaluation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sequential;

impl Sampler for Sequential {
    fn order(&self, _key: EpochKey, _len: usize) -> Box<dyn Order> {
        Box::new(Identity)
    }
}

struct Identity;

impl Order for Identity {
    fn sample(&self, position: usize) -> usize {
        position
    }
}
