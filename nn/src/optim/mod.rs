//! Optimizers: `prepare` does everything that can fail, `commit` writes in place and allocates
//! nothing.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod amsgrad;
mod ascending;
mod average;
mod boxed;
mod by_model;
mod clip;
mod file;
mod lamb;
mod lion;
mod masked;
mod muon;
mod nadam;
mod part;
mod per_parameter;
mod radam;
mod rms_prop;
mod rprop;
mod rule;
mod sgd;
mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use lowtide_autograd::{Attempt, Gradients, LeafId};
use lowtide_tensor::Tensor;

use crate::buffer::{check_buffers, commit_buffers};
use crate::error::{NnError, Result};
use crate::module::Parameters;
use crate::parameter::Parameter;

pub use adadelta::{Adadelta, AdadeltaOptions};
pub use adafactor::{Adafactor, AdafactorOptions};
pub use adagrad::{Adagrad, AdagradOptions};
pub use adam::{Adam, AdamOptions, WeightDecay};
pub use adamax::{Adamax, AdamaxOptions};
pub use amsgrad::{Amsgrad, AmsgradOptions};
pub use ascending::Ascending;
pub use average::Averaged;
pub use by_model::{ByModel, OneModel};
pub use clip::{clip_norm, clip_scale, clip_value, shorten};
pub use file::{
    load_state, part_of_state_from_safetensors, save_state, state_from_safetensors,
    state_to_safetensors,
};
pub use lamb::{Lamb, LambOptions};
pub use lion::{Lion, LionOptions};
pub use masked::Masked;
pub use muon::{Matrices, Muon, MuonOptions, RateScale};
pub use nadam::{Nadam, NadamOptions};
pub use part::{Part, Parts};
pub use per_parameter::PerParameter;
pub use radam::{Radam, RadamOptions};
pub use rms_prop::{RmsProp, RmsPropOptions, Spread};
pub use rprop::{Rprop, RpropOptions};
pub use rule::{Job, Scratch, StateShape, StateSpec, UpdateRule, UpdateStep};
pub use sgd::{Momentum, Sgd, SgdOptions};

pub(crate) use per_parameter::is_like;

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

    /// Whether one parameter can be updated after the other, with the bits of one update of all:
    /// not where the update of an element depends on other elements, or takes memory.
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

    /// Whether [parts](Parts) of parameters can be updated, with the bits of an update of all: not
    /// where the update of an element depends on other elements or on its place.
    fn can_update_parts(&self) -> bool {
        false
    }

    /// Shows every tensor of the state in a fixed order: to freeze, hash or replace them.
    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor));

    /// `prepare` and `commit`: one update from the gradients of `attempt`, which is used up, so
    /// that there is nothing to set to zero. Buffers are written as well.
    ///
    /// # Errors
    /// Those of [`Optimizer::prepare`] and [`commit_buffers`].
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

    /// Exchanges the parameters' values and their averages, if the optimizer keeps some, and tells
    /// whether it does: see [`Averaged::swap`].
    ///
    /// # Errors
    /// Those of [`Averaged::swap`].
    fn swap_averages(&mut self, _parameters: &mut dyn Parameters) -> Result<bool> {
        Ok(false)
    }

    /// The optimizer of one of several models, if this one is made of such: see [`ByModel`].
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
    /// The updates and step sizes of several models that have each their own: see [`ByModel`].
    pub models: BTreeMap<String, Pace>,
}

impl OptimizerState {
    /// How far it is, and how fast it goes.
    pub fn pace(&self) -> Pace {
        Pace { steps: self.steps, learning_rate: self.learning_rate }
    }
}

/// What an optimizer's state has beside tensors.
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
    /// What a device reports that fails.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// `Ok` if `value` satisfies `valid`.
pub(crate) fn check_option(
    name: &'static str,
    value: f64,
    range: &'static str,
    valid: impl Fn(f64) -> bool,
) -> Result<()> {
    if valid(value) { Ok(()) } else { Err(NnError::Option { name, value, range }) }
}

/// Shows each parameter once, also a parameter that several layers of a model share.
pub(crate) fn visit_once(
    parameters: &mut dyn Parameters,
    visitor: &mut dyn FnMut(&str, &mut Parameter),
) {
    let mut seen = BTreeSet::new();
    parameters.visit(&mut |name, parameter| {
        if seen.insert(parameter.id()) {
            visitor(name, parameter);
        }
    });
}

/// `Ok` if none of the options is below 0.
pub(crate) fn check_not_negative(options: &[(&'static str, f64)]) -> Result<()> {
    options.iter().try_for_each(|&(name, value)| check_option(name, value, "0..", |x| x >= 0.0))
}

/// `Ok` if both decay rates are from 0 to below 1.
pub(crate) fn check_betas(betas: [f64; 2]) -> Result<()> {
    let check = |beta| check_option("beta", beta, "0..1", |x| (0.0..1.0).contains(&x));
    betas.into_iter().try_for_each(check)
}
