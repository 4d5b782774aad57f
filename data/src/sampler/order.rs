//! The seam between a sampler and a loader.

use crate::error::DataError;

/// Decides the order of an epoch. The order is a function of the arguments alone.
pub trait Sampler: Send + Sync {
    /// Number of samples that an epoch visits in a dataset of `len` samples. The default is `len`.
    ///
    /// # Errors
    /// An error for a dataset that the sampler was not made for.
    fn samples_per_epoch(&self, len: usize) -> Result<usize, DataError> {
        Ok(len)
    }

    /// Number of loaders that share each batch. The default is one. A
    /// [`LoaderState`](crate::LoaderState) counts the samples of all these loaders.
    fn rank_count(&self) -> usize {
        1
    }

    /// The order of an epoch of a dataset of `len` samples.
    ///
    /// An order may repeat an index and leave others out. Every index must be below `len`. The
    /// method is called again when an epoch is resumed, so equal arguments must give equal orders.
    fn order(&self, key: EpochKey, len: usize) -> Box<dyn Order>;
}

/// The numbers that an order may depend on, apart from the number of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EpochKey {
    /// Seed of the loader.
    pub seed: u64,
    /// Number of the epoch, from 0.
    pub epoch: u64,
    /// Number of samples in a full batch.
    pub batch_size: usize,
}

/// The order of one epoch. A vector of indices is an order.
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
