//! The rule by which an optimizer updates a parameter. [`crate::optim::PerParameter`] keeps the
//! states.

use std::fmt::Debug;

use lowtide_autograd::LeafId;
use lowtide_tensor::{
    DType, DeviceKind, Rounding, Shape, Tensor, TensorError, TensorUpdate, UpdateFormula,
    reserve_updates, update_all_,
};

use crate::error::Result;

/// The rule by which a [`crate::optim::PerParameter`] optimizer updates each of its parameters.
pub trait UpdateRule: Clone + Debug + 'static {
    /// Name of the optimizer in errors.
    const NAME: &'static str;

    /// True if every update of the rule is a [`lowtide_tensor::KnownFormula`]. NVIDIA devices have
    /// kernels only for these formulas.
    const IS_KNOWN: bool = false;

    /// True if the update of an element needs only the element's own parameter, gradient and
    /// states. [`UpdateRule::prepare`] then does nothing.
    const IS_ELEMENTWISE: bool = false;

    /// `Ok` if every option is in its range.
    ///
    /// # Errors
    /// `Option`.
    fn check(&self) -> Result<()>;

    /// The initial learning rate. The learning rate of an update is in [`UpdateStep`].
    fn learning_rate(&self) -> f64;

    /// The states of a parameter that are kept between updates.
    fn states(&self, parameter: &Tensor) -> Vec<StateSpec>;

    /// The scratch memory of [`UpdateRule::prepare`] for these parameters, if each gradient has the
    /// parameter's type and is not shared.
    fn scratch(&self, parameters: &[&Tensor]) -> Scratch {
        let _ = parameters;
        Scratch::default()
    }

    /// Does everything that can fail, for all parameters of an update. Computes numbers that depend
    /// on whole tensors, and allocates the scratch memory of [`UpdateRule::commit`]. May overwrite
    /// gradients, and only reads parameters and states. The returned tensors are passed to
    /// `commit`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn prepare(&self, jobs: &mut [Job]) -> Result<Vec<Tensor>> {
        let _ = jobs;
        Ok(Vec::new())
    }

    /// Writes parameters and states in place. Allocates nothing.
    ///
    /// # Errors
    /// None if the operands are writable and the device does not fail.
    fn commit(&self, jobs: &mut [Job], scratch: &mut [Tensor]) -> lowtide_tensor::TensorResult<()>;
}

/// The update of one parameter with all its operands.
#[derive(Debug)]
pub struct Job {
    pub(super) id: LeafId,
    /// The parameter's values.
    pub parameter: Tensor,
    /// The parameter's gradient.
    pub gradient: Tensor,
    /// The states of the parameter, in the order of [`UpdateRule::states`]. A new state is all
    /// zeros.
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
    /// True for the first update of this parameter, in which its states are all zeros.
    pub is_first: bool,
    /// The learning rate.
    pub learning_rate: f64,
    /// The rounding of the parameter to its type.
    pub rounding: Rounding,
}

/// A state of a parameter: f64 for a parameter of f64, else f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// PyTorch's name in the optimizer's `state_dict`, if PyTorch has this state.
    pub name: &'static str,
    /// Shape of the state.
    pub shape: StateShape,
}

/// The shape of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateShape {
    /// The parameter's shape, one number for each element. Can be kept in 8 bits if all states of
    /// the parameter have this shape.
    Parameter,
    /// A shape of its own, never in 8 bits.
    Own(Shape),
}

/// Bytes of scratch memory of an update, as the allocator counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// Bytes that are kept until the update is committed.
    pub held_bytes: usize,
    /// Peak bytes, including `held_bytes`.
    pub peak_bytes: usize,
}

impl Scratch {
    /// The scratch memory of one rule followed by `next`. Both keep their held bytes until the
    /// commit.
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
    /// `Ok` if all tensors that the job writes are writable.
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

    /// Converts the gradient to the type in which the parameter is computed, as a tensor that
    /// nothing shares.
    pub(super) fn own_gradient(&mut self) -> lowtide_tensor::TensorResult<()> {
        let dtype = self.parameter.dtype().computed();
        if self.gradient.dtype() != dtype {
            self.gradient = self.gradient.to_dtype(dtype)?;
        } else if !self.gradient.is_reusable() {
            self.gradient = self.gradient.copied()?;
        }
        Ok(())
    }

    /// The `N` states.
    ///
    /// # Panics
    /// If the number of states differs, which is a bug of the rule.
    pub(super) fn states<const N: usize>(&self) -> &[Tensor; N] {
        self.states[..].try_into().expect("as many states as the rule keeps")
    }
}

/// Loads the kernels of the updates before the first parameter is written.
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

/// Updates all jobs, each by `formula(job)`. The scalars of a formula are in the job's scratch.
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
