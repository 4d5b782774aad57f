//! A weight in 8 or 4 bits.

use lowtide_allocator::Category;
use lowtide_autograd::Var;
use lowtide_tensor::{QuantFormat, Quantized, Shape, Tensor, TensorError};

use crate::buffer::Buffer;
use crate::error::Result;

/// The type of the numbers that a linear layer with a quantised weight multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// Floats: a panel of the weight is decoded at a time. The result is nearest to the result of
    /// the original layer. For every format.
    #[default]
    Float,
    /// Integers, for weights in [`QuantFormat::Int8Rows`]. Every forward pass converts each row of
    /// the input to 8 bits, scaled by the largest magnitude of the row. Faster on a CPU with
    /// instructions for bytes if a layer has some hundred features or more; in a smaller layer the
    /// rounding of the input takes longer than the product. For inference: the inputs are rounded,
    /// and backward ignores the rounding. NVIDIA devices have no kernel for this.
    Int8,
}

/// A quantised weight whose tensors are buffers: files and plans know them by name.
#[derive(Clone, Debug)]
pub(crate) struct QuantizedWeight {
    format: QuantFormat,
    shape: Shape,
    parts: Vec<(&'static str, Buffer)>,
    activations: Activations,
}

impl QuantizedWeight {
    /// Quantises `weight`.
    pub(crate) fn encode(weight: &Tensor, format: QuantFormat) -> Result<Self> {
        let _scope = weight.device().category(Category::Parameter);
        Self::of(&Quantized::encode(weight, format)?)
    }

    pub(crate) fn of(weight: &Quantized) -> Result<Self> {
        let (format, shape) = (weight.format(), *weight.shape());
        let names = format.parts(shape)?;
        let parts = names.iter().zip(weight.parts());
        let parts = parts.map(|(part, tensor)| (part.name, Buffer::constant(tensor.clone())));
        let activations = Activations::default();
        Ok(QuantizedWeight { format, shape, parts: parts.collect(), activations })
    }

    /// `input Wᵀ + bias`.
    pub(crate) fn product(&self, input: Var, bias: Option<Var>) -> Result<Var> {
        let weight = self.get()?;
        Ok(match self.activations {
            Activations::Float => input.linear_quantized(&weight, bias)?,
            Activations::Int8 => input.linear_int8(&weight, bias)?,
        })
    }

    pub(crate) fn set_activations(&mut self, activations: Activations) -> Result<()> {
        let (found, expected) = (self.format, QuantFormat::Int8Rows);
        if activations == Activations::Int8 && found != expected {
            return Err(TensorError::Format { op: "set_activations", found, expected }.into());
        }
        self.activations = activations;
        Ok(())
    }

    /// The names of the parts of the format, with their tensors.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Buffer)> {
        self.parts.iter_mut().map(|(part, buffer)| (*part, buffer))
    }

    pub(crate) fn format(&self) -> QuantFormat {
        self.format
    }

    /// Handles to the tensors as they are.
    pub(crate) fn get(&self) -> Result<Quantized> {
        let parts = self.parts.iter().map(|(_, buffer)| buffer.value().clone()).collect();
        Ok(Quantized::from_parts(self.format, self.shape, parts)?)
    }
}
