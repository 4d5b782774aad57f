//! PREPARE: the parts of an update that can fail.

use lowtide_autograd::{BufferUpdates, Gradients};
use lowtide_nn::check_buffers;
use lowtide_nn::optim::{OneModel, Optimizer, Stateful, Update};
use lowtide_tensor::{Device, Tensor};

use crate::error::Result;
use crate::parallel::division::Division;
use crate::step::turn::{ModelTurn, optimizer_of};
use crate::step::undo::Undo;
use crate::task::contract::Task;

/// The preparation of the update of one turn.
pub(crate) struct Preparation<'a, T> {
    pub(crate) device: &'a Device,
    pub(crate) task: &'a mut T,
    pub(crate) division: &'a dyn Division<T>,
    pub(crate) turn: &'a ModelTurn,
    pub(crate) buffers: &'a BufferUpdates,
    /// Receives copies of the values that are overwritten, if other turns follow.
    pub(crate) undo: &'a mut Vec<Undo>,
}

impl<T: Task> Preparation<'_, T> {
    /// Prepares the update by these gradients. `frozen` keeps the state from being written until
    /// then.
    ///
    /// # Errors
    /// `OutOfMemory`; errors of the optimizer.
    pub(crate) fn update<'o>(
        self,
        optimizer: &'o mut dyn Stateful,
        gradients: Gradients,
        frozen: Frozen,
    ) -> Result<Update<'o>> {
        let Preparation { device, task, division, turn, buffers, undo } = self;
        let optimizer = optimizer_of(optimizer, turn.model())?;
        let parameters = task.parameters();
        let update = match turn.model() {
            Some(model) => {
                if !turn.is_last {
                    undo.push(Undo::new(device, model, parameters, optimizer, buffers)?);
                }
                let mut own = OneModel { parameters: &mut *parameters, model };
                division.prepare(optimizer, &mut own, gradients)?
            }
            None => division.prepare(optimizer, &mut *parameters, gradients)?,
        };
        drop(frozen);
        check_buffers(parameters, buffers)?;
        Ok(update)
    }
}

/// Protects parameters, buffers and the optimizer's state against writes until it is dropped.
pub(crate) struct Frozen(Vec<Tensor>);

impl Frozen {
    pub(crate) fn new(task: &mut impl Task, optimizer: &mut impl Optimizer) -> Self {
        let mut tensors = Vec::new();
        task.parameters().visit_tensors(&mut |_, tensor| tensors.push(tensor.clone()));
        optimizer.visit_state(&mut |tensor| tensors.push(tensor.clone()));
        tensors.iter().for_each(Tensor::freeze);
        Frozen(tensors)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.iter().for_each(Tensor::unfreeze);
    }
}
