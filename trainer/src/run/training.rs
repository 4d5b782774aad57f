//! The loop, in the order in which time passes.

use std::time::Instant;

use lowtide_allocator::Category;
use lowtide_data::{Epoch, Loader};
use lowtide_nn::Parameters;
use lowtide_nn::optim::Stateful;
use lowtide_tensor::{Device, TensorError};

use crate::error::{Result, TrainError};
use crate::files::checkpoint::Snapshot;
use crate::files::trained_state::Learned;
use crate::plan::Plan;
use crate::plan::run_shape::{Every, Examples, Fit, Length, PlannedFor};
use crate::run::evaluation::{Evaluation, with_averages};
use crate::run::observer::{EvaluationReport, Flow, Observer, RunStart, Training};
use crate::run::score::Score;
use crate::run::trainer::{Position, Trainer};
use crate::run::upcoming::Upcoming;
use crate::run::waiting::Waiting;
use crate::task::Task;

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// Trains for `epochs` epochs of `train` from where the training is, evaluating `test` after
    /// each; the last score: [`Trainer::run`] with the usual choices.
    ///
    /// # Errors
    /// Those of [`Trainer::run`].
    pub fn fit(
        &mut self,
        train: &Loader,
        test: &Loader,
        epochs: u64,
        observers: &mut [&mut dyn Observer],
    ) -> Result<Score> {
        self.run(&Fit::new(train).evaluate("test", test).epochs(epochs), observers)
    }

    /// Trains from where the training is; the last score of the first set that is evaluated. A run
    /// of one epoch and then of another is a run of two. Where an epoch was left in its middle, the
    /// run goes on with its rest, unless `fit` has another loader. Makes a plan where there is none
    /// for these shapes, batches and this capacity.
    ///
    /// # Errors
    /// `DoesNotFit` before the first step, or when memory was taken away in mid-run and no smaller
    /// plan fits what is left; `NotFinite`; errors of data, model and observers. Committed steps
    /// stay, and the next call goes on after them. `Torn` if the device failed while a step was
    /// written, and after that until an earlier state is restored.
    pub fn run(&mut self, fit: &Fit<'_>, observers: &mut [&mut dyn Observer]) -> Result<Score> {
        let score = self.run_alone(fit, observers);
        self.told(score)
    }

    /// [`Trainer::run`], of whose failure the other ranks do not hear yet.
    fn run_alone(&mut self, fit: &Fit<'_>, observers: &mut [&mut dyn Observer]) -> Result<Score> {
        fit.check()?;
        self.divide()?;
        if self.is_to_be_cut() {
            self.cut_for(&Examples::of(fit)?)?;
        }
        let share = self.division.get().evaluation().share();
        let planned_for = PlannedFor::new(&self.device, fit, self.begin_of(fit), share);
        let is_planned =
            matches!(&self.plan, Some((_, Some(made_for))) if *made_for == planned_for);
        let plan = match &self.plan {
            Some((plan, _)) if is_planned => plan.clone(),
            _ => self.plan_when_it_fits(fit)?,
        };
        // What checkpoints are written from while the run goes on.
        let allocator = self.device.allocator().clone();
        let _copy = match plan.checkpoint_copy_bytes {
            0 => None,
            bytes => Some(allocator.charge(Category::Other, bytes).map_err(TensorError::from)?),
        };
        let mut upcoming = Upcoming::new(&self.device, &plan)?;
        let in_epoch = |state| fit.train.resume(state).ok();
        let mut rest = self.in_epoch.take().and_then(in_epoch);
        let end = End::of(fit, self.position_of(rest.as_ref()));
        let batches = fit.train.batches_per_epoch();
        if rest.as_ref().is_some_and(|rest| rest.state().batch == batches) {
            // It was left behind its last batch: by a loader that dropped none, for instance.
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
            // Read ahead over the end of the epoch, also while the sets are evaluated.
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
                let is_due = match fit.every {
                    Every::Epochs(every) => ends_epoch && is_multiple(self.epoch, every),
                    Every::Steps(every) => is_multiple(self.step, every),
                };
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
        observers.iter_mut().try_for_each(|observer| observer.on_end(&mut *self))?;
        Ok(score)
    }

    /// A plan, as soon as there is memory for one within [`Options::wait`](crate::Options::wait).
    fn plan_when_it_fits(&mut self, fit: &Fit<'_>) -> Result<Plan> {
        let mut waiting = Waiting::new(self.options.wait);
        loop {
            match self.plan_for(fit) {
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

    /// The score of everything in `loader`, on this rank alone or by all ranks, of which all are here
    /// then.
    fn score(&mut self, loader: &Loader, evaluators: Evaluators) -> Result<Score> {
        let (device, wait) = (&self.device, self.options.wait);
        let planned = self.plan.as_ref().map(|(plan, _)| plan);
        // A plan that had to shrink says nothing about evaluations.
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
}

/// The ranks that take part in an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evaluators {
    ThisRank,
    AllRanks,
}

impl<T: Task + Clone, O: Stateful + Clone> Training for Trainer<T, O> {
    fn position(&self) -> Position {
        Trainer::position(self)
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn current_plan(&self) -> Option<&Plan> {
        Trainer::current_plan(self)
    }

    fn parameters(&mut self) -> &mut dyn Parameters {
        self.task.parameters()
    }

    fn optimizer(&mut self) -> &mut dyn Stateful {
        &mut self.optimizer
    }

    fn evaluate(&mut self, loader: &Loader) -> Result<Score> {
        self.check_alone()?;
        self.score(loader, Evaluators::ThisRank)
    }

    fn snapshot(&mut self) -> Result<Snapshot> {
        Trainer::snapshot(self)
    }

    fn snapshot_bytes(&mut self) -> usize {
        Trainer::snapshot_bytes(self)
    }

    fn learned_bytes(&mut self) -> [usize; 2] {
        Learned::in_size(&mut self.task).bytes()
    }
}

/// Where a run ends.
struct End {
    /// Its last step, counted over the whole training.
    step: u64,
    /// The epoch of that, counted from 1.
    epoch: u64,
}

impl End {
    fn of(fit: &Fit<'_>, start: Position) -> End {
        let batches = fit.train.batches_per_epoch() as u64;
        let done = start.batch as u64;
        let steps = match fit.length {
            Length::Epochs(epochs) => (epochs * batches).saturating_sub(done),
            Length::Steps(steps) => steps,
        };
        End { step: start.step + steps, epoch: start.epoch + (done + steps).div_ceil(batches) }
    }
}

/// Whether something that is done every so often is due; 0 is never.
fn is_multiple(count: u64, every: u64) -> bool {
    every > 0 && count.is_multiple_of(every)
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
