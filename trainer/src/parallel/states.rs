//! ZeRO-1 (Rajbhandari et al. 2020): data parallelism in which each rank has a part of the
//! optimizer's states.
//!
//! A rank updates its part of every parameter, and then copies the parts of the others. The bits
//! are those of [replicas](super::replicas); half as many bytes are sent in addition.

use std::collections::BTreeSet;
use std::sync::Arc;

use lowtide_allocator::Promise;
use lowtide_autograd::{Gradients, LeafId};
use lowtide_nn::optim::{Parts, Stateful, Update};
use lowtide_nn::{NnResult, Parameters};
use lowtide_ranks::Collectives;
use lowtide_tensor::Device;

use crate::error::Result;
use crate::parallel::division::{
    Division, EvaluationDivision, PlanDivision, PlanFreedom, StateDivision, StepDivision,
};
use crate::parallel::evaluate::SharedBatches;
use crate::parallel::parts::{
    DividedState, FREEDOM_OF_PARTS, check_updates_parts, copy_others, part_of, promise_copies,
};
use crate::parallel::reduce::{Reduced, all_reduce, check_tree, sent_to_others};
use crate::parallel::vote::{agree, mirrored};
use crate::parallel::whole::trained_bytes;
use crate::plan::Plan;
use crate::plan::knobs::Knobs;
use crate::step::compute::{Computation, Computed};
use crate::step::summation::Summation;
use crate::task::contract::Task;

/// Ranks that each have a part of the optimizer's states.
pub(crate) struct States {
    pub(crate) ranks: Arc<dyn Collectives>,
}

impl<T: Task> Division<T> for States {
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

impl<T: Task> StepDivision<T> for States {
    fn begin(&self, own: Knobs, optimizer: &dyn Stateful, summation: Summation) -> Result<Knobs> {
        check_updates_parts(optimizer)?;
        check_tree(&*self.ranks, summation)?;
        Ok(own)
    }

    fn sharing(&self) -> Option<&dyn Collectives> {
        Some(&*self.ranks)
    }

    fn compute(&self, computation: &mut Computation<'_, T>) -> Result<Computed> {
        let mut computed = agree(Some(&*self.ranks), computation.sum())?;
        all_reduce(&*self.ranks, &mut computed, Reduced::Gradients)?;
        Ok(computed)
    }

    fn prepare<'o>(
        &self,
        optimizer: &'o mut dyn Stateful,
        parameters: &mut dyn Parameters,
        mut gradients: Gradients,
    ) -> NnResult<Update<'o>> {
        let part = part_of(&*self.ranks);
        part.keep(&mut gradients)?;
        optimizer.prepare(&mut Parts::new(parameters, part)?, gradients)
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

impl<T: Task> PlanDivision<T> for States {
    fn freedom(&self) -> PlanFreedom {
        FREEDOM_OF_PARTS
    }

    fn rehearsed<'a>(&'a self, _: &mut dyn Parameters) -> Result<Box<dyn Division<T> + 'a>> {
        Ok(Box::new(States { ranks: Arc::new(mirrored(&*self.ranks)) }))
    }

    /// Gradients are sent as for replicas, and then each rank sends its updated part.
    fn sent_bytes(&self, _: &Plan, parameters: &mut dyn Parameters) -> usize {
        3 * sent_to_others(trained_bytes(parameters), self.ranks.rank())
    }
}
