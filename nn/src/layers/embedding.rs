//! Rows of a table; x: [..] of indices, W: [V, D], y: [.., D].

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::error::Result;
use crate::fields::parameters;
use crate::module::Module;
use crate::parameter::Parameter;

/// A learned vector for each index, `torch.nn.Embedding`.
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Parameter,
    padding: Option<usize>,
}

impl Embedding {
    /// A table of `rows` vectors of `width`, from the standard normal distribution.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, rows: usize, width: usize) -> Result<Self> {
        let mut weight = Tensor::empty_in(device, Category::Parameter, [rows, width], DType::F32)?;
        weight.normal_(key.op("weight"), 0.0, 1.0)?;
        Ok(Embedding { weight: Parameter::new(weight), padding: None })
    }

    /// A layer with this table, `[V, D]`.
    pub fn from_parameter(weight: Parameter) -> Self {
        Embedding { weight, padding: None }
    }

    /// This layer with a row for padding, `padding_idx`: zeros now, and no gradient ever.
    ///
    /// # Errors
    /// `Index` for a row that there is not.
    pub fn with_padding(mut self, row: usize) -> Result<Self> {
        self.weight.value().select(0, row)?.zero_()?;
        self.padding = Some(row);
        Ok(self)
    }

    /// Features of each vector.
    pub fn width(&self) -> usize {
        self.weight.value().shape()[1]
    }

    /// The table in a pass.
    ///
    /// # Errors
    /// `Consumed` after backward.
    pub fn table(&self, pass: &Pass) -> Result<Var> {
        self.weight.var(pass)
    }
}

parameters!(Embedding { weight });

impl Module for Embedding {
    /// # Shapes
    /// `input: [..]` of i64 `→ [.., D]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let (index, table) = (input.into_value(), self.weight.var(pass)?);
        let y = table.embedding(&index)?;
        let Some(row) = self.padding else { return Ok(y) };
        // What the mask leaves out is a constant: no gradient.
        let is_padding = index.eq_scalar(row as f64)?.unsqueeze(-1)?;
        Ok(y.clone().detach().where_cond(&is_padding, y)?)
    }
}
