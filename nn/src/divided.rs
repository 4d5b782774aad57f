//! Parameters of which each of several ranks has a part, and which are whole only while they are
//! used (ZeRO-3, Rajbhandari et al. 2020).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_tensor::{Device, Tensor};

use crate::error::Result;
use crate::module::{Parameters, keep};
use crate::optim::Part;
use crate::parameter::Parameter;
use crate::quantized::stand_in_on;

/// Puts parameters together whose parts are with several ranks.
pub trait Gather: Debug + Send + Sync {
    /// Completes `whole`, which has this rank's part in its place, with the parts of the others:
    /// each has `part_len` elements in row-major order and by rank, but for the last ones. All
    /// ranks do so in the same order.
    ///
    /// # Errors
    /// What keeps the ranks from it.
    fn gather(&self, whole: &mut Tensor, part_len: usize) -> Result<()>;
}

/// What a rank has of a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Divided {
    part: Part,
    /// Shape `[n]`.
    pub(crate) own: Tensor,
    gather: Arc<dyn Gather>,
}

impl Divided {
    /// All elements, in memory of their own, with the shape and the type of `like`.
    #[track_caller]
    pub(crate) fn whole(&self, like: &Tensor) -> Result<Tensor> {
        let (device, len) = (self.own.device(), like.element_count());
        let mut whole = Tensor::empty_in(device, Category::Parameter, *like.shape(), like.dtype())?;
        self.part.of(&whole)?.copy_(&self.own)?;
        self.gather.gather(&mut whole, self.part.len_of(len))?;
        Ok(whole)
    }
}

/// Leaves of every parameter of `model` its `part` on `device`, and moves all else there: buffers,
/// and weights in few bits, which stay whole. The model may be on another device before, such as
/// the host, where it has room. From then on a parameter is whole only from where a pass
/// [uses](Parameter::var) it to its last use in backward; blocks that are recomputed free it in
/// between. An optimizer updates the parts, by [`Parts`](crate::optim::Parts).
///
/// # Errors
/// `OutOfMemory` of `device`; nothing has changed then.
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

/// The same parameter with its part alone.
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
        divided.divided = Some(Box::new(Divided { part, own, gather: Arc::clone(gather) }));
    }
    Ok(divided)
}

/// Lets the parameters of `model` that are [divided](divide) be put together by another `gather`.
pub fn set_gather(model: &mut dyn Parameters, gather: &Arc<dyn Gather>) {
    model.visit(&mut |_, parameter| {
        if let Some(divided) = &mut parameter.divided {
            divided.gather = Arc::clone(gather);
        }
    });
}
