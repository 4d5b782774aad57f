//! The step with a fused update: the optimizer runs inside backward, so that each gradient is freed
//! before the next one exists.
//!
//! The step stays a transaction. A trial of the last micro-batch measures its gradients, and finds
//! any error that forbids the update, before anything is written. The memory for computing the last
//! micro-batch again is known from a rehearsal, and promised by the allocator before the first
//! write.

use std::collections::BTreeSet;

use lowtide_amp::{GradientError, LossScaler, ScaledGradients};
use lowtide_autograd::{Attempt, AutogradError, Coupling, LeafId};
use lowtide_nn::optim::{Stateful, clip_scale};
use lowtide_nn::{NnError, check_buffers, commit_buffers};
use lowtide_tensor::{DType, RunningCheck, Tensor, scale_and_check_finite};

use crate::error::{Result, TrainError};
use crate::options::{NonFinite, Options};
use crate::step::compute::Computation;
use crate::step::context::StepContext;
use crate::step::gradient_check::{StepNumbers, read_together};
use crate::step::not_finite::NotFiniteWhat;
use crate::step::prepare::Frozen;
use crate::step::turn::ModelTurn;
use crate::step::{Step, TurnOutcome, torn};
use crate::task::contract::Task;

/// The result of a trial of the last micro-batch: its numbers, and the parameters that have a
/// gradient.
struct Trial {
    numbers: StepNumbers,
    leaves: BTreeSet<LeafId>,
}

/// Gradients that are already checked: the scaler is only told whether one was infinite or NaN.
struct Checked {
    has_overflowed: bool,
}

impl ScaledGradients for Checked {
    type Error = TrainError;

    fn unscale(&mut self, _: f32) -> Result<bool> {
        Ok(self.has_overflowed)
    }
}

/// True if all gradients must be checked before the first one is used.
pub(crate) fn looks_first(options: &Options, scaler: &LossScaler) -> bool {
    let wants_norm = options.clip_norm.is_some() || options.gradient_norm;
    scaler.is_enabled() || options.non_finite != NonFinite::Ignore || wants_norm
}

