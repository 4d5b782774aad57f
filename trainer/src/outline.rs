//! What of a run decides its memory: which steps and evaluations there are, of what batches.

use lowtide_data::{Batch, BatchView, Field, Loader};
use lowtide_tensor::Device;

use crate::error::{Result, TrainError};
use crate::rehearsal::PlannedEvent;

/// What a run is: the data, how long, and what is evaluated when.
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

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Epochs(u64),
    Steps(u64),
}

/// How often something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// After so many epochs, counted over the whole training.
    Epochs(u64),
    /// After so many steps, counted over the whole training.
    Steps(u64),
}

impl<'a> Fit<'a> {
    /// One epoch of `train`, and no evaluation.
    pub fn new(train: &'a Loader) -> Self {
        Fit { train, sets: Vec::new(), length: Length::Epochs(1), every: Every::Epochs(1) }
    }

    /// So many epochs more; the rest of one that was left in its middle is the first of them.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.length = Length::Epochs(epochs);
        self
    }

    /// So many steps more.
    #[must_use]
    pub fn steps(mut self, steps: u64) -> Self {
        self.length = Length::Steps(steps);
        self
    }

    /// One more set to be evaluated, under this name.
    #[must_use]
    pub fn evaluate(mut self, name: impl Into<String>, set: &'a Loader) -> Self {
        self.sets.push((name.into(), set));
        self
    }

    /// When the sets are evaluated; after each epoch, if this is not said. In any case they are
    /// after the last step. An interval of 0 means only then.
    #[must_use]
    pub fn every(mut self, every: Every) -> Self {
        self.every = every;
        self
    }

    /// # Errors
    /// `Setting` for a run of no step, or a set without a batch.
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

/// What of a run decides its plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedFor {
    train: Shapes,
    sets: Vec<Shapes>,
    has_second_epoch: bool,
    capacity_bytes: usize,
}

/// What of a loader decides the batches that it gives.
#[derive(Clone, Debug, PartialEq)]
struct Shapes {
    fields: Vec<Field>,
    len: usize,
    batch_size: usize,
    drop_last: bool,
}

impl PlannedFor {
    pub(crate) fn new(device: &Device, fit: &Fit<'_>) -> PlannedFor {
        PlannedFor {
            train: Shapes::of(fit.train),
            sets: fit.sets.iter().map(|(_, set)| Shapes::of(set)).collect(),
            has_second_epoch: epochs_at_most(fit) > 1,
            capacity_bytes: device.allocator().capacity_bytes(),
        }
    }
}

/// Epochs that a run touches, if it begins with one.
fn epochs_at_most(fit: &Fit<'_>) -> u64 {
    match fit.length {
        Length::Epochs(epochs) => epochs,
        // It may begin in the middle of an epoch.
        Length::Steps(steps) => 1 + steps.div_ceil(fit.train.batches_per_epoch().max(1) as u64),
    }
}

impl Shapes {
    fn of(loader: &Loader) -> Shapes {
        let (dataset, options) = (loader.dataset(), loader.options());
        let (fields, len) = (dataset.fields().to_vec(), loader.samples_per_epoch());
        Shapes { fields, len, batch_size: options.batch_size, drop_last: options.drop_last }
    }
}

/// # Errors
/// `Setting` when there is not one batch: nothing would be learned, and every mean would be NaN.
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

/// The first batch of each loader of a run, to be rehearsed with.
pub(crate) struct Examples {
    train: Option<Batch>,
    sets: Vec<Option<Batch>>,
}

impl Examples {
    /// # Errors
    /// `Setting` for a set without a batch; errors of the data.
    pub(crate) fn of(fit: &Fit<'_>) -> Result<Examples> {
        fit.check()?;
        let first = |loader: &Loader| loader.epoch(0).next().transpose();
        let sets = fit.sets.iter().map(|(_, set)| first(set)).collect::<Result<_, _>>()?;
        Ok(Examples { train: first(fit.train)?, sets })
    }

    /// Samples of a batch.
    pub(crate) fn batch_size(&self) -> usize {
        self.train.as_ref().map_or(1, Batch::len)
    }

    /// A run in short: every kind of step and evaluation that it will contain, in the order of an
    /// epoch, with repetitions left out. Placement is a function of the live blocks, so neither a
    /// repetition nor an evaluation between two steps changes anything.
    pub(crate) fn events(&self, fit: &Fit<'_>) -> Vec<PlannedEvent<'_>> {
        let mut events = Vec::new();
        for _ in 0..epochs_at_most(fit).min(2) {
            events
                .extend(parts(fit.train, self.train.as_ref()).into_iter().map(PlannedEvent::Step));
            for ((_, set), example) in fit.sets.iter().zip(&self.sets) {
                events.extend(parts(set, example.as_ref()).into_iter().map(PlannedEvent::Evaluate));
            }
        }
        events
    }
}

/// The batches of an epoch without repetition: up to two full ones and the short last one.
fn parts<'a>(loader: &Loader, example: Option<&'a Batch>) -> Vec<BatchView<'a>> {
    let Some(example) = example else { return Vec::new() };
    let (count, full) = (loader.batches_per_epoch(), example.len());
    let tail = loader.samples_per_epoch() % full;
    let has_tail = tail > 0 && !loader.options().drop_last;
    let full_count = count - usize::from(has_tail);
    let mut parts = vec![example.view(); full_count.min(2)];
    if has_tail {
        parts.push(example.slice(0..tail));
    }
    parts
}
