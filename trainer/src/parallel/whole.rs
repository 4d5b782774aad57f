//! Whole models on the host, for models that are divided among ranks.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_allocator::ModulePath;
use lowtide_autograd::LeafId;
use lowtide_nn::Parameters;
use lowtide_tensor::{CpuOptions, Device, Tensor, TensorResult};

use crate::error::Result;
use crate::files::trained_state::TrainedState;

/// A device with the memory of the host, for whole tensors.
///
/// # Errors
/// Errors of the system.
pub(crate) fn host() -> TensorResult<Device> {
    Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() })
}

/// Names every tensor after its place in the model, for reports and errors.
pub(crate) fn name_tensors(parameters: &mut dyn Parameters) {
    parameters.visit_tensors(&mut |name, tensor| {
        tensor.set_module(ModulePath::of_parameter(name));
    });
}

/// Bytes of the parameters that are trained.
pub(crate) fn trained_bytes(parameters: &mut dyn Parameters) -> usize {
    let (mut bytes, mut seen) = (0, BTreeSet::new());
    parameters.visit(&mut |_, parameter| {
        if seen.insert(parameter.id()) && !parameter.is_frozen() {
            bytes += parameter.value().size_bytes();
        }
    });
    bytes
}

/// Empty whole tensors on the host for the parameters that this rank has only in part or not at
/// all. Values are loaded into them and then
/// [taken](crate::parallel::division::StateDivision::take).
///
/// # Errors
/// Errors of the system.
pub(crate) fn empty_wholes(learned: &mut TrainedState<'_>) -> Result<BTreeMap<LeafId, Tensor>> {
    let (host, mut wholes, mut outcome) = (host()?, BTreeMap::new(), Ok(()));
    learned.visit(&mut |_, parameter| {
        let is_whole = parameter.part().is_none() && parameter.shard().is_none();
        let is_here = is_whole && !parameter.is_elsewhere();
        if is_here || outcome.is_err() {
            return;
        }
        let (value, shard) = (parameter.value(), parameter.shard());
        let (shape, dtype) = (shard.map_or(*value.shape(), |of| *of.shape()), value.dtype());
        match Tensor::zeros(&host, shape, dtype) {
            Ok(whole) => drop(wholes.insert(parameter.id(), whole)),
            Err(error) => outcome = Err(error),
        }
    });
    outcome?;
    Ok(wholes)
}
