//! The batches of a run. The next batch is copied to the device during a step.

use lowtide_data::{Batch, BatchView, DataError, ElementType, Epoch, FieldView, Loader};
use lowtide_tensor::{CopyAhead, Device, DeviceKind, TensorError};

use crate::error::Result;
use crate::plan::Plan;

/// The rest of an epoch, and device memory for the first part of its next batch.
#[derive(Default)]
pub(crate) struct Upcoming {
    epoch: Option<Epoch>,
    /// The batch that was taken from the epoch before its step, or an error, which is reported at
    /// that step.
    next: Option<Result<Batch, DataError>>,
    memory: Option<CopyAhead>,
}

impl Upcoming {
    /// Allocates the memory that `plan` has for copying ahead. If the allocation fails, batches are
    /// copied when they are needed.
    ///
    /// # Errors
    /// Errors of the driver other than a lack of memory.
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

    /// Continues with `epoch`.
    pub(crate) fn begin(&mut self, epoch: Epoch) {
        self.epoch = Some(epoch);
    }

    /// Waits for the next batch, and begins to copy its first `micro_batch` samples.
    ///
    /// # Errors
    /// Errors of the driver.
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

    /// Frees the memory for copying ahead, for the rest of the run.
    pub(crate) fn give_up(&mut self) {
        self.memory = None;
    }
}

impl Iterator for Upcoming {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next.take().or_else(|| self.epoch.as_mut()?.next());
        if next.is_none() {
            // An epoch that is dropped at its end leaves the batches that were built ahead to the
            // next epoch.
            self.epoch = None;
        }
        next
    }
}

/// True if the next batch of `loader` can be copied to the device during a step. This requires a
/// device that copies by itself, and a loader with a second batch beside the one in use.
pub(crate) fn can_copy_ahead(device: &Device, loader: &Loader) -> bool {
    let options = loader.options();
    device.kind() == DeviceKind::Cuda
        && loader.is_page_locked()
        && options.prefetch + options.workers > 1
}

/// Bytes of device memory for any `samples` samples of batches like this one.
pub(crate) fn bytes_ahead(batch: &BatchView<'_>, samples: usize) -> usize {
    CopyAhead::size_for(copied_fields(batch).map(|field| {
        samples * field.sample_shape().iter().product::<usize>() * field.element().size_bytes()
    }))
}

/// The fields that [`upload`](crate::upload) copies without conversion.
fn copied_fields<'a>(batch: &BatchView<'a>) -> impl Iterator<Item = FieldView<'a>> {
    batch.fields().filter(|field| field.element() != ElementType::U16)
}
