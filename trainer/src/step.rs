//! One training step as a transaction: BEGIN, COMPUTE, PREPARE, COMMIT.
//!
//! Nothing that outlives the step is written before COMMIT, and COMMIT cannot run out of memory.
//! Whatever fails earlier drops the attempt, and with it everything the step has made. Only a
//! device can fail in COMMIT, which leaves no whole model.
//!
//! Where several models are trained in turn, the later ones see the updates of the earlier. Each
//! turn but the last then keeps copies of what it writes, and a step that fails puts them back.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::{Category, ModulePath, Origin};
use lowtide_amp::{AmpError, LossScaler};
use lowtide_autograd::{
    Attempt, AutogradError, BufferUpdates, Coupling, Gradients, LeafId, Pass, Turn, Var,
};
use lowtide_data::BatchView;
use lowtide_nn::optim::{OneModel, Optimizer, Part, Parts, Stateful, Update, shorten};
use lowtide_nn::{Loss, Parameters, check_buffers, commit_buffers};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::admission::is_packed;
use crate::agreement::{Ranks, add_up, agree, counted_together};
use crate::divided::agree_in_calls;
use crate::error::{Result, TrainError};
use crate::features::{shares_features, whole_leaves};
use crate::knobs::{EVERY_BLOCK, Knobs, reset_policies, set_policies};
use crate::leaves::{Computed, add_counts, check as check_leaves, summed};
use crate::not_finite::{NotFinite, NotFiniteWhat};
use crate::options::{MicroBatches, NonFinite, Options};
use crate::pipeline::{Pipeline, common_micro_batch};
use crate::precision::Precision;
use crate::reading::{Found, Reading};
use crate::task::Task;
use crate::undo::Undo;
use crate::zero::{check as check_zero, common_knobs, parameter_part, part_of, promise, spread};

/// Is given each gradient that is complete.
type Take<'a> = dyn FnMut(LeafId, Tensor) -> std::result::Result<(), AutogradError> + 'a;

/// Everything that a step reads and, at its end, writes.
pub(crate) struct Step<'a, T, O> {
    pub(crate) device: &'a Device,
    /// What blocks are offloaded to.
    pub(crate) host: Option<&'a Device>,
    pub(crate) task: &'a mut T,
    pub(crate) optimizer: &'a mut O,
    pub(crate) scaler: &'a mut LossScaler,
    /// Counted from 1.
    pub(crate) number: u64,
    /// The run's key at this step.
    pub(crate) key: RandomKey,
    /// How gradients are clipped, and what becomes of those that are not finite.
    pub(crate) options: &'a Options,
    /// Called when a phase begins: `forward`, `backward`, `optimizer`.
    pub(crate) on_phase: &'a mut dyn FnMut(&'static str),
    /// Called once the passes of all turns are enqueued, before the host waits for the last.
    pub(crate) on_enqueued: &'a mut dyn FnMut() -> Result<()>,
    /// In a rehearsal: parts of a batch that only repeat the memory of others are left out, and
    /// their simulated seconds are added here.
    pub(crate) repeated_seconds: Option<&'a mut f64>,
    /// What may be reserved until the end of a fused update; `None` in a rehearsal.
    pub(crate) promised_bytes: Option<usize>,
    /// Those that have the other shares of the batch, or the other stages.
    pub(crate) ranks: Ranks<'a>,
    /// The stage of a pipeline that this rank has.
    pub(crate) pipeline: Option<&'a Pipeline<T>>,
    /// In a rehearsal of a stage: the simulated seconds of a micro-batch forwards and backwards.
    pub(crate) stage_seconds: Option<&'a mut [f64; 2]>,
}

