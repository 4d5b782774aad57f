//! The loop, in the order in which time passes.

use std::sync::Arc;
use std::time::Instant;

use lowtide_allocator::ModulePath;
use lowtide_amp::LossScaler;
use lowtide_data::{Batch, BatchView, Loader};
use lowtide_nn::NnError;
use lowtide_nn::optim::Optimizer;
use lowtide_tensor::{Device, RandomKey};

use crate::error::DoesNotFit;
use crate::evaluation::evaluate;
use crate::observer::{EpochReport, Flow, Observer, Recovery, Retry, RunStart, StepReport};
use crate::plan::{self, Plan, Splitting};
use crate::rehearsal::{Act, Cast, Forecast};
use crate::state_hash::StateHasher;
use crate::step::{Step, StepOutcome};
use crate::task::Score;
use crate::{Result, Task, TrainError};

/// Clean steps after which a plan that had to shrink is tried at full size again.
const CLEAN_STEPS_TO_GROW: u64 = 8;

/// What a [`Trainer`] leaves open.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of everything random in a step.
    pub seed: u64,
    /// Gradients longer than this together are shortened to it, before the update.
    pub clip_norm: Option<f64>,
    /// Dynamic loss scaling; disabled for f32.
    pub scaler: LossScaler,
    /// Whether the plan and the recovery may split batches.
    pub micro_batches: MicroBatches,
}

/// Whether batches may be split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MicroBatches {
    /// Split where memory asks for it: the same numbers up to the order of float additions.
    #[default]
    AsNeeded,
    /// Never split: the same bits, or an error.
    Never,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            clip_norm: None,
            scaler: LossScaler::disabled(),
            micro_batches: MicroBatches::AsNeeded,
        }
    }
}

/// Trains a task with an optimizer on a device, one transaction per logical batch.
pub struct Trainer<T, O> {
    device: Device,
    task: T,
    optimizer: O,
    options: Options,
    scaler: LossScaler,
    /// Set by the first plan.
    plan: Option<Plan>,
    /// At most the plan's; smaller after a recovery.
    micro_batch: usize,
    step: u64,
    clean_steps: u64,
    retried_steps: u64,
    /// The step that was cut off while it was written.
    torn: Option<(u64, Arc<NnError>)>,
}

impl<T: Task, O: Optimizer> Trainer<T, O> {
    /// A trainer before its first step. The task's parameters are on `device`.
    pub fn new(device: &Device, mut task: T, optimizer: O, options: Options) -> Self {
        // Only now do they have names: reports and errors say whose memory is whose.
        task.parameters().visit_tensors(&mut |name, tensor| {
            tensor.set_module(ModulePath::of_parameter(name));
        });
        let (device, scaler) = (device.clone(), options.scaler.clone());
        Trainer {
            device,
            task,
            optimizer,
            options,
            scaler,
            plan: None,
            micro_batch: 0,
            step: 0,
            clean_steps: 0,
            retried_steps: 0,
            torn: None,
        }
    }

