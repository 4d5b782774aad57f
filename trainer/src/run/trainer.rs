//! A training: its parts, and its plan.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lowtide_amp::LossScaler;
use lowtide_data::{BatchView, Loader, LoaderState};
use lowtide_nn::NnError;
use lowtide_nn::optim::Stateful;
use lowtide_ranks::Collectives;
use lowtide_tensor::{Device, DeviceKind};

use crate::error::{Result, TrainError};
use crate::options::{MicroBatches, Options};
use crate::parallel::division::{Division, Wanted};
use crate::parallel::parallelism::Parallelism;
use crate::parallel::whole::name_tensors;
use crate::parallel::{Chosen, Groups};
use crate::plan::Plan;
use crate::plan::events::PlannedEvent;
use crate::plan::forecast::Forecast;
use crate::plan::fused_proofs::Proofs;
use crate::plan::knobs::Knobs;
use crate::plan::packed_lengths::PackedLengths;
use crate::plan::planner::{PlanOptions, Planner};
use crate::plan::recovery::Growth;
use crate::plan::rehearsal::RunInputs;
use crate::plan::run_shape::{Examples, RunShape};
use crate::plan::search::Splitting;
use crate::plan::search::forecasts::Forecasts;
use crate::run::fit::Fit;
use crate::run::observer::Position;
use crate::run::upcoming::can_copy_ahead;
use crate::task::contract::Task;

/// Trains a task with an optimizer on a device, one transaction per logical batch.
pub struct Trainer<T, O> {
    pub(crate) device: Device,
    pub(crate) task: T,
    pub(crate) optimizer: O,
    pub(crate) options: Options,
    pub(crate) scaler: LossScaler,
    pub(crate) division: Chosen<T>,
    /// The plan with the shape of the run that it is for. A plan of single steps has no shape.
    pub(crate) plan: Option<(Plan, Option<RunShape>)>,
    /// The knobs of the plan, or smaller knobs after a recovery.
    pub(crate) knobs: Knobs,
    pub(crate) step: u64,
    /// Number of finished epochs.
    pub(crate) epoch: u64,
    /// The position at which the next epoch continues, if a part of it is done.
    pub(crate) in_epoch: Option<LoaderState>,
    pub(crate) growth: Growth,
    pub(crate) proofs: Proofs,
    pub(crate) packed_lengths: PackedLengths,
    pub(crate) skipped_in_a_row: u64,
    pub(crate) retried_steps: u64,
    /// The step that was cut off while it was written, and the error of the device.
    pub(crate) torn: Option<(u64, Arc<NnError>)>,
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// A trainer before its first step. The task's parameters must be on `device`, unless ranks are
    /// going to [divide](Trainer::divide) the model.
    pub fn new(device: &Device, mut task: T, optimizer: O, options: Options) -> Self {
        name_tensors(task.parameters());
        let scaler = options.scaler.clone().unwrap_or_else(|| options.precision.scaler());
        let division = Chosen::new(Groups::of(&options), &options);
        Trainer {
            device: device.clone(),
            task,
            optimizer,
            options,
            scaler,
            division,
            plan: None,
            knobs: Knobs::default(),
            step: 0,
            epoch: 0,
            in_epoch: None,
            growth: Growth::default(),
            proofs: Proofs::default(),
            packed_lengths: PackedLengths::default(),
            skipped_in_a_row: 0,
            retried_steps: 0,
            torn: None,
        }
    }

    /// The device that the trainer trains on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The task: a model with its loss and its score.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// The task, for example to save its parameters.
    pub fn task_mut(&mut self) -> &mut T {
        // A changed model may need more memory in a step.
        self.proofs = Proofs::default();
        self.packed_lengths = PackedLengths::default();
        &mut self.task
    }

    /// The options of the trainer.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The optimizer, which updates the parameters.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// The optimizer, for example to set its learning rate.
    pub fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// Sets [`Options::wait`].
    pub fn set_wait(&mut self, wait: Option<Duration>) {
        self.options.wait = wait;
    }

    /// Sets [`Options::offload`]. A plan that offloads has to be made afterwards.
    pub fn set_offload(&mut self, host: Option<Device>) {
        self.options.offload = host;
    }

    /// Sets [`Options::ranks`], before the first plan.
    pub fn set_ranks(&mut self, ranks: Option<Arc<dyn Collectives>>) {
        self.options.ranks = ranks;
        self.division = Chosen::new(Groups::of(&self.options), &self.options);
    }

    /// Sets [`Options::parallelism`], before the first plan.
    pub fn set_parallelism(&mut self, parallelism: Parallelism) {
        self.options.parallelism = parallelism;
        self.division = Chosen::new(Groups::of(&self.options), &self.options);
    }

    /// The present loss scaler.
    pub fn scaler(&self) -> &LossScaler {
        &self.scaler
    }

    /// The position of the training, from which [`Trainer::fit`] goes on.
    pub fn position(&self) -> Position {
        let batch = self.in_epoch.map_or(0, |state| state.batch);
        Position { step: self.step, epoch: self.epoch, batch }
    }