/// What a step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepOutcome {
    /// Mean loss over the targets of the logical batch, before the update; the sum of all turns.
    pub(crate) loss: f64,
    /// The loss of each turn, by model, if there are turns.
    pub(crate) turn_losses: Vec<(String, f64)>,
    /// Length of the gradient, before it was clipped, if that was computed.
    pub(crate) gradient_norm: Option<f64>,
    /// Whether the update was left out because a gradient, or the loss, was not finite. Buffers
    /// then keep their values too (in PyTorch they move), so that a skipped step changes only the
    /// scale.
    pub(crate) skipped: bool,
    /// Where the samples of the batch were coupled, if they were.
    pub(crate) coupling: Option<Coupling>,
}

impl StepOutcome {
    /// Adds a turn.
    fn add(&mut self, turn: Option<&Turn>, own: TurnOutcome) {
        self.loss += own.loss;
        self.turn_losses.extend(turn.map(|turn| (turn.model().to_owned(), own.loss)));
        self.gradient_norm = match (self.gradient_norm, own.gradient_norm) {
            (Some(norm), Some(own)) => Some(norm.hypot(own)),
            (norm, own) => norm.or(own),
        };
        self.skipped |= own.skipped;
        self.coupling = self.coupling.take().or(own.coupling);
    }
}

/// What one turn of a step did.
pub(crate) struct TurnOutcome {
    pub(crate) loss: f64,
    pub(crate) gradient_norm: Option<f64>,
    pub(crate) skipped: bool,
    pub(crate) coupling: Option<Coupling>,
}

/// What the turns of a step have in common.
pub(crate) struct Goal<'a> {
    pub(crate) batch: &'a BatchView<'a>,
    /// Samples of the logical batch before these, on other ranks.
    samples_before: usize,
    knobs: Knobs,
    /// What each term of the loss is divided by.
    counts: &'a [f64],
    /// The first of them that is not 0.
    pub(crate) count: f64,
    /// What backward of a part begins with.
    pub(crate) seed: f64,
}

impl Goal<'_> {
    pub(crate) fn micro_batch(&self) -> usize {
        self.knobs.micro_batch
    }

    pub(crate) fn part_count(&self) -> usize {
        self.batch.len().div_ceil(self.knobs.micro_batch)
    }

    /// The last part of the batch.
    pub(crate) fn last_part(&self) -> Range<usize> {
        let before = self.part_count().saturating_sub(1) * self.knobs.micro_batch;
        before..self.batch.len()
    }
}

/// What a forward pass needs.
pub(crate) struct Forward<'a, T> {
    pub(crate) device: &'a Device,
    pub(crate) task: &'a mut T,
    pub(crate) key: RandomKey,
    pub(crate) options: &'a Options,
    pub(crate) on_phase: &'a mut dyn FnMut(&'static str),
}

impl<T: Task> Forward<'_, T> {
    /// A pass over a part of the batch, and the sum of its losses.
    pub(crate) fn run(
        &mut self,
        attempt: &Attempt,
        goal: &Goal<'_>,
        turn: Option<&Turn>,
        part: Range<usize>,
    ) -> Result<(Pass, Var)> {
        (self.on_phase)("forward");
        if parameter_part(self.options.ranks.as_deref(), self.options.zero).is_some() {
            // They are not whole for longer than one use takes.
            attempt.end_casts();
        }
        let pass =
            training_pass(self.key, attempt, turn, goal.samples_before + part.start, self.device);
        let mut pass = with_precision(pass, self.options.precision);
        if goal.knobs.cheap_recomputed {
            pass = pass.with_cheap_recomputed();
        }
        let _scope = self.device.category(Category::Activation);
        let _origin = Origin { module: Some(ModulePath::ROOT), site: None }.enter();
        let losses = self.task.losses(&pass, self.device, &goal.batch.slice(part));
        let losses = losses.map_err(|error| error.because_of(pass.foreign()))?;
        let loss = joined(losses, goal.counts, goal.count)?;
        Ok((pass, loss))
    }
}

/// The parts of a batch of `len`, each of `micro_batch` samples but perhaps the last.
pub(crate) fn micro_batches(len: usize, micro_batch: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(micro_batch).map(move |start| start..len.min(start + micro_batch))
}

