//! One training step as a transaction: BEGIN, COMPUTE, PREPARE, COMMIT.
//!
//! Nothing that outlives the step is written before COMMIT, and COMMIT cannot run out of memory. A
//! failure before COMMIT drops the attempt and everything that the step has made. Only a failing
//! device can interrupt COMMIT, and the model is then not whole.
//!
//! If several models are trained in turn, later turns see the updates of earlier turns. Each turn
//! but the last keeps copies of all values that it overwrites. A step that fails restores these
//! copies.

pub(crate) mod blame;
pub(crate) mod compute;
pub(crate) mod context;
pub(crate) mod fused;
pub(crate) mod gradient_check;
pub(crate) mod hooks;
pub(crate) mod not_finite;
pub(crate) mod pass;
pub(crate) mod prepare;
pub(crate) mod summation;
pub(crate) mod turn;
pub(crate) mod undo;

use std::collections::BTreeSet;
use std::sync::Arc;

use lowtide_amp::{AmpError, LossScaler};
use lowtide_autograd::{Coupling, Gradients};
use lowtide_data::BatchView;
use lowtide_nn::optim::{Stateful, shorten};
use lowtide_nn::{NnError, commit_buffers};
use lowtide_tensor::{Device, RandomKey, Tensor};

use crate::error::{Result, TrainError};
use crate::options::{NonFinite, Options};
use crate::parallel::division::Division;
use crate::plan::knobs::{Knobs, reset_policies, set_policies};
use crate::step::compute::{CastLife, Computation, Computed};
use crate::step::context::StepContext;
use crate::step::gradient_check::{GradientCheck, StepNumbers};
use crate::step::hooks::StepHooks;
use crate::step::not_finite::{NotFinite, NotFiniteWhat};
use crate::step::pass::PassOptions;
use crate::step::prepare::{Frozen, Preparation};
use crate::step::summation::Summation;
use crate::step::turn::{ModelTurn, optimizer_of};
use crate::step::undo::Undo;
use crate::task::contract::Task;

/// A step: everything that it reads and, at its end, writes.
pub(crate) struct Step<'a, T, O> {
    pub(crate) device: &'a Device,
    pub(crate) task: &'a mut T,
    pub(crate) optimizer: &'a mut O,
    pub(crate) scaler: &'a mut LossScaler,
    /// Number of the step, counted from 1.
    pub(crate) number: u64,
    /// The run's random key at this step.
    pub(crate) key: RandomKey,
    pub(crate) options: &'a Options,
    pub(crate) division: &'a dyn Division<T>,
    pub(crate) hooks: &'a mut dyn StepHooks,
}

/// The outcome of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepOutcome {
    /// Mean loss over the targets of the logical batch, before the update. With several turns, the
    /// sum of their losses.
    pub(crate) loss: f64,
    /// The loss of each model, if there are turns.
    pub(crate) turn_losses: Vec<(String, f64)>,
    /// Length of the gradient before clipping, if it was computed.
    pub(crate) gradient_norm: Option<f64>,
    /// True if the update was skipped because a gradient, or the loss, was not finite. Buffers keep
    /// their values too (in PyTorch they change), so a skipped step changes only the scale.
    pub(crate) skipped: bool,
    /// The module that coupled the samples of the batch, if any.
    pub(crate) coupling: Option<Coupling>,
}

impl StepOutcome {
    /// Adds the outcome of a turn.
    fn add(&mut self, turn: &ModelTurn, own: TurnOutcome) {
        self.loss += own.loss;
        self.turn_losses.extend(turn.model().map(|model| (model.to_owned(), own.loss)));
        self.gradient_norm = match (self.gradient_norm, own.gradient_norm) {
            (Some(norm), Some(own)) => Some(norm.hypot(own)),
            (norm, own) => norm.or(own),
        };
        self.skipped |= own.skipped;
        self.coupling = self.coupling.take().or(own.coupling);
    }
}

/// The outcome of one turn of a step.
pub(crate) struct TurnOutcome {
    pub(crate) loss: f64,
    pub(crate) gradient_norm: Option<f64>,
    pub(crate) skipped: bool,
    pub(crate) coupling: Option<Coupling>,
}

