//! The state tensors that an optimizer keeps for each parameter.

use std::collections::BTreeMap;

use lowtide_allocator::Category;
use lowtide_autograd::LeafId;
use lowtide_tensor::{DType, Device, Tensor};

use crate::{NnError, Parameter, Result};

/// The allocator rounds every request up to a multiple of this.
const BLOCK_BYTES: usize = 512;

/// Tensors of the parameter's shape, for each parameter that was ever updated. Half types have
/// states of f32.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots(BTreeMap<LeafId, Vec<Tensor>>);

/// The update of one parameter, with everything that it needs at hand.
pub(super) struct Job {
    pub(super) id: LeafId,
    pub(super) parameter: Tensor,
    pub(super) gradient: Tensor,
    pub(super) state: Vec<Tensor>,
    /// Whether the state has just been made, all zeros.
    pub(super) is_first: bool,
}

impl Slots {
    /// The job for a parameter called `name`; new state belongs to it until [`Slots::keep`].
    pub(super) fn job(
        &self,
        name: &str,
        parameter: &Parameter,
        gradient: Tensor,
        state_count: usize,
    ) -> Result<Job> {
        let value = parameter.value();
        let (found, expected) = (*gradient.shape(), *value.shape());
        let fits = [value.dtype(), state_dtype(value)].contains(&gradient.dtype());
        if found != expected || !fits {
            return Err(NnError::Gradient { name: name.to_owned(), found, expected });
        }
        let kept = self.0.get(&parameter.id());
        let state = match kept {
            Some(state) => state.clone(),
            None => zeros(value, state_count)?,
        };
        let (id, parameter) = (parameter.id(), value.clone());
        Ok(Job { id, parameter, gradient, state, is_first: kept.is_none() })
    }

    /// Makes a job's state the parameter's.
    pub(super) fn keep(&mut self, job: Job) {
        self.0.insert(job.id, job.state);
    }

    pub(super) fn visit(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.0.values_mut().flatten().for_each(visitor);
    }

    pub(super) fn twin(&self, sim: &Device) -> Option<Self> {
        let twin = |(&id, state): (&LeafId, &Vec<Tensor>)| {
            let twins: Option<Vec<Tensor>> = state.iter().map(|tensor| tensor.twin(sim)).collect();
            Some((id, twins?))
        };
        self.0.iter().map(twin).collect::<Option<_>>().map(Slots)
    }
}

impl Job {
    /// `Ok` if everything that the job will write may be written.
    #[track_caller]
    pub(super) fn check_writable(&self, op: &'static str) -> Result<()> {
        self.parameter.check_writable(op)?;
        Ok(self.state.iter().try_for_each(|state| state.check_writable(op))?)
    }
}

/// Bytes of `state_count` states for a parameter, as the allocator counts them.
pub(super) fn state_bytes(parameter: &Tensor, state_count: usize) -> usize {
    let size_bytes = parameter.element_count() * state_dtype(parameter).size_bytes();
    state_count * size_bytes.max(1).next_multiple_of(BLOCK_BYTES)
}

fn state_dtype(parameter: &Tensor) -> DType {
    match parameter.dtype() {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

fn zeros(like: &Tensor, count: usize) -> Result<Vec<Tensor>> {
    let device = like.device();
    let _scope = device.category(Category::OptimizerState);
    let zeros = (0..count).map(|_| Tensor::zeros(device, *like.shape(), state_dtype(like)));
    Ok(zeros.collect::<lowtide_tensor::Result<_>>()?)
}
