//! Tensor parallelism (Megatron-LM, Shoeybi et al. 2019): ranks share the attention heads, the
//! hidden features and the vocabulary of a model.
//!
//! All ranks have all samples, and sum within passes at the same time. So all ranks use the same
//! micro-batches and recompute the same blocks, and they agree on one plan. A rank that fails
//! between two sums reports its error in place of the next sum.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lowtide_autograd::LeafId;
use lowtide_nn::optim::Stateful;
use lowtide_nn::parallel::{Shard, Sum, set_sum, share_layers};
use lowtide_nn::{NnResult, Parameters};
use lowtide_ranks::{Collectives, Rank};
use lowtide_tensor::{Device, Tensor};

use crate::error::{Result, TrainError};
use crate::files::trained_state::TrainedState;
use crate::options::Options;
use crate::parallel::division::{
    Division, EvaluationDivision, GatherRole, Gathered, Observed, PlanDivision, PlanFreedom,
    StateDivision, StepDivision, Wanted,
};
use crate::parallel::evaluate::SameBatches;
use crate::parallel::in_pass::PassCollectives;
use crate::parallel::knobs::{common_knobs, plan_of_common_knobs};
use crate::parallel::parts::{FREEDOM_OF_PARTS, check_updates_parts};
use crate::parallel::reduce::{sent_to_others, sum_numbers};
use crate::parallel::vote::{agree_in_calls, mirrored};
use crate::parallel::whole::{host, name_tensors};
use crate::plan::Plan;
use crate::plan::knobs::Knobs;
use crate::step::compute::{Computation, Computed};
use crate::step::gradient_check::OwnNumbers;
use crate::step::summation::Summation;
use crate::task::contract::Task;

/// Ranks that share the features of a model.
pub(crate) struct Features {
    ranks: Arc<dyn Collectives>,
    calls: Arc<PassCollectives>,
}

impl Features {
    pub(crate) fn new(ranks: Arc<dyn Collectives>) -> Features {
        let calls = PassCollectives::new(Arc::clone(&ranks));
        Features { ranks, calls }
    }
}

fn setting(problem: &str) -> TrainError {
    TrainError::Setting { place: "tensor-parallel".to_owned(), problem: problem.to_owned() }
}

/// # Errors
/// `Setting` for options or a task that do not work with shared features.
fn check(options: &Options, task: &impl Task) -> Result<()> {
    if Summation::of(options) != Summation::Sequential {
        return Err(setting("sums within passes are taken in the order of ranks, not of leaves"));
    }
    if !task.turns().is_empty() {
        return Err(setting("models that are trained in turns cannot be shared by ranks"));
    }
    Ok(())
}

impl<T: Task> Division<T> for Features {
    fn ranks(&self) -> Option<&dyn Collectives> {
        Some(&*self.ranks)
    }

    fn evaluation(&self) -> Box<dyn EvaluationDivision<T> + '_> {
        Box::new(SameBatches(&*self.ranks))
    }

    fn state(&self) -> Box<dyn StateDivision + '_> {
        Box::new(SharedState(&*self.ranks))
    }

    fn divide(&self, task: &mut T, device: &Device, options: &Options) -> Result<()> {
        let mut is_shared = false;
        task.parameters().visit(&mut |_, own| is_shared |= own.shard().is_some());
        if is_shared {
            return Ok(());
        }
        check(options, task)?;
        let Rank { index, count } = self.ranks.rank();
        let sum: Arc<dyn Sum> = self.calls.clone();
        let parameters = task.parameters();
        if share_layers(parameters, device, (index, count), &sum)? == 0 {
            return Err(setting(&format!(
                "the model has no attention heads or hidden features that {count} ranks could \
                 share, or all of them are in few bits or have adapters",
            )));
        }
        name_tensors(parameters);
        Ok(())
    }
}

impl<T: Task> StepDivision<T> for Features {
    fn begin(&self, own: Knobs, optimizer: &dyn Stateful, _: Summation) -> Result<Knobs> {
        check_updates_parts(optimizer)?;
        common_knobs(&*self.ranks, own)
    }

    fn compute(&self, computation: &mut Computation<'_, T>) -> Result<Computed> {
        agree_in_calls(&*self.ranks, computation.sum())
    }

