//! Optimizers: `prepare` does everything that can fail, `commit` writes in place and allocates
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use lowtide_autograd::{Attempt, Gradients, LeafId};
use lowtide_tensor::Tensor;

use crate::commit::{check_buffers, commit_buffers};
use crate::error::Result;
use crate::module::Parameters;

/// An algorithm that updates the parameters of a model from gradients.
pub trait Optimizer: Debug {
    /// Checks every gradient and allocates the states that are missing. Parameters without a
    /// gradient are not updated, as in PyTorch. Parameters and states do not change before
    /// [`Update::commit`]. Dropping the update leaves them unchanged.
    ///
    /// # Errors
    /// `Gradient` for a shape that does not fit, `OutOfMemory`, `NoKernel` of the device.
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> Result<Update<'_>>;

    /// True if parameters can be updated one at a time, with the same bits as in one update of all.
    /// False if the update of an element depends on other elements, or takes memory.
    fn can_fuse(&self) -> bool {
        false
    }

    /// An update of one parameter at a time, for the parameters in `leaves`; `None` unless
    /// [`can_fuse`](Optimizer::can_fuse). Allocates the states that are missing. Parameters and
    /// states do not change before the first [`FusedUpdate::apply`].
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

    /// True if [parts](crate::optim::Parts) of parameters can be updated, with the same bits as in
    /// an update of whole parameters. False if the update of an element depends on other elements
    /// or on its index.
    fn can_update_parts(&self) -> bool {
        false
    }

    /// Shows every state tensor to a visitor, in a fixed order, to freeze, hash or replace it.
    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor));

    /// Calls `prepare` and `commit`: one update from the gradients of `attempt`, including its
    /// buffer updates. The call consumes the attempt, so no gradients have to be set to zero.
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
    /// Number of updates so far.
    fn steps(&self) -> u64;

    /// The learning rate of the next update.
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate, for example to the rate of a [`crate::Plateau`]. With a
    /// [`crate::Schedule`], sets the schedule's `base`.
    fn set_learning_rate(&mut self, learning_rate: f64);
}

/// An optimizer whose state can be stored, restored and cloned behind a box.
pub trait Stateful: Scheduled {
    /// Bytes of states and scratch memory for these parameters, as the allocator counts them
    /// (multiples of 512), if every parameter that is not frozen has a gradient. States are kept
    /// from the first update on. Scratch memory is freed after each update.
    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory;

    /// Handles to the state tensors by name: `{parameter}.{state}`, with PyTorch's names for
    /// states.
    ///
    /// # Errors
    /// `Swapped`.
    fn state(&self, parameters: &mut dyn Parameters) -> Result<OptimizerState>;

    /// Replaces the state by `state`. The optimizer takes its tensors.
    ///
    /// # Errors
    /// `State` with the name of a tensor that does not fit the parameters and options, `Swapped`.
    /// The optimizer is then as before.
    fn set_state(&mut self, parameters: &mut dyn Parameters, state: OptimizerState) -> Result<()>;

    /// Exchanges the values of the parameters with their averages. Returns false if the optimizer
    /// keeps no averages. See [`Averaged::swap`](crate::optim::Averaged::swap).
    ///
    /// # Errors
    /// The errors of [`Averaged::swap`](crate::optim::Averaged::swap).
    fn swap_averages(&mut self, _parameters: &mut dyn Parameters) -> Result<bool> {
        Ok(false)
    }

    /// The optimizer of the model `_model`, if this optimizer has one for each model; see
    /// [`ByModel`](crate::optim::ByModel).
    fn of_model(&mut self, _model: &str) -> Option<&mut dyn Stateful> {
        None
    }

    /// A clone with states in 8 bits, for use before the first update. `None` if the states cannot
    /// be in 8 bits, or are already.
    fn eight_bit(&self) -> Option<Box<dyn Stateful>> {
        None
    }

    /// A boxed clone, so that a `Box<dyn Stateful>` can be cloned.
    fn boxed_clone(&self) -> Box<dyn Stateful>;
}

/// The state of an optimizer without its options.
#[derive(Clone, Debug)]
pub struct OptimizerState {
    /// Number of updates so far.
    pub steps: u64,
    /// The learning rate without the optimizer's schedule.
    pub learning_rate: f64,
    /// The state tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// The number of updates and the learning rate of each model, for an optimizer of several
    /// models; see [`ByModel`](crate::optim::ByModel).
    pub models: BTreeMap<String, Pace>,
}

impl OptimizerState {
    /// The number of updates and the learning rate.
    pub fn pace(&self) -> Pace {
        Pace { steps: self.steps, learning_rate: self.learning_rate }
    }
}

/// The number of updates and the learning rate of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Number of updates so far.
    pub steps: u64,
    /// The learning rate without the optimizer's schedule.
    pub learning_rate: f64,
}

/// Memory of an optimizer beside parameters and gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptimizerMemory {
    /// Bytes that are kept between updates.
    pub state_bytes: usize,
    /// Bytes that are allocated and freed within one update.
    pub scratch_bytes: usize,
}

/// An update that cannot run out of memory any more.
pub struct Update<'a> {
    commit: Box<dyn FnOnce() -> Result<()> + 'a>,
}

impl<'a> Update<'a> {
    /// An update that `commit` applies. The function must not allocate on a device.
    pub fn new(commit: impl FnOnce() -> Result<()> + 'a) -> Self {
        Update { commit: Box::new(commit) }
    }

    /// Writes parameters and states in place.
    ///
    /// # Errors
    /// `Frozen` if a parameter is frozen; then nothing was written. An error of a device that fails
    /// in the middle; then some parameters are updated and others are not.
    pub fn commit(self) -> Result<()> {
        (self.commit)()
    }
}

/// An update of one parameter at a time, while backward still computes other gradients.
pub trait FusedUpdate {
    /// Writes one parameter and its states in place. Allocates nothing. A leaf without a parameter
    /// and a frozen parameter are skipped.
    ///
    /// # Errors
    /// `Gradient` for a shape that does not fit, `Frozen`; then nothing was written. An error of a
    /// device that fails.
    fn apply(&mut self, leaf: LeafId, gradient: Tensor) -> Result<()>;

    /// Counts the update. Parameters without a gradient stay as they are.
    ///
    /// # Errors
    /// The error of a device that fails.
    fn finish(self: Box<Self>) -> Result<()>;
}
