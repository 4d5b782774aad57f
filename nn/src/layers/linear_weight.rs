//! The weight of a linear layer, in floats or in few bits; W: [O, I].

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, QuantFormat, Quantized, Tensor, TensorError};

use crate::compress::quantized_weight::{Activations, QuantizedWeight};
use crate::error::Result;
use crate::parameter::{Parameter, stand_in};

/// A weight `[O, I]`: a parameter, or codes in few bits.
#[derive(Clone, Debug)]
pub(crate) struct LinearWeight {
    /// The weight. If the weight is quantised, this parameter has only its shape and type, no
    /// values.
    pub(super) parameter: Parameter,
    pub(super) quantized: Option<QuantizedWeight>,
}

impl LinearWeight {
    pub(super) fn new(parameter: Parameter) -> Self {
        LinearWeight { parameter, quantized: None }
    }

    /// The tensor of the weight. If the weight is quantised, the tensor has no values.
    pub(crate) fn value(&self) -> &Tensor {
        self.parameter.value()
    }

    /// `input Wᵀ + bias`
    pub(crate) fn product(&self, pass: &Pass, input: Var, bias: Option<Var>) -> Result<Var> {
        match &self.quantized {
            Some(weight) => weight.product(input, bias),
            None => Ok(input.linear(self.parameter.var(pass)?, bias)?),
        }
    }

    /// The weight in a pass. A quantised weight is decoded as a whole.
    pub(crate) fn var(&self, pass: &Pass) -> Result<Var> {
        match &self.quantized {
            Some(weight) => Ok(pass.constant(weight.get()?.decode(self.value().dtype())?)),
            None => self.parameter.var(pass),
        }
    }

    /// Copies rows of the weight, from row `first` on, to `rows` and in the type of `rows`.
    /// Allocates nothing.
    pub(crate) fn copy_rows(&self, first: usize, rows: &mut Tensor) -> Result<()> {
        match &self.quantized {
            Some(weight) => weight.get()?.decode_rows_into(first, rows)?,
            None => rows.copy_(&self.value().narrow(0, first, rows.shape()[0])?)?,
        }
        Ok(())
    }

    pub(super) fn quantize(&mut self, format: QuantFormat) -> Result<()> {
        if self.quantized.is_some() {
            return Ok(());
        }
        let quantized = QuantizedWeight::encode(self.value(), format)?;
        self.replace(quantized)
    }

    pub(super) fn set_quantized(&mut self, weight: &Quantized) -> Result<()> {
        let (left, right) = (*weight.shape(), *self.value().shape());
        if left != right {
            return Err(TensorError::Shape { op: "set_quantized", left, right }.into());
        }
        self.replace(QuantizedWeight::of(weight)?)
    }

    /// Sets the quantised weight, and replaces the parameter by one without values.
    fn replace(&mut self, quantized: QuantizedWeight) -> Result<()> {
        let parameter = Parameter::new(stand_in(self.value())?);
        parameter.freeze();
        *self = LinearWeight { parameter, quantized: Some(quantized) };
        Ok(())
    }

    pub(super) fn dequantize(&mut self, dtype: DType) -> Result<()> {
        if let Some(weight) = &self.quantized {
            let weight = weight.get()?;
            let _scope = weight.device().category(Category::Parameter);
            *self = LinearWeight::new(Parameter::new(weight.decode(dtype)?));
            self.parameter.freeze();
        }
        Ok(())
    }

    pub(super) fn set_activations(&mut self, activations: Activations) -> Result<()> {
        match (&mut self.quantized, activations) {
            (Some(weight), _) => weight.set_activations(activations),
            (None, Activations::Float) => Ok(()),
            (None, Activations::Int8) => {
                let (left, right) = (self.value().dtype(), DType::U8);
                Err(TensorError::DType { op: "set_activations", left, right }.into())
            }
        }
    }

    /// True if the weight is a parameter with values of floats.
    pub(super) fn is_plain(&self) -> bool {
        self.quantized.is_none() && self.parameter.quantized.is_none()
    }
}
