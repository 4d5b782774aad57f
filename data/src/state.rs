//! The state of a loader: five integers.

use crate::error::DataError;
use serde::{Deserialize, Serialize};

/// The position of a loader before its next batch, for checkpoints.
///
/// A loader refuses a state with another seed, batch size or number of samples, because the order
/// of the samples would silently differ. The number of workers may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoaderState {
    /// Number of the epoch, from 0.
    pub epoch: u64,
    /// Index of the next batch in the epoch; the number of batches once the epoch is over.
    pub batch: usize,
    /// Seed of the order.
    pub seed: u64,
    /// Number of samples in a full batch of all ranks together, so that a run can be resumed with
    /// another number of ranks.
    pub batch_size: usize,
    /// Number of samples in the dataset.
    pub sample_count: usize,
}

impl LoaderState {
    /// Checks the state against `here`, the state of the loader after the last batch of the epoch.
    pub(crate) fn check(&self, here: &Self) -> Result<(), DataError> {
        let mismatch = |what, saved, here| Err(DataError::StateMismatch { what, saved, here });
        if self.seed != here.seed {
            return mismatch("seed", self.seed, here.seed);
        }
        if self.batch_size != here.batch_size {
            return mismatch("batch_size", self.batch_size as u64, here.batch_size as u64);
        }
        if self.sample_count != here.sample_count {
            return mismatch("sample_count", self.sample_count as u64, here.sample_count as u64);
        }
        if self.batch > here.batch {
            return mismatch("batch", self.batch as u64, here.batch as u64);
        }
        Ok(())
    }
}
