//! The hooks of the steps of a run.

use lowtide_allocator::Promise;
use lowtide_tensor::{Device, TensorError};

use crate::error::Result;
use crate::run::observer::Observer;
use crate::run::upcoming::Upcoming;
use crate::step::hooks::StepHooks;

/// The hooks of a step of a run.
pub(crate) struct RunHooks<'a, 'o> {
    pub(crate) step: u64,
    pub(crate) observers: &'a mut [&'o mut dyn Observer],
    pub(crate) upcoming: &'a mut Upcoming,
    pub(crate) micro_batch: usize,
    /// Bytes that may be reserved until the end of a fused update.
    pub(crate) promised_bytes: Option<usize>,
}

impl StepHooks for RunHooks<'_, '_> {
    fn on_phase(&mut self, phase: &'static str) {
        self.observers.iter_mut().for_each(|observer| observer.on_phase(self.step, phase));
    }

    fn on_enqueued(&mut self) -> Result<()> {
        Ok(self.upcoming.copy_next(self.micro_batch)?)
    }

    fn promise(&mut self, device: &Device) -> Result<Option<Promise>> {
        let promise = self.promised_bytes.map(|bytes| device.allocator().promise(bytes));
        Ok(promise.transpose().map_err(TensorError::from)?)
    }
}
