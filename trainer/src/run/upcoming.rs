//! The batches of a run, of which the next one is on its way to the device during a step.

use lowtide_data::{Batch, BatchView, DataError, ElementType, Epoch, FieldView, Loader};
use lowtide_tensor::{CopyAhead, Device, DeviceKind, TensorError};

use crate::error::Result;
use crate::plan::Plan;

/// The rest of an epoch, and memory of the device for the first part of its next batch.
#[derive(Default)]
pub(crate) struct Upcoming {
    epoch: Option<Epoch>,
    /// Taken from the epoch ahead of its step; an error waits for its turn.
    next: Option<Result<Batch, DataError>>,
    memory: Option<CopyAhead>,
}

impl Upcoming {
    /// Takes the memory that `plan` has for it. If it is not there any more, batches are copied
    /// when they are asked for.
    ///
    /// # Errors
    /// The driver refused for another reason.
    pub(crate) fn new(device: &Device, plan: &Plan) -> Result<Upcoming> {
        let memory = match plan.copy_ahead_bytes {
            0 => None,
            bytes => match device.copy_ahead(bytes) {
                Err(error) if error.out_of_memory().is_some() => None,
                memory => memory?,
            },
        };
        Ok(Upcoming { memory, ..Upcoming::default() })
    }

    /// Goes on with `epoch`.
    pub(crate) fn begin(&mut self, epoch: Epoch) {
        self.epoch = Some(epoch);
    }

    /// Begins to copy the first `micro_batch` samples of the next batch, which is waited for.
    ///
    /// # Errors
    /// The driver refused.
    pub(crate) fn copy_next(&mut self, micro_batch: usize) -> Result<(), TensorError> {
        let (Some(memory), None, Some(epoch)) = (&mut self.memory, &self.next, &mut self.epoch)
        else {
            return Ok(());
        };
        self.next = epoch.next();
        let Some(Ok(batch)) = &self.next else { return Ok(()) };
        let part = batch.slice(0..batch.len().min(micro_batch));
        let places: Vec<_> = copied_fields(&part).filter_map(|f| f.page_locked()).collect();
        memory.begin(&places)
    }

    /// Gives the memory back for the rest of the run.
    pub(crate) fn give_up(&mut self) {
        self.memory = None;
    }
}

impl Iterator for Upcoming {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next.take().or_else(|| self.epoch.as_mut()?.next());
        if next.is_none() {
            // An epoch that is dropped at its end leaves the batches built ahead to the next epoch.
            self.epoch = None;
        }
        next
    }
}

/// Whether the next batch of `loader` can be copied to the device during a step: a copy that the
/// device does by itself, of a batch that is there beside the one in use.
pub(crate) fn can_copy_ahead(device: &Device, loader: &Loader) -> bool {
    let options = loader.options();
    device.kind() == DeviceKind::Cuda
        && loader.is_page_locked()
        && options.prefetch + options.workers > 1
}

/// Bytes of the device for any `samples` samples of batches like this one.
pub(crate) fn bytes_ahead(batch: &BatchView<'_>, samples: usize) -> usize {
    CopyAhead::size_for(copied_fields(batch).map(|field| {
        samples * field.sample_shape().iter().product::<usize>() * field.element().size_bytes()
    }))
}

/// The fields that [`upload`](crate::upload) copies as they are.
fn copied_fields<'a>(batch: &BatchView<'a>) -> impl Iterator<Item = FieldView<'a>> {
    batch.fields().filter(|field| field.element() != ElementType::U16)
}
