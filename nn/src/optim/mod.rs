//! Optimizers: `prepare` does everything that can fail, `commit` writes in place and allocates
//! nothing.

mod adagrad;
mod adam;
mod elementwise;
mod lion;
mod rms_prop;
mod sgd;
mod slots;

use lowtide_autograd::{Attempt, Gradients};
use lowtide_tensor::{Device, Tensor};

use crate::{NnError, Parameters, Result, check_buffers, commit_buffers};

pub use adagrad::{Adagrad, AdagradOptions};
pub use adam::{Adam, AdamOptions};
pub use elementwise::{Elementwise, UpdateRule, UpdateStep};
pub use lion::{Lion, LionOptions};
pub use lowtide_tensor::WeightDecay;
pub use rms_prop::{RmsProp, RmsPropOptions, Spread};
pub use sgd::{Momentum, Sgd, SgdOptions};

/// One update of all parameters from one set of gradients.
pub trait Optimizer {
    /// Checks every gradient and allocates whatever state is missing. Parameters without a
    /// gradient are left alone, as in PyTorch. Nothing changes before [`Update::commit`];
    /// dropping the update instead leaves everything as it was.
    ///
    /// # Errors
    /// `Gradient` for a shape that does not fit, `OutOfMemory`.
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> Result<Update<'_>>;

    /// Shows the state tensors in a fixed order; to freeze, hash or store them.
    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor));

    /// Updates so far.
    fn steps(&self) -> u64;

    /// The step size of the next update.
    fn learning_rate(&self) -> f64;

    /// Sets the step size of the next update; schedules call it.
    fn set_learning_rate(&mut self, learning_rate: f64);

    /// Bytes of state and scratch for these parameters, as the allocator counts them (multiples
    /// of 512). State is kept from the first update on; scratch only lives in one.
    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory;

    /// This optimizer with its state's stand-ins on a simulated device; see
    /// [`lowtide_tensor::Tensor::twin`]. `None` when the device does not simulate its tensors'.
    fn twin(&self, sim: &Device) -> Option<Self>
    where
        Self: Sized;

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

/// What an optimizer needs beside parameters and gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptimizerMemory {
    /// Kept between updates.
    pub state_bytes: usize,
    /// Taken and given back within one update.
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
    /// `Frozen` when the parameters still are; then nothing was written.
    pub fn commit(self) -> Result<()> {
        (self.commit)()
    }
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
