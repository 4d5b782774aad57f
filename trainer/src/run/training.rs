//! The training loop, in the order of time.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use lowtide_allocator::Category;
use lowtide_data::{Batch, BatchView, Epoch, Loader};
use lowtide_nn::optim::Stateful;
use lowtide_tensor::{RandomKey, TensorError};

use crate::error::{Result, TrainError};
use crate::options::NonFinite;
use crate::parallel::meeting::Word;
use crate::parallel::vote::is_of_another;
use crate::plan::Plan;
use crate::plan::planner::PlanOptions;
use crate::plan::recovery::{Attempts, Ladder};
use crate::plan::run_shape::Examples;
use crate::run::evaluation::{Evaluation, with_averages};
use crate::run::fit::{End, Fit};
use crate::run::hooks::RunHooks;
use crate::run::observer::{EvaluationReport, Flow, Observer, Position, RunStart, StepReport};
use crate::run::score::Score;
use crate::run::trainer::Trainer;
use crate::run::upcoming::Upcoming;
use crate::run::waiting::Waiting;
use crate::step::not_finite::{NotFinite, NotFiniteWhat};
use crate::step::pass::PassOptions;
use crate::step::{Step, StepOutcome};
use crate::task::contract::Task;

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// Trains for `epochs` more epochs of `train` and evaluates `test` after each: [`Trainer::run`]
    /// with the usual options. Returns the last score.
    ///
    /// # Errors
    /// Errors of [`Trainer::run`].
    pub fn fit(
        &mut self,
        train: &Loader,
        test: &Loader,
        epochs: u64,
        observers: &mut [&mut dyn Observer],
    ) -> Result<Score> {
        self.run(&Fit::new(train).evaluate("test", test).epochs(epochs), observers)
    }

    /// Trains from the present position. Returns the last score of the first set that is evaluated.
    /// Two runs of one epoch each are the same as one run of two epochs. If an epoch is unfinished,
    /// the run continues with its rest. Makes a plan if there is none for these shapes, batches and
    /// this capacity.
    ///
    /// # Errors
    /// `Data` if an epoch is unfinished and `fit` has other data, another batch size or another
    /// seed: [`Trainer::restart_epoch`] begins it again. `DoesNotFit` before the first step, or if
    /// memory was taken away during the run and no smaller plan fits; `NotFinite`, also at the
    /// [end](Trainer::check_end); errors of data, model and observers. Committed steps stay, and
    /// the next call continues after them. `Torn` if the device failed while a step was written,
    /// and in all later calls until an earlier state is restored.
    pub fn run(&mut self, fit: &Fit<'_>, observers: &mut [&mut dyn Observer]) -> Result<Score> {
        let score = self.run_silently(fit, observers);
        self.told(score)
    }

    /// Runs as [`Trainer::run`], without telling the other ranks about a failure.
    fn run_silently(
        &mut self,
        fit: &Fit<'_>,
        observers: &mut [&mut dyn Observer],
    ) -> Result<Score> {
        let plan = self.plan_of(fit)?;
        // Memory from which checkpoints are written while the run goes on.
        let allocator = self.device.allocator().clone();
        let _copy = match plan.checkpoint_copy_bytes {
            0 => None,
            bytes => Some(allocator.charge(Category::Other, bytes).map_err(TensorError::from)?),
        };
        let mut upcoming = Upcoming::new(&self.device, &plan)?;
        let mut rest = self.in_epoch.map(|state| fit.train.resume(state)).transpose()?;
        let end = End::of(fit, self.position_of(rest.as_ref()));
        let batches = fit.train.batches_per_epoch();
        if rest.as_ref().is_some_and(|rest| rest.state().batch == batches) {
            // The epoch stands after its last batch, for example because an earlier loader did not
            // drop the last one.
            (self.epoch, rest) = (self.epoch + 1, None);
        }
        self.in_epoch = rest.as_ref().map(Epoch::state);
        let sets = fit.sets.iter().map(|(name, _)| name.clone()).collect();
        let start = RunStart {
            plan,
            steps_before: self.step,
            step_count: end.step - self.step,
            epoch_count: end.epoch,
            sets,
        };
        observers.iter_mut().try_for_each(|observer| observer.on_start(&start, &mut *self))?;
        let mut score = Score::default();
        'run: while self.step < end.step {
            let number = self.epoch + 1;
            let mut epoch = rest.take().unwrap_or_else(|| fit.train.epoch(self.epoch));
            // Batches of the next epoch are read ahead, also while the sets are evaluated.
            if self.step + (epoch.remaining() as u64) < end.step {
                epoch.build_ahead(self.epoch + 1);
            }
            upcoming.begin(epoch);
            while let Some(batch) = upcoming.next() {
                let batch = batch?;
                let mut report = self.train_step(&batch, number, &mut upcoming, observers)?;
                let ends_epoch = batch.index() + 1 == batches;
                self.in_epoch = (!ends_epoch).then(|| batch.state_after());
                self.epoch += u64::from(ends_epoch);
                let is_due = fit.every.is_due(self.step, ends_epoch.then_some(self.epoch));
                report.is_evaluated = is_due || self.step == end.step;
                let flow = ask(observers, |observer| observer.on_step(&report, &mut *self))?;
                let wants_to_stop = self.flow_of_all(flow)? == Flow::Stop;
                let is_last = wants_to_stop || self.step == end.step;
                if is_last || is_due {
                    let is_told = report.is_evaluated;
                    let report = self.evaluate_sets(fit, number, ends_epoch)?;
                    score = report.scores.first().map_or_else(Score::default, |(_, s)| s.clone());
                    if is_told {
                        let flow =
                            ask(observers, |observer| observer.on_evaluation(&report, &mut *self))?;
                        if self.flow_of_all(flow)? == Flow::Stop {
                            break 'run;
                        }
                    }
                }
                if is_last {
                    break 'run;
                }
            }
        }
        drop(upcoming);
        if self.step == start.steps_before {
            let report = self.evaluate_sets(fit, self.epoch, true)?;
            score = report.scores.first().map_or_else(Score::default, |(_, s)| s.clone());
        }
        self.check_end(end.step, &score)?;
        observers.iter_mut().try_for_each(|observer| observer.on_end(&mut *self))?;
        Ok(score)
    }

    /// The plan of a run. A plan is made unless the present one is for a run of this shape.
    fn plan_of(&mut self, fit: &Fit<'_>) -> Result<Plan> {
        fit.check()?;
        self.check_place(fit)?;
        self.divide()?;
        if self.is_to_be_cut() {
            self.cut_for(&Examples::of(fit)?)?;
        }
        let shape = self.shape_of(fit);
        match &self.plan {
            Some((plan, Some(planned))) if *planned == shape => Ok(plan.clone()),
            _ => self.plan_when_it_fits(fit),
        }
    }

    /// Makes a plan. Waits up to [`Options::wait`](crate::Options::wait) until one fits.
    fn plan_when_it_fits(&mut self, fit: &Fit<'_>) -> Result<Plan> {
        let mut waiting = Waiting::new(self.options.wait.unwrap_or_default());
        loop {
            match self.plan_run(fit, &PlanOptions::default()) {
                Err(TrainError::DoesNotFit(_)) if waiting.pause() => {}
                planned => return planned,
            }
        }
    }

    fn position_of(&self, rest: Option<&Epoch>) -> Position {
        let batch = rest.map_or(0, |epoch| epoch.state().batch);
        Position { step: self.step, epoch: self.epoch, batch }
    }

    fn evaluate_sets(
        &mut self,
        fit: &Fit<'_>,
        epoch: u64,
        ends_epoch: bool,
    ) -> Result<EvaluationReport> {
        let started = Instant::now();
        let mut scores = Vec::new();
        for (name, set) in &fit.sets {
            scores.push((name.clone(), self.score(set, Evaluators::AllRanks)?));
        }
        let (step, seconds) = (self.step, started.elapsed().as_secs_f64());
        Ok(EvaluationReport { epoch, ends_epoch, step, scores, seconds })
    }

    /// The score of everything in `loader`, by all ranks, which all have to call this.
    ///
    /// # Errors
    /// Out of memory with a single sample; errors of the data and the model; `Ranks`.
    pub fn evaluate_by_all(&mut self, loader: &Loader) -> Result<Score> {
        let score = self.score(loader, Evaluators::AllRanks);
        self.told(score)
    }

    /// The score of everything in `loader`, on this rank alone or by all ranks, which then all have
    /// to call this.
    pub(crate) fn score(&mut self, loader: &Loader, evaluators: Evaluators) -> Result<Score> {
        let (device, wait) = (&self.device, self.options.wait);
        let planned = self.plan.as_ref().map(|(plan, _)| plan);
        // A plan that had to shrink is no guide for evaluations.
        let planned = planned.filter(|plan| plan.knobs == self.knobs);
        let micro_batch =
            planned.map_or(self.knobs.micro_batch.max(1), |plan| plan.evaluation_batch);
        with_averages(&mut self.task, &mut self.optimizer, |task| {
            let evaluation = Evaluation { task, device, loader, micro_batch, wait };
            match evaluators {
                Evaluators::ThisRank => evaluation.score_all(),
                Evaluators::AllRanks => self.division.get().evaluation().evaluate(&evaluation),
            }
        })
    }

    /// Runs one step on `batch`, for custom loops. Without a plan for a batch of this length, plans
    /// two such steps; the first of them allocates the optimizer's state.
    ///
    /// # Errors
    /// Errors of [`Trainer::fit`]. On an error other than `Torn` nothing has changed.
    pub fn step(&mut self, batch: &Batch) -> Result<StepReport> {
        if self.current_plan().is_none_or(|plan| plan.batch_size < batch.len()) {
            self.plan_steps(&batch.view())?;
        }
        let report = self.train_step(batch, self.epoch + 1, &mut Upcoming::default(), &mut []);
        self.told(report)
    }

    /// Runs one logical batch: attempts until one commits, then the records of the step.
    fn train_step(
        &mut self,
        batch: &Batch,
        epoch: u64,
        upcoming: &mut Upcoming,
        observers: &mut [&mut dyn Observer],
    ) -> Result<StepReport> {
        let view = batch.view();
        let mut attempts = Attempts::begin(self.step + 1, self.knobs, self.options.wait);
        // Read before the step: a schedule advances it afterwards.
        let learning_rate = self.optimizer.learning_rate();
        self.admit(&view)?;
        let outcome = self.attempt_until_committed(&view, &mut attempts, upcoming, observers)?;
        self.count_skips(&outcome, &view)?;
        let Attempts { started, knobs, retries, .. } = attempts;
        let is_clean = retries.is_empty();
        self.step += 1;
        self.retried_steps += u64::from(!is_clean);
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
        if is_clean {
            // Knobs for an unusually long packed batch apply to its own step only.
            self.knobs = knobs;
        }
        self.grow_back(&view, is_clean);
        Ok(report)
    }

    fn attempt_until_committed(
        &mut self,
        batch: &BatchView<'_>,
        attempts: &mut Attempts,
        upcoming: &mut Upcoming,
        observers: &mut [&mut dyn Observer],
    ) -> Result<StepOutcome> {
        loop {
            match self.attempt(batch, upcoming, observers) {
                Ok(outcome) => return Ok(outcome),
                Err(TrainError::NotFinite(error)) => {
                    self.knobs = attempts.knobs;
                    return Err(self.explained(*error, batch));
                }
                // This rank has rolled back, too. The rank that failed decides alone about its next
                // attempt.
                Err(error) if is_of_another(&error) => {}
                Err(error) => {
                    // Without memory for copying ahead, the same bits need less memory.
                    upcoming.give_up();
                    match self.ladder(batch).recover(self.knobs, error, attempts) {
                        Ok((knobs, retry)) => {
                            self.knobs = knobs;
                            attempts.retries.push(retry);
                        }
                        Err(error) => {
                            self.knobs = attempts.knobs;
                            return Err(error);
                        }
                    }
                }
            }
        }
    }

    /// Makes one attempt at a step. After an error other than `Torn`, everything is as before,
    /// which is checked by the live blocks.
    fn attempt(
        &mut self,
        batch: &BatchView<'_>,
        upcoming: &mut Upcoming,
        observers: &mut [&mut dyn Observer],
    ) -> Result<StepOutcome> {
        self.check_whole()?;
        // Blocks of other users of the device are not counted.
        let devices = [&self.device].into_iter().chain(&self.options.offload);
        let own: Vec<_> = devices.map(|device| device.allocator().own_blocks()).collect();
        let (step, knobs, promised_bytes) = (self.step + 1, self.knobs, self.proved_bytes(batch)?);
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

    /// Bytes that a fused step is known to reserve; `None` if the update is not fused.
    fn proved_bytes(&mut self, batch: &BatchView<'_>) -> Result<Option<usize>> {
        if !self.knobs.fused_update {
            return Ok(None);
        }
        let mut proofs = mem::take(&mut self.proofs);
        let bytes = proofs.reserved_bytes(&self.run_inputs(), batch, self.knobs);
        self.proofs = proofs;
        bytes.map(Some)
    }

    fn ladder<'a>(&'a self, batch: &BatchView<'a>) -> Ladder<'a, T, O> {
        Ladder { inputs: self.run_inputs(), batch: *batch, splitting: self.splitting() }
    }

    /// Takes smaller knobs if necessary for a step on packed samples that are longer than all
    /// earlier ones.
    fn admit(&mut self, batch: &BatchView<'_>) -> Result<()> {
        let mut packed_lengths = mem::take(&mut self.packed_lengths);
        let admitted = packed_lengths.admit(&self.ladder(batch), self.knobs);
        self.packed_lengths = packed_lengths;
        self.knobs = admitted?;
        Ok(())
    }

    /// Returns to the planned knobs, or a part of the way, after a few clean steps.
    fn grow_back(&mut self, batch: &BatchView<'_>, is_clean: bool) {
        let mut growth = self.growth;
        if growth.is_due_after(is_clean)
            && let Some(plan) = self.current_plan()
        {
            self.knobs = self.ladder(batch).grow_back(&mut growth, plan, self.knobs);
        }
        self.growth = growth;
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
        // A scaler counts skipped steps itself.
        let NonFinite::Skip(skips_max) = self.options.non_finite else { return Ok(()) };
        if self.scaler.is_enabled() || skipped <= skips_max {
            return Ok(());
        }
        self.skipped_in_a_row = 0;
        let what = NotFiniteWhat::Skipped { skipped };
        let error = NotFinite::new(self.step + 1, what, outcome.loss);
        Err(self.explained(error, batch))
    }

    /// Adds the findings of a second computation of the batch to the error, if this rank has the
    /// whole model.
    fn explained(&mut self, mut error: NotFinite, batch: &BatchView<'_>) -> TrainError {
        if self.check_alone().is_err() {
            return Box::new(error).into();
        }
        let key = RandomKey::new(self.options.seed).step(error.step);
        let passes = PassOptions { device: &self.device, key, precision: self.options.precision };
        error.explain(&mut self.task, passes, batch, self.knobs.micro_batch);
        Box::new(error).into()
    }

    /// Returns `result`. Tells the other ranks about an error that ends the training here, unless
    /// they have the error too.
    fn told<R>(&self, result: Result<R>) -> Result<R> {
        if let (Some(ranks), Err(error)) = (self.division().ranks(), &result)
            && !matches!(error, TrainError::NotFinite(_) | TrainError::Ranks(_))
        {
            ranks.abort(&error.one_line());
        }
        result
    }

    /// `Stop` if any rank wants to stop.
    ///
    /// # Errors
    /// `Ranks`.
    fn flow_of_all(&mut self, own: Flow) -> Result<Flow> {
        let own = if own == Flow::Stop { Word::Stop } else { Word::Continue };
        let words = self.meet(own)?;
        Ok(if words.contains(&Word::Stop) { Flow::Stop } else { Flow::Continue })
    }

    /// Waits until every rank has called this. Meanwhile gives the parts of this rank to ranks that
    /// still save or hash the state. To be called after the last run. Does nothing unless
    /// [ranks](crate::Options::ranks) divide the state of the training, see
    /// [`Options::parallelism`](crate::Options::parallelism).
    ///
    /// # Errors
    /// `Ranks`.
    pub fn leave(&mut self) -> Result<()> {
        if self.division().state().has_whole_state() {
            return Ok(());
        }
        self.meet(Word::Leave).map(drop)
    }
}

/// The ranks that take part in an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evaluators {
    ThisRank,
    AllRanks,
}

/// Asks all observers, even after one wants to stop.
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
