//! Data parallelism: each rank has a replica of the model, and a share of every batch.
//!
//! Ranks count, compute and prepare on their own, and vote after each of these phases. Gradients
//! are summed over the ranks, and each rank makes the same update.

use std::sync::Arc;

use lowtide_nn::Parameters;
use lowtide_nn::optim::Stateful;
use lowtide_ranks::Collectives;

use crate::error::Result;
use crate::parallel::division::{
    Division, EvaluationDivision, PlanDivision, PlanFreedom, StepDivision,
};
use crate::parallel::evaluate::SharedBatches;
use crate::parallel::reduce::{Reduced, all_reduce, check_tree, sent_to_others};
use crate::parallel::vote::{agree, mirrored};
use crate::parallel::whole::trained_bytes;
use crate::plan::Plan;
use crate::plan::knobs::Knobs;
use crate::step::compute::{Computation, Computed};
use crate::step::summation::Summation;
use crate::task::contract::Task;

/// Ranks that each have a replica of the model.
pub(crate) struct Replicas {
    pub(crate) ranks: Arc<dyn Collectives>,
}

impl<T: Task> Division<T> for Replicas {
    fn ranks(&self) -> Option<&dyn Collectives> {
        Some(&*self.ranks)
    }

    fn evaluation(&self) -> Box<dyn EvaluationDivision<T> + '_> {
        Box::new(SharedBatches(&*self.ranks))
    }
}

impl<T: Task> StepDivision<T> for Replicas {
    fn begin(&self, own: Knobs, _: &dyn Stateful, summation: Summation) -> Result<Knobs> {
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
}

impl<T: Task> PlanDivision<T> for Replicas {
    fn freedom(&self) -> PlanFreedom {
        PlanFreedom { fused_update: false, eight_bit_states: true, small_is_faster: false }
    }

    fn rehearsed<'a>(&'a self, _: &mut dyn Parameters) -> Result<Box<dyn Division<T> + 'a>> {
        Ok(Box::new(Replicas { ranks: Arc::new(mirrored(&*self.ranks)) }))
    }

    /// Each rank sends the others their parts of its gradients, and then its part of the sums.
    fn sent_bytes(&self, _: &Plan, parameters: &mut dyn Parameters) -> usize {
        2 * sent_to_others(trained_bytes(parameters), self.ranks.rank())
    }
}
