//! The state tensors that an optimizer keeps for each parameter.

use std::collections::BTreeMap;

use lowtide_allocator::Category;
use lowtide_autograd::LeafId;
use lowtide_tensor::{DType, Device, Tensor};

use crate::{NnError, Parameter, Result};

/// The allocator rounds every request up to a multiple of this.
const BLOCK_BYTES: usize = 512;

/// Tensors for each parameter that was ever updated.
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
        kind: StateKind,
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
            None => kind.zeros(value)?,
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

/// How many states a parameter has, and how large they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateKind {
    pub(super) count: usize,
    /// In 8 bits instead of the parameter's type or f32.
    pub(super) quantized: bool,
}

impl StateKind {
    /// Bytes for `parameter`, as the allocator counts them.
    pub(super) fn size_bytes(self, parameter: &Tensor) -> usize {
        let len = parameter.element_count();
        let size_bytes = match self.quantized {
            true => Tensor::quantized_state_bytes(len),
            false => len * state_dtype(parameter).size_bytes(),
        };
        self.count * size_bytes.max(1).next_multiple_of(BLOCK_BYTES)
    }

    fn zeros(self, parameter: &Tensor) -> Result<Vec<Tensor>> {
        let device = parameter.device();
        let _scope = device.category(Category::OptimizerState);
        let zeros = |_| match self.quantized {
            true => Tensor::quantized_state(device, parameter.element_count()),
            false => Tensor::zeros(device, *parameter.shape(), state_dtype(parameter)),
        };
        Ok((0..self.count).map(zeros).collect::<lowtide_tensor::Result<_>>()?)
    }
}

/// Half types have states of f32.
fn state_dtype(parameter: &Tensor) -> DType {
    match parameter.dtype() {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}
