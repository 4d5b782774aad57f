//! Models whose attention heads, hidden features and vocabulary several ranks share: tensor
//! parallelism.
//!
//! All ranks have all samples, and add up within passes, at the same time. So they take the same
//! micro-batches and recompute the same blocks, and a rank that fails between two sums says so in
//! place of the next one. A plan is one of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lowtide_allocator::ModulePath;
use lowtide_autograd::LeafId;
use lowtide_nn::optim::Stateful;
use lowtide_nn::{Parameters, Shard, Sum, share_layers};
use lowtide_ranks::{Collectives, Rank};
use lowtide_tensor::{CpuOptions, Device, Tensor};

use crate::agreement::{Ranks, agree};
use crate::divided::ByRanks;
use crate::error::{Result, TrainError};
use crate::learned::Learned;
use crate::options::{MicroBatches, Options};
use crate::plan::Plan;
use crate::task::Task;
use crate::trainer::Trainer;
use crate::zero::{Gathered, Zero, common_knobs};

/// Whether ranks share the features of the model.
pub(crate) fn shares_features(ranks: Ranks<'_>, zero: Zero) -> bool {
    zero == Zero::Features && ranks.is_some_and(|ranks| ranks.rank().count > 1)
}

fn setting(problem: &str) -> TrainError {
    TrainError::Setting { place: "tensor-parallel".to_owned(), problem: problem.to_owned() }
}

/// # Errors
/// `Setting` for what sharing features does not go with.
fn check(options: &Options, task: &impl Task) -> Result<()> {
    if matches!(options.micro_batches, MicroBatches::Leaves(_)) {
        return Err(setting("sums within passes are taken in the order of ranks, not of leaves"));
    }
    if !task.turns().is_empty() {
        return Err(setting("models that are trained in turns cannot be shared by ranks"));
    }
    Ok(())
}

/// Parameters of which every rank has the whole gradient.
pub(crate) fn whole_leaves(parameters: &mut dyn Parameters) -> BTreeSet<LeafId> {
    let mut whole = BTreeSet::new();
    parameters.visit(&mut |_, parameter| {
        if parameter.shard().is_none() {
            whole.insert(parameter.id());
        }
    });
    whole
}

/// A plan with knobs that need no more memory than those of any rank: `find` makes one of this
/// rank's own, `find_with` one of given knobs.
///
/// # Errors
/// The own error of a plan; `Ranks` for that of another rank.
pub(crate) fn plan_of_all(
    ranks: &dyn Collectives,
    find: impl FnOnce() -> Result<Plan>,
    find_with: impl FnOnce(&Plan) -> Result<Plan>,
) -> Result<Plan> {
    let mut plan = agree(Some(ranks), find())?;
    let common = common_knobs(ranks, plan.knobs)?;
    let is_common = ranks.exchange(&[u8::from(plan.knobs == common)])?;
    if is_common.iter().all(|said| said == &[1]) {
        return Ok(plan);
    }
    plan.knobs = common;
    agree(Some(ranks), find_with(&plan))
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// Whether ranks share the features of the model.
    pub(crate) fn shares_features(&self) -> bool {
        shares_features(self.ranks(), self.options.zero)
    }

    /// Leaves on the device of the training what this rank has of the model's features.
    ///
    /// # Errors
    /// `Setting` for a model that has none to share, and for what sharing them does not go with;
    /// `OutOfMemory`.
    pub(crate) fn share_features(&mut self) -> Result<()> {
        let mut is_shared = false;
        self.task.parameters().visit(&mut |_, own| is_shared |= own.shard().is_some());
        let Some(ranks) = self.options.ranks.clone().filter(|_| !is_shared) else { return Ok(()) };
        check(&self.options, &self.task)?;
        let Rank { index, count } = ranks.rank();
        let sum: Arc<dyn Sum> = Arc::new(ByRanks::new(ranks));
        let parameters = self.task.parameters();
        if share_layers(parameters, &self.device, (index, count), &sum)? == 0 {
            return Err(setting(
                "the model has no attention heads or hidden features that so many ranks could \
                 share, or all of them are in few bits or have adapters",
            ));
        }
        parameters.visit_tensors(&mut |name, tensor| {
            tensor.set_module(ModulePath::of_parameter(name));
        });
        Ok(())
    }

    /// Gives what this rank has of parameters and states that ranks share, and puts them together
    /// if it is this rank that `wants` them.
    ///
    /// # Errors
    /// `Ranks`; what a device says of a copy.
    pub(crate) fn gather_shards(&mut self, wants: bool) -> Result<Gathered> {
        let ranks = self.options.ranks.clone().expect("there are several");
        let host = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
        let mut learned = Learned::of(&mut self.task);
        let (mut shards, mut own) = (BTreeMap::new(), BTreeMap::new());
        learned.visit(&mut |name, parameter| {
            if let Some(shard) = parameter.shard() {
                shards.insert(name.to_owned(), shard.clone());
                own.insert(parameter.id(), (shard.clone(), parameter.value().clone()));
            }
        });
        let named = self.optimizer.state(&mut learned)?.tensors;
        let mut states = Vec::with_capacity(named.len());
        self.optimizer.visit_state(&mut |state| states.push(state.clone()));
        let whole = |shard: &Shard, own: &Tensor| -> Result<Option<Tensor>> {
            let of_ranks = ranks.exchange(&own.to_bytes()?)?;
            if !wants {
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

/// Overwrites what this rank has of parameters that ranks share with that of `wholes`.
///
/// # Errors
/// What a device says of a copy.
pub(crate) fn take_shards(
    parameters: &mut dyn Parameters,
    wholes: &BTreeMap<LeafId, Tensor>,
) -> Result<()> {
    let mut outcome: Result<()> = Ok(());
    parameters.visit(&mut |_, parameter| {
        let shard = parameter.shard().cloned();
        if let (Ok(()), Some(shard), Some(whole)) = (&outcome, shard, wholes.get(&parameter.id())) {
            let own = shard.own_of(whole);
            outcome = own
                .map_err(TrainError::from)
                .and_then(|own| Ok(parameter.value_mut().copy_across_(&own)?));
        }
    });
    outcome
}
