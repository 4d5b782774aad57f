//! A training: its parts, and one step of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowtide_allocator::Promise;
use lowtide_amp::LossScaler;
use lowtide_autograd::LeafId;
use lowtide_data::{Batch, BatchView, Loader, LoaderState};
use lowtide_nn::optim::{OptimizerState, Stateful};
use lowtide_nn::{NnError, Parameters};
use lowtide_ranks::Collectives;
use lowtide_tensor::{Device, DeviceKind, RandomKey, Tensor, TensorError};

use crate::error::{Result, TrainError};
use crate::files::state_hash::StateHasher;
use crate::files::trained_state::Learned;
use crate::options::{MicroBatches, NonFinite, Options};
use crate::parallel::division::{GatherRole, Gathered, Wanted};
use crate::parallel::meeting::{Word, say};
use crate::parallel::parallelism::Zero;
use crate::parallel::vote::is_of_another;
use crate::parallel::whole::name_tensors;
use crate::parallel::{Chosen, Groups};
use crate::plan::Plan;
use crate::plan::fused_proofs::Proofs;
use crate::plan::knobs::Knobs;
use crate::plan::packed_lengths::Admitted;
use crate::plan::recovery::Growth;
use crate::plan::rehearsal::{Forecast, PlannedEvent, RunInputs};
use crate::plan::run_shape::{Examples, Fit, PlannedFor};
use crate::plan::search::{Forecasts, Search, Splitting};
use crate::run::observer::{Flow, Observer, StepReport};
use crate::run::upcoming::{Upcoming, can_copy_ahead};
use crate::step::hooks::StepHooks;
use crate::step::not_finite::{NotFinite, NotFiniteWhat};
use crate::step::pass::PassOptions;
use crate::step::{Step, StepOutcome};
use crate::task::Task;

/// Trains a task with an optimizer on a device, one transaction per logical batch.
pub struct Trainer<T, O> {
    pub(crate) device: Device,
    pub(crate) task: T,
    pub(crate) optimizer: O,
    pub(crate) options: Options,
    pub(crate) scaler: LossScaler,
    /// Set by the first plan, with what it is for; for single steps that is nothing.
    pub(crate) plan: Option<(Plan, Option<PlannedFor>)>,
    /// The plan's, or those of a recovery that needs less.
    pub(crate) knobs: Knobs,
    pub(crate) step: u64,
    /// Epochs finished.
    pub(crate) epoch: u64,
    /// Where the next epoch goes on, if a part of it is done.
    pub(crate) in_epoch: Option<LoaderState>,
    pub(crate) growth: Growth,
    pub(crate) proofs: Proofs,
    pub(crate) admitted: Admitted,
    pub(crate) division: Chosen<T>,
    pub(crate) skipped_in_a_row: u64,
    pub(crate) retried_steps: u64,
    /// The step that was cut off while it was written.
    pub(crate) torn: Option<(u64, Arc<NnError>)>,
}