    /// Begins an unfinished epoch again, for data that has changed: its samples are learned twice.
    pub fn restart_epoch(&mut self) {
        self.in_epoch = None;
    }

    /// `Ok` if the loader of `fit` can go on with an unfinished epoch.
    ///
    /// # Errors
    /// `Data` if the data, the batch size or the seed is another one.
    pub(crate) fn check_place(&self, fit: &Fit<'_>) -> Result<()> {
        Ok(self.in_epoch.map_or(Ok(()), |state| fit.train.check(state))?)
    }

    /// The plan, if one has been made.
    pub fn current_plan(&self) -> Option<&Plan> {
        self.plan.as_ref().map(|(plan, _)| plan)
    }

    /// Number of steps committed or skipped so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Number of steps that had to be tried more than once.
    pub fn retried_steps(&self) -> u64 {
        self.retried_steps
    }

    /// True if a step was cut off while it was written. Parameters and optimizer state are then
    /// inconsistent, and no step can follow until a snapshot is restored.
    pub fn is_torn(&self) -> bool {
        self.torn.is_some()
    }

    /// Number of samples that a pass takes at once, by the present knobs.
    pub fn micro_batch(&self) -> usize {
        self.knobs.micro_batch
    }

    /// The present knobs of steps.
    pub fn knobs(&self) -> Knobs {
        self.knobs
    }

    /// The fastest plan that fits for `epochs` epochs of `train`, each followed by an evaluation of
    /// `test`: [`Trainer::plan_run`] with the usual choices.
    ///
    /// # Errors
    /// Errors of [`Trainer::plan_run`].
    pub fn plan(&mut self, train: &Loader, test: &Loader, epochs: u64) -> Result<Plan> {
        let fit = Fit::new(train).evaluate("test", test).epochs(epochs);
        self.plan_run(&fit, &PlanOptions::default())
    }

    /// Plans [`Trainer::run`] by rehearsals on a simulated device. The plan is the fastest that
    /// fits, or has the given knobs.
    ///
    /// # Errors
    /// `DoesNotFit` with the missing bytes and remedies; `Setting` for data without a batch;
    /// `Setting` for impossible knobs, such as parts of a batch whose samples are coupled or that
    /// may not be split, or a fused update by an optimizer that updates all parameters together;
    /// errors of the data or the model; `Data` as for [`Trainer::run`].
    pub fn plan_run(&mut self, fit: &Fit<'_>, options: &PlanOptions) -> Result<Plan> {
        self.check_place(fit)?;
        self.divide()?;
        let examples = Examples::of(fit)?;
        self.cut_for(&examples)?;
        let (shape, batch_size) = (self.shape_of(fit), examples.batch_size());
        let events = examples.events(&shape);
        let copies_ahead = can_copy_ahead(&self.device, fit.train);
        let inputs = RunInputs { copies_ahead, ..self.run_inputs() };
        let mut plan = self.planner(inputs, &events, batch_size).plan(options)?;
        // On another device the copy is in the memory of the process, outside the budget.
        if self.options.background_checkpoints && self.device.kind() == DeviceKind::Cpu {
            let held_bytes = self.snapshot_bytes();
            let inputs = RunInputs { held_bytes, ..self.run_inputs() };
            let wanted = Wanted::UpTo(plan.knobs.micro_batch);
            let with_copy = self.planner(inputs, &events, batch_size).find(options, wanted);
            if let Some(better) = with_copy.ok().filter(|with_copy| with_copy.knobs == plan.knobs) {
                plan = better;
            }
        }
        plan.staging_bytes = fit.staging_bytes();
        plan.data_bytes = fit.data_bytes();
        self.adopt(&plan, Some(shape));
        Ok(plan)
    }

    /// Plans two steps on batches like this one. The first one allocates the optimizer's state.
    ///
    /// # Errors
    /// Errors of [`Trainer::plan_run`].
    pub(crate) fn plan_steps(&mut self, batch: &BatchView<'_>) -> Result<()> {
        self.divide()?;
        self.cut(batch)?;
        let events = [PlannedEvent::Step(*batch); 2];
        let planner = self.planner(self.run_inputs(), &events, batch.len());
        let plan = planner.plan(&PlanOptions::default())?;
        self.adopt(&plan, None);
        Ok(())
    }

    fn adopt(&mut self, plan: &Plan, shape: Option<RunShape>) {
        self.knobs = plan.knobs;
        self.plan = Some((plan.clone(), shape));
    }

    /// The least capacity of the device that has a [plan](Trainer::plan_run): with one byte less
    /// there is no plan. The result does not depend on the present capacity. The search takes about
    /// as long as a plan that does not fit. Parameters that ranks divide have to be
    /// [divided](Trainer::divide) before. `forecasts` are earlier forecasts of this training.
    ///
    /// # Errors
    /// Errors of [`Trainer::plan_run`] except `DoesNotFit`.
    pub fn least_bytes(&self, fit: &Fit<'_>, forecasts: &Forecasts) -> Result<usize> {
        let examples = Examples::of(fit)?;
        let events = examples.events(&self.shape_of(fit));
        self.planner(self.run_inputs(), &events, examples.batch_size()).least_bytes(forecasts)
    }

