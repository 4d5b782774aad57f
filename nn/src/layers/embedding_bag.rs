//! Lookup of rows of a table, reduced over bags; x: [B, L] or [N] of indices, W: [V, D], y: [B, D].

use lowtide_allocator::Category;
use lowtide_autograd::{Needs, Pass, Var};
use lowtide_tensor::{
    DType, Device, Existing, RandomKey, ScatterReduction, Shape, Side, Tensor, TensorError,
};

use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// The reduction of the rows of a bag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BagReduction {
    /// The sum of the rows, with weights the sum of weight times row.
    Sum,
    /// The mean of the rows: PyTorch's default.
    #[default]
    Mean,
    /// The largest value of each feature. The first of equal values gets the gradient.
    Max,
}

/// Options of [`embedding_bag`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BagOptions {
    /// The reduction of the rows.
    pub reduction: BagReduction,
    /// An index that belongs to no bag and gets no gradient, `padding_idx`.
    pub padding: Option<usize>,
}

/// The way in which indices are grouped into bags.
#[derive(Clone, Copy, Debug)]
pub enum Bags<'a> {
    /// Each row of indices `[B, L]`.
    Rows,
    /// A bag holds the indices `[N]` from its place up to the next bag's place. The places are
    /// `[B]` of i64, `offsets`; the first is 0, and they do not decrease.
    From(&'a Tensor),
}

/// Looks up rows of a table and reduces them over bags, `torch.nn.functional.embedding_bag`. A bag
/// without rows gives 0. `weights` has a factor for each index, for sums only. Half types are
/// reduced in f32.
///
/// Takes memory for all rows of all bags. Saved tensors are the indices; with weights also the rows
/// and the weights; for [`BagReduction::Max`] also the place of each largest value.
///
/// # Shapes
/// `table: [V, D]`, `index: [B, L]` or `[N]` of i64, `weights` of the shape of `index`, `→ [B, D]`
///
/// # Errors
/// `Shape`, also for weights with another reduction than the sum; `Index` for an index outside of
/// the table and for a first place that is not 0; `DType`, `OutOfMemory`.
pub fn embedding_bag(
    table: Var,
    index: &Tensor,
    bags: Bags<'_>,
    weights: Option<Var>,
    options: BagOptions,
) -> Result<Var> {
    let op = "embedding_bag";
    let BagOptions { reduction, padding } = options;
    let (left, dtype) = (*index.shape(), table.value().dtype());
    let unfit = |right: Shape| TensorError::Shape { op, left, right };
    if let Some(weights) = &weights
        && (reduction != BagReduction::Sum || *weights.shape() != left)
    {
        return Err(unfit(*weights.shape()).into());
    }
    let (bag, count) = match bags {
        Bags::Rows => match left[..] {
            [count, len] => (bag_of_rows(index.device(), count, len)?, count),
            _ => return Err(unfit(Shape::new(&[1, 1])).into()),
        },
        Bags::From(starts) => match (&left[..], &starts.shape()[..]) {
            (&[len], &[count]) => (bag_of_starts(starts, len)?, count),
            _ => return Err(unfit(*starts.shape()).into()),
        },
    };
    let index = index.reshape([left.element_count()])?;
    let is_padding = padding.map(|row| index.eq_scalar(row as f64)).transpose()?;
    let width = table.shape().get(1).copied().unwrap_or(0);
    let rows = table.embedding(&index)?.to_dtype(dtype.computed())?;
    let (device, wide) = (rows.value().device().clone(), rows.value().dtype());
    let pass = rows.pass().clone();
    let rows = match weights {
        Some(weights) => {
            let weights = weights.reshape([left.element_count(), 1])?.to_dtype(wide)?;
            rows.mul(weights)?
        }
        None => rows,
    };
    let hidden = |rows: Var, value: f64| -> Result<Var> {
        match &is_padding {
            Some(is_padding) => Ok(rows.masked_fill(&is_padding.unsqueeze(1)?, value)?),
            None => Ok(rows),
        }
    };
    let zeros = pass.constant(Tensor::zeros(&device, [count, width], wide)?);
    let y = match reduction {
        BagReduction::Sum => zeros.index_add(0, &bag, hidden(rows, 0.0)?)?,
        BagReduction::Mean => {
            let counts = rows_in_bags([&index, &bag], is_padding.as_ref(), count, wide)?;
            let sums = zeros.index_add(0, &bag, hidden(rows, 0.0)?)?;
            divided(sums, &counts.maximum_scalar(1.0)?.unsqueeze(1)?)?
        }
        BagReduction::Max => {
            let y = largest(hidden(rows, f64::NEG_INFINITY)?, &bag, count)?;
            match &is_padding {
                None => y,
                // A bag that holds only padding gives 0.
                Some(_) => {
                    let counts = rows_in_bags([&index, &bag], is_padding.as_ref(), count, wide)?;
                    y.masked_fill(&counts.eq_scalar(0.0)?.unsqueeze(1)?, 0.0)?
                }
            }
        }
    };
    Ok(y.to_dtype(dtype)?)
}