    /// Some parameters have their whole gradient on every rank; the first rank counts it.
    fn counted_elsewhere(&self, parameters: &mut dyn Parameters) -> BTreeSet<LeafId> {
        let mut whole = BTreeSet::new();
        if self.ranks.rank().index > 0 {
            parameters.visit(&mut |_, parameter| {
                if parameter.shard().is_none() {
                    whole.insert(parameter.id());
                }
            });
        }
        whole
    }

    fn complete(&self, own: Result<OwnNumbers>) -> Result<OwnNumbers> {
        sum_numbers(&*self.ranks, own)
    }
}

impl<T: Task> PlanDivision<T> for Features {
    fn freedom(&self) -> PlanFreedom {
        FREEDOM_OF_PARTS
    }

    fn plan(&self, size_max: usize, find: &dyn Fn(Wanted) -> Result<Plan>) -> Result<Plan> {
        plan_of_common_knobs(&*self.ranks, size_max, find)
    }

    fn rehearsed<'a>(
        &'a self,
        parameters: &mut dyn Parameters,
    ) -> Result<Box<dyn Division<T> + 'a>> {
        let rehearsed = Features::new(Arc::new(mirrored(&*self.ranks)));
        let sum: Arc<dyn Sum> = rehearsed.calls.clone();
        set_sum(parameters, &sum);
        Ok(Box::new(rehearsed))
    }

    fn observed(&self) -> Observed {
        Observed { summed_bytes: self.calls.summed_bytes(), ..Observed::default() }
    }

    /// Twice the bytes that go to other ranks: once to sum the tensors of the passes, once to share
    /// the sums.
    fn sent_bytes(&self, plan: &Plan, _: &mut dyn Parameters) -> usize {
        2 * sent_to_others(plan.forecast.summed_bytes, self.ranks.rank())
    }
}

/// The state of ranks that share the features of a model.
struct SharedState<'a>(&'a dyn Collectives);

impl StateDivision for SharedState<'_> {
    fn has_whole_model(&self) -> bool {
        false
    }

    fn take(
        &self,
        parameters: &mut dyn Parameters,
        wholes: &BTreeMap<LeafId, Tensor>,
    ) -> NnResult<()> {
        let mut outcome = Ok(());
        parameters.visit(&mut |_, parameter| {
            let (shard, whole) = (parameter.shard().cloned(), wholes.get(&parameter.id()));
            if let (Ok(()), Some(shard), Some(whole)) = (&outcome, shard, whole) {
                let own = shard.own_of(whole);
                outcome = own.and_then(|own| Ok(parameter.value_mut().copy_across_(&own)?));
            }
        });
        outcome
    }

    fn gather(
        &self,
        learned: &mut TrainedState<'_>,
        optimizer: &mut dyn Stateful,
        role: GatherRole,
    ) -> Result<Gathered> {
        let (ranks, host) = (self.0, host()?);
        let (mut shards, mut own) = (BTreeMap::new(), BTreeMap::new());
        learned.visit(&mut |name, parameter| {
            if let Some(shard) = parameter.shard() {
                shards.insert(name.to_owned(), shard.clone());
                own.insert(parameter.id(), (shard.clone(), parameter.value().clone()));
            }
        });
        let named = optimizer.state(learned)?.tensors;
        let mut states = Vec::with_capacity(named.len());
        optimizer.visit_state(&mut |state| states.push(state.clone()));
        let whole = |shard: &Shard, own: &Tensor| -> Result<Option<Tensor>> {
            let of_ranks = ranks.exchange(&own.to_bytes()?)?;
            if role == GatherRole::Gives {
                return Ok(None);
            }
            let whole = Tensor::zeros(&host, *shard.shape(), own.dtype())?;
            for (index, bytes) in of_ranks.iter().enumerate() {
                let shape = shard.shape_of(index);
                let of_rank = Tensor::from_bytes(&host, shape, own.dtype(), bytes)?;
                shard.put(&whole, index, &of_rank)?;
            }
            Ok(Some(whole))
        };
        let mut gathered = Gathered::default();
        for state in states {
            let name = named.iter().find(|(_, tensor)| tensor.shares_storage(&state));
            let Some((name, _)) = name else { continue };
            let parameter = name.rsplit_once('.').map_or("", |(parameter, _)| parameter);
            let whole = match shards.get(parameter) {
                Some(shard) => whole(shard, &state)?,
                None => Some(state),
            };
            gathered.states.extend(whole.map(|whole| (name.clone(), whole)));
        }
        for (id, (shard, own)) in own {
            gathered.parameters.extend(whole(&shard, &own)?.map(|whole| (id, whole)));
        }
        Ok(gathered)
    }
}
