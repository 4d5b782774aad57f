//! Lookup of rows of a table; x: [..] of indices, W: [V, D], y: [.., D].

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;
use crate::parallel::features::vocabulary::VocabularyShare;
use crate::parameter::Parameter;

/// A learned vector for each index, `torch.nn.Embedding`.
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Parameter,
    padding: Option<usize>,
    /// The rows of the table on this rank, if ranks share the table.
    pub(crate) share: Option<VocabularyShare>,
}

impl Embedding {
    /// A table of `rows` vectors of `width`, from the standard normal distribution.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, rows: usize, width: usize) -> Result<Self> {
        let mut weight = Tensor::empty_in(device, Category::Parameter, [rows, width], DType::F32)?;
        weight.normal_(key.op("weight"), 0.0, 1.0)?;
        Ok(Embedding::from_parameter(Parameter::new(weight)))
    }

    /// A layer with this table, `[V, D]`.
    pub fn from_parameter(weight: Parameter) -> Self {
        Embedding { weight, padding: None, share: None }
    }

    /// This layer with a row for padding, `padding_idx`. The row is set to zeros and never gets a
    /// gradient.
    ///
    /// # Errors
    /// `Index` for a row outside of the table.
    pub fn with_padding(mut self, row: usize) -> Result<Self> {
        self.weight.value().select(0, row)?.zero_()?;
        self.padding = Some(row);
        Ok(self)
    }

    /// Number of features of each vector.
    pub fn width(&self) -> usize {
        self.weight.value().shape()[1]
    }

    /// Number of rows of the table on this rank.
    pub(crate) fn rows(&self) -> usize {
        self.weight.value().shape()[0]
    }

    pub(crate) fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The rows on this rank, if ranks [share](crate::parallel::share_layers) the table.
    pub fn vocabulary(&self) -> Option<&VocabularyShare> {
        self.share.as_ref()
    }

    /// The table in a pass; on a rank that shares the table, its rows of the table.
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
        let y = match &self.share {
            Some(share) => share.embedding(table, &index)?,
            None => table.embedding(&index)?,
        };
        let Some(row) = self.padding else { return Ok(y) };
        // Lookups of the padding row become constants, which have no gradient.
        let is_padding = index.eq_scalar(row as f64)?.unsqueeze(-1)?;
        Ok(y.clone().detach().where_cond(&is_padding, y)?)
    }
}