/// `x / counts`. Backward keeps only the counts.
fn divided(x: Var, counts: &Tensor) -> Result<Var> {
    Ok(Var::apply("embedding_bag_mean", [x], |[x], save| {
        let (y, saved) = (x.div(counts)?, save.keep(counts));
        // dx = dy / counts
        let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.div(&saved.unpack()?)?)]);
        Ok((y, rule))
    })?)
}

/// The largest value of each feature in each bag; 0 in a bag without rows. Backward keeps the index
/// of the first row with the largest value.
fn largest(rows: Var, bag: &Tensor, count: usize) -> Result<Var> {
    Ok(Var::apply("embedding_bag_max", [rows], |[rows], save| {
        let (device, len, width) = (rows.device(), rows.shape()[0], rows.shape()[1]);
        let bags = bag.unsqueeze(1)?.expand([len, width])?;
        let zeros = Tensor::zeros(device, [count, width], rows.dtype())?;
        let (amax, amin) = (ScatterReduction::Amax, ScatterReduction::Amin);
        let y = zeros.scatter_reduce(0, &bags, &rows, amax, Existing::Replaced)?;
        let winners = if save.is_needed() {
            let places = Tensor::arange(device, 0.0..len as f64, 1.0, DType::I64)?;
            let places = places.unsqueeze(1)?.expand([len, width])?;
            let is_smaller = rows.lt(&y.index_select(0, bag)?)?;
            let places = places.masked_fill(&is_smaller, len as f64)?;
            // A bag without rows gets the index after the last row.
            let none = Tensor::full(device, [count, width], DType::I64, len as f64)?;
            let first = none.scatter_reduce(0, &bags, &places, amin, Existing::Included)?;
            Some(save.keep(&first))
        } else {
            None
        };
        // drows[p] = Σ dy[b] over the bags b whose largest stood at p
        let rule = move |dy: Tensor, _: Needs| {
            let winners = winners.expect("a rule runs where it was recorded").unpack()?;
            let all = Tensor::zeros(dy.device(), [len + 1, width], dy.dtype())?;
            Ok(vec![Some(all.scatter(0, &winners, &dy)?.narrow(0, 0, len)?)])
        };
        Ok((y, rule))
    })?)
}

/// The bag of each index, for `count` bags of `len` indices.
fn bag_of_rows(device: &Device, count: usize, len: usize) -> Result<Tensor> {
    let rows = Tensor::arange(device, 0.0..count as f64, 1.0, DType::I64)?;
    Ok(rows.unsqueeze(1)?.expand([count, len])?.reshape([count * len])?)
}

/// The bag of each of `len` indices: the number of bags that begin at or before the index, less 1.
fn bag_of_starts(starts: &Tensor, len: usize) -> Result<Tensor> {
    let places = Tensor::arange(starts.device(), 0.0..len as f64, 1.0, DType::I64)?;
    Ok(starts.searchsorted(&places, Side::Right)?.sub_scalar(1.0)?)
}

/// The number of indices in each bag that are not padding.
fn rows_in_bags(
    [index, bag]: [&Tensor; 2],
    is_padding: Option<&Tensor>,
    count: usize,
    dtype: DType,
) -> Result<Tensor> {
    let counted = match is_padding {
        Some(is_padding) => is_padding.logical_not()?.to_dtype(dtype)?,
        None => Tensor::full(index.device(), *index.shape(), dtype, 1.0)?,
    };
    Ok(Tensor::zeros(index.device(), [count], dtype)?.index_add(0, bag, &counted)?)
}

/// A learned vector for each index, reduced over bags of indices, `torch.nn.EmbeddingBag`.
#[derive(Clone, Debug)]
pub struct EmbeddingBag {
    weight: Parameter,
    options: BagOptions,
}

impl EmbeddingBag {
    /// A table of `rows` vectors of `width`, from the standard normal distribution. The row for
    /// padding is zeros.
    ///
    /// # Errors
    /// `Index` for a row of padding outside of the table, `OutOfMemory`.
    pub fn new(
        device: &Device,
        key: RandomKey,
        [rows, width]: [usize; 2],
        options: BagOptions,
    ) -> Result<Self> {
        let mut weight = Tensor::empty_in(device, Category::Parameter, [rows, width], DType::F32)?;
        weight.normal_(key.op("weight"), 0.0, 1.0)?;
        if let Some(row) = options.padding {
            weight.select(0, row)?.zero_()?;
        }
        Ok(EmbeddingBag { weight: Parameter::new(weight), options })
    }

    /// [`Module::forward`] for any bags and with weights; see [`embedding_bag`].
    ///
    /// # Errors
    /// The errors of [`embedding_bag`].
    pub fn reduce(
        &self,
        pass: &Pass,
        index: &Tensor,
        bags: Bags<'_>,
        weights: Option<Var>,
    ) -> Result<Var> {
        embedding_bag(self.weight.var(pass)?, index, bags, weights, self.options)
    }
}

parameters!(EmbeddingBag { weight });

impl Module for EmbeddingBag {
    /// # Shapes
    /// `input: [B, L]` of i64 `→ [B, D]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.reduce(pass, &input.into_value(), Bags::Rows, None)
    }
}
