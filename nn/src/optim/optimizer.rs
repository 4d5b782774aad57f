//! Optimizers: `prepare` does everything that can fail, `commit` writes in place and allocates
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use lowtide_autograd::{Attempt, Gradients, LeafId};
use lowtide_tensor::Tensor;

use crate::commit::{check_buffers, commit_buffers};
use crate::error::Result;
use crate::module::Parameters;

/// Updates the parameters of a model from gradients.
pub trait Optimizer: Debug {
    /// Checks every gradient and allocates whatever state is missing. Parameters without a
    /// gradient are left alone, as in PyTorch. Nothing changes before [`Update::commit`];
    /// dropping the update instead leaves everything as it was.
    ///
    /// # Errors
    /// `Gradient` for a shape that does not fit, `OutOfMemory`, `NoKernel` of the device.
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> Result<Update<'_>>;

    /// True if parameters can be updated one after the other, with the bits of one update of all.
    /// False where the update of an element depends on other elements, or takes memory.
    fn can_fuse(&self) -> bool {
        false
    }

    /// An update of one parameter after the other, of those that have one of `leaves`; `None`
    /// unless [`can_fuse`](Optimizer::can_fuse). Allocates whatever state is missing; nothing
    /// changes before the first [`FusedUpdate::apply`].
    ///
    /// # Errors
    /// `OutOfMemory`, `NoKernel` of the device.
    fn fused(
        &mut self,
        _parameters: &mut dyn Parameters,
        _leaves: &BTreeSet<LeafId>,
    ) -> Result<Option<Box<dyn FusedUpdate + '_>>> {
        Ok(None)
    }

    /// True if [parts](crate::optim::Parts) of parameters can be updated, with the bits of an
    /// update of all. False where the update of an element depends on other elements or on its
    /// place.
    fn can_update_parts(&self) -> bool {
        false
    }

    /// Shows every tensor of the state in a fixed order: to freeze, hash or replace them.
    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor));

    /// `prepare` and `commit`: one update from the gradients of `attempt`, which is used up, so
    /// that there is nothing to set to zero. Buffers are written as well.
    ///
    /// # Errors
    /// The errors of [`Optimizer::prepare`] and [`commit_buffers`].
    fn step(&mut self, parameters: &mut dyn Parameters, attempt: Attempt) -> Result<()> {
        let (gradients, buffers) = attempt.into_parts();
        let update = self.prepare(parameters, gradients)?;
        check_buffers(parameters, &buffers)?;
        update.commit()?;
        commit_buffers(parameters, &buffers)
    }
}

/// An optimizer with a learning rate that changes from update to update.
pub trait Scheduled: Optimizer {
    /// The number of updates so far.
    fn steps(&self) -> u64;

    /// The learning rate of the next update.
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate, for instance to what a [`crate::Plateau`] says; where the optimizer
    /// has a [`crate::Schedule`], the schedule's `base`.
    fn set_learning_rate(&mut self, learning_rate: f64);
}

/// An optimizer whose state can be stored, restored and cloned behind a box.
pub trait Stateful: Scheduled {
    /// Bytes of state and scratch for these parameters, as the allocator counts them (multiples
    /// of 512), when all that are not frozen have a gradient. State is kept from the first update
    /// on; scratch only lives in one.
    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory;

    /// The state by name, as handles: `{parameter}.{state}` with PyTorch's names for states.
    ///
    /// # Errors
    /// `Swapped`.
    fn state(&self, parameters: &mut dyn Parameters) -> Result<OptimizerState>;

    /// Replaces the state by `state`, whose tensors become this optimizer's.
    ///
    /// # Errors
    /// `State` with the tensor's name when it does not fit parameters and options, `Swapped`; the
    /// optimizer is then as before.
    fn set_state(&mut self, parameters: &mut dyn Parameters, state: OptimizerState) -> Result<()>;

    /// Exchanges the parameters' values and their averages; false from an optimizer that keeps no
    /// averages. See [`Averaged::swap`](crate::optim::Averaged::swap).
    ///
    /// # Errors
    /// The errors of [`Averaged::swap`](crate::optim::Averaged::swap).
    fn swap_averages(&mut self, _parameters: &mut dyn Parameters) -> Result<bool> {
        Ok(false)
    }

    /// The optimizer of one of several models, if this one is made of such: see
    /// [`ByModel`](crate::optim::ByModel).
    fn of_model(&mut self, _model: &str) -> Option<&mut dyn Stateful> {
        None
    }

    /// A clone that keeps its states in 8 bits, before the first update; `None` from an optimizer
    /// that cannot, or does so already.
    fn eight_bit(&self) -> Option<Box<dyn Stateful>> {
        None
    }

    /// A clone behind a box, so that a `Box<dyn Stateful>` can be cloned.
    fn boxed_clone(&self) -> Box<dyn Stateful>;
}

/// The state of an optimizer, apart from its options.
#[derive(Clone, Debug)]
pub struct OptimizerState {
    /// Updates so far.
    pub steps: u64,
    /// The step size, before a schedule of the optimizer's own.
    pub learning_rate: f64,
    /// The state tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// The updates and step sizes of several models that have each their own: see
    /// [`ByModel`](crate::optim::ByModel).
    pub models: BTreeMap<String, Pace>,
}

impl OptimizerState {
    /// How far it is, and how fast it goes.
    pub fn pace(&self) -> Pace {
        Pace { steps: self.steps, learning_rate: self.learning_rate }
    }
}

/// The numbers of an optimizer's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Updates so far.
    pub steps: u64,
    /// The step size, before a schedule of the optimizer's own.
    pub learning_rate: f64,
}

/// The memory of an optimizer beside parameters and gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptimizerMemory {
    /// Kept between updates.
    pub state_bytes: usize,
    /// Allocated and freed within one update.
    pub scratch_bytes: usize,
}

/// An update that cannot run out of memory any more.
pub struct Update<'a> {
    commit: Box<dyn FnOnce() -> Result<()> + 'a>,
}

impl<'a> Update<'a> {
    /// An update that `commit` applies; it must not allocate on a device.
    pub fn new(commit: impl FnOnce() -> Result<()> + 'a) -> Self {
        Update { commit: Box::new(commit) }
    }

    /// Writes parameters and state in place.
    ///
    /// # Errors
    /// `Frozen` when the parameters still are; then nothing was written. What a device reports
    /// that fails in the middle; then some parameters are updated and some are not.
    pub fn commit(self) -> Result<()> {
        (self.commit)()
    }
}

/// An update of one parameter after the other, while backward still computes gradients.
pub trait FusedUpdate {
    /// Writes one parameter and its state in place and allocates nothing. A leaf that has no
    /// parameter, or a frozen one, is left alone.
    ///
    /// # Errors
    /// `Gradient` for a shape that does not fit, `Frozen`; then nothing was written. What a device
    /// reports that fails.
    fn apply(&mut self, leaf: LeafId, gradient: Tensor) -> Result<()>;

    /// Counts the update. Parameters that were not given a gradient are left alone.
    ///
    /// # Errors
    /// The error of a device that fails.
    fn finish(self: Box<Self>) -> Result<()>;
}
