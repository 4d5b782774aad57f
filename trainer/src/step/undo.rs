//! Undoing the update of an earlier turn when a later turn of the step fails.

use lowtide_allocator::Category;
use lowtide_autograd::BufferUpdates;
use lowtide_nn::optim::{OneModel, OptimizerState, Stateful};
use lowtide_nn::{NnResult, Parameters};
use lowtide_tensor::{Device, Tensor};

use crate::error::Result;

/// Copies of all values that the update of one model overwrites.
pub(crate) struct Undo {
    model: String,
    /// Each tensor with its copy.
    copies: Vec<(Tensor, Tensor)>,
    optimizer: OptimizerState,
}

impl Undo {
    /// Copies the model's parameters and their optimizer's state, and the buffers that `updates`
    /// replaces.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn new(
        device: &Device,
        model: &str,
        parameters: &mut dyn Parameters,
        optimizer: &mut dyn Stateful,
        updates: &BufferUpdates,
    ) -> Result<Undo> {
        let _scope = device.category(Category::Other);
        let mut tensors = Vec::new();
        parameters.visit_buffers(&mut |_, buffer| {
            if updates.get(buffer.id()).is_some() {
                tensors.push(buffer.value().clone());
            }
        });
        let mut own = OneModel { parameters, model };
        own.visit(&mut |_, parameter| tensors.push(parameter.value().clone()));
        optimizer.visit_state(&mut |tensor| tensors.push(tensor.clone()));
        let state = optimizer.state(&mut own)?;
        let copies = tensors.into_iter().map(|tensor| {
            let copy = tensor.copied()?;
            Ok((tensor, copy))
        });
        let copies = copies.collect::<Result<_>>()?;
        Ok(Undo { model: model.to_owned(), copies, optimizer: state })
    }

    /// Restores all copies; allocates nothing.
    ///
    /// # Errors
    /// Errors of the device. Some tensors are then restored and some are not.
    pub(crate) fn undo(
        self,
        parameters: &mut dyn Parameters,
        optimizer: &mut dyn Stateful,
    ) -> NnResult<()> {
        for (mut tensor, copy) in self.copies {
            tensor.copy_(&copy)?;
        }
        let mut model = OneModel { parameters, model: &self.model };
        optimizer.set_state(&mut model, self.optimizer)
    }

    /// The model whose update is undone.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }
}
