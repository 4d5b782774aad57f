//! The settings of a loader.

use crate::error::DataError;
use std::time::Duration;

/// Settings of a [`Loader`](crate::Loader).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Samples per batch (1).
    pub batch_size: usize,
    /// Leave out the last batch if it is not full (false).
    pub drop_last: bool,
    /// Seed of the order of all epochs (0).
    pub seed: u64,
    /// Threads that read samples; 0 reads them on the thread that asks for the batch (0).
    pub workers: usize,
    /// What a sample that cannot be read does to its epoch (fail).
    pub on_bad_sample: OnBadSample,
    /// How long `next` waits while no sample of the batch is finished, and dropping an epoch or the
    /// loader waits for samples that are being read; it may be twice as long until it is noticed.
    /// `None` waits for ever. It takes workers: a thread cannot watch itself (None).
    pub timeout: Option<Duration>,
    /// Batches held ready or in use beside the one that each worker builds, at least 1 (2).
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

/// What a sample that cannot be read does to its epoch: one whose `write` returns an error or
/// panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBadSample {
    /// Its error arrives in the place of its batch, and the epoch is over.
    #[default]
    Fail,
    /// Its batch comes without it, and [`Batch::skipped`](crate::Batch::skipped) names it. One bad
    /// sample more than this number in an epoch, or in what is left of a resumed one, is an error
    /// after all; so is a batch with no good sample.
    Skip(usize),
}

impl LoaderOptions {
    /// # Errors
    /// [`DataError::InvalidOption`] for the first option that no loader can have.
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

    /// Samples that may be skipped in an epoch.
    pub(crate) fn skip_max(&self) -> usize {
        match self.on_bad_sample {
            OnBadSample::Fail => 0,
            OnBadSample::Skip(count) => count,
        }
    }
}
