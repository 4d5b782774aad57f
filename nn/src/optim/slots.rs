//! The state tensors that an optimizer keeps for each parameter.

use std::collections::BTreeMap;

use lowtide_allocator::Category;
use lowtide_autograd::{Gradients, LeafId};
use lowtide_tensor::{Device, Tensor};

use crate::optim::OptimizerMemory;
use crate::{NnError, Parameter, Parameters, Result};

/// The allocator rounds every request up to a multiple of this.
const BLOCK_BYTES: usize = 512;

/// `N` tensors of the parameter's shape and type, for each parameter that was ever updated.
#[derive(Debug)]
pub(super) struct Slots<const N: usize>(BTreeMap<LeafId, [Tensor; N]>);

/// The update of one parameter, with everything that it needs at hand.
pub(super) struct Job<const N: usize> {
    id: LeafId,
    pub(super) parameter: Tensor,
    pub(super) gradient: Tensor,
    pub(super) state: [Tensor; N],
    /// Whether the state has just been made, all zeros.
    pub(super) is_first: bool,
}

impl<const N: usize> Slots<N> {
    pub(super) fn new() -> Self {
        Slots(BTreeMap::new())
    }

    /// One job for each parameter with a gradient, in the order of `parameters`; new state is
    /// zero and belongs to the job until [`Slots::keep`].
    pub(super) fn jobs(
        &self,
        parameters: &mut dyn Parameters,
        mut gradients: Gradients,
    ) -> Result<Vec<Job<N>>> {
        let mut jobs = Vec::new();
        let mut result = Ok(());
        parameters.visit(&mut |name, parameter| {
            if result.is_err() {
                return;
            }
            let Some(gradient) = gradients.remove(parameter.id()) else { return };
            match self.job(name, parameter, gradient) {
                Ok(job) => jobs.push(job),
                Err(error) => result = Err(error),
            }
        });
        result.map(|()| jobs)
    }

    fn job(&self, name: &str, parameter: &Parameter, gradient: Tensor) -> Result<Job<N>> {
        let value = parameter.value();
        let (found, expected) = (*gradient.shape(), *value.shape());
        if found != expected || gradient.dtype() != value.dtype() {
            return Err(NnError::Gradient { name: name.to_owned(), found, expected });
        }
        let kept = self.0.get(&parameter.id());
        let state = match kept {
            Some(state) => state.clone(),
            None => zeros(value)?,
        };
        let (id, parameter) = (parameter.id(), value.clone());
        Ok(Job { id, parameter, gradient, state, is_first: kept.is_none() })
    }

    /// `Ok` if everything that `jobs` will write may be written.
    #[track_caller]
    pub(super) fn check_writable(op: &'static str, jobs: &[Job<N>]) -> Result<()> {
        for job in jobs {
            job.parameter.check_writable(op)?;
            job.state.iter().try_for_each(|state| state.check_writable(op))?;
        }
        Ok(())
    }

    /// Makes a job's state the parameter's.
    pub(super) fn keep(&mut self, job: Job<N>) {
        self.0.insert(job.id, job.state);
    }

    pub(super) fn visit(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.0.values_mut().flatten().for_each(visitor);
    }

    pub(super) fn twin(&self, sim: &Device) -> Option<Self> {
        let twin = |(&id, state): (&LeafId, &[Tensor; N])| {
            let twins: Option<Vec<Tensor>> = state.iter().map(|tensor| tensor.twin(sim)).collect();
            Some((id, twins?.try_into().expect("as many twins as tensors")))
        };
        self.0.iter().map(twin).collect::<Option<_>>().map(Slots)
    }

    pub(super) fn memory(parameters: &mut dyn Parameters) -> OptimizerMemory {
        let mut state_bytes = 0;
        parameters.visit(&mut |_, parameter| {
            let size_bytes = parameter.value().size_bytes().max(1);
            state_bytes += N * size_bytes.next_multiple_of(BLOCK_BYTES);
        });
        OptimizerMemory { state_bytes, scratch_bytes: 0 }
    }
}

fn zeros<const N: usize>(like: &Tensor) -> Result<[Tensor; N]> {
    let device = like.device();
    let _scope = device.category(Category::OptimizerState);
    let zeros = (0..N).map(|_| Tensor::zeros(device, *like.shape(), like.dtype()));
    let zeros = zeros.collect::<lowtide_tensor::Result<Vec<_>>>()?;
    Ok(zeros.try_into().expect("as many tensors as asked for"))
}
