//! The options of a loader.

use crate::error::DataError;
use std::time::Duration;

/// Options of a [`Loader`](crate::Loader), with defaults in parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Number of samples in a batch (1).
    pub batch_size: usize,
    /// Leave out the last batch if it is not full (false).
    pub drop_last: bool,
    /// Seed of the order of all epochs (0).
    pub seed: u64,
    /// Number of threads that read samples. With 0, the thread that asks for a batch reads its
    /// samples (0).
    pub workers: usize,
    /// The effect of a sample that cannot be read (fail).
    pub on_bad_sample: OnBadSample,
    /// Longest wait of `next` while no sample of the batch is finished, and longest wait of
    /// dropping an epoch or the loader for samples that are being read. A hang is noticed after up
    /// to twice this time. `None` waits for ever. A timeout needs workers (None).
    pub timeout: Option<Duration>,
    /// Number of batches that are ready or in use, in addition to the batch that each worker
    /// builds. At least 1 (2).
    pub prefetch: usize,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self {
            batch_size: 1,
            drop_last: false,
            seed: 0,
            workers: 0,
            prefetch: 2,
            on_bad_sample: OnBadSample::Fail,
            timeout: None,
        }
    }
}

/// The effect of a bad sample, whose `write` returns an error or panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBadSample {
    /// The error is returned in place of the batch, and the epoch is over.
    #[default]
    Fail,
    /// The batch comes without the sample, and [`Batch::skipped`](crate::Batch::skipped) names it.
    ///
    /// An epoch, or the rest of a resumed epoch, may have up to this number of bad samples. A
    /// further bad sample is an error, and so is a batch without any good sample.
    Skip(usize),
}

impl LoaderOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for the first option that is not allowed.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        for (option, value) in [("batch_size", self.batch_size), ("prefetch", self.prefetch)] {
            if value == 0 {
                return Err(DataError::InvalidOption { option, value });
            }
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(DataError::InvalidOption { option: "timeout", value: 0 });
        }
        if self.timeout.is_some() && self.workers == 0 {
            return Err(DataError::InvalidOption { option: "workers with a timeout", value: 0 });
        }
        Ok(())
    }

    /// Number of samples that may be skipped in an epoch.
    pub(crate) fn skip_max(&self) -> usize {
        match self.on_bad_sample {
            OnBadSample::Fail => 0,
            OnBadSample::Skip(count) => count,
        }
    }
}
