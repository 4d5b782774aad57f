//! Rehearsals: the real training code runs on a simulated device, so that its peak is known before
//! the run.

use lowtide_allocator::Category;
use lowtide_amp::LossScaler;
use lowtide_data::BatchView;
use lowtide_nn::optim::Stateful;
use lowtide_tensor::{Device, RandomKey, TensorError};

use crate::error::{Result, TrainError};
use crate::options::Options;
use crate::parallel::division::{Division, Observed};
use crate::plan::events::PlannedEvent;
use crate::plan::forecast::{Forecast, RehearsedEvent};
use crate::plan::knobs::Knobs;
use crate::run::evaluation::with_averages;
use crate::step::Step;
use crate::step::context::is_packed;
use crate::step::hooks::StepHooks;
use crate::step::summation::Summation;
use crate::task::contract::Task;

/// The hooks of a rehearsed step. Micro-batches that only repeat others are left out.
#[derive(Default)]
struct RehearsalHooks {
    skipped_seconds: f64,
}

impl StepHooks for RehearsalHooks {
    fn skips_repeated(&self) -> bool {
        true
    }

    fn add_skipped_seconds(&mut self, seconds: f64) {
        self.skipped_seconds += seconds;
    }
}

/// Inputs of a run without its data: device, task, optimizer and settings.
pub(crate) struct RunInputs<'a, T, O> {
    pub(crate) device: &'a Device,
    pub(crate) task: &'a T,
    pub(crate) optimizer: &'a O,
    pub(crate) scaler: &'a LossScaler,
    pub(crate) options: &'a Options,
    /// Bytes that are held during the whole run besides the model, in [`Category::Other`].
    pub(crate) held_bytes: usize,
    /// True if the next batch is copied to the device during a step, provided that there is room.
    pub(crate) copies_ahead: bool,
    pub(crate) division: &'a dyn Division<T>,
    /// Number of samples that are evaluated at once. If absent, the size of a micro-batch.
    pub(crate) evaluation_batch: Option<usize>,
}

