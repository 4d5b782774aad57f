//! What of a run decides its memory: which steps and evaluations there are, of what batches.

use std::collections::HashMap;
use std::ops::Range;

use lowtide_data::{Batch, BatchView, Field, Loader};
use lowtide_ranks::Rank;
use lowtide_tensor::Device;

use crate::error::{Result, TrainError};
use crate::plan::rehearsal::PlannedEvent;
use crate::run::evaluation::shared_batches;
use crate::run::upcoming::can_copy_ahead;

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

    /// Bytes that the loaders have for batches.
    pub fn staging_bytes(&self) -> usize {
        let sets = self.sets.iter().map(|(_, set)| set.staging_bytes());
        self.train.staging_bytes() + sets.sum::<usize>()
    }

    /// Bytes of the memory that samples are read from, what sets share counted once.
    pub fn data_bytes(&self) -> usize {
        let mut parts = HashMap::new();
        for loader in self.sets.iter().map(|(_, set)| *set).chain([self.train]) {
            loader.dataset().visit_memory(&mut |address, bytes| {
                parts.insert(address, bytes);
            });
        }
        parts.values().sum()
    }

    /// Bytes of the tables that say in which order an epoch visits the training data, of this epoch
    /// and of the next, which is begun before this one ends.
    pub fn order_bytes(&self) -> usize {
        2 * size_of::<usize>() * self.train.samples_per_epoch()
    }

    /// Threads that fill the batches.
    pub fn worker_count(&self) -> usize {
        let sets = self.sets.iter().map(|(_, set)| set.options().workers);
        self.train.options().workers + sets.sum::<usize>()
    }

    /// Steps of the run, at most.
    pub fn step_count(&self) -> u64 {
        match self.length {
            Length::Epochs(epochs) => epochs.saturating_mul(self.train.batches_per_epoch() as u64),
            Length::Steps(steps) => steps,
        }
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
    outline: Vec<Part>,
    capacity_bytes: usize,
    copies_ahead: bool,
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
    /// A run that begins before batch `begin` of an epoch.
    pub(crate) fn new(device: &Device, fit: &Fit<'_>, begin: usize, share: Rank) -> PlannedFor {
        PlannedFor {
            train: Shapes::of(fit.train),
            sets: fit.sets.iter().map(|(_, set)| Shapes::of(set)).collect(),
            outline: outline(fit, begin, share),
            capacity_bytes: device.allocator().capacity_bytes(),
            copies_ahead: can_copy_ahead(device, fit.train),
        }
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
pub struct Examples {
    train: Option<Batch>,
    sets: Vec<Option<Batch>>,
}

impl Examples {
    /// # Errors
    /// `Setting` for a set without a batch; errors of the data.
    pub fn of(fit: &Fit<'_>) -> Result<Examples> {
        fit.check()?;
        let first = |loader: &Loader| loader.epoch(0).next().transpose();
        let sets = fit.sets.iter().map(|(_, set)| first(set)).collect::<Result<_, _>>()?;
        Ok(Examples { train: first(fit.train)?, sets })
    }

    /// The batch that stands for those of the training.
    pub(crate) fn train(&self) -> Option<&Batch> {
        self.train.as_ref()
    }

    /// Samples of a batch.
    pub fn batch_size(&self) -> usize {
        self.train.as_ref().map_or(1, Batch::len)
    }

    /// The [`outline`] of a run that begins before batch `begin` of an epoch.
    pub(crate) fn events(&self, fit: &Fit<'_>, begin: usize, share: Rank) -> Vec<PlannedEvent<'_>> {
        let event = |part| match part {
            Part::Step { len } => Some(PlannedEvent::Step(first_of(&self.train, len)?)),
            Part::Evaluate { set, len } => {
                Some(PlannedEvent::Evaluate(first_of(&self.sets[set], len)?))
            }
        };
        outline(fit, begin, share).into_iter().filter_map(event).collect()
    }
}

/// The first `len` samples of an example, or as many as it has: a batch without samples that could
/// not be read is shorter than others.
fn first_of(example: &Option<Batch>, len: usize) -> Option<BatchView<'_>> {
    example.as_ref().map(|batch| batch.slice(0..len.min(batch.len())))
}

/// A step or an evaluated batch of a run, and its number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Step { len: usize },
    Evaluate { set: usize, len: usize },
}

/// A run in short: every kind of step and evaluation that it will contain, in the order of an
/// epoch, with repetitions left out: of an epoch's full batches there are up to two, and of its
/// epochs the one that it begins in and up to two whole ones. Of evaluations it has those of this
/// rank. Placement is a function of the live blocks, so neither a repetition nor an evaluation
/// between two steps changes anything.
fn outline(fit: &Fit<'_>, begin: usize, share: Rank) -> Vec<Part> {
    let batches = fit.train.batches_per_epoch();
    let mut begin = if begin < batches { begin } else { 0 };
    let (mut epochs, mut steps) = match fit.length {
        Length::Epochs(epochs) => (epochs, u64::MAX),
        Length::Steps(steps) => (u64::MAX, steps),
    };
    let (mut parts, mut whole_epochs) = (Vec::new(), 0);
    while epochs > 0 && steps > 0 && whole_epochs < 2 {
        let end = batches.min(begin.saturating_add(usize::try_from(steps).unwrap_or(usize::MAX)));
        parts.extend(batch_lens(fit.train, begin..end).map(|len| Part::Step { len }));
        for (set, (_, loader)) in fit.sets.iter().enumerate() {
            let lens = batch_lens(loader, shared_batches(share, loader.batches_per_epoch()));
            parts.extend(lens.map(|len| Part::Evaluate { set, len }));
        }
        whole_epochs += u64::from(begin == 0);
        (epochs, steps) = (epochs - 1, steps - (end - begin) as u64);
        begin = 0;
    }
    parts
}

/// Samples of the batches in a range of an epoch, without repetition: up to two full ones and the
/// short last one.
fn batch_lens(loader: &Loader, batches: Range<usize>) -> impl Iterator<Item = usize> {
    let (samples, options) = (loader.samples_per_epoch(), loader.options());
    let full = options.batch_size.min(samples);
    let tail = if options.drop_last || full == 0 { 0 } else { samples % full };
    let full_end = loader.batches_per_epoch() - usize::from(tail > 0);
    let full_count = batches.end.min(full_end).saturating_sub(batches.start).min(2);
    let tail = (tail > 0 && batches.contains(&full_end)).then_some(tail);
    std::iter::repeat_n(full, full_count).chain(tail)
}