impl<'a, T: Task, O: Stateful> Step<'a, T, O> {
    /// Runs the step.
    ///
    /// # Errors
    /// Anything before COMMIT; everything is then as it was at BEGIN. `Torn` in COMMIT.
    pub(crate) fn run(mut self, batch: &BatchView<'_>, knobs: Knobs) -> Result<StepOutcome> {
        let shares_features = self.shares_features();
        let has_parts = part_of(self.ranks, self.options.zero).is_some() || shares_features;
        check_zero(has_parts, self.optimizer)?;
        let calls_in_step = self.divides_gradients().is_some() || self.divides_parameters();
        let calls_in_step = calls_in_step || shares_features;
        let knobs = match self.ranks {
            Some(ranks) if self.pipeline.is_some() => common_micro_batch(ranks, knobs)?,
            Some(ranks) if calls_in_step => common_knobs(ranks, knobs)?,
            _ => knobs,
        };
        let policies = self.pipeline.map_or(EVERY_BLOCK, Pipeline::policies);
        let chosen = set_policies(self.task.parameters(), &policies, &knobs, self.host);
        let outcome = self.take_turns(batch, knobs);
        reset_policies(self.task.parameters(), &chosen);
        outcome
    }

    fn take_turns(&mut self, batch: &BatchView<'_>, knobs: Knobs) -> Result<StepOutcome> {
        // BEGIN
        let own = self.counts(batch);
        let own = agree(self.ranks, own)?;
        // The stages of a pipeline have all samples, and so have those that share features.
        let has_all = self.pipeline.is_some() || self.shares_features();
        let sharing = self.ranks.filter(|_| !has_all);
        let counts = counted_together(sharing, own)?;
        let samples_before = sharing.map_or(0, |ranks| ranks.rank().index * batch.len());
        // A batch in which nothing counts has no gradient, rather than one of 0 / 0.
        let count = counts.iter().copied().find(|&count| count > 0.0).unwrap_or(0.0);
        let seed = if count > 0.0 { f64::from(self.scaler.scale()) / count } else { 0.0 };
        let goal = Goal { batch, samples_before, knobs, counts: &counts, count, seed };
        let mut turns = turns_of(self.task)?.into_iter().peekable();
        let (mut outcome, mut undo) = (StepOutcome::default(), Vec::new());
        let scaler = self.scaler.clone();
        while let Some(turn) = turns.next() {
            let taken = match knobs.fused_update {
                true => self.take_fused(&goal),
                false => self.take_turn(&goal, turn.as_ref(), turns.peek().is_none(), &mut undo),
            };
            match taken {
                Ok(own) => outcome.add(turn.as_ref(), own),
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

    /// The error of a step whose gradients were not finite, once more, at any loss scale.
    fn without_scale(&self, error: AmpError, loss: f64) -> TrainError {
        let AmpError::TooManySkips { skipped, .. } = error else { return error.into() };
        let what = NotFiniteWhat::ScaledGradients { skipped: skipped.into() };
        let (step, samples, anomaly) = (self.number, Vec::new(), None);
        Box::new(NotFinite { step, what, loss, samples, anomaly }).into()
    }

    /// COMPUTE, PREPARE and COMMIT of one turn. If others follow, what is about to be written is
    /// added to `undo` first.
    fn take_turn(
        &mut self,
        goal: &Goal<'_>,
        turn: Option<&Turn>,
        is_last: bool,
        undo: &mut Vec<Undo>,
    ) -> Result<TurnOutcome> {
        // COMPUTE
        let frozen = Frozen::new(self.task, self.optimizer);
        let divided = self.divides_gradients();
        let stage = self.pipeline.zip(self.ranks);
        let mut computed = match (stage, divided) {
            (Some((pipeline, ranks)), _) => self.compute_stage(goal, pipeline, ranks)?,
            (None, Some((ranks, part))) => self.compute_part(goal, turn, is_last, ranks, part)?,
            (None, None) => {
                let computed = self.compute_share(goal, turn);
                let computed = computed.and_then(|computed| {
                    self.enqueued(is_last)?;
                    Ok(computed)
                });
                let calls_in_pass = self.divides_parameters() || self.shares_features();
                match self.ranks.filter(|_| calls_in_pass) {
                    Some(ranks) => agree_in_calls(ranks, computed)?,
                    None => agree(self.ranks, computed)?,
                }
            }
        };
        let sharing = self.ranks.filter(|_| self.shares_features());
        if stage.is_none() && sharing.is_none() {
            add_up(self.ranks, &mut computed, divided.is_some())?;
        }
        let Computed { loss_sum, mut gradients, buffers, coupling, .. } = computed;
        let with_parts = divided.map(|(ranks, _)| ranks).or(stage.map(|(_, ranks)| ranks));
        let with_parts = with_parts.or(sharing);
        let found = self.read(turn, &loss_sum, &mut gradients, with_parts);
        let found = agree(self.ranks, found)?;
        let Found { loss_sum, gradient_norm, not_finite } = found;
        let loss = loss_sum / goal.count;

        // PREPARE
        (self.on_phase)("optimizer");
        if let Some(what) = not_finite {
            return self.without_update(what, loss, coupling);
        }
        let clip = gradient_norm.zip(self.norm_max());
        let clipped = clip.map_or(Ok(()), |(norm, max)| shorten(&mut gradients, norm, max));
        let undo = (!is_last).then_some(undo);
        let part = part_of(self.ranks, self.options.zero);
        let spread_part = part.filter(|_| !self.divides_parameters());
        let leaves = gradients.leaves().collect();
        let device = self.device;
        let preparation = Preparation { device, task: &mut *self.task, turn, part, undo };
        let prepared = clipped.map_err(TrainError::from).and_then(|()| {
            if let (Some(part), None) = (part, divided) {
                part.keep(&mut gradients)?;
            }
            let update = preparation.update(&mut *self.optimizer, gradients, &buffers, frozen)?;
            let promise = spread_part.map_or(Ok(None), |_| promise(device))?;
            Ok((update, promise))
        });
        let (update, promise) = agree(self.ranks, prepared)?;

        // COMMIT
        let seal = device.allocator().seal();
        let committed = update.commit();
        let mut committed =
            committed.and_then(|()| commit_buffers(self.task.parameters(), &buffers));
        drop(seal);
        if let (Ok(()), Some((ranks, part))) = (&committed, self.ranks.zip(spread_part)) {
            committed = spread(ranks, part, self.task.parameters(), leaves);
        }
        drop(promise);
        committed
            .map_err(|source| TrainError::Torn { step: self.number, source: Arc::new(source) })?;
        Ok(TurnOutcome { loss, gradient_norm, skipped: false, coupling })
    }

    /// Whether ranks share the features of the model.
    pub(crate) fn shares_features(&self) -> bool {
        shares_features(self.ranks, self.options.zero)
    }

    /// What becomes of a step whose gradients or loss are not finite.
    pub(crate) fn without_update(
        &self,
        what: NotFiniteWhat,
        loss: f64,
        coupling: Option<Coupling>,
    ) -> Result<TurnOutcome> {
        if !self.scaler.is_enabled() && self.options.non_finite == NonFinite::Stop {
            let (step, samples, anomaly) = (self.number, Vec::new(), None);
            return Err(Box::new(NotFinite { step, what, loss, samples, anomaly }).into());
        }
        Ok(TurnOutcome { loss, gradient_norm: None, skipped: true, coupling })
    }

    /// The length that gradients are clipped to, if it is computed.
    pub(crate) fn norm_max(&self) -> Option<f64> {
        // Nothing is longer than an infinite norm.
        let measured = self.options.gradient_norm.then_some(f64::INFINITY);
        self.options.clip_norm.or(measured)
    }

    /// What a forward pass of this step needs.
    pub(crate) fn forward(&mut self) -> Forward<'_, T> {
        Forward {
            device: self.device,
            task: &mut *self.task,
            key: self.key,
            options: self.options,
            on_phase: &mut *self.on_phase,
        }
    }

    /// Takes the updates of earlier turns back, the last one first.
    ///
    /// # Errors
    /// `Torn` if the device fails.
    fn undo(&mut self, updates: Vec<Undo>) -> Result<()> {
        for update in updates.into_iter().rev() {
            let optimizer = optimizer_of(self.optimizer, Some(update.model()))?;
            let undone = update.undo(self.task.parameters(), optimizer);
            undone.map_err(|source| TrainError::Torn {
                step: self.number,
                source: Arc::new(source),
            })?;
        }
        Ok(())
    }

    /// What each term of the loss is divided by, as far as this rank's samples count.
    fn counts(&mut self, batch: &BatchView<'_>) -> Result<Vec<f64>> {
        let MicroBatches::Leaves(leaf) = self.options.micro_batches else {
            return self.task.counts(batch);
        };
        check_leaves(self.ranks, batch, leaf.get())?;
        let parts: Vec<_> = micro_batches(batch.len(), leaf.get()).collect();
        let of_part = &mut |index: usize| self.task.counts(&batch.slice(parts[index].clone()));
        summed(0..parts.len(), of_part, &|sum, counts| add_counts(sum, &counts))
    }

    /// The gradients of the mean loss, as far as they are from this rank's samples.
    fn compute_share(&mut self, goal: &Goal<'_>, turn: Option<&Turn>) -> Result<Computed> {
        if let MicroBatches::Leaves(leaf) = self.options.micro_batches {
            let parts: Vec<_> = micro_batches(goal.batch.len(), leaf.get()).collect();
            let of_part = &mut |index: usize| self.compute_leaf(goal, turn, parts[index].clone());
            return summed(0..parts.len(), of_part, &Computed::add);
        }
        let attempt = Attempt::new();
        let (loss_sum, coupling) = self.compute(&attempt, goal, turn, goal.part_count(), None)?;
        let (gradients, buffers) = attempt.into_parts();
        Ok(Computed { loss_sum, gradients, buffers, coupling, leaf_count: 1 })
    }

    /// Tells that everything is enqueued, if it is the last turn.
    pub(crate) fn enqueued(&mut self, is_last: bool) -> Result<()> {
        if is_last { (self.on_enqueued)() } else { Ok(()) }
    }

    /// The gradients of a part of the batch on its own.
    fn compute_leaf(
        &mut self,
        goal: &Goal<'_>,
        turn: Option<&Turn>,
        part: Range<usize>,
    ) -> Result<Computed> {
        let attempt = Attempt::new();
        let (pass, loss) = self.forward().run(&attempt, goal, turn, part)?;
        let loss_sum = loss.value().to_dtype(DType::F64)?.copied()?;
        let coupling = pass.coupling();
        (self.on_phase)("backward");
        attempt.end_casts();
        pass.backward_seeded(loss, goal.seed)?;
        let (gradients, buffers) = attempt.into_parts();
        Ok(Computed { loss_sum, gradients, buffers, coupling, leaf_count: 1 })
    }

    /// Adds the gradients of the mean loss to `attempt`, one micro-batch after the other, of the
    /// first `count` of them, or gives each gradient of a micro-batch to `take` once it is
    /// complete; the sum of the losses, to be divided by the goal's count, and where samples were
    /// coupled.
    pub(crate) fn compute(
        &mut self,
        attempt: &Attempt,
        goal: &Goal<'_>,
        turn: Option<&Turn>,
        count: usize,
        mut take: Option<&mut Take<'_>>,
    ) -> Result<(Tensor, Option<Coupling>)> {
        let &Goal { batch, knobs, .. } = goal;
        let mut coupling = None;
        let mut loss_sum = Tensor::zeros(self.device, [], DType::F64)?;
        let part_count = goal.part_count();
        let are_alike = !is_packed(batch);
        for (index, part) in micro_batches(batch.len(), knobs.micro_batch).enumerate().take(count) {
            // After the first, which makes the gradients, all but the last do the same.
            let is_repeated = are_alike && (2..part_count - 1).contains(&index);
            if is_repeated && self.repeated_seconds.is_some() {
                continue;
            }
            let begin_seconds = self.device.simulated_seconds();
            let is_last = part.end == batch.len();
            let (pass, loss) = self.forward().run(attempt, goal, turn, part)?;
            loss_sum.add_(&loss.value().to_dtype(DType::F64)?)?;
            coupling = coupling.or_else(|| pass.coupling());
            (self.on_phase)("backward");
            if is_last {
                attempt.end_casts();
            }
            match &mut take {
                Some(take) => pass.backward_taking(loss, goal.seed, &mut **take)?,
                None => pass.backward_seeded(loss, goal.seed)?,
            }
            if let (1, true, Some(seconds)) = (index, are_alike, &mut self.repeated_seconds) {
                let own = self.device.simulated_seconds() - begin_seconds;
                **seconds += own * part_count.saturating_sub(3) as f64;
            }
        }
        Ok((loss_sum, coupling))
    }

    /// Undoes the loss scale and waits for the device, once. A scaled gradient that overflowed is
    /// always looked for, everything else unless it is to be ignored. `ranks` have the other parts
    /// of gradients that are divided, or the other stages.
    fn read(
        &mut self,
        turn: Option<&Turn>,
        loss_sum: &Tensor,
        gradients: &mut Gradients,
        ranks: Ranks<'_>,
    ) -> Result<Found> {
        let is_ignored = self.options.non_finite == NonFinite::Ignore;
        let (wants_norm, found) = (self.norm_max().is_some(), Found::default());
        let device = self.device;
        let of_others = match (self.pipeline, self.ranks) {
            (Some(pipeline), _) => pipeline.of_earlier_stages(),
            (None, Some(ranks)) if self.shares_features() && ranks.rank().index > 0 => {
                whole_leaves(self.task.parameters())
            }
            _ => BTreeSet::new(),
        };
        let mut reading = Reading {
            device,
            loss_sum,
            gradients,
            of_others,
            is_ignored,
            wants_norm,
            ranks,
            found,
        };
        if self.scaler.is_enabled() {
            self.scaler.step(turn.map_or("", Turn::model), &mut reading)?;
        } else if is_ignored {
            reading.look_away()?;
        } else {
            reading.look()?;
        }
        Ok(reading.found)
    }
}

/// PREPARE of a turn.
struct Preparation<'a, T> {
    device: &'a Device,
    task: &'a mut T,
    turn: Option<&'a Turn>,
    /// What is updated of every parameter, if not all.
    part: Option<Part>,
    /// What is about to be written is added here, if other turns follow.
    undo: Option<&'a mut Vec<Undo>>,
}

impl<T: Task> Preparation<'_, T> {
    fn update<'o>(
        self,
        optimizer: &'o mut dyn Stateful,
        gradients: Gradients,
        buffers: &BufferUpdates,
        frozen: Frozen,
    ) -> Result<Update<'o>> {
        let optimizer = optimizer_of(optimizer, self.turn.map(Turn::model))?;
        let parameters = self.task.parameters();
        if let Some((turn, undo)) = self.turn.zip(self.undo) {
            undo.push(Undo::new(self.device, turn, parameters, optimizer, buffers)?);
        }
        let update = match (self.turn, self.part) {
            (Some(turn), _) => {
                let mut own = OneModel { parameters: &mut *parameters, model: turn.model() };
                optimizer.prepare(&mut own, gradients)?
            }
            (None, Some(part)) => {
                optimizer.prepare(&mut Parts::new(&mut *parameters, part)?, gradients)?
            }
            (None, None) => optimizer.prepare(&mut *parameters, gradients)?,
        };
        drop(frozen);
        check_buffers(parameters, buffers)?;
        Ok(update)
    }
}