impl<'a, T, O> RunInputs<'a, T, O> {
    /// These inputs with another optimizer.
    pub(crate) fn with_optimizer<P>(&self, optimizer: &'a P) -> RunInputs<'a, T, P> {
        let &RunInputs { device, task, scaler, options, held_bytes, copies_ahead, .. } = self;
        let &RunInputs { division, evaluation_batch, .. } = self;
        RunInputs {
            device,
            task,
            optimizer,
            scaler,
            options,
            held_bytes,
            copies_ahead,
            division,
            evaluation_batch,
        }
    }
}

impl<T, O> Clone for RunInputs<'_, T, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, O> Copy for RunInputs<'_, T, O> {}

impl<T: Task + Clone, O: Stateful + Clone> RunInputs<'_, T, O> {
    /// Runs `events` with `knobs` on a simulated copy of the device in its present state, without
    /// cached memory and without a limit. The peak is the exact capacity that a run needs: with one
    /// byte less the run fails (see the allocator's laws). Only the first two and the last
    /// micro-batch of a batch are run.
    ///
    /// # Errors
    /// Errors of the real run, except for a lack of memory.
    pub(crate) fn rehearse(&self, events: &[PlannedEvent<'_>], knobs: Knobs) -> Result<Forecast> {
        self.rehearse_beside(0, events, knobs)
    }

    /// Rehearses as [`Self::rehearse`], with `copy_ahead_bytes` in use for batches that are copied
    /// ahead.
    ///
    /// # Errors
    /// Errors of [`Self::rehearse`].
    pub(crate) fn rehearse_beside(
        &self,
        copy_ahead_bytes: usize,
        events: &[PlannedEvent<'_>],
        knobs: Knobs,
    ) -> Result<Forecast> {
        let device = self.device.simulate();
        let host = self.options.offload.as_ref().filter(|_| knobs.offloaded_blocks > 0);
        let host = host.map(Device::simulate);
        for allocator in [&device].into_iter().chain(&host).map(Device::allocator) {
            allocator.set_capacity(usize::MAX);
            allocator.trim();
            allocator.reset_peaks();
        }
        let allocator = device.allocator();
        let (mut task, mut optimizer) = (self.task.clone(), self.optimizer.clone());
        let mut elsewhere = None;
        task.parameters().visit_tensors(&mut |name, tensor| match tensor.simulated_copy(&device) {
            Some(simulated) => *tensor = simulated,
            None => _ = elsewhere.get_or_insert_with(|| (name.to_owned(), tensor.clone())),
        });
        if let Some((name, tensor)) = elsewhere {
            return Err(self.elsewhere(&name, &format!("{:?}", tensor.device())));
        }
        let mut is_elsewhere = false;
        optimizer.visit_state(&mut |tensor| match tensor.simulated_copy(&device) {
            Some(simulated) => *tensor = simulated,
            None => is_elsewhere = true,
        });
        if is_elsewhere {
            return Err(self.elsewhere("the state of the optimizer", "another device"));
        }
        let held = allocator.charge(Category::Other, self.held_bytes);
        let _held = held.map_err(TensorError::from)?;
        let _ahead = match copy_ahead_bytes {
            0 => None,
            bytes => device.copy_ahead(bytes)?,
        };
        let mut scaler = self.scaler.clone();
        let options = Options { offload: host.clone(), ..self.options.clone() };
        let division = self.division.rehearsed(task.parameters())?;
        let mut hooks = RehearsalHooks::default();
        let (mut coupling, mut step_seconds) = (None, 0.0_f64);
        let (mut summed_bytes, mut gathered_bytes) = (0, 0);
        let mut rehearsed = Vec::with_capacity(events.len());
        for event in events {
            let allocations_before = allocator.request_count();
            match event {
                PlannedEvent::Step(batch) => {
                    let begin_seconds = device.simulated_seconds() + hooks.skipped_seconds;
                    let before = division.observed();
                    let step = Step {
                        device: &device,
                        task: &mut task,
                        optimizer: &mut optimizer,
                        scaler: &mut scaler,
                        number: 1,
                        key: RandomKey::new(0),
                        options: &options,
                        division: &*division,
                        hooks: &mut hooks,
                    };
                    let outcome = step.run(batch, knobs)?;
                    coupling = coupling.or(outcome.coupling);
                    let end_seconds = device.simulated_seconds() + hooks.skipped_seconds;
                    step_seconds = step_seconds.max(end_seconds - begin_seconds);
                    let [summed, gathered] =
                        self.of_whole_step(before, division.observed(), batch, knobs);
                    summed_bytes = summed_bytes.max(summed);
                    gathered_bytes = gathered_bytes.max(gathered);
                }
                PlannedEvent::Evaluate(batch) => {
                    let part = self.evaluation_batch.unwrap_or(knobs.micro_batch);
                    with_averages(&mut task, &mut optimizer, |task| {
                        division.evaluation().score(task, &device, batch, part)
                    })?;
                }
            }
            let (PlannedEvent::Step(batch) | PlannedEvent::Evaluate(batch)) = event;
            rehearsed.push(RehearsedEvent {
                is_evaluation: matches!(event, PlannedEvent::Evaluate(_)),
                samples: batch.len(),
                allocations: allocator.request_count() - allocations_before,
                peak_bytes: allocator.statistics().reserved.peak_bytes,
                layout_hash: allocator.layout_hash(),
            });
        }
        let forecast = Forecast::new(&allocator.statistics(), &device);
        let peak_of = |host: &Device| host.allocator().statistics().reserved.peak_bytes;
        Ok(Forecast {
            offloaded_peak_bytes: host.as_ref().map_or(0, peak_of),
            coupling,
            seconds: forecast.seconds + hooks.skipped_seconds,
            step_seconds,
            stage_seconds: division.observed().stage_seconds,
            summed_bytes,
            gathered_bytes,
            events: rehearsed,
            ..forecast
        })
    }

    /// Bytes that ranks sum, and bytes that ranks gather, within the passes of a whole step. A
    /// rehearsal with equal micro-batches runs only the first two and the last, so its numbers are
    /// scaled up: sums by samples, gathered parameters by micro-batches.
    fn of_whole_step(
        &self,
        before: Observed,
        after: Observed,
        batch: &BatchView<'_>,
        knobs: Knobs,
    ) -> [usize; 2] {
        let summed = after.summed_bytes - before.summed_bytes;
        let gathered = after.gathered_bytes - before.gathered_bytes;
        let len = batch.len();
        let part = knobs.micro_batch.clamp(1, len.max(1));
        let count = len.div_ceil(part);
        let runs_all = Summation::of(self.options) != Summation::Sequential || is_packed(batch);
        if count <= 3 || runs_all {
            return [summed, gathered];
        }
        let samples = 2 * part + (len - (count - 1) * part);
        [summed / samples * len, gathered / 3 * count]
    }

    fn elsewhere(&self, name: &str, found: &str) -> TrainError {
        let problem = format!(
            "is on {found}, the trainer computes on {:?}; a clone of a device's handle is the same \
             device, a second handle from `Device::cpu` is another one",
            self.device
        );
        TrainError::Setting { place: name.to_owned(), problem }
    }
}
