//! The shape of a run, which decides its memory: its steps, its evaluations and their batches.

use std::ops::Range;

use lowtide_data::{Batch, BatchView, Field, Loader};
use lowtide_ranks::Rank;
use lowtide_tensor::Device;

use crate::error::Result;
use crate::plan::events::PlannedEvent;
use crate::run::evaluation::shared_batches;
use crate::run::fit::{Fit, Length};
use crate::run::upcoming::can_copy_ahead;

/// The facts of a run that decide its plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunShape {
    train: Shapes,
    sets: Vec<Shapes>,
    /// The steps and evaluations of the run, without repetitions.
    outline: Vec<Part>,
    capacity_bytes: usize,
    copies_ahead: bool,
}

/// The properties of a loader that decide its batches.
#[derive(Clone, Debug, PartialEq)]
struct Shapes {
    fields: Vec<Field>,
    len: usize,
    batch_size: usize,
    drop_last: bool,
}

impl RunShape {
    /// The shape of a run that begins before batch `begin` of an epoch. This rank scores `share` of
    /// the evaluations.
    pub(crate) fn new(device: &Device, fit: &Fit<'_>, begin: usize, share: Rank) -> RunShape {
        RunShape {
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

/// The first batch of each loader of a run, for rehearsals.
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

    /// The example of a training batch.
    pub(crate) fn train(&self) -> Option<&Batch> {
        self.train.as_ref()
    }

    /// Number of samples of a batch.
    pub fn batch_size(&self) -> usize {
        self.train.as_ref().map_or(1, Batch::len)
    }

    /// The steps and evaluations of a run, for a rehearsal.
    pub(crate) fn events(&self, shape: &RunShape) -> Vec<PlannedEvent<'_>> {
        let event = |&part: &Part| match part {
            Part::Step { len } => Some(PlannedEvent::Step(first_of(&self.train, len)?)),
            Part::Evaluate { set, len } => {
                Some(PlannedEvent::Evaluate(first_of(&self.sets[set], len)?))
            }
        };
        shape.outline.iter().filter_map(event).collect()
    }
}

/// The first `len` samples of an example. A shorter example is returned whole: the loader left out
/// samples that could not be read.
fn first_of(example: &Option<Batch>, len: usize) -> Option<BatchView<'_>> {
    example.as_ref().map(|batch| batch.slice(0..len.min(batch.len())))
}

/// A step or an evaluated batch of a run, and its number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Step { len: usize },
    Evaluate { set: usize, len: usize },
}

/// The outline of a run: every kind of step and evaluation, in the order of an epoch, without
/// repetitions. Only the evaluations of this rank are included. There are up to two full batches
/// for each epoch, and up to two whole epochs after the rest of the epoch in which the run begins.
/// Placement is a function of the live blocks, so a repetition, or an evaluation between two steps,
/// does not change it.
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

/// Number of samples of each batch in a range of an epoch, without repetitions: up to two full
/// batches and the short last one.
fn batch_lens(loader: &Loader, batches: Range<usize>) -> impl Iterator<Item = usize> {
    let (samples, options) = (loader.samples_per_epoch(), loader.options());
    let full = options.batch_size.min(samples);
    let tail = if options.drop_last || full == 0 { 0 } else { samples % full };
    let full_end = loader.batches_per_epoch() - usize::from(tail > 0);
    let full_count = batches.end.min(full_end).saturating_sub(batches.start).min(2);
    let tail = (tail > 0 && batches.contains(&full_end)).then_some(tail);
    std::iter::repeat_n(full, full_count).chain(tail)
}