    /// Forecasts of a run with the whole batch at once, with halves, quarters and so on. Each size
    /// is tried with nothing recomputed, with cheap results recomputed, and with every block
    /// recomputed. A forecast is left out if another is both faster and smaller; the forecast of
    /// the present plan is always given. The fastest comes first. `forecasts` are earlier forecasts
    /// of this training.
    ///
    /// # Errors
    /// Errors of the data or the model.
    pub fn survey(&self, fit: &Fit<'_>, forecasts: &Forecasts) -> Result<Vec<(Knobs, Forecast)>> {
        let examples = Examples::of(fit)?;
        let events = examples.events(&self.shape_of(fit));
        let copies_ahead = can_copy_ahead(&self.device, fit.train);
        let inputs = RunInputs { copies_ahead, ..self.run_inputs() };
        let planned = self.plan.is_some().then_some(self.knobs);
        self.planner(inputs, &events, examples.batch_size()).survey(planned, forecasts)
    }

    fn planner<'a>(
        &self,
        inputs: RunInputs<'a, T, O>,
        events: &'a [PlannedEvent<'a>],
        batch_size: usize,
    ) -> Planner<'a, T, O> {
        Planner { inputs, events, batch_size, splitting: self.splitting() }
    }

    /// The shape of a run that begins at the present position.
    pub(crate) fn shape_of(&self, fit: &Fit<'_>) -> RunShape {
        let begin = self.in_epoch.map_or(0, |state| state.batch);
        RunShape::new(&self.device, fit, begin, self.division().evaluation().share())
    }

    pub(crate) fn run_inputs(&self) -> RunInputs<'_, T, O> {
        RunInputs {
            device: &self.device,
            task: &self.task,
            optimizer: &self.optimizer,
            scaler: &self.scaler,
            options: &self.options,
            division: self.division(),
            held_bytes: 0,
            copies_ahead: false,
            evaluation_batch: None,
        }
    }

    pub(crate) fn splitting(&self) -> Splitting {
        let is_coupled = self.current_plan().is_some_and(|plan| plan.forecast.coupling.is_some());
        match self.options.micro_batches {
            MicroBatches::Shards(leaf) => Splitting::Shards(leaf.get()),
            MicroBatches::AsNeeded if !is_coupled => Splitting::Allowed,
            MicroBatches::AsNeeded | MicroBatches::Never => Splitting::Forbidden,
        }
    }

    pub(crate) fn division(&self) -> &dyn Division<T> {
        self.division.get()
    }

    /// Reduces the model to the parts of this rank, on the device of the training, as
    /// [`Options::parallelism`] says. Plans and steps call this themselves. Before the call the
    /// model may be on another device that has room for all of it. A pipeline is
    /// [cut](Trainer::cut) instead.
    ///
    /// # Errors
    /// `OutOfMemory`; `Setting` for a model whose features cannot be shared.
    pub fn divide(&mut self) -> Result<()> {
        self.division.get().divide(&mut self.task, &self.device, &self.options)
    }

    /// Cuts the model into stages, if [`Options::parallelism`] asks for a pipeline, and keeps the
    /// stage of this rank, on the device of the training. `example` is a batch like the training
    /// batches. Plans and steps call this themselves. Before the call the model may be on another
    /// device that has room for all of it.
    ///
    /// # Errors
    /// `Setting` for a model that cannot be cut, and for options that do not work with a pipeline;
    /// `OutOfMemory`; errors of a forward pass; `Ranks` for an error of another rank.
    pub fn cut(&mut self, example: &BatchView<'_>) -> Result<()> {
        self.division.get().cut(&mut self.task, &self.device, &self.options, example)
    }

    /// True if the model has to be cut into a pipeline and is not cut yet.
    #[doc(hidden)]
    pub fn is_to_be_cut(&self) -> bool {
        self.division().is_to_be_cut()
    }

    /// [`Trainer::cut`] by the first batch of a run.
    #[doc(hidden)]
    pub fn cut_for(&mut self, examples: &Examples) -> Result<()> {
        examples.train().map_or(Ok(()), |batch| self.cut(&batch.view()))
    }

    /// Bytes that this rank sends in a step of `plan`, by a formula. Votes, and buffers such as the
    /// running means of norms, are not counted.
    pub fn sent_bytes(&mut self, plan: &Plan) -> usize {
        self.division.get().sent_bytes(plan, self.task.parameters())
    }

    /// The blocks of this stage of a pipeline.
    #[doc(hidden)]
    pub fn stage(&self) -> Range<usize> {
        self.division().stage()
    }

    /// `Ok` if this rank has the whole model.
    ///
    /// # Errors
    /// `Setting` if this rank has only a part of the model.
    #[doc(hidden)]
    pub fn check_alone(&self) -> Result<()> {
        if self.division().state().has_whole_model() {
            return Ok(());
        }
        let problem = "this rank has only parts of the parameters: all ranks evaluate together, \
                       after the steps that the run says";
        Err(TrainError::Setting { place: "evaluate".to_owned(), problem: problem.to_owned() })
    }
}