    /// Where it trains.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The task.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// The task, for instance to save its parameters.
    pub fn task_mut(&mut self) -> &mut T {
        &mut self.task
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
    /// those of no step, and there is no next one.
    pub fn is_torn(&self) -> bool {
        self.torn.is_some()
    }

    /// Samples on the device at once, as things stand.
    pub fn micro_batch(&self) -> usize {
        self.micro_batch
    }

    /// A hash of everything that a step changes: parameters, buffers, optimizer state, step
    /// counts, loss scale. Equal hashes are equal runs, bit for bit.
    ///
    /// # Errors
    /// `ValueUnavailable` on a simulated device.
    pub fn state_hash(&mut self) -> Result<u64> {
        let mut hasher = StateHasher::default();
        let mut result = Ok(());
        let mut add = |name: &str, tensor: &lowtide_tensor::Tensor| {
            let added = hasher.add(name, tensor);
            result = std::mem::replace(&mut result, Ok(())).and(added);
        };
        self.task.parameters().visit_tensors(&mut |name, tensor| add(name, tensor));
        self.optimizer.visit_state(&mut |tensor| add("state", tensor));
        result?;
        let scale = u64::from(self.scaler.scale().to_bits());
        let tracker = u64::from(self.scaler.growth_tracker());
        Ok(hasher.finish(&[self.step, self.optimizer.steps(), scale, tracker]))
    }

    /// Finds out how to run `epochs` epochs of `train`, each followed by an evaluation of `test`,
    /// by rehearsing them on a simulated device: the largest micro-batch that fits.
    ///
    /// # Errors
    /// `DoesNotFit` with the missing bytes and what would help; `Setting` for data without a batch;
    /// errors of the data or the model.
    pub fn plan(&mut self, train: &Loader, test: &Loader, epochs: u64) -> Result<Plan> {
        check_not_empty("training", train)?;
        check_not_empty("test", test)?;
        let examples = [first_batch(train)?, first_batch(test)?];
        let [train_example, test_example] = examples.each_ref().map(|batch| batch.as_ref());
        let acts = acts(train, train_example, test, test_example, epochs);
        self.plan_acts(&acts, train_example.map_or(1, Batch::len))
    }

    fn plan_acts(&mut self, acts: &[Act<'_>], batch_size: usize) -> Result<Plan> {
        let plan = plan::find(
            &self.cast(),
            acts,
            batch_size,
            batch_size,
            self.splitting(),
            self.device.allocator().capacity_bytes(),
        )?;
        self.micro_batch = plan.micro_batch;
        self.plan = Some(plan.clone());
        Ok(plan)
    }

    /// What the run of [`Trainer::plan`] would need with the whole batch at once, with halves,
    /// quarters and so on: pairs of micro-batch and forecast.
    ///
    /// # Errors
    /// Errors of the data or the model.
    pub fn survey(
        &self,
        train: &Loader,
        test: &Loader,
        epochs: u64,
    ) -> Result<Vec<(usize, Forecast)>> {
        let examples = [first_batch(train)?, first_batch(test)?];
        let [train_example, test_example] = examples.each_ref().map(|batch| batch.as_ref());
        let acts = acts(train, train_example, test, test_example, epochs);
        let whole = train_example.map_or(1, Batch::len);
        let mut survey = vec![(whole, self.cast().rehearse(&acts, whole)?)];
        if self.splitting() == Splitting::Forbidden || survey[0].1.coupling.is_some() {
            return Ok(survey);
        }
        let halves =
            std::iter::successors(Some(whole), |&size| (size > 1).then(|| size.div_ceil(2)));
        let mut sizes: Vec<usize> = halves.skip(1).collect();
        sizes.extend(self.plan.is_some().then_some(self.micro_batch).filter(|&size| size < whole));
        sizes.sort_by(|a, b| b.cmp(a));
        sizes.dedup();
        for size in sizes {
            survey.push((size, self.cast().rehearse(&acts, size)?));
        }
        Ok(survey)
    }

    /// Plans, then trains for `epochs` epochs of `train`, evaluating `test` after each; the last
    /// score.
    ///
    /// # Errors
    /// `DoesNotFit` before the first step, or when memory was taken away in mid-run and no smaller
    /// plan fits what is left; errors of data, model and observers. Committed steps stay. `Torn` if
    /// the device failed while a step was written, and ever after.
    pub fn fit(
        &mut self,
        train: &Loader,
        test: &Loader,
        epochs: u64,
        observers: &mut [&mut dyn Observer],
    ) -> Result<Score> {
        check_not_empty("training", train)?;
        check_not_empty("test", test)?;
        let plan = match &self.plan {
            Some(plan) => plan.clone(),
            None => self.plan(train, test, epochs)?,
        };
        let step_count = epochs * train.batches_per_epoch() as u64;
        let start = RunStart { plan, step_count, epoch_count: epochs };
        observers.iter_mut().try_for_each(|observer| observer.on_start(&start))?;
        let mut score = Score::default();
        'run: for epoch in 1..=epochs {
            for batch in train.epoch(epoch - 1) {
                let report = self.train_step(&batch?, epoch, observers)?;
                if ask(observers, |observer| observer.on_step(&report))? == Flow::Stop {
                    score = evaluate(&self.task, &self.device, test, self.micro_batch)?;
                    break 'run;
                }
            }
            score = evaluate(&self.task, &self.device, test, self.micro_batch)?;
            let report = EpochReport { epoch, step: self.step, test: score };
            if ask(observers, |observer| observer.on_epoch(&report))? == Flow::Stop {
                break;
            }
        }
        observers.iter_mut().try_for_each(|observer| observer.on_end())?;
        Ok(score)
    }

    /// One step on `batch`, for loops of one's own. Without a plan it makes one for two such steps,
    /// the first of which allocates the optimizer's state.
    ///
    /// # Errors
    /// Those of [`Trainer::fit`]; nothing has changed then, unless it is `Torn`.
    pub fn step(&mut self, batch: &Batch) -> Result<StepReport> {
        if self.plan.is_none() {
            self.plan_acts(&[Act::Step(batch.view()); 2], batch.len())?;
        }
        self.train_step(batch, 1, &mut [])
    }

    /// One logical batch: attempts until one commits, then the bookkeeping of a new step.
    fn train_step(
        &mut self,
        batch: &Batch,
        epoch: u64,
        observers: &mut [&mut dyn Observer],
    ) -> Result<StepReport> {
        let started = Instant::now();
        let (mut retries, micro_batch) = (Vec::new(), self.micro_batch);
        // That of this step: a schedule has the next one's after it.
        let learning_rate = self.optimizer.learning_rate();
        let outcome = loop {
            match self.attempt(&batch.view(), observers) {
                Ok(outcome) => break outcome,
                Err(error) => match self.recover(error, &batch.view(), retries.len()) {
                    Ok(retry) => retries.push(retry),
                    Err(error) => {
                        self.micro_batch = micro_batch;
                        return Err(error);
                    }
                },
            }
        };
        self.step += 1;
        self.retried_steps += u64::from(!retries.is_empty());
        let report = StepReport {
            step: self.step,
            epoch,
            loss: outcome.loss,
            learning_rate,
            batch: batch.len(),
            micro_batch: self.micro_batch.min(batch.len()),
            skipped: outcome.skipped,
            reserved_peak_bytes: self.device.allocator().statistics().reserved.peak_bytes,
            seconds: started.elapsed().as_secs_f64(),
            retries,
        };
        self.grow_back(&batch.view(), report.retries.is_empty());
        Ok(report)
    }

    /// One attempt at a step. On an error everything is as it was, which the live blocks have to
    /// confirm, unless it is torn.
    fn attempt(
        &mut self,
        batch: &BatchView<'_>,
        observers: &mut [&mut dyn Observer],
    ) -> Result<StepOutcome> {
        if let Some((step, source)) = self.torn.clone() {
            return Err(TrainError::Torn { step, source });
        }
        let allocator = self.device.allocator();
        let (blocks_at_begin, step) = (allocator.live_blocks(), self.step + 1);
        let transaction = Step {
            device: &self.device,
            task: &mut self.task,
            optimizer: &mut self.optimizer,
            scaler: &mut self.scaler,
            number: step,
            key: RandomKey::new(self.options.seed).step(step),
            clip_norm: self.options.clip_norm,
            on_phase: &mut |phase| {
                observers.iter_mut().for_each(|observer| observer.on_phase(step, phase));
            },
        };
        let outcome = transaction.run(batch, self.micro_batch);
        let failure = match outcome {
            Ok(outcome) => return Ok(outcome),
            Err(failure) => failure,
        };
        if let TrainError::Torn { step, source } = &failure {
            self.torn = Some((*step, Arc::clone(source)));
            return Err(failure);
        }
        let mut left_over = allocator.live_blocks();
        left_over.retain(|block| !blocks_at_begin.contains(block));
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

    /// The recovery ladder: E1, the same plan without caches, if a rehearsal from the device's
    /// present state fits what is there; M1, the largest smaller micro-batch that does.
    ///
    /// # Errors
    /// `failure` itself unless it is out of memory; `DoesNotFit` at the end of the ladder.
    fn recover(
        &mut self,
        failure: TrainError,
        batch: &BatchView<'_>,
        retry_count: usize,
    ) -> Result<Retry> {
        let Some(ledger) = failure.out_of_memory() else { return Err(failure) };
        let ledger = Box::new(ledger.clone());
        self.device.allocator().trim();
        let capacity_bytes = self.device.allocator().capacity_bytes();
        let acts = [Act::Step(*batch)];
        let fits = || -> Result<bool> {
            let forecast = self.cast().rehearse(&acts, self.micro_batch)?;
            Ok(forecast.peak_bytes <= capacity_bytes)
        };
        if retry_count == 0 && fits()? {
            return Ok(Retry { failure: ledger, recovery: Recovery::SamePlan });
        }
        let (len, now) = (batch.len(), self.micro_batch.min(batch.len()));
        // What fits by rehearsal and failed all the same is not tried again.
        let max = if retry_count == 0 { now } else { (now - 1).max(1) };
        let smaller = plan::find(&self.cast(), &acts, len, max, self.splitting(), capacity_bytes);
        match smaller {
            Ok(plan) if plan.micro_batch < now => {
                self.micro_batch = plan.micro_batch;
                let recovery = Recovery::SmallerMicroBatch { micro_batch: plan.micro_batch };
                Ok(Retry { failure: ledger, recovery })
            }
            // It should fit, and has failed all the same: nothing is left to try.
            Ok(_) => Err(failure),
            Err(TrainError::DoesNotFit(error)) => {
                let (step, ledger) = (Some(self.step + 1), Some(ledger));
                Err(Box::new(DoesNotFit { step, ledger, ..*error }).into())
            }
            Err(error) => Err(error),
        }
    }

    /// Returns to the planned micro-batch after a few clean steps, if it fits again.
    fn grow_back(&mut self, batch: &BatchView<'_>, clean: bool) {
        self.clean_steps = if clean { self.clean_steps + 1 } else { 0 };
        let planned = self.plan.as_ref().map_or(0, |plan| plan.micro_batch);
        // A short batch says nothing about parts longer than itself.
        let larger = planned.min(batch.len());
        if self.clean_steps < CLEAN_STEPS_TO_GROW || larger <= self.micro_batch {
            return;
        }
        self.clean_steps = 0;
        let capacity_bytes = self.device.allocator().capacity_bytes();
        let forecast = self.cast().rehearse(&[Act::Step(*batch)], larger);
        if forecast.is_ok_and(|forecast| forecast.peak_bytes <= capacity_bytes) {
            self.micro_batch = larger;
        }
    }

    fn cast(&self) -> Cast<'_, T, O> {
        Cast {
            device: &self.device,
            task: &self.task,
            optimizer: &self.optimizer,
            scaler: &self.scaler,
            clip_norm: self.options.clip_norm,
        }
    }

    fn splitting(&self) -> Splitting {
        let is_coupled = self.plan.as_ref().is_some_and(|plan| plan.forecast.coupling.is_some());
        match self.options.micro_batches {
            MicroBatches::AsNeeded if !is_coupled => Splitting::Allowed,
            _ => Splitting::Forbidden,
        }
    }
}

/// Asks every observer, also after one wants to stop.
fn ask(
    observers: &mut [&mut dyn Observer],
    mut question: impl FnMut(&mut dyn Observer) -> Result<Flow>,
) -> Result<Flow> {
    let mut flow = Flow::Continue;
    for observer in observers {
        if question(&mut **observer)? == Flow::Stop {
            flow = Flow::Stop;
        }
    }
    Ok(flow)
}

/// # Errors
/// `Setting` when there is not one batch: nothing would be learned, and every mean would be NaN.
fn check_not_empty(name: &str, loader: &Loader) -> Result<()> {
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

fn first_batch(loader: &Loader) -> Result<Option<Batch>> {
    Ok(loader.epoch(0).next().transpose()?)
}

/// A run in short: every kind of step and evaluation that it will contain, in its order, with
/// repetitions left out. Placement is a function of the live blocks, so a repetition changes
/// nothing.
fn acts<'a>(
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