/// Where a training is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Steps committed or skipped.
    pub step: u64,
    /// Epochs finished.
    pub epoch: u64,
    /// Batches of the next epoch that are done.
    pub batch: usize,
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// A trainer before its first step. The task's parameters are on `device`, or where ranks are
    /// going to [divide](Trainer::divide) them, on any.
    pub fn new(device: &Device, mut task: T, optimizer: O, options: Options) -> Self {
        name_tensors(task.parameters());
        let device = device.clone();
        let scaler = options.scaler.clone().unwrap_or_else(|| options.precision.scaler());
        let division = Chosen::new(Groups::of(&options), &options);
        Trainer {
            device,
            task,
            optimizer,
            options,
            scaler,
            plan: None,
            knobs: Knobs::default(),
            step: 0,
            epoch: 0,
            in_epoch: None,
            growth: Growth::default(),
            proofs: Proofs::default(),
            admitted: Admitted::default(),
            division,
            skipped_in_a_row: 0,
            retried_steps: 0,
            torn: None,
        }
    }

    /// Where it trains.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What is trained: a model with its loss and its score.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// The task, for instance to save its parameters.
    pub fn task_mut(&mut self) -> &mut T {
        // A model that is changed may need more in a step.
        self.proofs = Proofs::default();
        self.admitted = Admitted::default();
        &mut self.task
    }

    /// What was left open, as it was decided.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What updates the parameters.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// The optimizer, for instance to set its learning rate.
    pub fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// Sets [`Options::wait`].
    pub fn set_wait(&mut self, wait: Duration) {
        self.options.wait = wait;
    }

    /// Sets [`Options::offload`]; a plan that offloads has to be made after it.
    pub fn set_offload(&mut self, host: Option<Device>) {
        self.options.offload = host;
    }

    /// Sets [`Options::ranks`], before the first plan.
    pub fn set_ranks(&mut self, ranks: Option<Arc<dyn Collectives>>) {
        self.options.ranks = ranks;
        self.division = Chosen::new(Groups::of(&self.options), &self.options);
    }

    /// Sets [`Options::zero`], before the first plan.
    pub fn set_zero(&mut self, zero: Zero) {
        self.options.zero = zero;
        self.division = Chosen::new(Groups::of(&self.options), &self.options);
    }

    /// The loss scaler, as it is now.
    pub fn scaler(&self) -> &LossScaler {
        &self.scaler
    }

    /// Where the training is: [`Trainer::fit`] goes on from there.
    pub fn position(&self) -> Position {
        let batch = self.in_epoch.map_or(0, |state| state.batch);
        Position { step: self.step, epoch: self.epoch, batch }
    }

    /// The plan, once there is one.
    pub fn current_plan(&self) -> Option<&Plan> {
        self.plan.as_ref().map(|(plan, _)| plan)
    }

    /// Steps committed so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Steps that had to be tried more than once.
    pub fn retried_steps(&self) -> u64 {
        self.retried_steps
    }

    /// Whether a step was cut off while it was written: parameters and optimizer state are then
    /// those of no step, and there is no next one before a snapshot is restored.
    pub fn is_torn(&self) -> bool {
        self.torn.is_some()
    }

    /// Samples on the device at once, as things stand.
    pub fn micro_batch(&self) -> usize {
        self.knobs.micro_batch
    }

    /// How steps are run, as things stand.
    pub fn knobs(&self) -> Knobs {
        self.knobs
    }

    /// A hash of everything that a step changes: parameters, buffers, optimizer state, step
    /// counts, loss scale. Equal hashes are equal runs, bit for bit.
    ///
    /// # Errors
    /// `ValueUnavailable` on a simulated device; `Ranks` where the state is divided among ranks,
    /// all of which it takes then.
    pub fn state_hash(&mut self) -> Result<u64> {
        let mut hasher = StateHasher::default();
        let mut result = Ok(());
        let mut add = |name: &str, tensor: &lowtide_tensor::Tensor| {
            let added = hasher.add(name, tensor);
            result = std::mem::replace(&mut result, Ok(())).and(added);
        };
        let (states, wholes) = if self.division.get().state().has_whole_state() {
            (None, BTreeMap::new())
        } else {
            let Gathered { states, parameters } = self.gathered()?;
            (Some(states), parameters)
        };
        let mut learned = Learned::of(&mut self.task).with_wholes(wholes);
        learned.visit_tensors(&mut |name, tensor| add(name, tensor));
        match states {
            None => self.optimizer.visit_state(&mut |tensor| add("state", tensor)),
            Some(states) => states.iter().for_each(|(_, tensor)| add("state", tensor)),
        }
        result?;
        let scale = u64::from(self.scaler.scale().to_bits());
        let tracker = u64::from(self.scaler.growth_tracker());
        Ok(hasher.finish(&[self.step, self.optimizer.steps(), scale, tracker]))
    }

    /// Finds out how to run `epochs` epochs of `train`, each followed by an evaluation of `test`,
    /// by rehearsing them on a simulated device: the fastest way that fits.
    ///
    /// # Errors
    /// `DoesNotFit` with the missing bytes and what would help; `Setting` for data without a batch;
    /// errors of the data or the model.
    pub fn plan(&mut self, train: &Loader, test: &Loader, epochs: u64) -> Result<Plan> {
        self.plan_for(&Fit::new(train).evaluate("test", test).epochs(epochs))
    }

    /// [`Trainer::plan`] for [`Trainer::run`].
    ///
    /// # Errors
    /// Those of [`Trainer::plan`].
    pub fn plan_for(&mut self, fit: &Fit<'_>) -> Result<Plan> {
        self.plan_sharing(fit, &Forecasts::default())
    }

    /// [`Trainer::plan_for`] by what was rehearsed of this training before.
    ///
    /// # Errors
    /// Those of [`Trainer::plan`].
    #[doc(hidden)]
    pub fn plan_sharing(&mut self, fit: &Fit<'_>, forecasts: &Forecasts) -> Result<Plan> {
        self.plan_up_to(fit, usize::MAX, forecasts)
    }

    /// The same in micro-batches of at most so many samples.
    ///
    /// # Errors
    /// Those of [`Trainer::plan`].
    #[doc(hidden)]
    pub fn plan_up_to(
        &mut self,
        fit: &Fit<'_>,
        size_max: usize,
        forecasts: &Forecasts,
    ) -> Result<Plan> {
        self.divide()?;
        let examples = Examples::of(fit)?;
        self.cut_for(&examples)?;
        let events =
            examples.events(fit, self.begin_of(fit), self.division.get().evaluation().share());
        let (batch_size, splitting) = (examples.batch_size(), self.splitting());
        self.plan_by(
            &events,
            Some(fit),
            (size_max.min(batch_size), batch_size),
            |search, size_max| search.sharing(forecasts).find(batch_size, size_max, splitting),
        )
    }

    /// The least capacity of the device in which there is a [plan](Trainer::plan_for): with a byte
    /// less there is none. It takes about as long as a plan that does not fit, and whatever the
    /// capacity is now, it is the same. Parameters that ranks divide have to be
    /// [divided](Trainer::divide) before.
    ///
    /// # Errors
    /// Those of [`Trainer::plan`] but `DoesNotFit`.
    pub fn least_bytes(&self, fit: &Fit<'_>) -> Result<usize> {
        self.least_bytes_sharing(fit, &Forecasts::default())
    }

    /// [`Trainer::least_bytes`] by what was rehearsed of this training before.
    ///
    /// # Errors
    /// Those of [`Trainer::least_bytes`].
    #[doc(hidden)]
    pub fn least_bytes_sharing(&self, fit: &Fit<'_>, forecasts: &Forecasts) -> Result<usize> {
        let examples = Examples::of(fit)?;
        let events =
            examples.events(fit, self.begin_of(fit), self.division.get().evaluation().share());
        let search = Search::new(self.run_inputs(), &events, 0).sharing(forecasts);
        search.least_budget(examples.batch_size(), self.splitting())
    }

    /// The plan of a run with these knobs, faster ones or not.
    ///
    /// # Errors
    /// Those of [`Trainer::plan`]; `Setting` for knobs that cannot be: parts of a batch whose
    /// samples are coupled, or that may not be split, or a fused update by an optimizer that
    /// updates all parameters together.
    pub fn plan_with(&mut self, fit: &Fit<'_>, knobs: Knobs) -> Result<Plan> {
        self.divide()?;
        let examples = Examples::of(fit)?;
        self.cut_for(&examples)?;
        let events =
            examples.events(fit, self.begin_of(fit), self.division.get().evaluation().share());
        let (batch_size, splitting) = (examples.batch_size(), self.splitting());
        self.plan_by(&events, Some(fit), (batch_size, batch_size), |search, _| {
            search.find_with(batch_size, knobs, splitting)
        })
    }

    /// [`Trainer::cut`] by the first batch of a run.
    #[doc(hidden)]
    pub fn cut_for(&mut self, examples: &Examples) -> Result<()> {
        examples.train().map_or(Ok(()), |batch| self.cut(&batch.view()))
    }

    /// The batch of an epoch that a run begins with.
    pub(crate) fn begin_of(&self, fit: &Fit<'_>) -> usize {
        let goes_on = |state: &LoaderState| fit.train.check(*state).is_ok();
        self.in_epoch.filter(goes_on).map_or(0, |state| state.batch)
    }

    fn plan_by(
        &mut self,
        events: &[PlannedEvent<'_>],
        fit: Option<&Fit<'_>>,
        (size_max, fit_size): (usize, usize),
        find: impl Fn(Search<'_, T, O>, usize) -> Result<Plan>,
    ) -> Result<Plan> {
        let capacity_bytes = self.device.allocator().capacity_bytes();
        let copies_ahead = fit.is_some_and(|fit| can_copy_ahead(&self.device, fit.train));
        let inputs = RunInputs { copies_ahead, ..self.run_inputs() };
        let find_up_to = |size_max| find(Search::new(inputs, events, capacity_bytes), size_max);
        let find_with = |knobs| {
            let search = Search::new(inputs, events, capacity_bytes);
            search.find_with(fit_size, knobs, self.splitting())
        };
        let mut plan = self.division.get().plan(size_max, &|wanted| match wanted {
            Wanted::UpTo(size_max) => find_up_to(size_max),
            Wanted::With(knobs) => find_with(knobs),
        })?;
        let is_on_host = self.device.kind() == DeviceKind::Cpu;
        // The copy of a training on another device is in the memory of the process.
        if self.options.background_checkpoints && fit.is_some() && is_on_host {
            let held_bytes = self.snapshot_bytes();
            let with_copy = RunInputs { held_bytes, ..self.run_inputs() };
            let with_copy =
                find(Search::new(with_copy, events, capacity_bytes), plan.knobs.micro_batch);
            if let Some(better) = with_copy.ok().filter(|p| p.knobs == plan.knobs) {
                plan = better;
            }
        }
        plan.staging_bytes = fit.map_or(0, Fit::staging_bytes);
        plan.data_bytes = fit.map_or(0, Fit::data_bytes);
        self.knobs = plan.knobs;
        let planned_for = fit.map(|fit| {
            PlannedFor::new(
                &self.device,
                fit,
                self.begin_of(fit),
                self.division.get().evaluation().share(),
            )
        });
        self.plan = Some((plan.clone(), planned_for));
        Ok(plan)
    }

    /// What a run would need with the whole batch at once, with halves, quarters and so on, each
    /// with nothing recomputed, with what is cheap, and with every block; and as planned: those of
    /// which none is both faster and smaller, the fastest first.
    ///
    /// # Errors
    /// Errors of the data or the model.
    pub fn survey(&self, fit: &Fit<'_>) -> Result<Vec<(Knobs, Forecast)>> {
        self.survey_sharing(fit, &Forecasts::default())
    }

    /// [`Trainer::survey`] by what was rehearsed of this training before.
    ///
    /// # Errors
    /// Those of [`Trainer::survey`].
    #[doc(hidden)]
    pub fn survey_sharing(
        &self,
        fit: &Fit<'_>,
        forecasts: &Forecasts,
    ) -> Result<Vec<(Knobs, Forecast)>> {
        let examples = Examples::of(fit)?;
        let (events, whole) = (
            examples.events(fit, self.begin_of(fit), self.division.get().evaluation().share()),
            examples.batch_size(),
        );
        let budget_bytes = self.device.allocator().capacity_bytes();
        let copies_ahead = can_copy_ahead(&self.device, fit.train);
        let inputs = RunInputs { copies_ahead, ..self.run_inputs() };
        let search = Search::new(inputs, &events, budget_bytes).sharing(forecasts);
        let planned = self.plan.is_some().then_some(self.knobs);
        search.survey(whole, self.splitting(), planned)
    }

    /// One step on `batch`, for loops of one's own. Without a plan for as many samples it makes one
    /// for two such steps, the first of which allocates the optimizer's state.
    ///
    /// # Errors
    /// Those of [`Trainer::fit`]; nothing has changed then, unless it is `Torn`.
    pub fn step(&mut self, batch: &Batch) -> Result<StepReport> {
        if self.current_plan().is_none_or(|plan| plan.batch_size < batch.len()) {
            self.divide()?;
            self.cut(&batch.view())?;
            let (events, len) = ([PlannedEvent::Step(batch.view()); 2], batch.len());
            let splitting = self.splitting();
            self.plan_by(&events, None, (len, len), |search, size_max| {
                search.find(len, size_max, splitting)
            })?;
        }
        let report = self.train_step(batch, self.epoch + 1, &mut Upcoming::default(), &mut []);
        self.told(report)
    }

    /// One logical batch: attempts until one commits, then the bookkeeping of a new step.
    pub(crate) fn train_step(
        &mut self,
        batch: &Batch,
        epoch: u64,
        upcoming: &mut Upcoming,
        observers: &mut [&mut dyn Observer],
    ) -> Result<StepReport> {
        let started = Instant::now();
        let (mut retries, knobs) = (Vec::new(), self.knobs);
        // That of this step: a schedule has the next one's after it.
        let learning_rate = self.optimizer.learning_rate();
        self.admit(&batch.view())?;
        let outcome = loop {
            match self.attempt(&batch.view(), upcoming, observers) {
                Ok(outcome) => break outcome,
                Err(TrainError::NotFinite(error)) => {
                    self.knobs = knobs;
                    return Err(self.explained(*error, &batch.view()));
                }
                // It has rolled back, too: what it does next is for itself to find out.
                Err(error) if is_of_another(&error) => {}
                Err(error) => {
                    // The same bits need less memory without it.
                    upcoming.give_up();
                    match self.recover(error, &batch.view(), &retries, started) {
                        Ok(retry) => retries.push(retry),
                        Err(error) => {
                            self.knobs = knobs;
                            return Err(error);
                        }
                    }
                }
            }
        };
        self.count_skips(&outcome, &batch.view())?;
        self.step += 1;
        self.retried_steps += u64::from(!retries.is_empty());
        let report = StepReport {
            step: self.step,
            epoch,
            loss: outcome.loss,
            turn_losses: outcome.turn_losses,
            learning_rate,
            gradient_norm: outcome.gradient_norm,
            batch: batch.len(),
            micro_batch: self.knobs.micro_batch.min(batch.len()),
            cheap_recomputed: self.knobs.cheap_recomputed,
            recomputed_blocks: self.knobs.recomputed_blocks,
            offloaded_blocks: self.knobs.offloaded_blocks,
            fused_update: self.knobs.fused_update,
            skipped: outcome.skipped,
            reserved_peak_bytes: self.device.allocator().statistics().reserved.peak_bytes,
            seconds: started.elapsed().as_secs_f64(),
            is_evaluated: false,
            bad_samples: batch.skipped().iter().map(|sample| sample.index).collect(),
            retries,
        };
        if report.retries.is_empty() {
            // A longer batch than others needs less than the plan only for itself.
            self.knobs = knobs;
        }
        self.grow_back(&batch.view(), report.retries.is_empty());
        Ok(report)
    }

    /// # Errors
    /// `NotFinite` when too many steps in a row were skipped.
    fn count_skips(&mut self, outcome: &StepOutcome, batch: &BatchView<'_>) -> Result<()> {
        if !outcome.skipped {
            self.skipped_in_a_row = 0;
            return Ok(());
        }
        self.skipped_in_a_row += 1;
        let skipped = self.skipped_in_a_row;
        // A scaler counts for itself.
        let NonFinite::Skip(skips_max) = self.options.non_finite else { return Ok(()) };
        if self.scaler.is_enabled() || skipped <= skips_max {
            return Ok(());
        }
        self.skipped_in_a_row = 0;
        let what = NotFiniteWhat::Skipped { skipped };
        let error = NotFinite::new(self.step + 1, what, outcome.loss);
        Err(self.explained(error, batch))
    }

    /// The error with what a second look at the batch finds, if this rank can look alone.
    fn explained(&mut self, mut error: NotFinite, batch: &BatchView<'_>) -> TrainError {
        if self.check_alone().is_err() {
            return Box::new(error).into();
        }
        let key = RandomKey::new(self.options.seed).step(error.step);
        let passes = PassOptions { device: &self.device, key, precision: self.options.precision };
        error.explain(&mut self.task, passes, batch, self.knobs.micro_batch);
        Box::new(error).into()
    }

    /// # Errors
    /// `Torn` after a step that was cut off, unless another state has been restored.
    pub(crate) fn check_whole(&self) -> Result<()> {
        let torn = |(step, source)| Err(TrainError::Torn { step, source });
        self.torn.clone().map_or(Ok(()), torn)
    }

    /// One attempt at a step. On an error everything is as it was, which the live blocks have to
    /// confirm, unless it is torn.
    fn attempt(
        &mut self,
        batch: &BatchView<'_>,
        upcoming: &mut Upcoming,
        observers: &mut [&mut dyn Observer],
    ) -> Result<StepOutcome> {
        self.check_whole()?;
        // Blocks of neighbours on the device are none of the step's.
        let devices = [&self.device].into_iter().chain(&self.options.offload);
        let own: Vec<_> = devices.map(|device| device.allocator().own_blocks()).collect();
        let (step, knobs) = (self.step + 1, self.knobs);
        let promised_bytes = if knobs.fused_update {
            let mut proofs = std::mem::take(&mut self.proofs);
            let bytes = proofs.reserved_bytes(&self.run_inputs(), batch, knobs);
            self.proofs = proofs;
            Some(bytes?)
        } else {
            None
        };
        let micro_batch = knobs.micro_batch;
        let transaction = Step {
            device: &self.device,
            task: &mut self.task,
            optimizer: &mut self.optimizer,
            scaler: &mut self.scaler,
            number: step,
            key: RandomKey::new(self.options.seed).step(step),
            options: &self.options,
            division: self.division.get(),
            hooks: &mut RunHooks { step, observers, upcoming, micro_batch, promised_bytes },
        };
        let outcome = transaction.run(batch, knobs);
        let failure = match outcome {
            Ok(outcome) => return Ok(outcome),
            Err(failure) => failure,
        };
        if let TrainError::Torn { step, source } = &failure {
            self.torn = Some((*step, Arc::clone(source)));
            return Err(failure);
        }
        let left_over: Vec<_> = own.iter().flat_map(|own| own.live()).collect();
        Err(match left_over.last() {
            Some(last) => TrainError::LeftOver {
                step,
                count: left_over.len(),
                site: last.site,
                module: last.module,
            },
            None => failure,
        })
    }

    pub(crate) fn ranks(&self) -> Option<&dyn Collectives> {
        self.division.get().ranks()
    }

    /// Hands a result on. The other ranks hear of an error that ends the training here, unless they
    /// have it too.
    pub(crate) fn told<R>(&self, result: Result<R>) -> Result<R> {
        if let (Some(ranks), Err(error)) = (self.ranks(), &result)
            && !matches!(error, TrainError::NotFinite(_) | TrainError::Ranks(_))
        {
            ranks.abort(&error.one_line());
        }
        result
    }

    /// Leaves of the model what this rank has of it, on the device of the training, as
    /// [`Options::zero`](crate::Options::zero) says: before the first plan or step, which do it
    /// themselves. The model may be on another device before, which has room for all of it. A model
    /// that becomes a pipeline is [cut](Trainer::cut) instead.
    ///
    /// # Errors
    /// `OutOfMemory`; `Setting` for a model whose features cannot be shared.
    pub fn divide(&mut self) -> Result<()> {
        self.division.get().divide(&mut self.task, &self.device, &self.options)
    }

    /// True if the model is to be a pipeline and is not cut yet.
    #[doc(hidden)]
    pub fn is_to_be_cut(&self) -> bool {
        self.division.get().is_to_be_cut()
    }

    /// Cuts the model into stages, where [`Options::zero`](crate::Options::zero) says so, by a
    /// batch that is like those it is trained on, and keeps the stage of this rank, on the device
    /// of the training: before the first plan or step, which do it themselves. The model may be on
    /// another device before, which has room for all of it.
    ///
    /// # Errors
    /// `Setting` for a model that cannot be cut so, and for what a pipeline does not go with;
    /// `OutOfMemory`; those of a forward pass; `Ranks` for what another rank met.
    pub fn cut(&mut self, example: &BatchView<'_>) -> Result<()> {
        self.division.get().cut(&mut self.task, &self.device, &self.options, example)
    }

    /// The bytes that this rank sends in a step of `plan`, by the formula, beside the few by which
    /// ranks agree and those of buffers, such as the running means of norms.
    pub fn sent_bytes(&mut self, plan: &Plan) -> usize {
        self.division.get().sent_bytes(plan, self.task.parameters())
    }

    /// The blocks of this stage of a pipeline, and the bytes that it sends in a step of `plan`.
    #[doc(hidden)]
    pub fn stage(&mut self, plan: &Plan) -> (Range<usize>, usize) {
        (self.division.get().stage(), self.sent_bytes(plan))
    }

    /// `Stop` if any rank wants to stop.
    ///
    /// # Errors
    /// `Ranks`.
    pub(crate) fn flow_of_all(&mut self, own: Flow) -> Result<Flow> {
        let own = if own == Flow::Stop { Word::Stop } else { Word::Continue };
        let words = self.meet(own)?;
        Ok(if words.contains(&Word::Stop) { Flow::Stop } else { Flow::Continue })
    }

    /// Waits until every rank has said so, and gives what this rank has of the state to those that
    /// still save or hash it: for after the last run. Only where
    /// [ranks](crate::Options::ranks) divide [something](crate::Options::zero).
    ///
    /// # Errors
    /// `Ranks`.
    pub fn leave(&mut self) -> Result<()> {
        if self.division.get().state().has_whole_state() {
            return Ok(());
        }
        self.meet(Word::Leave).map(drop)
    }

    /// The words of all ranks, once none of them needs the whole state.
    fn meet(&mut self, own: Word) -> Result<Vec<Word>> {
        loop {
            let words = say(self.ranks(), own)?;
            if !words.contains(&Word::Gather) {
                return Ok(words);
            }
            self.gather(GatherRole::Gives)?;
        }
    }

    /// Whole tensors of everything that ranks have parts of.
    ///
    /// # Errors
    /// `Ranks`; those of the device.
    pub(crate) fn gathered(&mut self) -> Result<Gathered> {
        say(self.ranks(), Word::Gather)?;
        self.gather(GatherRole::Keeps)
    }

    fn gather(&mut self, role: GatherRole) -> Result<Gathered> {
        let state = self.division.get().state();
        state.gather(&mut Learned::of(&mut self.task), &mut self.optimizer, role)
    }

    /// Writes the model as a file of safetensors, with the parts of all ranks.
    ///
    /// # Errors
    /// `File`; `Ranks`; errors of copies from a device.
    pub fn save_model(&mut self, path: &Path) -> Result<()> {
        let has_whole_model = self.division.get().state().has_whole_model();
        let wholes = if has_whole_model { BTreeMap::new() } else { self.gathered()?.parameters };
        Ok(lowtide_nn::save(&mut Learned::of(&mut self.task).with_wholes(wholes), path)?)
    }

    /// The optimizer's state of all ranks, and the parameters that are divided among them.
    ///
    /// # Errors
    /// Those of [`Trainer::gathered`].
    pub(crate) fn whole_state(&mut self) -> Result<(OptimizerState, BTreeMap<LeafId, Tensor>)> {
        let has_whole_state = self.division.get().state().has_whole_state();
        let gathered = (!has_whole_state).then(|| self.gathered()).transpose()?;
        let state = self.division.get().state();
        let own = state.state(&self.optimizer, &mut Learned::of(&mut self.task))?;
        let Some(Gathered { states, parameters }) = gathered else {
            return Ok((own, BTreeMap::new()));
        };
        let tensors = states.into_iter().collect();
        Ok((OptimizerState { tensors, ..own }, parameters))
    }

    /// `Ok` if this rank has the whole model.
    ///
    /// # Errors
    /// `Setting` where it has not.
    #[doc(hidden)]
    pub fn check_alone(&self) -> Result<()> {
        if self.division.get().state().has_whole_model() {
            return Ok(());
        }
        let problem = "this rank has only parts of the parameters: all ranks evaluate together, \
                       after the steps that the run says";
        Err(TrainError::Setting { place: "evaluate".to_owned(), problem: problem.to_owned() })
    }

    pub(crate) fn run_inputs(&self) -> RunInputs<'_, T, O> {
        RunInputs {
            device: &self.device,
            task: &self.task,
            optimizer: &self.optimizer,
            scaler: &self.scaler,
            options: &self.options,
            held_bytes: 0,
            copies_ahead: false,
            division: self.division.get(),
            evaluation_batch: None,
        }
    }

    pub(crate) fn splitting(&self) -> Splitting {
        let is_coupled = self.current_plan().is_some_and(|plan| plan.forecast.coupling.is_some());
        match self.options.micro_batches {
            MicroBatches::Leaves(leaf) => Splitting::Leaves(leaf.get()),
            MicroBatches::AsNeeded if !is_coupled => Splitting::Allowed,
            MicroBatches::AsNeeded | MicroBatches::Never => Splitting::Forbidden,
        }
    }
}

/// The hooks of a step of a run.
struct RunHooks<'a, 'o> {
    step: u64,
    observers: &'a mut [&'o mut dyn Observer],
    upcoming: &'a mut Upcoming,
    micro_batch: usize,
    /// Bytes that may be reserved until the end of a fused update.
    promised_bytes: Option<usize>,
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
