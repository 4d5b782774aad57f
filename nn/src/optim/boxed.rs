//! Boxed optimizers are optimizers, for code that chooses the kind at run time.

use std::collections::BTreeSet;

use lowtide_autograd::{Gradients, LeafId};
use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::module::Parameters;
use crate::optim::optimizer::{
    FusedUpdate, Optimizer, OptimizerMemory, OptimizerState, Scheduled, Stateful, Update,
};

impl Clone for Box<dyn Stateful> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

impl Optimizer for Box<dyn Stateful> {
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> Result<Update<'_>> {
        (**self).prepare(parameters, gradients)
    }

    fn can_fuse(&self) -> bool {
        (**self).can_fuse()
    }

    fn can_update_parts(&self) -> bool {
        (**self).can_update_parts()
    }

    fn fused(
        &mut self,
        parameters: &mut dyn Parameters,
        leaves: &BTreeSet<LeafId>,
    ) -> Result<Option<Box<dyn FusedUpdate + '_>>> {
        (**self).fused(parameters, leaves)
    }

    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        (**self).visit_state(visitor);
    }
}

impl Scheduled for Box<dyn Stateful> {
    fn steps(&self) -> u64 {
        (**self).steps()
    }

    fn learning_rate(&self) -> f64 {
        (**self).learning_rate()
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        (**self).set_learning_rate(learning_rate);
    }
}

impl Stateful for Box<dyn Stateful> {
    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory {
        (**self).memory(parameters)
    }

    fn state(&self, parameters: &mut dyn Parameters) -> Result<OptimizerState> {
        (**self).state(parameters)
    }

    fn set_state(&mut self, parameters: &mut dyn Parameters, state: OptimizerState) -> Result<()> {
        (**self).set_state(parameters, state)
    }

    fn swap_averages(&mut self, parameters: &mut dyn Parameters) -> Result<bool> {
        (**self).swap_averages(parameters)
    }

    fn of_model(&mut self, model: &str) -> Option<&mut dyn Stateful> {
        (**self).of_model(model)
    }

    fn eight_bit(&self) -> Option<Box<dyn Stateful>> {
        (**self).eight_bit()
    }

    fn boxed_clone(&self) -> Box<dyn Stateful> {
        (**self).boxed_clone()
    }
}
