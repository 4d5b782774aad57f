//! Frozen linear layers in 8 or 4 bits.

use lowtide_allocator::Category;
use lowtide_tensor::{QuantFormat, Quantized, Shape, Tensor};

use crate::buffer::Buffer;
use crate::error::Result;
use crate::layers::linear::Linear;
use crate::lora::{Targets, matched};
use crate::module::Parameters;

/// A quantised weight whose tensors are buffers: files and plans know them by name.
#[derive(Clone, Debug)]
pub(crate) struct QuantizedWeight {
    format: QuantFormat,
    shape: Shape,
    parts: Vec<(String, Buffer)>,
}

impl QuantizedWeight {
    /// `weight` in few bits.
    pub(crate) fn encode(weight: &Tensor, format: QuantFormat) -> Result<Self> {
        let _scope = weight.device().category(Category::Parameter);
        Self::of(&Quantized::encode(weight, format)?)
    }

    pub(crate) fn of(weight: &Quantized) -> Result<Self> {
        let (format, shape) = (weight.format(), *weight.shape());
        let names = format.parts(shape)?;
        let parts = names.iter().zip(weight.parts());
        let parts = parts.map(|(part, tensor)| {
            (format!("weight.{}", part.name), Buffer::constant(tensor.clone()))
        });
        Ok(QuantizedWeight { format, shape, parts: parts.collect() })
    }

    pub(crate) fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        self.parts.iter_mut().for_each(|(name, buffer)| visitor(name, buffer));
    }

    /// Handles to the tensors as they are.
    pub(crate) fn get(&self) -> Result<Quantized> {
        let parts = self.parts.iter().map(|(_, buffer)| buffer.value().clone()).collect();
        Ok(Quantized::from_parts(self.format, self.shape, parts)?)
    }
}

/// Puts the weights of the layers of `targets` in few bits, one after the other, so that a layer's
/// floats are there twice at most: as f32 on the host, and as codes. Biases stay. Quantised weights
/// have no gradient and are buffers, `{layer}.weight.codes` and the like. Layers that are
/// quantised already are left alone. Returns the names of the layers.
///
/// ```
/// use lowtide_nn::{LoraOptions, Parameters, Targets, adapt, models::Mlp, quantize};
/// use lowtide_tensor::{CpuOptions, Device, QuantFormat, RandomKey};
///
/// let (device, key) = (Device::cpu(CpuOptions::default())?, RandomKey::new(0));
/// let mut model = Mlp::new(&device, key, &[64, 128, 2])?;
/// quantize(&mut model, &Targets::AllLinear, QuantFormat::Nf4 { double: true })?;
/// adapt(&mut model, key, &LoraOptions::default())?; // QLoRA
/// let mut names = Vec::new();
/// model.visit_buffers(&mut |name, _| names.push(name.to_owned()));
/// assert_eq!(names[..2], ["0.weight.codes", "0.weight.scales"]);
/// # Ok::<(), lowtide_nn::NnError>(())
/// ```
///
/// # Errors
/// `Adapter` for targets that match no layer, with the layers that there are, and `Shape` for one
/// whose rows are no whole blocks: then nothing was changed. `OutOfMemory`: the layers before are
/// quantised.
pub fn quantize(
    model: &mut dyn Parameters,
    targets: &Targets,
    format: QuantFormat,
) -> Result<Vec<String>> {
    let names = matched(model, targets)?;
    let mut outcome = Ok(());
    let mut check = |name: &str, layer: &mut Linear| {
        if outcome.is_ok() && names.iter().any(|target| target == name) {
            outcome = format.parts(*layer.weight().value().shape()).map(drop);
        }
    };
    model.visit_linears(&mut check);
    outcome?;
    let mut outcome = Ok(());
    model.visit_linears(&mut |name, layer| {
        if outcome.is_ok() && names.iter().any(|target| target == name) {
            outcome = layer.quantize(format);
        }
    });
    outcome?;
    Ok(names)
}
