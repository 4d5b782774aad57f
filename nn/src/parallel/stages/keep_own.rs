//! Keeps only the parameters of one stage of a model on a rank.

use std::collections::BTreeMap;

use lowtide_allocator::Category;
use lowtide_autograd::{BufferId, LeafId};
use lowtide_tensor::Device;

use crate::error::Result;
use crate::module::{Parameters, keep};
use crate::parameter::stand_in_on;

/// Keeps the parameters of `model` that are in `own`, on `device`. Every other parameter becomes a
/// stand-in with its shape and type, without values, gradient and states. Buffers and quantised
/// weights move to `device` as a whole; only buffers in `own` are updated. Before the call the
/// model may be on another device that has room for it, such as the host.
///
/// # Errors
/// `OutOfMemory` of `device`; the model is then as before.
pub fn keep_own(
    model: &mut dyn Parameters,
    device: &Device,
    is_own: &dyn Fn(LeafId) -> bool,
    is_own_buffer: &dyn Fn(BufferId) -> bool,
) -> Result<()> {
    let _scope = device.category(Category::Parameter);
    let (mut parameters, mut buffers) = (BTreeMap::new(), BTreeMap::new());
    let mut outcome = Ok(());
    model.visit(&mut |_, parameter| {
        let is_kept = is_own(parameter.id()) || parameter.quantized.is_some();
        keep(&mut parameters, parameter.id(), &mut outcome, || {
            if is_kept {
                Ok(parameter.value().to_device(device, Category::Parameter)?)
            } else {
                stand_in_on(device, parameter.value())
            }
        });
    });
    model.visit_buffers(&mut |_, buffer| {
        keep(&mut buffers, buffer.id(), &mut outcome, || {
            Ok(buffer.value().to_device(device, Category::Parameter)?)
        })
    });
    outcome?;
    model.visit(&mut |_, parameter| {
        *parameter.value_mut() = parameters[&parameter.id()].clone();
        parameter.is_elsewhere = !is_own(parameter.id()) && parameter.quantized.is_none();
    });
    model.visit_buffers(&mut |_, buffer| {
        *buffer.value_mut() = buffers[&buffer.id()].clone();
        buffer.is_elsewhere = !is_own_buffer(buffer.id());
    });
    Ok(())
}
