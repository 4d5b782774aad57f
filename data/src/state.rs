//! The position of a loader, in five integers.

use crate::error::DataError;
use serde::{Deserialize, Serialize};

/// The next batch that a loader would give: what a checkpoint keeps of the data.
///
/// The last two numbers are there to refuse a state of another dataset or batch size, whose order
/// would silently be a different one. The number of workers is of no account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoaderState {
    /// Number of the epoch, from 0.
    pub epoch: u64,
    /// Index of the next batch in it; the number of batches once the epoch is over.
    pub batch: usize,
    /// Seed of the order.
    pub seed: u64,
    /// Samples in a full batch, of all ranks that share it: another number of ranks can go on.
    pub batch_size: usize,
    /// Samples in the dataset.
    pub sample_count: usize,
}

impl LoaderState {
    /// `here` is the state of the loader after the last batch of the epoch.
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
