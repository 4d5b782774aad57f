//! The capacity of a training's device. No other file of the command sets it.

use lowtide_tensor::Device;
use lowtide_trainer::{Fit, Plan, PlanOptions, Result};

use crate::command::device::{CAPACITY_BYTES, DeviceArgs};
use crate::command::process::{Process, ProcessBudget, Work};
use crate::recipe::RecipeTrainer;

/// Bytes beside the rehearsed peak of a work without a plan, for what the rehearsal leaves out:
/// tokens between the prompt and the last token, and small tensors of files.
const SPARE_BYTES: usize = 1 << 20;

/// The limits that decide how much memory the device of a training may take.
#[derive(Clone, Copy)]
pub(super) struct Capacity {
    /// The budget that applies if no limit on the process is smaller.
    budget_bytes: usize,
    /// The budget on the command line, if any.
    given_bytes: Option<usize>,
    /// The limit on the whole process.
    process: Option<ProcessBudget>,
}

impl Capacity {
    /// A budget without a limit on the process.
    pub(super) fn of(budget_bytes: usize) -> Capacity {
        Capacity { budget_bytes, given_bytes: None, process: None }
    }

    /// The budget on the command line, within a limit on the process.
    pub(super) fn given(budget_bytes: usize, process: Option<ProcessBudget>) -> Capacity {
        Capacity { budget_bytes, given_bytes: Some(budget_bytes), process }
    }

    /// The budget that was found for `arguments`, within a limit on the process.
    pub(super) fn found(
        budget_bytes: usize,
        arguments: &DeviceArgs,
        process: Option<ProcessBudget>,
    ) -> Capacity {
        Capacity { budget_bytes, given_bytes: arguments.budget(), process }
    }

    /// The capacity of an open device, within the present limit on the process.
    pub(super) fn of_opened(device: &Device, arguments: &DeviceArgs) -> Capacity {
        let budget_bytes = device.allocator().capacity_bytes();
        Capacity::found(budget_bytes, arguments, arguments.process_budget())
    }

    /// The limit on the whole process.
    pub(super) fn process_budget(&self) -> Option<ProcessBudget> {
        self.process
    }

    /// Raises the capacity of a simulated device, so that any model can be built there.
    pub(super) fn lift(sim: &Device) {
        sim.allocator().set_capacity(CAPACITY_BYTES);
    }

    /// Leaves `outside_bytes` to a library, unless the budget was given on the command line.
    #[cfg(feature = "cuda")]
    pub(super) fn leave(device: &Device, arguments: &DeviceArgs, outside_bytes: usize) {
        if arguments.budget().is_none() {
            let capacity_bytes = device.allocator().capacity_bytes();
            device.allocator().set_capacity(capacity_bytes.saturating_sub(outside_bytes));
        }
    }

    /// Divides the process if it has a limit, and limits `device` to its part.
    ///
    /// # Errors
    /// Errors of [`Process::divide`].
    fn limit<'a>(
        &self,
        device: &Device,
        work: impl FnOnce() -> Work<'a>,
    ) -> Result<Option<Process>> {
        let divide = |budget| Process::divide(budget, &work(), self.given_bytes);
        let process = self.process.map(divide).transpose()?;
        let training_bytes = process.as_ref().and_then(Process::training_bytes);
        device.allocator().set_capacity(training_bytes.unwrap_or(self.budget_bytes));
        Ok(process)
    }

    /// Limits the device of a work without a plan, if the process has a limit. `rehearse` does the
    /// work on a simulated device, and returns the bytes of the process for copies from and to the
    /// device. `fit` has the data of the work, if there is any.
    ///
    /// # Errors
    /// `DoesNotFit` with the bytes that the process needs; errors of `rehearse` and of the data.
    pub(super) fn admit(
        &self,
        device: &Device,
        fit: Option<&Fit<'_>>,
        rehearse: impl FnOnce(&Device) -> Result<usize>,
    ) -> Result<()> {
        if self.process.is_none() {
            return Ok(());
        }
        let sim = device.simulate();
        Capacity::lift(&sim);
        let copied_bytes = rehearse(&sim)?;
        let needed_bytes = sim.allocator().statistics().reserved.peak_bytes + SPARE_BYTES;
        drop(sim);
        let work = || Work { device, fit, copied_bytes, steps: 0, offload_bytes: 0 };
        let process = self.limit(device, work)?;
        process.map_or(Ok(()), |process| process.check_work(needed_bytes))
    }

    /// Limits the device of a training, and makes its plan.
    ///
    /// # Errors
    /// `DoesNotFit`; errors of the data, and of the process if it has a limit.
    pub(super) fn plan(
        &self,
        trainer: &mut RecipeTrainer,
        fit: &Fit<'_>,
        options: &PlanOptions,
    ) -> Result<(Plan, Option<Process>)> {
        self.plan_by(trainer, fit, |trainer| trainer.plan_run(fit, options))
    }

    /// Limits the device of a training, and makes its plan by `plan`.
    ///
    /// # Errors
    /// Errors of `plan`, in bytes of the process if its limit decides; errors of the data.
    pub(super) fn plan_by(
        &self,
        trainer: &mut RecipeTrainer,
        fit: &Fit<'_>,
        plan: impl FnOnce(&mut RecipeTrainer) -> Result<Plan>,
    ) -> Result<(Plan, Option<Process>)> {
        let device = trainer.device().clone();
        let process = self.limit(&device, || {
            let steps = trainer.steps().saturating_add(fit.step_count());
            let host = trainer.options().offload.as_ref();
            let offload_bytes = host.map_or(0, |host| host.allocator().capacity_bytes());
            let copied_bytes = trainer.copied_bytes();
            Work { device: &device, fit: Some(fit), copied_bytes, steps, offload_bytes }
        })?;
        let planned = plan(trainer);
        let plan = match &process {
            Some(process) => process.checked(planned)?,
            None => planned?,
        };
        Ok((plan, process))
    }
}