/// The turns of a step; one of no model in particular is one of everything.
///
/// # Errors
/// `Setting` for a model that has no parameter.
pub(crate) fn turns_of(task: &mut impl Task) -> Result<Vec<Option<Turn>>> {
    let models = task.turns();
    if models.is_empty() {
        return Ok(vec![None]);
    }
    let turn = |model: String| {
        let mut leaves = Vec::new();
        let mut own = OneModel { parameters: task.parameters(), model: &model };
        own.visit(&mut |_, parameter| leaves.push(parameter.id()));
        if leaves.is_empty() {
            let problem = format!("no parameter's name begins with \"{model}.\"");
            return Err(TrainError::Setting { place: format!("turn {model:?}"), problem });
        }
        Ok(Some(Turn::new(&model, leaves)))
    };
    models.into_iter().map(turn).collect()
}

/// A pass over the samples of the logical batch from `first_sample` on. Each turn has random
/// numbers of its own.
pub(crate) fn training_pass(
    key: RandomKey,
    attempt: &Attempt,
    turn: Option<&Turn>,
    first_sample: usize,
    device: &Device,
) -> Pass {
    let key = turn.map_or(key, |turn| key.op(turn.model()));
    let pass = Pass::train(key, attempt).with_first_sample(first_sample as u64);
    let pass = pass.with_device(device);
    match turn {
        Some(turn) => pass.with_turn(turn.clone()),
        None => pass,
    }
}