impl<T: Task, O: Stateful> Step<'_, T, O> {
    /// COMPUTE, PREPARE and COMMIT of a step of one turn.
    ///
    /// # Errors
    /// All errors before the first parameter is written leave everything unchanged. `Torn`
    /// afterwards.
    pub(crate) fn take_fused(
        &mut self,
        context: &StepContext<'_>,
        turn: &ModelTurn,
    ) -> Result<TurnOutcome> {
        let frozen = Frozen::new(self.task, self.optimizer);
        let attempt = Attempt::new();
        let count = context.micro_batch_count() - 1;
        let (mut loss_sum, mut coupling) =
            self.computation(context, turn).accumulate(&attempt, count)?;
        let (leaves, checked) = if looks_first(self.options, self.scaler) {
            let (trial, own) = self.try_last(&attempt, context, turn, &mut loss_sum)?;
            let loss = trial.numbers.loss_sum / context.count;
            coupling = coupling.or(own);
            if let Some(what) = trial.numbers.not_finite {
                return self.without_update(what, loss, coupling);
            }
            (trial.leaves, Some((loss, trial.numbers.gradient_norm)))
        } else {
            let mut leaves = BTreeSet::new();
            self.task.parameters().visit(&mut |_, parameter| _ = leaves.insert(parameter.id()));
            (leaves, None)
        };
        let gradient_norm = checked.and_then(|(_, norm)| norm);
        let clipped = gradient_norm.zip(self.norm_max());
        let clipped = clipped.and_then(|(norm, max)| clip_scale(norm, max));
        let last = LastUpdate {
            attempt: &attempt,
            leaves: &leaves,
            clipped,
            added_loss: checked.is_none().then_some(&mut loss_sum),
        };
        let own = self.apply_last(context, turn, last, frozen)?;
        let coupling = coupling.or(own);
        let loss = match checked {
            Some((loss, _)) => loss,
            // The update is written: if the loss cannot be read, the step is not tried again.
            None => {
                let read = loss_sum.item_assuming(0.0f64);
                read.map_err(|error| torn(self.number, error.into()))? / context.count
            }
        };
        Ok(TurnOutcome { loss, gradient_norm, skipped: false, coupling })
    }

    /// Computes the gradients of the last micro-batch on top of the gradients in `attempt`, only to
    /// check them. `attempt` keeps its gradients.
    fn try_last(
        &mut self,
        attempt: &Attempt,
        context: &StepContext<'_>,
        turn: &ModelTurn,
        loss_sum: &mut Tensor,
    ) -> Result<(Trial, Option<Coupling>)> {
        let trial = attempt.trial();
        let (pass, loss) =
            self.computation(context, turn).forward(&trial, context.last_micro_batch())?;
        loss_sum.add_(&loss.value().to_dtype(DType::F64)?)?;
        let coupling = pass.coupling();
        let leaves = trial.leaves();
        let mut check = RunningCheck::new(self.device, leaves.len())?;
        let (is_scaled, scale) = (self.scaler.is_enabled(), self.scaler.inverse_scale());
        let mut look = |index: usize, mut gradient: Tensor| {
            if is_scaled && gradient.dtype() == DType::F16 {
                return Err(AutogradError::segment(GradientError::F16Gradient));
            }
            Ok(check.add(index, &mut gradient, f64::from(scale))?)
        };
        self.hooks.on_phase("backward");
        let mut seen = vec![false; leaves.len()];
        pass.backward_taking(loss, context.seed, |leaf, gradient| {
            let index = leaves.binary_search(&leaf).expect("a leaf of the trial");
            seen[index] = true;
            look(index, gradient)
        })?;
        for (index, &leaf) in leaves.iter().enumerate().filter(|&(index, _)| !seen[index]) {
            if let Some(sum) = attempt.gradient(leaf) {
                look(index, sum.copied()?)?;
            }
        }
        drop(trial);
        self.hooks.on_enqueued()?;
        let [flag, squares] = check.tensors();
        let numbers = self.numbers_of(&read_together(&[loss_sum, flag, squares])?);
        if is_scaled {
            let has_overflowed = numbers.not_finite.is_some();
            self.scaler.step("", &mut Checked { has_overflowed })?;
        }
        Ok((Trial { numbers, leaves: leaves.into_iter().collect() }, coupling))
    }

    /// The numbers of a trial, from `values`: the sum of the losses, a flag that is 0 if all
    /// gradients are finite, and the squared norm of each gradient.
    fn numbers_of(&self, values: &[f64]) -> StepNumbers {
        let (loss_sum, is_finite) = (values[0], values[1] == 0.0);
        // The sum runs in order and starts from 0, as on a device.
        let squares = values[2..].iter().fold(0.0, |sum, square| sum + square);
        let is_ignored = self.options.non_finite == NonFinite::Ignore;
        let not_finite = match (is_finite, loss_sum.is_finite()) {
            (_, false) if !is_ignored => Some(NotFiniteWhat::Loss),
            (false, _) if self.scaler.is_enabled() || !is_ignored => Some(NotFiniteWhat::Gradient),
            _ => None,
        };
        let gradient_norm = self.norm_max().map(|_| squares.sqrt());
        StepNumbers { loss_sum, gradient_norm, not_finite }
    }

    /// Computes the gradients of the last micro-batch, and updates with each gradient once it is
    /// complete.
    fn apply_last(
        &mut self,
        context: &StepContext<'_>,
        turn: &ModelTurn,
        last: LastUpdate<'_>,
        frozen: Frozen,
    ) -> Result<Option<Coupling>> {
        let LastUpdate { attempt, leaves, clipped, added_loss } = last;
        let unscaled = f64::from(self.scaler.inverse_scale());
        let &mut Step { device, number, .. } = self;
        let (mut computation, optimizer) = self.computation_and_optimizer(context, turn);
        let Some(mut update) = optimizer.fused(computation.task.parameters(), leaves)? else {
            let problem = "updates all parameters together: not one after the other".to_owned();
            return Err(TrainError::Setting { place: "optimizer".to_owned(), problem });
        };
        let _promise = computation.hooks.promise(device)?;
        let (pass, loss) = computation.forward(attempt, context.last_micro_batch())?;
        let Computation { task, hooks, .. } = computation;
        let coupling = pass.coupling();
        let is_tried = added_loss.is_none();
        if let Some(sum) = added_loss {
            sum.add_(&loss.value().to_dtype(DType::F64)?)?;
        }
        let buffers = attempt.take_buffer_updates();
        attempt.end_casts();
        if !is_tried {
            hooks.on_enqueued()?;
        }

        hooks.on_phase("optimizer");
        drop(frozen);
        check_buffers(task.parameters(), &buffers)?;
        // From here on, a written update cannot be taken back.
        let mut is_written = false;
        let mut apply = |leaf: LeafId, mut gradient: Tensor| -> Result<(), NnError> {
            if unscaled != 1.0 {
                scale_and_check_finite(device, [&mut gradient], unscaled)?;
            }
            if let Some(scale) = clipped {
                gradient.mul_scalar_(scale)?;
            }
            is_written = true;
            update.apply(leaf, gradient)
        };
        let taken = pass.backward_taking(loss, context.seed, |leaf, gradient| {
            apply(leaf, gradient).map_err(NnError::into_autograd)
        });
        let mut applied = taken.map_err(NnError::from);
        for leaf in attempt.leaves() {
            if let (Ok(()), Some(gradient)) = (&applied, attempt.take_gradient(leaf)) {
                applied = apply(leaf, gradient);
            }
        }
        let finished = applied.and_then(|()| {
            is_written = true;
            update.finish()
        });
        match finished.and_then(|()| commit_buffers(task.parameters(), &buffers)) {
            Ok(()) => Ok(coupling),
            Err(error) if !is_written => Err(error.into()),
            Err(source) => Err(torn(number, source)),
        }
    }
}

/// The inputs of the update by the last micro-batch.
struct LastUpdate<'a> {
    /// The attempt with the gradients of the earlier micro-batches.
    attempt: &'a Attempt,
    /// Parameters that have a gradient.
    leaves: &'a BTreeSet<LeafId>,
    /// The factor that clips gradients; `None` if they are short enough.
    clipped: Option<f64>,
    /// The sum of the losses, to which the last loss is added; `None` if a trial has added it.
    added_loss: Option<&'a mut Tensor>,
}
