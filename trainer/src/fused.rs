//! The step whose optimizer runs inside of backward: a parameter's gradient is gone before the next
//! one is there.
//!
//! It stays a transaction. What could forbid the update is found out first, by a trial of the last
//! part of the batch that only measures its gradients. The memory that the second run takes is
//! known from a rehearsal and promised by the allocator before anything is written.

use std::collections::BTreeSet;
use std::sync::Arc;

use lowtide_amp::{GradientError, LossScaler, ScaledGradients};
use lowtide_autograd::{Attempt, AutogradError, Coupling, LeafId};
use lowtide_data::BatchView;
use lowtide_nn::optim::{Stateful, clip_scale};
use lowtide_nn::{NnError, check_buffers, commit_buffers};
use lowtide_tensor::{DType, RunningCheck, Tensor, scale_and_check_finite};

use crate::error::{Result, TrainError};
use crate::knobs::Knobs;
use crate::not_finite::NotFiniteWhat;
use crate::options::{NonFinite, Options};
use crate::reading::read_together;
use crate::rehearsal::PlannedEvent;
use crate::step::{Forward, Frozen, Goal, Step, TurnOutcome};
use crate::task::Task;
use crate::trainer::Trainer;

/// From where a step was rehearsed: blocks that were live, knobs, and shapes of the batch.
type Beginning = (u64, Knobs, Vec<Vec<usize>>);

/// The bytes that fused steps reserve, by what they begin from.
#[derive(Debug, Default)]
pub(crate) struct Proofs(Vec<(Beginning, usize)>);

/// As many are remembered: a run has few layouts, and a new one is rehearsed in milliseconds.
const PROOFS_MAX: usize = 64;

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// What a fused step on this batch reserves from the device's present state on; `None` for a
    /// step that is not fused.
    ///
    /// # Errors
    /// Those of the rehearsal.
    pub(crate) fn promised_bytes(
        &mut self,
        batch: &BatchView<'_>,
        knobs: Knobs,
    ) -> Result<Option<usize>> {
        if !knobs.fused_update {
            return Ok(None);
        }
        let shapes = batch.fields().map(|field| field.shape()).collect();
        let beginning = (self.device.allocator().layout_hash(), knobs, shapes);
        if let Some((_, bytes)) = self.proofs.0.iter().find(|(known, _)| *known == beginning) {
            return Ok(Some(*bytes));
        }
        let forecast = self.run_inputs().rehearse(&[PlannedEvent::Step(*batch)], knobs)?;
        if self.proofs.0.len() == PROOFS_MAX {
            self.proofs.0.remove(0);
        }
        self.proofs.0.push((beginning, forecast.peak_bytes));
        Ok(Some(forecast.peak_bytes))
    }
}

/// What a trial of the last part found.
struct Trial {
    loss_sum: f64,
    leaves: BTreeSet<LeafId>,
    not_finite: Option<NotFiniteWhat>,
    gradient_norm: Option<f64>,
}

/// Whether scaled gradients were found to be infinite or NaN.
struct Looked(bool);

impl ScaledGradients for Looked {
    type Error = TrainError;

    fn unscale(&mut self, _: f32) -> Result<bool> {
        Ok(self.0)
    }
}

/// Whether anything is to be known of all gradients before the first is used.
pub(crate) fn looks_first(options: &Options, scaler: &LossScaler) -> bool {
    let wants_norm = options.clip_norm.is_some() || options.gradient_norm;
    scaler.is_enabled() || options.non_finite != NonFinite::Ignore || wants_norm
}

