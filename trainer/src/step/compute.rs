//! COMPUTE: the passes of a turn, and their gradients.

use std::ops::Range;

use lowtide_allocator::{Category, ModulePath, Origin};
use lowtide_autograd::{Attempt, AutogradError, BufferUpdates, Coupling, Gradients, LeafId};
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, Tensor};

use crate::error::Result;
use crate::step::context::{StepContext, is_packed, micro_batches};
use crate::step::hooks::StepHooks;
use crate::step::pass::{PassOptions, joined};
use crate::step::summation::{Summation, tree_sum};
use crate::step::turn::ModelTurn;
use crate::task::contract::Task;

/// Losses, gradients and buffers from passes over some samples.
pub(crate) struct Computed {
    /// The sum of the losses, before the division by the count of the step.
    pub(crate) loss_sum: Tensor,
    pub(crate) gradients: Gradients,
    /// Updates of buffers. Float buffers are sums over the deterministic shards.
    pub(crate) buffers: BufferUpdates,
    /// The module that coupled samples, if any.
    pub(crate) coupling: Option<Coupling>,
    /// Number of terms that were computed separately and then added.
    pub(crate) term_count: usize,
}

impl Computed {
    /// Takes gradients and buffers from an attempt.
    pub(crate) fn new(
        (loss_sum, coupling): (Tensor, Option<Coupling>),
        (gradients, buffers): (Gradients, BufferUpdates),
    ) -> Computed {
        Computed { loss_sum, gradients, buffers, coupling, term_count: 1 }
    }

    /// Adds the results of passes over other samples.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn add(&mut self, other: Computed) -> Result<()> {
        self.loss_sum.add_(&other.loss_sum)?;
        self.gradients.add(other.gradients)?;
        for (id, value) in other.buffers.iter().filter(|(_, value)| value.dtype().is_float()) {
            // Every pass updates the same buffers.
            let Some(own) = self.buffers.get(id) else { continue };
            own.clone().add_(value)?;
        }
        self.coupling = self.coupling.take().or(other.coupling);
        self.term_count += other.term_count;
        Ok(())
    }

    /// Float buffers, in the order in which they were made.
    pub(crate) fn float_buffers(&self) -> Vec<Tensor> {
        let values = self.buffers.iter().map(|(_, value)| value.clone());
        values.filter(|value| value.dtype().is_float()).collect()
    }

    /// Divides the float buffers, which are sums of `term_count` terms, by this number.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn average_buffers(&self, term_count: usize) -> Result<()> {
        if term_count == 1 {
            return Ok(());
        }
        let share = 1.0 / term_count as f64;
        let mut floats = self.float_buffers();
        Ok(floats.iter_mut().try_for_each(|value| value.mul_scalar_(share))?)
    }
}

/// The lifetime of parameters that are cast to half types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CastLife {
    /// From the first pass of the step to the last use in backward.
    Step,
    /// A single use. The cast lives no longer than the gathered parameter.
    Use,
}

/// The passes of one turn of a step.
pub(crate) struct Computation<'a, T> {
    pub(crate) passes: PassOptions<'a>,
    pub(crate) task: &'a mut T,
    pub(crate) hooks: &'a mut dyn StepHooks,
    pub(crate) context: &'a StepContext<'a>,
    pub(crate) turn: &'a ModelTurn,
    pub(crate) summation: Summation,
    pub(crate) casts: CastLife,
}

