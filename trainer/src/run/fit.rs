//! A run: its data, its length, and the sets that are evaluated at an interval.

use std::collections::HashMap;

use lowtide_data::Loader;

use crate::error::{Result, TrainError};
use crate::run::observer::Position;

/// A run: its data, its length, and the sets that are evaluated at an interval.
///
/// ```
/// use lowtide_data::{Digits, Loader, LoaderOptions, Sequential};
/// use lowtide_trainer::{Every, Fit};
///
/// let (train, test) = Digits::load()?.split();
/// let options = LoaderOptions { batch_size: 64, ..Default::default() };
/// let (train, test) =
///     (Loader::new(train, options)?, Loader::with_sampler(test, Sequential, options)?);
/// let fit = Fit::new(&train).steps(10_000).evaluate("test", &test).every(Every::Steps(500));
/// # Ok::<(), lowtide_data::DataError>(())
/// ```
#[derive(Clone)]
pub struct Fit<'a> {
    pub(crate) train: &'a Loader,
    pub(crate) sets: Vec<(String, &'a Loader)>,
    pub(crate) length: Length,
    pub(crate) every: Every,
}

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Epochs(u64),
    Steps(u64),
}

/// An interval between evaluations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// After this number of epochs, counted over the whole training.
    Epochs(u64),
    /// After this number of steps, counted over the whole training.
    Steps(u64),
}

impl Every {
    /// True if an evaluation is due after `step`. `ended_epoch` is the epoch that the step has
    /// ended, if any. An interval of 0 is never due.
    pub(crate) fn is_due(self, step: u64, ended_epoch: Option<u64>) -> bool {
        let is_multiple = |count: u64, every: u64| every > 0 && count.is_multiple_of(every);
        match self {
            Every::Epochs(every) => ended_epoch.is_some_and(|epoch| is_multiple(epoch, every)),
            Every::Steps(every) => is_multiple(step, every),
        }
    }
}

impl<'a> Fit<'a> {
    /// One epoch of `train` without evaluation.
    pub fn new(train: &'a Loader) -> Self {
        Fit { train, sets: Vec::new(), length: Length::Epochs(1), every: Every::Epochs(1) }
    }

    /// Sets the length to `epochs` more epochs. The rest of an unfinished epoch counts as the
    /// first.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.length = Length::Epochs(epochs);
        self
    }

    /// Sets the length to `steps` more steps.
    #[must_use]
    pub fn steps(mut self, steps: u64) -> Self {
        self.length = Length::Steps(steps);
        self
    }

    /// Adds a set to be evaluated, under this name.
    #[must_use]
    pub fn evaluate(mut self, name: impl Into<String>, set: &'a Loader) -> Self {
        self.sets.push((name.into(), set));
        self
    }

    /// Sets the interval at which the sets are evaluated. The default is each epoch. The sets are
    /// also evaluated after the last step; with an interval of 0, only then.
    #[must_use]
    pub fn every(mut self, every: Every) -> Self {
        self.every = every;
        self
    }

    /// Bytes of the loaders for batches.
    pub fn staging_bytes(&self) -> usize {
        let sets = self.sets.iter().map(|(_, set)| set.staging_bytes());
        self.train.staging_bytes() + sets.sum::<usize>()
    }

    /// Bytes of the memory that samples are read from. Memory that several sets share counts once.
    pub fn data_bytes(&self) -> usize {
        let mut parts = HashMap::new();
        for loader in self.sets.iter().map(|(_, set)| *set).chain([self.train]) {
            loader.dataset().visit_memory(&mut |address, bytes| {
                parts.insert(address, bytes);
            });
        }
        parts.values().sum()
    }

    /// Bytes of the tables with the order of the training data in an epoch. There are two tables,
    /// because the next epoch begins before this one ends.
    pub fn order_bytes(&self) -> usize {
        2 * size_of::<usize>() * self.train.samples_per_epoch()
    }

    /// Number of threads that fill batches.
    pub fn worker_count(&self) -> usize {
        let sets = self.sets.iter().map(|(_, set)| set.options().workers);
        self.train.options().workers + sets.sum::<usize>()
    }

    /// Largest number of steps of the run.
    pub fn step_count(&self) -> u64 {
        match self.length {
            Length::Epochs(epochs) => epochs.saturating_mul(self.train.batches_per_epoch() as u64),
            Length::Steps(steps) => steps,
        }
    }

    /// # Errors
    /// `Setting` for a run without a step, or a set without a batch.
    pub(crate) fn check(&self) -> Result<()> {
        if matches!(self.length, Length::Epochs(0) | Length::Steps(0)) {
            return Err(TrainError::Setting {
                place: "run".to_owned(),
                problem: "has no step".to_owned(),
            });
        }
        check_not_empty("training", self.train)?;
        self.sets.iter().try_for_each(|(name, set)| check_not_empty(name, set))
    }
}

/// # Errors
/// `Setting` if there is no batch: nothing would be learned, and every mean would be NaN.
fn check_not_empty(name: &str, loader: &Loader) -> Result<()> {
    if loader.batches_per_epoch() > 0 {
        return Ok(());
    }
    let (len, options) = (loader.samples_per_epoch(), loader.options());
    let problem = if len > 0 && options.drop_last {
        format!(
            "{len} samples are less than a batch of {}, and drop_last is set",
            options.batch_size
        )
    } else {
        "there is no sample".to_owned()
    };
    Err(TrainError::Setting { place: format!("{name} data"), problem })
}

/// The end of a run.
pub(crate) struct End {
    /// The last step of the run, counted over the whole training.
    pub(crate) step: u64,
    /// The epoch of that step, counted from 1.
    pub(crate) epoch: u64,
}

impl End {
    /// The end of a run that begins at `start`.
    pub(crate) fn of(fit: &Fit<'_>, start: Position) -> End {
        let batches = fit.train.batches_per_epoch() as u64;
        let done = start.batch as u64;
        let steps = match fit.length {
            Length::Epochs(epochs) => (epochs * batches).saturating_sub(done),
            Length::Steps(steps) => steps,
        };
        End { step: start.step + steps, epoch: start.epoch + (done + steps).div_ceil(batches) }
    }
}