impl<T: Task, O: Stateful> Step<'_, T, O> {
    /// COMPUTE, PREPARE and COMMIT of a step without turns.
    ///
    /// # Errors
    /// Anything before the first parameter is written; everything is then as it was. `Torn` after.
    pub(crate) fn take_fused(&mut self, goal: &Goal<'_>) -> Result<TurnOutcome> {
        let frozen = Frozen::new(self.task, self.optimizer);
        let attempt = Attempt::new();
        let (mut loss_sum, mut coupling) =
            self.compute(&attempt, goal, None, goal.part_count() - 1, None)?;
        let (leaves, checked) = if looks_first(self.options, self.scaler) {
            let (trial, own) = self.try_last_part(&attempt, goal, &mut loss_sum)?;
            let loss = trial.loss_sum / goal.count;
            coupling = coupling.or(own);
            if let Some(what) = trial.not_finite {
                return self.without_update(what, loss, coupling);
            }
            (trial.leaves, Some((loss, trial.gradient_norm)))
        } else {
            let mut leaves = BTreeSet::new();
            self.task.parameters().visit(&mut |_, parameter| _ = leaves.insert(parameter.id()));
            (leaves, None)
        };
        let gradient_norm = checked.and_then(|(_, norm)| norm);
        let clipped = gradient_norm.zip(self.norm_max());
        let clipped = clipped.and_then(|(norm, max)| clip_scale(norm, max));
        let added_loss = checked.is_none().then_some(&mut loss_sum);
        let own = self.apply_last_part(&attempt, goal, &leaves, clipped, added_loss, frozen)?;
        let coupling = coupling.or(own);
        let loss = match checked {
            Some((loss, _)) => loss,
            // The update is written: a step whose loss cannot be read is not tried again.
            None => {
                loss_sum.item_assuming(0.0f64).map_err(|error| self.torn(error.into()))?
                    / goal.count
            }
        };
        Ok(TurnOutcome { loss, gradient_norm, skipped: false, coupling })
    }

    fn torn(&self, source: NnError) -> TrainError {
        TrainError::Torn { step: self.number, source: Arc::new(source) }
    }

    /// Computes the gradients of the last part, on top of those that `attempt` has and keeps, only
    /// to look at them.
    fn try_last_part(
        &mut self,
        attempt: &Attempt,
        goal: &Goal<'_>,
        loss_sum: &mut Tensor,
    ) -> Result<(Trial, Option<Coupling>)> {
        let trial = attempt.trial();
        let (pass, loss) = self.forward().run(&trial, goal, None, goal.last_part())?;
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
        (self.on_phase)("backward");
        let mut seen = vec![false; leaves.len()];
        pass.backward_taking(loss, goal.seed, |leaf, gradient| {
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
        (self.on_enqueued)()?;
        let [flag, squares] = check.tensors();
        let values = read_together(&[loss_sum, flag, squares])?;
        let (loss_sum, is_finite) = (values[0], values[1] == 0.0);
        // In order, from 0 on, as on a device.
        let squares = values[2..].iter().fold(0.0, |sum, square| sum + square);
        let is_ignored = self.options.non_finite == NonFinite::Ignore;
        let not_finite = match (is_finite, loss_sum.is_finite()) {
            (_, false) if !is_ignored => Some(NotFiniteWhat::Loss),
            (false, _) if is_scaled || !is_ignored => Some(NotFiniteWhat::Gradient),
            _ => None,
        };
        if is_scaled {
            self.scaler.step("", &mut Looked(not_finite.is_some()))?;
        }
        let gradient_norm = self.norm_max().map(|_| squares.sqrt());
        let leaves = leaves.into_iter().collect();
        Ok((Trial { loss_sum, leaves, not_finite, gradient_norm }, coupling))
    }

    /// Computes the gradients of the last part and updates with each as it is complete.
    fn apply_last_part(
        &mut self,
        attempt: &Attempt,
        goal: &Goal<'_>,
        leaves: &BTreeSet<LeafId>,
        clipped: Option<f64>,
        added_loss: Option<&mut Tensor>,
        frozen: Frozen,
    ) -> Result<Option<Coupling>> {
        let unscaled = f64::from(self.scaler.inverse_scale());
        let Step { device, task, optimizer, key, options, on_phase, on_enqueued, .. } = self;
        let Some(mut update) = optimizer.fused(task.parameters(), leaves)? else {
            let problem = "updates all parameters together: not one after the other".to_owned();
            return Err(TrainError::Setting { place: "optimizer".to_owned(), problem });
        };
        let promise = self.promised_bytes.map(|bytes| device.allocator().promise(bytes));
        let _promise = promise.transpose().map_err(lowtide_tensor::TensorError::from)?;
        let mut forward =
            Forward { device, task: &mut **task, key: *key, options, on_phase: &mut **on_phase };
        let (pass, loss) = forward.run(attempt, goal, None, goal.last_part())?;
        let coupling = pass.coupling();
        let is_tried = added_loss.is_none();
        if let Some(sum) = added_loss {
            sum.add_(&loss.value().to_dtype(DType::F64)?)?;
        }
        let buffers = attempt.take_buffer_updates();
        attempt.end_casts();
        if !is_tried {
            on_enqueued()?;
        }

        on_phase("optimizer");
        drop(frozen);
        check_buffers(task.parameters(), &buffers)?;
        // What is written from here on stays written.
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
        let taken = pass.backward_taking(loss, goal.seed, |leaf, gradient| {
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
            Err(source) => Err(self.torn(source)),
        }
    }
}