impl<T: Task> Computation<'_, T> {
    pub(crate) fn device(&self) -> &Device {
        self.passes.device
    }

    /// Runs a forward pass over some samples of the batch. Returns the pass, and the sum of its
    /// losses.
    ///
    /// # Errors
    /// Errors of the task.
    pub(crate) fn forward(
        &mut self,
        attempt: &Attempt,
        samples: Range<usize>,
    ) -> Result<(Pass, Var)> {
        self.hooks.on_phase("forward");
        if self.casts == CastLife::Use {
            attempt.end_casts();
        }
        let context = self.context;
        let mut pass = self.passes.pass(attempt, self.turn, context.samples_before + samples.start);
        if context.knobs.cheap_recomputed {
            pass = pass.with_cheap_recomputed();
        }
        let _scope = self.device().category(Category::Activation);
        let _origin = Origin { module: Some(ModulePath::ROOT), site: None }.enter();
        let losses = self.task.losses(&pass, self.device(), &context.batch.slice(samples));
        let losses = losses.map_err(|error| error.because_of(pass.foreign()))?;
        let loss = joined(losses, &context.counts, context.count)?;
        Ok((pass, loss))
    }

    /// Computes the gradients of the mean loss from the samples of this rank's batch. All work is
    /// enqueued when the call returns.
    ///
    /// # Errors
    /// Errors of a forward and a backward pass.
    pub(crate) fn sum(&mut self) -> Result<Computed> {
        let computed = match self.summation {
            Summation::Sequential => self.sum_micro_batches(),
            Summation::Shards(len) => self.sum_shards(len),
        }?;
        self.enqueued()?;
        Ok(computed)
    }

    /// Calls the hook for enqueued work, if this is the last turn.
    ///
    /// # Errors
    /// Errors of the hook.
    pub(crate) fn enqueued(&mut self) -> Result<()> {
        if self.turn.is_last { self.hooks.on_enqueued() } else { Ok(()) }
    }

    fn sum_micro_batches(&mut self) -> Result<Computed> {
        let attempt = Attempt::new();
        let losses = self.accumulate(&attempt, self.context.micro_batch_count())?;
        Ok(Computed::new(losses, attempt.into_parts()))
    }

    fn sum_shards(&mut self, len: usize) -> Result<Computed> {
        let shards: Vec<_> = micro_batches(self.context.batch.len(), len).collect();
        let of_shard = &mut |index: usize| self.compute_shard(shards[index].clone());
        tree_sum(0..shards.len(), of_shard, &Computed::add)
    }

    /// Computes the gradients of one deterministic shard.
    fn compute_shard(&mut self, samples: Range<usize>) -> Result<Computed> {
        let attempt = Attempt::new();
        let (pass, loss) = self.forward(&attempt, samples)?;
        let loss_sum = loss.value().to_dtype(DType::F64)?.copied()?;
        let coupling = pass.coupling();
        self.hooks.on_phase("backward");
        attempt.end_casts();
        pass.backward_seeded(loss, self.context.seed)?;
        Ok(Computed::new((loss_sum, coupling), attempt.into_parts()))
    }

    /// Adds the gradients of the first `count` micro-batches to `attempt`. Returns the sum of their
    /// losses, and the module that coupled samples.
    ///
    /// # Errors
    /// Errors of a forward and a backward pass.
    pub(crate) fn accumulate(
        &mut self,
        attempt: &Attempt,
        count: usize,
    ) -> Result<(Tensor, Option<Coupling>)> {
        self.each_micro_batch(attempt, count, |pass, loss, seed| pass.backward_seeded(loss, seed))
    }

    /// Gives each gradient of each micro-batch to `take` once it is complete. Returns the sum of
    /// the losses, and the module that coupled samples.
    ///
    /// # Errors
    /// Errors of a forward and a backward pass, and of `take`.
    pub(crate) fn give_each(
        &mut self,
        attempt: &Attempt,
        mut take: impl FnMut(LeafId, Tensor) -> Result<(), AutogradError>,
    ) -> Result<(Tensor, Option<Coupling>)> {
        let count = self.context.micro_batch_count();
        self.each_micro_batch(attempt, count, |pass, loss, seed| {
            pass.backward_taking(loss, seed, &mut take)
        })
    }

    /// Runs the first `count` micro-batches, each forwards and then with `backward`.
    fn each_micro_batch(
        &mut self,
        attempt: &Attempt,
        count: usize,
        mut backward: impl FnMut(&Pass, Var, f64) -> Result<(), AutogradError>,
    ) -> Result<(Tensor, Option<Coupling>)> {
        let context = self.context;
        let mut coupling = None;
        let mut loss_sum = Tensor::zeros(self.device(), [], DType::F64)?;
        let all = context.micro_batch_count();
        let are_alike = !is_packed(context.batch);
        for (index, samples) in context.micro_batches().enumerate().take(count) {
            // The first micro-batch creates the gradients; all later ones but the last do the same
            // work.
            let is_repeated = are_alike && (2..all - 1).contains(&index);
            if is_repeated && self.hooks.skips_repeated() {
                continue;
            }
            let begin_seconds = self.device().simulated_seconds();
            let is_last = samples.end == context.batch.len();
            let (pass, loss) = self.forward(attempt, samples)?;
            loss_sum.add_(&loss.value().to_dtype(DType::F64)?)?;
            coupling = coupling.or_else(|| pass.coupling());
            self.hooks.on_phase("backward");
            if is_last {
                attempt.end_casts();
            }
            backward(&pass, loss, context.seed)?;
            if index == 1 && are_alike {
                let seconds = self.device().simulated_seconds() - begin_seconds;
                self.hooks.add_skipped_seconds(seconds * all.saturating_sub(3) as f64);
            }
        }
        Ok((loss_sum, coupling))
    }
}
