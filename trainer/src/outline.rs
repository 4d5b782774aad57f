//! What of a run decides its memory: which steps and evaluations there are, of what batches.

use lowtide_data::{Batch, BatchView, Field, Loader};
use lowtide_tensor::Device;

use crate::error::{Result, TrainError};
use crate::rehearsal::Act;

/// What of a run decides its plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedFor {
    train: Shapes,
    test: Shapes,
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
    pub(crate) fn new(device: &Device, train: &Loader, test: &Loader, epochs: u64) -> PlannedFor {
        PlannedFor {
            train: Shapes::of(train),
            test: Shapes::of(test),
            has_second_epoch: epochs > 1,
            capacity_bytes: device.allocator().capacity_bytes(),
        }
    }
}

impl Shapes {
    fn of(loader: &Loader) -> Shapes {
        let (dataset, options) = (loader.dataset(), loader.options());
        let (fields, len) = (dataset.fields().to_vec(), dataset.len());
        Shapes { fields, len, batch_size: options.batch_size, drop_last: options.drop_last }
    }
}

/// # Errors
/// `Setting` when there is not one batch: nothing would be learned, and every mean would be NaN.
pub(crate) fn check_not_empty(name: &str, loader: &Loader) -> Result<()> {
    if loader.batches_per_epoch() > 0 {
        return Ok(());
    }
    let (len, options) = (loader.dataset().len(), loader.options());
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

pub(crate) fn first_batch(loader: &Loader) -> Result<Option<Batch>> {
    Ok(loader.epoch(0).next().transpose()?)
}

/// A run in short: every kind of step and evaluation that it will contain, in its order, with
/// repetitions left out. Placement is a function of the live blocks, so a repetition changes
/// nothing.
pub(crate) fn acts<'a>(
    train: &Loader,
    train_example: Option<&'a Batch>,
    test: &Loader,
    test_example: Option<&'a Batch>,
    epochs: u64,
) -> Vec<Act<'a>> {
    let mut acts = Vec::new();
    for _ in 0..epochs.min(2) {
        acts.extend(parts(train, train_example).into_iter().map(Act::Step));
        acts.extend(parts(test, test_example).into_iter().map(Act::Evaluate));
    }
    acts
}

/// The batches of an epoch without repetition: up to two full ones and the short last one.
fn parts<'a>(loader: &Loader, example: Option<&'a Batch>) -> Vec<BatchView<'a>> {
    let Some(example) = example else { return Vec::new() };
    let (count, full) = (loader.batches_per_epoch(), example.len());
    let tail = loader.dataset().len() % full;
    let has_tail = tail > 0 && !loader.options().drop_last;
    let full_count = count - usize::from(has_tail);
    let mut parts = vec![example.view(); full_count.min(2)];
    if has_tail {
        parts.push(example.slice(0..tail));
    }
    parts
}
