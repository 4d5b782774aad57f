//! An optimizer that ascends the loss instead of descending.

use lowtide_autograd::Gradients;
use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::module::Parameters;
use crate::optim::optimizer::{
    Optimizer, OptimizerMemory, OptimizerState, Scheduled, Stateful, Update,
};

/// An optimizer that maximises the loss: the inner optimizer gets the negated gradients, as with
/// `maximize=True` of PyTorch's optimizers. Weight decay still shrinks the parameters.
///
/// Gradients are negated in place if no other handle holds them. All parameters are updated at
/// once: [`Optimizer::can_fuse`] is false.
#[derive(Clone, Debug)]
pub struct Ascending<O>(pub O);

impl<O: Optimizer> Optimizer for Ascending<O> {
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        mut gradients: Gradients,
    ) -> Result<Update<'_>> {
        for gradient in gradients.iter_mut() {
            // A gradient that is a broadcast view, such as the gradient of a mean, becomes a new
            // tensor.
            if gradient.is_reusable() { gradient.neg_()? } else { *gradient = gradient.neg()? }
        }
        self.0.prepare(parameters, gradients)
    }

    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.0.visit_state(visitor);
    }
}

impl<O: Scheduled> Scheduled for Ascending<O> {
    fn steps(&self) -> u64 {
        self.0.steps()
    }

    fn learning_rate(&self) -> f64 {
        self.0.learning_rate()
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.0.set_learning_rate(learning_rate);
    }
}

impl<O: Stateful + Clone + 'static> Stateful for Ascending<O> {
    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory {
        self.0.memory(parameters)
    }

    fn state(&self, parameters: &mut dyn Parameters) -> Result<OptimizerState> {
        self.0.state(parameters)
    }

    fn set_state(&mut self, parameters: &mut dyn Parameters, state: OptimizerState) -> Result<()> {
        self.0.set_state(parameters, state)
    }

    fn swap_averages(&mut self, parameters: &mut dyn Parameters) -> Result<bool> {
        self.0.swap_averages(parameters)
    }

    fn eight_bit(&self) -> Option<Box<dyn Stateful>> {
        Some(Box::new(Ascending(self.0.eight_bit()?)))
    }

    fn boxed_clone(&self) -> Box<dyn Stateful> {
        Box::new(self.clone())
    }
}
