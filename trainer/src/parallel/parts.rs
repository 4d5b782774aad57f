//! Parts of tensors: each of several ranks has an equal part of every parameter's state, gradient
//! or value.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lowtide_allocator::Promise;
use lowtide_autograd::{AutogradError, LeafId};
use lowtide_nn::optim::{OptimizerState, Part, Parts, Stateful, part_of_state_from_safetensors};
use lowtide_nn::{NnResult, Parameters};
use lowtide_ranks::{Collectives, Rank};
use lowtide_tensor::{Device, Tensor, TensorError};

use crate::error::{Result, TrainError};
use crate::files::trained_state::TrainedState;
use crate::parallel::division::{GatherRole, Gathered, PlanFreedom, StateDivision};
use crate::parallel::whole::host;

/// Choices that a plan has when ranks have parts.
pub(crate) const FREEDOM_OF_PARTS: PlanFreedom =
    PlanFreedom { fused_update: false, eight_bit_states: false, small_is_faster: false };

/// The place of errors about an optimizer that cannot be divided.
const PLACE: &str = "zero";

/// The part of this rank.
pub(crate) fn part_of(ranks: &dyn Collectives) -> Part {
    let Rank { index, count } = ranks.rank();
    Part { index, count }
}

/// # Errors
/// `Setting` for an optimizer that cannot update parts of parameters.
pub(crate) fn check_updates_parts(optimizer: &dyn Stateful) -> Result<()> {
    if optimizer.can_update_parts() {
        return Ok(());
    }
    let problem = "the optimizer updates parameters as wholes, or keeps averages, masks or states \
                   in 8 bits of them: its states cannot be divided among ranks";
    Err(TrainError::Setting { place: PLACE.to_owned(), problem: problem.to_owned() })
}

/// True for the error of an optimizer that cannot update parts of parameters.
pub fn is_undividable(error: &TrainError) -> bool {
    matches!(error, TrainError::Setting { place, .. } if place == PLACE)
}

/// Promises memory for copying the parts of other ranks after an update, whatever other users
/// allocate meanwhile. The parts are copied in pieces smaller than the gradients, which are freed
/// by then.
///
/// # Errors
/// `OutOfMemory`.
pub(crate) fn promise_copies(device: &Device) -> Result<Option<Promise>> {
    let allocator = device.allocator();
    let reserved_bytes = allocator.statistics().reserved.current_bytes;
    let promise = allocator.can_promise().then(|| allocator.promise(reserved_bytes));
    Ok(promise.transpose().map_err(TensorError::from)?)
}

/// Copies the parts of the parameters `leaves` that the other ranks have updated.
///
/// # Errors
/// Errors of the ranks. Some parameters are then not whole.
pub(crate) fn copy_others(
    ranks: &dyn Collectives,
    parameters: &mut dyn Parameters,
    mut leaves: BTreeSet<LeafId>,
) -> NnResult<()> {
    let (part, mut result) = (part_of(ranks), Ok(()));
    parameters.visit(&mut |_, parameter| {
        if result.is_ok() && leaves.remove(&parameter.id()) {
            let value = parameter.value_mut();
            let part_len = part.len_of(value.element_count());
            result = ranks.gather_parts(value, part_len);
        }
    });
    result.map_err(|error| AutogradError::segment(error).into())
}

/// The state of a training whose optimizer state is divided among ranks. The parameters may be
/// divided too.
pub(crate) struct DividedState<'a> {
    pub(crate) ranks: &'a dyn Collectives,
    pub(crate) has_whole_model: bool,
}

impl StateDivision for DividedState<'_> {
    fn has_whole_model(&self) -> bool {
        self.has_whole_model
    }

    fn has_whole_state(&self) -> bool {
        false
    }

    fn state(
        &self,
        optimizer: &dyn Stateful,
        parameters: &mut dyn Parameters,
    ) -> NnResult<OptimizerState> {
        optimizer.state(&mut Parts::new(parameters, part_of(self.ranks))?)
    }

    fn set_state(
        &self,
        optimizer: &mut dyn Stateful,
        parameters: &mut dyn Parameters,
        state: OptimizerState,
    ) -> NnResult<()> {
        optimizer.set_state(&mut Parts::new(parameters, part_of(self.ranks))?, state)
    }

    fn load_state(
        &self,
        optimizer: &mut dyn Stateful,
        parameters: &mut dyn Parameters,
        bytes: &[u8],
        path: &Path,
    ) -> NnResult<()> {
        let part = part_of(self.ranks);
        part_of_state_from_safetensors(optimizer, parameters, part, bytes, path)
    }

    fn take(
        &self,
        parameters: &mut dyn Parameters,
        wholes: &BTreeMap<LeafId, Tensor>,
    ) -> NnResult<()> {
        let (part, mut outcome) = (part_of(self.ranks), Ok(()));
        parameters.visit(&mut |_, parameter| {
            let whole = wholes.get(&parameter.id());
            if let (Ok(()), Some(own), Some(whole)) = (&outcome, parameter.part_mut(), whole) {
                outcome = part.of(whole).and_then(|of_whole| Ok(own.copy_across_(&of_whole)?));
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
        let ranks = self.ranks;
        let (mut shapes, mut own_parts) = (BTreeMap::new(), BTreeMap::new());
        learned.visit(&mut |name, parameter| {
            shapes.insert(name.to_owned(), *parameter.value().shape());
            if let Some(own) = parameter.part() {
                let own = (own.clone(), *parameter.value().shape());
                own_parts.insert(parameter.id(), own);
            }
        });
        let named = optimizer.state(&mut Parts::new(learned, part_of(ranks))?)?.tensors;
        let mut states = Vec::with_capacity(named.len());
        optimizer.visit_state(&mut |state| states.push(state.clone()));
        let (host, keeps) = (host()?, role == GatherRole::Keeps);
        let mut gathered = Gathered::default();
        for state in states {
            let name = named.iter().find(|(_, tensor)| tensor.shares_storage(&state));
            let parts = ranks.exchange(&state.to_bytes()?)?;
            let (true, Some((name, _))) = (keeps, name) else { continue };
            let parameter = name.rsplit_once('.').map_or("", |(parameter, _)| parameter);
            let shape = shapes[parameter];
            let whole = Tensor::from_bytes(&host, shape, state.dtype(), &parts.concat())?;
            gathered.states.push((name.clone(), whole));
        }
        for (id, (own, shape)) in own_parts {
            let parts = ranks.exchange(&own.to_bytes()?)?;
            if keeps {
                let whole = Tensor::from_bytes(&host, shape, own.dtype(), &parts.concat())?;
                gathered.parameters.insert(id, whole);
            }
        }
        Ok(gathered)
    }
}
