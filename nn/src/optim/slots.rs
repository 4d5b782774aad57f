//! The states that an optimizer keeps for each parameter.

use std::collections::BTreeMap;

use lowtide_allocator::{BLOCK_BYTES, Category, Origin};
use lowtide_autograd::LeafId;
use lowtide_tensor::{DType, Shape, Tensor, TensorError, update_norms_workspace_len};

use crate::error::{NnError, Result, WeightsProblem};
use crate::optim::rule::{StateShape, StateSpec};

/// The states of each parameter that was updated at least once.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots(pub(super) BTreeMap<LeafId, Vec<Tensor>>);

impl Slots {
    /// The states of a parameter, and true if they are new. New states are zeros; only
    /// [`Slots::keep`] stores them.
    pub(super) fn states(
        &self,
        id: LeafId,
        parameter: &Tensor,
        kinds: &[StateKind],
    ) -> Result<(Vec<Tensor>, bool)> {
        if let Some(states) = self.0.get(&id) {
            return Ok((states.clone(), false));
        }
        let device = parameter.device();
        let _scope = device.category(Category::OptimizerState);
        let _origin = Origin { module: parameter.origin().module, site: None }.enter();
        let zeros = kinds.iter().map(|kind| Tensor::zeros(device, kind.shape, kind.dtype));
        Ok((zeros.collect::<lowtide_tensor::TensorResult<_>>()?, true))
    }

    /// Stores the states of a parameter.
    pub(super) fn keep(&mut self, id: LeafId, states: Vec<Tensor>) {
        self.0.insert(id, states);
    }

    pub(super) fn visit(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.0.values_mut().flatten().for_each(visitor);
    }
}

/// Name, shape and type of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateKind {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
}

impl StateKind {
    /// The kind of a state of `parameter` from its `spec`, in 8 bits if `quantized`.
    pub(super) fn new(spec: &StateSpec, parameter: &Tensor, quantized: bool) -> Self {
        let (shape, dtype) = match spec.shape {
            StateShape::Own(shape) => (shape, parameter.dtype().computed()),
            StateShape::Parameter if quantized => {
                (Tensor::quantized_state_shape(parameter.element_count()), DType::U8)
            }
            StateShape::Parameter => (*parameter.shape(), parameter.dtype().computed()),
        };
        StateKind { name: spec.name, shape, dtype }
    }

    /// Bytes of the state, as the allocator counts them.
    pub(super) fn size_bytes(&self) -> usize {
        block_bytes(self.shape.element_count(), self.dtype)
    }
}

/// Takes the states of the parameter `name` out of `tensors`. Returns `None` if `tensors` has none
/// of the states: the parameter was never updated.
pub(super) fn take_states(
    name: &str,
    parameter: &Tensor,
    kinds: &[StateKind],
    tensors: &mut BTreeMap<String, Tensor>,
) -> Result<Option<Vec<Tensor>>> {
    let mut states = Vec::new();
    let mut missing = None;
    for kind in kinds {
        let name = format!("{name}.{}", kind.name);
        let wrong = |problem| Err(NnError::State { name: name.clone(), problem });
        let Some(found) = tensors.remove(&name) else {
            missing = missing.or(Some(name));
            continue;
        };
        if *found.shape() != kind.shape {
            let (found, expected) = (found.shape().to_vec(), kind.shape);
            return wrong(WeightsProblem::Shape { found, expected });
        }
        if found.dtype() != kind.dtype {
            let (found, expected) = (found.dtype().to_string(), kind.dtype.to_string());
            return wrong(WeightsProblem::Type { found, expected });
        }
        if found.device() != parameter.device() {
            let (left, right) = (found.device(), parameter.device());
            return Err(TensorError::devices("set_state", left, right).into());
        }
        if !found.layout().is_contiguous() {
            return Err(TensorError::Strided { op: "set_state" }.into());
        }
        states.push(found);
    }
    match missing {
        Some(name) if !states.is_empty() => {
            Err(NnError::State { name, problem: WeightsProblem::Missing })
        }
        _ => Ok((!states.is_empty()).then_some(states)),
    }
}

/// Bytes of the workspace of a norm over some of these parameters, for `norms` values, as the
/// allocator counts them.
pub(super) fn norm_partials_bytes<'a>(
    mut parameters: impl Iterator<Item = &'a Tensor>,
    norms: usize,
) -> usize {
    // All parameters are on one device.
    let len = parameters.next().map(|first| update_norms_workspace_len(first.device(), norms));
    len.filter(|&len| len > 0).map_or(0, |len| block_bytes(len, DType::F64))
}

/// Bytes of a tensor, as the allocator counts them.
pub(super) fn block_bytes(len: usize, dtype: DType) -> usize {
    (len * dtype.size_bytes()).max(1).next_multiple_of(BLOCK_BYTES)
}