/// A pass that casts as `precision` says.
pub(crate) fn with_precision(pass: Pass, precision: Precision) -> Pass {
    match precision.casts() {
        Some(casts) => pass.with_casts(casts),
        None => pass,
    }
}

/// The optimizer that updates in a turn of `model`, or everything.
///
/// # Errors
/// `Setting` if the model has none.
fn optimizer_of<'a>(
    optimizer: &'a mut dyn Stateful,
    model: Option<&str>,
) -> Result<&'a mut dyn Stateful> {
    let Some(model) = model else { return Ok(optimizer) };
    optimizer.of_model(model).ok_or_else(|| TrainError::Setting {
        place: format!("turn {model:?}"),
        problem: "the model has no optimizer of its own: give each one with `ByModel`".to_owned(),
    })
}

/// The terms of a loss as one sum that is to be divided by `count`, while each term has a count of
/// its own: those that have none add nothing.
pub(crate) fn joined(terms: Vec<Loss>, counts: &[f64], count: f64) -> Result<Var> {
    if terms.is_empty() || terms.len() != counts.len() {
        return Err(TrainError::Setting {
            place: "task".to_owned(),
            problem: format!(
                "has {} terms of the loss and {} counts of them",
                terms.len(),
                counts.len()
            ),
        });
    }
    let mut sum: Option<Var> = None;
    for (term, &own) in terms.into_iter().zip(counts) {
        let term = match own {
            own if own == count => term.sum,
            own if own > 0.0 => term.sum.mul_scalar(count / own)?,
            _ => term.sum.mul_scalar(0.0)?,
        };
        sum = Some(match sum {
            Some(sum) => sum.add(term)?,
            None => term,
        });
    }
    Ok(sum.expect("one term or more"))
}

/// Keeps parameters, buffers and optimizer state from being written until it is dropped.
pub(crate) struct Frozen(Vec<Tensor>);

impl Frozen {
    pub(crate) fn new(task: &mut impl Task, optimizer: &mut impl Optimizer) -> Self {
        let mut tensors = Vec::new();
        task.parameters().visit_tensors(&mut |_, tensor| tensors.push(tensor.clone()));
        optimizer.visit_state(&mut |tensor| tensors.push(tensor.clone()));
        tensors.iter().for_each(Tensor::freeze);
        Frozen(tensors)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.iter().for_each(Tensor::unfreeze);
    }
}
