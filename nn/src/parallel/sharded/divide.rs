//! Divides the parameters of a model among ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_tensor::Device;

use crate::error::Result;
use crate::module::{Parameters, keep};
use crate::optim::part::Part;
use crate::parallel::sharded::gather::{Gather, Sharded};
use crate::parameter::{Parameter, stand_in_on};

/// Divides `model` among ranks: each parameter keeps only its `part`, on `device`. Buffers and
/// quantised weights move to `device` as a whole. Before the call the model may be on another
/// device that has room for it, such as the host. After the call a parameter is whole only from its
/// [use](Parameter::var) in a pass until its last use in backward. A block that is recomputed frees
/// the whole parameter between its two runs. An optimizer updates the parts, by
/// [`Parts`](crate::optim::Parts).
///
/// # Errors
/// `OutOfMemory` of `device`; the model is then as before.
pub fn divide(
    model: &mut dyn Parameters,
    device: &Device,
    part: Part,
    gather: &Arc<dyn Gather>,
) -> Result<()> {
    let _scope = device.category(Category::Parameter);
    let (mut parameters, mut buffers) = (BTreeMap::new(), BTreeMap::new());
    let mut outcome = Ok(());
    model.visit(&mut |_, parameter| {
        if outcome.is_err() || parameters.contains_key(&parameter.id()) {
            return;
        }
        match of_part(parameter, device, part, gather) {
            Ok(divided) => drop(parameters.insert(parameter.id(), divided)),
            Err(error) => outcome = Err(error),
        }
    });
    model.visit_buffers(&mut |_, buffer| {
        keep(&mut buffers, buffer.id(), &mut outcome, || {
            Ok(buffer.value().to_device(device, Category::Parameter)?)
        })
    });
    outcome?;
    model.visit(&mut |_, parameter| *parameter = parameters[&parameter.id()].clone());
    model.visit_buffers(&mut |_, buffer| *buffer.value_mut() = buffers[&buffer.id()].clone());
    Ok(())
}

/// A copy of the parameter that keeps only the part.
fn of_part(
    parameter: &Parameter,
    device: &Device,
    part: Part,
    gather: &Arc<dyn Gather>,
) -> Result<Parameter> {
    let value = parameter.value();
    let mut divided = parameter.with_value(stand_in_on(device, value)?);
    divided.quantized.clone_from(&parameter.quantized);
    if parameter.quantized.is_none() {
        let own = part.of(&value.contiguous()?)?.to_device(device, Category::Parameter)?;
        divided.sharded = Some(Box::new(Sharded { part, own, gather: Arc::clone(gather) }));
    }
    Ok(divided)
}

/// Replaces the [`Gather`] of a [divided](divide) model.
pub fn set_gather(model: &mut dyn Parameters, gather: &Arc<dyn Gather>) {
    model.visit(&mut |_, parameter| {
        if let Some(sharded) = &mut parameter.sharded {
            sharded.gather = Arc::clone(gather);
        }
    });
}
