//! What an optimizer does to a parameter, apart from keeping its states and its numbers.

use std::fmt::Debug;

use lowtide_autograd::LeafId;
use lowtide_tensor::{
    DType, DeviceKind, Rounding, Shape, Tensor, TensorError, TensorUpdate, UpdateFormula,
    update_all_,
};

use crate::error::Result;
use crate::optim::slots::wide_dtype;

/// What a [`crate::optim::PerParameter`] optimizer does to each of its parameters.
pub trait UpdateRule: Clone + Debug + 'static {
    /// The optimizer's name, as errors show it.
    const NAME: &'static str;

    /// Whether it updates by a [`lowtide_tensor::KnownFormula`] alone, which is what NVIDIA devices
    /// have kernels for.
    const IS_KNOWN: bool = false;

    /// `Ok` if every option is in its range.
    ///
    /// # Errors
    /// `Option`.
    fn check(&self) -> Result<()>;

    /// The step size to begin with; afterwards it comes with [`UpdateStep`].
    fn learning_rate(&self) -> f64;

    /// What is kept for a parameter between updates.
    fn states(&self, parameter: &Tensor) -> Vec<StateSpec>;

    /// What [`UpdateRule::prepare`] takes for these parameters, when their gradients have their
    /// types and have no other owner.
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
    /// None, when the operands are writable and the device does what it is told.
    fn commit(&self, jobs: &mut [Job], scratch: &mut [Tensor]) -> lowtide_tensor::TensorResult<()>;
}

/// The update of one parameter, with everything that it needs at hand.
#[derive(Debug)]
pub struct Job {
    pub(super) id: LeafId,
    /// What is trained.
    pub parameter: Tensor,
    /// Its gradient.
    pub gradient: Tensor,
    /// As [`UpdateRule::states`] has them; new ones are zeros.
    pub states: Vec<Tensor>,
    /// What [`UpdateRule::prepare`] made for this parameter.
    pub scratch: Vec<Tensor>,
    /// The numbers of the step.
    pub at: UpdateStep,
}

/// The numbers of an update.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStep {
    /// The number of the update, from 1 on.
    pub number: u64,
    /// Whether it is this parameter's first: its states are all zeros.
    pub is_first: bool,
    /// The step size.
    pub learning_rate: f64,
    /// How the parameter is rounded to its type.
    pub rounding: Rounding,
}

/// A tensor that is kept for a parameter: f64 beside f64, else f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// PyTorch's name in the optimizer's `state_dict`, where it has one.
    pub name: &'static str,
    /// Its shape.
    pub shape: StateShape,
}

/// The shape of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateShape {
    /// The parameter's, element for element; may be kept in 8 bits, if all states of it are so.
    Parameter,
    /// One of its own, never in 8 bits.
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
    /// Of one after the other.
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

    /// `Ok` if the device has a kernel for the update: of f32 alone where not all have one.
    pub(super) fn check_kernel<R: UpdateRule>(&self) -> lowtide_tensor::TensorResult<()> {
        let Job { parameter, gradient, states, .. } = self;
        let mut operands = [parameter, gradient].into_iter().chain(states);
        let is_plain = |x: &Tensor| x.dtype() == DType::F32 && x.layout().is_contiguous();
        if parameter.device().kind() == DeviceKind::Cpu || R::IS_KNOWN && operands.all(is_plain) {
            return Ok(());
        }
        Err(TensorError::NoKernel { op: R::NAME, device: "cuda" })
    }

    /// Makes the gradient one of the parameter's computing type that nothing else holds.
    pub(super) fn own_gradient(&mut self) -> lowtide_tensor::TensorResult<()> {
        let dtype = wide_dtype(&self.parameter);
        if self.gradient.dtype() != dtype {
            self.gradient = self.gradient.to_dtype(dtype)?;
        } else if !self.gradient.is_reusable() {
            self.gradient = self.gradient.copied()?;
        }
        Ok(())
    }

    /// The states of a rule that keeps `N`.
    ///
    /// # Panics
    /// With another number of them: a bug in the rule.
    pub(super) fn states<const N: usize>(&self) -> &[Tensor; N] {
        self.states[..].try_into().expect("as many states as the rule keeps")
    }
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