impl<T: Task, O: Stateful> Step<'_, T, O> {
    /// Runs the step.
    ///
    /// # Errors
    /// Errors before COMMIT leave everything as it was at BEGIN. `Torn` in COMMIT.
    pub(crate) fn run(mut self, batch: &BatchView<'_>, knobs: Knobs) -> Result<StepOutcome> {
        let summation = Summation::of(self.options);
        let knobs = self.division.begin(knobs, self.optimizer, summation)?;
        let (blocks, host) = (self.division.policies(), self.options.offload.as_ref());
        let chosen = set_policies(self.task.parameters(), &blocks, &knobs, host);
        let outcome = self.take_turns(batch, knobs, summation);
        reset_policies(self.task.parameters(), &chosen);
        outcome
    }

    fn take_turns(
        &mut self,
        batch: &BatchView<'_>,
        knobs: Knobs,
        summation: Summation,
    ) -> Result<StepOutcome> {
        // BEGIN
        let own_counts = self.division.agree(summation.counts(self.task, batch))?;
        let counts = self.division.counts(own_counts)?;
        let samples_before = self.division.samples_before(batch.len());
        let context = StepContext::new(batch, samples_before, knobs, counts, self.scaler.scale());
        let turns = ModelTurn::all_of(self.task)?;
        let (scaler, mut undo) = (self.scaler.clone(), Vec::new());
        let mut outcome = StepOutcome::default();
        for turn in &turns {
            let taken = if knobs.fused_update {
                self.take_fused(&context, turn)
            } else {
                self.take_turn(&context, turn, &mut undo)
            };
            match taken {
                Ok(own) => outcome.add(turn, own),
                Err(error @ TrainError::Torn { .. }) => return Err(error),
                Err(error) => {
                    *self.scaler = scaler;
                    self.undo(undo)?;
                    return Err(error);
                }
            }
            if outcome.skipped {
                self.undo(undo)?;
                break;
            }
        }
        if let Err(error) = self.scaler.update() {
            *self.scaler = scaler;
            return Err(self.without_scale(error, outcome.loss));
        }
        Ok(outcome)
    }

    /// COMPUTE, PREPARE and COMMIT of one turn. If other turns follow, copies of the values that it
    /// overwrites are added to `undo` first.
    fn take_turn(
        &mut self,
        context: &StepContext<'_>,
        turn: &ModelTurn,
        undo: &mut Vec<Undo>,
    ) -> Result<TurnOutcome> {
        // COMPUTE
        let frozen = Frozen::new(self.task, self.optimizer);
        let computed = self.division.compute(&mut self.computation(context, turn))?;
        let Computed { loss_sum, mut gradients, buffers, coupling, .. } = computed;
        let numbers = self.check(turn, &loss_sum, &mut gradients);
        let StepNumbers { loss_sum, gradient_norm, not_finite } = self.division.agree(numbers)?;
        let loss = loss_sum / context.count;

        // PREPARE
        self.hooks.on_phase("optimizer");
        if let Some(what) = not_finite {
            return self.without_update(what, loss, coupling);
        }
        let clipped = self.clip(&mut gradients, gradient_norm);
        let leaves: BTreeSet<_> = gradients.leaves().collect();
        let &mut Step { device, division, number, .. } = self;
        let task = &mut *self.task;
        let preparation =
            Preparation { device, task: &mut *task, division, turn, buffers: &buffers, undo };
        let prepared = clipped.and_then(|()| {
            let update = preparation.update(self.optimizer, gradients, frozen)?;
            Ok((update, division.promise(device)?))
        });
        let (update, promise) = division.agree(prepared)?;

        // COMMIT
        let seal = device.allocator().seal();
        let mut committed = update.commit();
        committed = committed.and_then(|()| commit_buffers(task.parameters(), &buffers));
        drop(seal);
        committed = committed.and_then(|()| division.after_commit(task.parameters(), leaves));
        drop(promise);
        committed.map_err(|source| torn(number, source))?;
        Ok(TurnOutcome { loss, gradient_norm, skipped: false, coupling })
    }

    /// The passes of a turn.
    pub(crate) fn computation<'b>(
        &'b mut self,
        context: &'b StepContext<'_>,
        turn: &'b ModelTurn,
    ) -> Computation<'b, T> {
        self.computation_and_optimizer(context, turn).0
    }

    /// The passes of a turn, and the optimizer, which can update while the passes run.
    pub(crate) fn computation_and_optimizer<'b>(
        &'b mut self,
        context: &'b StepContext<'_>,
        turn: &'b ModelTurn,
    ) -> (Computation<'b, T>, &'b mut O) {
        let &mut Step { device, key, options, .. } = self;
        let computation = Computation {
            passes: PassOptions { device, key, precision: options.precision },
            task: self.task,
            hooks: self.hooks,
            context,
            turn,
            summation: Summation::of(options),
            casts: CastLife::Step,
        };
        (computation, self.optimizer)
    }

    /// Removes the loss scale, and waits for the device once. With a loss scale, gradients are
    /// always checked for overflow; all other checks follow the options.
    fn check(
        &mut self,
        turn: &ModelTurn,
        loss_sum: &Tensor,
        gradients: &mut Gradients,
    ) -> Result<StepNumbers> {
        let ignores_loss = self.options.non_finite == NonFinite::Ignore;
        let division = self.division;
        let mut check = GradientCheck {
            device: self.device,
            loss_sum,
            gradients,
            counted_elsewhere: division.counted_elsewhere(self.task.parameters()),
            ignores_loss,
            wants_norm: self.norm_max().is_some(),
            complete: &|own| division.complete(own),
            found: StepNumbers::default(),
        };
        if self.scaler.is_enabled() {
            self.scaler.step(turn.model().unwrap_or(""), &mut check)?;
        } else if ignores_loss {
            check.accept()?;
        } else {
            check.check()?;
        }
        Ok(check.found)
    }

    /// The largest length of the gradients, or infinity if the length is only measured; `None` if
    /// it is not computed.
    pub(crate) fn norm_max(&self) -> Option<f64> {
        // No gradient is longer than infinity, so nothing is clipped.
        let measured = self.options.gradient_norm.then_some(f64::INFINITY);
        self.options.clip_norm.or(measured)
    }

    fn clip(&self, gradients: &mut Gradients, norm: Option<f64>) -> Result<()> {
        let Some((norm, max)) = norm.zip(self.norm_max()) else { return Ok(()) };
        Ok(shorten(gradients, norm, max)?)
    }

    /// The outcome of a turn whose gradients or loss are not finite.
    ///
    /// # Errors
    /// `NotFinite` if the options say that the run ends.
    pub(crate) fn without_update(
        &self,
        what: NotFiniteWhat,
        loss: f64,
        coupling: Option<Coupling>,
    ) -> Result<TurnOutcome> {
        if !self.scaler.is_enabled() && self.options.non_finite == NonFinite::Stop {
            return Err(Box::new(NotFinite::new(self.number, what, loss)).into());
        }
        Ok(TurnOutcome { loss, gradient_norm: None, skipped: true, coupling })
    }

    /// The error of a step whose gradients were not finite at any loss scale.
    fn without_scale(&self, error: AmpError, loss: f64) -> TrainError {
        let AmpError::TooManySkips { skipped, .. } = error else { return error.into() };
        let what = NotFiniteWhat::ScaledGradients { skipped: skipped.into() };
        Box::new(NotFinite::new(self.number, what, loss)).into()
    }

    /// Takes back the updates of earlier turns, the last one first.
    ///
    /// # Errors
    /// `Torn` if the device fails.
    fn undo(&mut self, updates: Vec<Undo>) -> Result<()> {
        for update in updates.into_iter().rev() {
            let optimizer = optimizer_of(self.optimizer, Some(update.model()))?;
            let undone = update.undo(self.task.parameters(), optimizer);
            undone.map_err(|source| torn(self.number, source))?;
        }
        Ok(())
    }
}

/// The error of a step that a device failure interrupted in COMMIT.
pub(crate) fn torn(step: u64, source: NnError) -> TrainError {
    TrainError::Torn { step, source: Arc::new(source) }
}
