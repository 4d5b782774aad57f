//! The rule by which an optimizer updates a parameter; [`crate::optim::PerParameter`] keeps the
//! state for it.

use std::fmt::Debug;

use lowtide_autograd::LeafId;
use lowtide_tensor::{
    DType, DeviceKind, Rounding, Shape, Tensor, TensorError, TensorUpdate, UpdateFormula,
    reserve_updates, update_all_,
};

use crate::error::Result;

/// The rule by which a [`crate::optim::PerParameter`] optimizer updates each of its parameters.
pub trait UpdateRule: Clone + Debug + 'static {
    /// The optimizer's name, as errors show it.
    const NAME: &'static str;

    /// True if the rule updates by a [`lowtide_tensor::KnownFormula`] alone: NVIDIA devices have
    /// kernels for these.
    const IS_KNOWN: bool = false;

    /// True if the update of a parameter needs its own operands alone, element by element, so that
    /// [`UpdateRule::prepare`] does nothing.
    const IS_ELEMENTWISE: bool = false;

    /// `Ok` if every option is in its range.
    ///
    /// # Errors
    /// `Option`.
    fn check(&self) -> Result<()>;

    /// The initial learning rate; that of an update comes with [`UpdateStep`].
    fn learning_rate(&self) -> f64;

    /// The state tensors that are kept for a parameter between updates.
    fn states(&self, parameter: &Tensor) -> Vec<StateSpec>;

    /// The memory that [`UpdateRule::prepare`] allocates for these parameters, when their gradients
    /// have their types and are not shared.
    fn scratch(&self, parameters: &[&Tensor]) -> Scratch {
        let _ = parameters;
        Scratch::default()
    }

    /// Everything that can fail, for all parameters of an update: what has to be known of a whole
    /// tensor before any element changes, and the memory that [`UpdateRule::commit`] works in. The
    /// gradients may be used up, parameters and states are only read. The result is for `commit`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn prepare(&self, jobs: &mut [Job]) -> Result<Vec<Tensor>> {
        let _ = jobs;
        Ok(Vec::new())
    }

    /// Writes parameters and states in place and allocates nothing.
    ///
    /// # Errors
    /// None, as long as the operands are writable and the device does not fail.
    fn commit(&self, jobs: &mut [Job], scratch: &mut [Tensor]) -> lowtide_tensor::TensorResult<()>;
}

/// The update of one parameter, with all its operands.
#[derive(Debug)]
pub struct Job {
    pub(super) id: LeafId,
    /// The parameter's values.
    pub parameter: Tensor,
    /// The parameter's gradient.
    pub gradient: Tensor,
    /// As [`UpdateRule::states`] has them; new ones are zeros.
    pub states: Vec<Tensor>,
    /// Tensors that [`UpdateRule::prepare`] made for this parameter.
    pub scratch: Vec<Tensor>,
    /// The number of the update, its learning rate and its rounding.
    pub at: UpdateStep,
}

/// The number of an update, its learning rate and its rounding.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStep {
    /// The number of the update, from 1 on.
    pub number: u64,
    /// True for the first update of this parameter, when its states are all zeros.
    pub is_first: bool,
    /// The learning rate.
    pub learning_rate: f64,
    /// How the parameter is rounded to its type.
    pub rounding: Rounding,
}

/// A state tensor of a parameter: f64 for parameters of f64, else f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// PyTorch's name in the optimizer's `state_dict`, where it has one.
    pub name: &'static str,
    /// Shape of the state.
    pub shape: StateShape,
}

/// The shape of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateShape {
    /// The parameter's, element for element; may be kept in 8 bits, if all states of it are so.
    Parameter,
    /// A shape of its own, never in 8 bits.
    Own(Shape),
}

/// Bytes that an update takes beside the states, as the allocator counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// Kept until the update is committed.
    pub held_bytes: usize,
    /// The most at any time, with those.
    pub peak_bytes: usize,
}

impl Scratch {
    /// The scratch of one rule and then of `next`, which both hold until the commit.
    #[must_use]
    pub fn then(self, next: Scratch) -> Scratch {
        Scratch {
            held_bytes: self.held_bytes + next.held_bytes,
            peak_bytes: self.peak_bytes.max(self.held_bytes + next.peak_bytes),
        }
    }
}

impl StateSpec {
    pub(super) fn like_parameter(name: &'static str) -> Self {
        StateSpec { name, shape: StateShape::Parameter }
    }

    pub(super) fn own(name: &'static str, shape: Shape) -> Self {
        StateSpec { name, shape: StateShape::Own(shape) }
    }
}

impl Job {
    /// `Ok` if everything that the job will write may be written.
    #[track_caller]
    pub(super) fn check_writable(&self, op: &'static str) -> lowtide_tensor::TensorResult<()> {
        let mut written = [&self.parameter].into_iter().chain(&self.states);
        written.try_for_each(|tensor| tensor.check_writable(op))
    }

    /// `Ok` if the device has a kernel for the update.
    pub(super) fn check_kernel<R: UpdateRule>(&self) -> lowtide_tensor::TensorResult<()> {
        if R::IS_KNOWN || self.parameter.device().kind() == DeviceKind::Cpu {
            return Ok(());
        }
        Err(TensorError::NoKernel { op: R::NAME, device: "cuda" })
    }

    /// Makes the gradient an unshared tensor of the type that the parameter is computed in.
    pub(super) fn own_gradient(&mut self) -> lowtide_tensor::TensorResult<()> {
        let dtype = self.parameter.dtype().computed();
        if self.gradient.dtype() != dtype {
            self.gradient = self.gradient.to_dtype(dtype)?;
        } else if !self.gradient.is_reusable() {
            self.gradient = self.gradient.copied()?;
        }
        Ok(())
    }

    /// The states, `N` of them.
    ///
    /// # Panics
    /// With another number of them: a bug in the rule.
    pub(super) fn states<const N: usize>(&self) -> &[Tensor; N] {
        self.states[..].try_into().expect("as many states as the rule keeps")
    }
}

/// Loads what updates of these parameters need, before the first of them is written.
pub(super) fn reserve_for<'a>(
    parameters: impl Iterator<Item = &'a Tensor>,
) -> lowtide_tensor::TensorResult<()> {
    let mut dtypes: Vec<DType> = Vec::new();
    for parameter in parameters {
        if !dtypes.contains(&parameter.dtype()) {
            reserve_updates(parameter.device(), parameter.dtype())?;
            dtypes.push(parameter.dtype());
        }
    }
    Ok(())
}

/// Updates all jobs by `formula(job)`, whose scalars are in the jobs' scratch.
pub(super) fn update_jobs<F, const STATES: usize, const SCALARS: usize>(
    jobs: &mut [Job],
    formula: impl Fn(&Job) -> F,
) -> lowtide_tensor::TensorResult<()>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    let Some(first) = jobs.first() else { return Ok(()) };
    let device = first.parameter.device().clone();
    let mut updates = Vec::with_capacity(jobs.len());
    for job in jobs {
        let (formula, rounding) = (formula(job), job.at.rounding);
        let Job { parameter, gradient, states, scratch, .. } = job;
        let (states, scalars) = (&mut states[..STATES], &scratch[..SCALARS]);
        updates.push(TensorUpdate { parameter, gradient, states, scalars, formula, rounding });
    }
    update_all_(&device, &mut updates)
}
