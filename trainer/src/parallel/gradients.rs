//! ZeRO-2 (Rajbhandari et al. 2020): data parallelism in which each rank has a part of the
//! optimizer's states and of the gradients.
//!
//! A gradient is summed over the ranks as soon as it is complete, and each rank keeps its part of
//! the sum. All ranks use the same micro-batches, and the parts are summed over one micro-batch
//! after the other.

use std::collections::BTreeSet;
use std::sync::Arc;

use lowtide_allocator::Promise;
use lowtide_autograd::{Attempt, AutogradError, Gradients as GradientSums, LeafId};
use lowtide_nn::optim::{Part, Parts, Stateful, Update};
use lowtide_nn::{NnError, NnResult, Parameters};
use lowtide_ranks::Collectives;
use lowtide_tensor::{Device, Tensor};

use crate::error::Result;
use crate::parallel::division::{
    Division, EvaluationDivision, PlanDivision, PlanFreedom, StateDivision, StepDivision,
};
use crate::parallel::evaluate::SharedBatches;
use crate::parallel::knobs::common_knobs;
use crate::parallel::parts::{
    DividedState, FREEDOM_OF_PARTS, check_updates_parts, copy_others, part_of, promise_copies,
};
use crate::parallel::reduce::{Reduced, all_reduce, sent_to_others, sum_numbers};
use crate::parallel::vote::{agree_in_calls, in_pass, mirrored};
use crate::parallel::whole::trained_bytes;
use crate::plan::Plan;
use crate::plan::knobs::Knobs;
use crate::step::compute::{Computation, Computed};
use crate::step::gradient_check::OwnNumbers;
use crate::step::summation::Summation;
use crate::task::contract::Task;

/// Ranks that each have a part of the optimizer's states and of the gradients.
pub(crate) struct Gradients {
    pub(crate) ranks: Arc<dyn Collectives>,
}

/// Sums of gradients over the ranks; each rank keeps its part.
struct PartSums<'a> {
    ranks: &'a dyn Collectives,
    part: Part,
    sums: GradientSums,
}

impl PartSums<'_> {
    /// Sums a gradient, which all ranks have now, over the ranks. Adds this rank's part of the sum
    /// to its earlier parts.
    ///
    /// # Errors
    /// `OutOfMemory`; errors of ranks.
    fn add(&mut self, leaf: LeafId, gradient: Tensor) -> Result<(), AutogradError> {
        let mut gradient = if gradient.is_reusable() { gradient } else { gradient.copied()? };
        let part_len = self.part.len_of(gradient.element_count());
        self.ranks.reduce_part(&mut gradient, part_len).map_err(in_pass)?;
        let mut own = self.part.of(&gradient).map_err(NnError::into_autograd)?.copied()?;
        drop(gradient);
        if let Some(mut sum) = self.sums.remove(leaf) {
            // Half types are summed in f32 from the second term on, as on one rank.
            let wide = sum.dtype().computed();
            sum = sum.to_dtype(wide)?;
            sum.add_(&own.to_dtype(wide)?)?;
            own = sum;
        }
        self.sums.insert(leaf, own);
        Ok(())
    }
}

/// Computes this rank's parts of the gradients of the mean loss. Each gradient is summed over the
/// ranks as soon as it is complete.
///
/// # Errors
/// Errors of a forward and a backward pass; `Ranks`.
pub(crate) fn sum_parts<T: Task>(
    ranks: &dyn Collectives,
    computation: &mut Computation<'_, T>,
) -> Result<Computed> {
    let attempt = Attempt::new();
    let mut parts = PartSums { ranks, part: part_of(ranks), sums: GradientSums::default() };
    let losses = computation.give_each(&attempt, |leaf, gradient| parts.add(leaf, gradient));
    let losses = losses.and_then(|losses| {
        computation.enqueued()?;
        Ok(losses)
    });
    let losses = agree_in_calls(ranks, losses)?;
    let (_, buffers) = attempt.into_parts();
    let mut computed = Computed::new(losses, (parts.sums, buffers));
    all_reduce(ranks, &mut computed, Reduced::NoGradients)?;
    Ok(computed)
}

impl<T: Task> Division<T> for Gradients {
    fn ranks(&self) -> Option<&dyn Collectives> {
        Some(&*self.ranks)
    }

    fn evaluation(&self) -> Box<dyn EvaluationDivision<T> + '_> {
        Box::new(SharedBatches(&*self.ranks))
    }

    fn state(&self) -> Box<dyn StateDivision + '_> {
        Box::new(DividedState { ranks: &*self.ranks, has_whole_model: true })
    }
}

impl<T: Task> StepDivision<T> for Gradients {
    fn begin(&self, own: Knobs, optimizer: &dyn Stateful, _: Summation) -> Result<Knobs> {
        check_updates_parts(optimizer)?;
        common_knobs(&*self.ranks, own)
    }

    fn sharing(&self) -> Option<&dyn Collectives> {
        Some(&*self.ranks)
    }

    fn compute(&self, computation: &mut Computation<'_, T>) -> Result<Computed> {
        sum_parts(&*self.ranks, computation)
    }

    fn complete(&self, own: Result<OwnNumbers>) -> Result<OwnNumbers> {
        sum_numbers(&*self.ranks, own)
    }

    fn prepare<'o>(
        &self,
        optimizer: &'o mut dyn Stateful,
        parameters: &mut dyn Parameters,
        gradients: GradientSums,
    ) -> NnResult<Update<'o>> {
        optimizer.prepare(&mut Parts::new(parameters, part_of(&*self.ranks))?, gradients)
    }

    fn promise(&self, device: &Device) -> Result<Option<Promise>> {
        promise_copies(device)
    }

    fn after_commit(
        &self,
        parameters: &mut dyn Parameters,
        leaves: BTreeSet<LeafId>,
    ) -> NnResult<()> {
        copy_others(&*self.ranks, parameters, leaves)
    }
}

impl<T: Task> PlanDivision<T> for Gradients {
    fn freedom(&self) -> PlanFreedom {
        FREEDOM_OF_PARTS
    }

    fn rehearsed<'a>(&'a self, _: &mut dyn Parameters) -> Result<Box<dyn Division<T> + 'a>> {
        Ok(Box::new(Gradients { ranks: Arc::new(mirrored(&*self.ranks)) }))
    }

    /// Each rank sends the other ranks their parts of the gradients in each micro-batch, and its
    /// updated part once.
    fn sent_bytes(&self, plan: &Plan, parameters: &mut dyn Parameters) -> usize {
        let times = plan.micro_batches() + 1;
        times * sent_to_others(trained_bytes(parameters), self.ranks.rank())
    }
}
