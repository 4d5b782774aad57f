//! ZeRO-3 (Rajbhandari et al. 2020): data parallelism in which each rank has a part of the
//! optimizer's states, of the gradients and of the parameters, frozen ones too.
//!
//! A pass gathers a parameter where it uses it, and all ranks have to gather at the same time. So
//! all ranks run the same operations in the same order: they use the same micro-batches and
//! evaluate together. A rank that fails between two calls reports its error in place of the next
//! call.

use std::sync::Arc;

use lowtide_autograd::Gradients;
use lowtide_nn::optim::{Parts, Stateful, Update};
use lowtide_nn::parallel::{Gather, divide, set_gather};
use lowtide_nn::{NnResult, Parameters as ModelParameters};
use lowtide_ranks::Collectives;
use lowtide_tensor::Device;

use crate::error::Result;
use crate::options::Options;
use crate::parallel::division::{
    Division, EvaluationDivision, Observed, PlanDivision, PlanFreedom, StateDivision, StepDivision,
};
use crate::parallel::evaluate::SameBatches;
use crate::parallel::gradients::sum_parts;
use crate::parallel::in_pass::PassCollectives;
use crate::parallel::knobs::common_knobs;
use crate::parallel::parts::{DividedState, FREEDOM_OF_PARTS, check_updates_parts, part_of};
use crate::parallel::reduce::{Reduced, all_reduce, check_tree, sent_to_others, sum_numbers};
use crate::parallel::vote::{agree_in_calls, mirrored};
use crate::parallel::whole::{name_tensors, trained_bytes};
use crate::plan::Plan;
use crate::plan::knobs::Knobs;
use crate::step::compute::{CastLife, Computation, Computed};
use crate::step::gradient_check::OwnNumbers;
use crate::step::summation::Summation;
use crate::task::contract::Task;

/// Ranks that each have a part of the states, the gradients and the parameters.
pub(crate) struct Parameters {
    ranks: Arc<dyn Collectives>,
    summation: Summation,
    calls: Arc<PassCollectives>,
}

impl Parameters {
    pub(crate) fn new(ranks: Arc<dyn Collectives>, summation: Summation) -> Parameters {
        let calls = PassCollectives::new(Arc::clone(&ranks));
        Parameters { ranks, summation, calls }
    }
}

impl<T: Task> Division<T> for Parameters {
    fn ranks(&self) -> Option<&dyn Collectives> {
        Some(&*self.ranks)
    }

    fn evaluation(&self) -> Box<dyn EvaluationDivision<T> + '_> {
        Box::new(SameBatches(&*self.ranks))
    }

    fn state(&self) -> Box<dyn StateDivision + '_> {
        Box::new(DividedState { ranks: &*self.ranks, has_whole_model: false })
    }

    fn divide(&self, task: &mut T, device: &Device, _: &Options) -> Result<()> {
        let parameters = task.parameters();
        let mut is_divided = false;
        parameters.visit(&mut |_, parameter| is_divided |= parameter.part().is_some());
        if is_divided {
            return Ok(());
        }
        let gather: Arc<dyn Gather> = self.calls.clone();
        divide(parameters, device, part_of(&*self.ranks), &gather)?;
        name_tensors(parameters);
        Ok(())
    }
}

impl<T: Task> StepDivision<T> for Parameters {
    fn begin(&self, own: Knobs, optimizer: &dyn Stateful, summation: Summation) -> Result<Knobs> {
        check_updates_parts(optimizer)?;
        check_tree(&*self.ranks, summation)?;
        common_knobs(&*self.ranks, own)
    }

    fn sharing(&self) -> Option<&dyn Collectives> {
        Some(&*self.ranks)
    }

    fn compute(&self, computation: &mut Computation<'_, T>) -> Result<Computed> {
        computation.casts = CastLife::Use;
        match self.summation {
            Summation::Sequential => sum_parts(&*self.ranks, computation),
            Summation::Shards(_) => {
                let mut computed = agree_in_calls(&*self.ranks, computation.sum())?;
                all_reduce(&*self.ranks, &mut computed, Reduced::Gradients)?;
                Ok(computed)
            }
        }
    }

    fn complete(&self, own: Result<OwnNumbers>) -> Result<OwnNumbers> {
        match self.summation {
            Summation::Sequential => sum_numbers(&*self.ranks, own),
            // Each rank has the gradients of all parameters, and so their numbers.
            Summation::Shards(_) => own,
        }
    }

    fn prepare<'o>(
        &self,
        optimizer: &'o mut dyn Stateful,
        parameters: &mut dyn ModelParameters,
        mut gradients: Gradients,
    ) -> NnResult<Update<'o>> {
        let part = part_of(&*self.ranks);
        if let Summation::Shards(_) = self.summation {
            part.keep(&mut gradients)?;
        }
        optimizer.prepare(&mut Parts::new(parameters, part)?, gradients)
    }
}

impl<T: Task> PlanDivision<T> for Parameters {
    fn freedom(&self) -> PlanFreedom {
        FREEDOM_OF_PARTS
    }

    fn rehearsed<'a>(
        &'a self,
        parameters: &mut dyn ModelParameters,
    ) -> Result<Box<dyn Division<T> + 'a>> {
        let rehearsed = Parameters::new(Arc::new(mirrored(&*self.ranks)), self.summation);
        let gather: Arc<dyn Gather> = rehearsed.calls.clone();
        set_gather(parameters, &gather);
        Ok(Box::new(rehearsed))
    }

    fn observed(&self) -> Observed {
        Observed { gathered_bytes: self.calls.gathered_bytes(), ..Observed::default() }
    }

    /// Each rank sends its part of each parameter whenever the parameter is gathered, and the other
    /// ranks' parts of the gradients in each micro-batch. With deterministic shards the sum is
    /// reduced once and then sent to all.
    fn sent_bytes(&self, plan: &Plan, parameters: &mut dyn ModelParameters) -> usize {
        let times = match self.summation {
            Summation::Sequential => plan.micro_batches(),
            Summation::Shards(_) => 2,
        };
        let rank = self.ranks.rank();
        let gathered_bytes = sent_to_others(plan.forecast.gathered_bytes, rank);
        times * sent_to_others(trained_bytes(parameters), rank) + gathered_bytes
    }
}
