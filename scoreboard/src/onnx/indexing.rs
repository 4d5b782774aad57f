//! Elements gathered by indices, scattered to indices, or found by values.

use lowtide_autograd::Var;
use lowtide_tensor::{DType, Existing, ScatterReduction, SortOrder, Tensor, Unique, UniqueOptions};

use super::node::NodeCall;
use super::views::as_type;
use super::{Family, with_sizes};
use crate::call::{Output, Result, one};

pub(super) const OPS: Family = &[
    ("Compress", |node| {
        let (x, condition) = (node.var(0)?, node.tensor(1)?);
        let places = nonzero(node, &condition)?.squeeze(1)?;
        match node.attribute_integer("axis")? {
            Some(axis) => one(x.index_select(axis, &places)?),
            None => {
                let len = x.shape().element_count();
                one(x.reshape([len])?.index_select(0, &places)?)
            }
        }
    }),
    ("Gather", |node| {
        let x = node.var(0)?;
        let axis = node.attribute_axis("axis", 0, x.shape().len())?;
        let index = from_first(node, node.tensor(1)?, x.shape()[axis])?;
        let shape = with_sizes(x.shape(), axis, index.shape(), axis + 1);
        let index = index.reshape([index.element_count()])?;
        one(x.index_select(axis, &index)?.reshape(&shape[..])?)
    }),
    ("GatherElements", |node| {
        let x = node.var(0)?;
        let axis = node.attribute_axis("axis", 0, x.shape().len())?;
        let index = from_first(node, node.tensor(1)?, x.shape()[axis])?;
        one(x.gather(axis, &index)?)
    }),
    ("GatherND", |node| {
        let (x, index) = (node.var(0)?, node.tensor(1)?);
        let batch = node.attribute_count("batch_dims")?.unwrap_or(0);
        let places = Places::of(node, &x, &index, batch)?;
        let y = x.reshape(&places.rows[..])?.index_select(0, &places.index)?;
        let rank = index.shape().len();
        let shape = [&index.shape()[..rank - 1], &places.rest[..]].concat();
        one(y.reshape(&shape[..])?)
    }),
    ("NonZero", |node| one(nonzero(node, &node.tensor(0)?)?.t()?)),
    ("OneHot", |node| {
        let index = as_type(node, node.tensor(0)?, DType::I64)?;
        let depth = node.number(1)?.unwrap_or(0.0);
        let values = node.var(2)?;
        let rank = index.shape().len() + 1;
        let axis = node.attribute_axis("axis", -1, rank)?;
        // Negative indices count from the end. Indices outside the classes give no 1.
        let is_negative = index.lt_scalar(0.0)?;
        let index = is_negative.where_cond(&index.add_scalar(depth)?, &index)?;
        let classes = Tensor::arange(node.device(), 0.0..depth, 1.0, DType::I64)?;
        let mut shape = vec![1; rank];
        shape[axis] = classes.element_count();
        let is_class = index.unsqueeze(axis)?.eq(&classes.reshape(&shape[..])?)?;
        let (off, on) = (values.clone().narrow(0, 0, 1)?, values.narrow(0, 1, 1)?);
        one(on.where_cond(&is_class, off)?)
    }),
    ("ReverseSequence", |node| {
        let x = node.var(0)?;
        let lens = node.integers(1)?.unwrap_or_default();
        let time = node.attribute_axis("time_axis", 0, x.shape().len())?;
        let batch = node.attribute_axis("batch_axis", 1, x.shape().len())?;
        let mut rows = Vec::new();
        for (index, &len) in lens.iter().enumerate() {
            let len = len.max(0) as usize;
            let row = x.clone().narrow(batch, index, 1)?;
            let after = x.shape()[time].saturating_sub(len);
            let turned = row.clone().narrow(time, 0, len)?.flip(&[time])?;
            rows.push(Var::cat(vec![turned, row.narrow(time, len, after)?], time)?);
        }
        one(Var::cat(rows, batch)?)
    }),
    ("Scatter", scatter),
    ("ScatterElements", scatter),
    ("ScatterND", |node| {
        let (x, index, updates) = (node.var(0)?, node.tensor(1)?, node.var(2)?);
        let places = Places::of(node, &x, &index, 0)?;
        let shape = *x.shape();
        let rows = x.reshape(&places.rows[..])?;
        let mut update_shape = places.rows.clone();
        update_shape[0] = places.index.element_count();
        let updates = updates.reshape(&update_shape[..])?;
        let y = match node.text("reduction")?.unwrap_or("none") {
            "none" => rows.index_copy(0, &places.index, updates)?,
            "add" => rows.index_add(0, &places.index, updates)?,
            other => {
                let how = reduction(node, other)?;
                rows.index_reduce(0, &places.index, updates, how, Existing::Included)?
            }
        };
        one(y.reshape(shape)?)
    }),
    ("TensorScatter", |node| {
        let (cache, update) = (node.var(0)?, node.var(1)?);
        let rank = cache.shape().len();
        let axis = node.attribute_axis("axis", -2, rank)?;
        let is_circular = node.text("mode")?.unwrap_or("linear") == "circular";
        let (len, count) = (cache.shape()[axis], update.shape()[axis]);
        let shape = *update.shape();
        let places = Tensor::arange(node.device(), 0.0..count as f64, 1.0, DType::I64)?;
        let mut along = vec![1; rank];
        along[axis] = count;
        let mut places = places.reshape(&along[..])?;
        if let Some(starts) = node.optional_var(2) {
            // The first place of each sample.
            let mut by_sample = vec![1; rank];
            by_sample[0] = shape[0];
            places = places.add(&starts.into_value().reshape(&by_sample[..])?)?;
        }
        if is_circular {
            places = places.remainder_scalar(len as f64)?;
        }
        let places = places.expand(shape)?.contiguous()?;
        one(cache.scatter(axis, &places, update)?)
    }),
    ("Unique", unique),
];

/// Indices of the elements that are not zero. A simulated device cannot compute their number and
/// gets the recorded number.
fn nonzero(node: &NodeCall<'_>, x: &Tensor) -> Result<Tensor> {
    let axes: Vec<usize> = (0..x.shape().len()).collect();
    let count = node.integers_of(&x.count_nonzero(&axes)?)?;
    let count = count.first().map_or(0, |&count| count.max(0) as usize);
    Ok(x.nonzero_assuming(count)?)
}

/// ONNX indices in lowtide's form: i64 from 0 on. Negative indices of ONNX count from the end.
fn from_first(node: &NodeCall<'_>, index: Tensor, len: usize) -> Result<Tensor> {
    let index = as_type(node, index, DType::I64)?;
    if len == 0 || index.element_count() == 0 {
        return Ok(index);
    }
    let is_negative = index.lt_scalar(0.0)?;
    Ok(is_negative.where_cond(&index.add_scalar(len as f64)?, &index)?)
}

fn scatter(node: &NodeCall<'_>) -> Result<Vec<Output>> {
    let (x, source) = (node.var(0)?, node.var(2)?);
    let axis = node.attribute_axis("axis", 0, x.shape().len())?;
    let index = from_first(node, node.tensor(1)?, x.shape()[axis])?;
    match node.text("reduction")?.unwrap_or("none") {
        "none" => one(x.scatter(axis, &index, source)?),
        "add" => one(x.scatter_add(axis, &index, source)?),
        other => {
            let how = reduction(node, other)?;
            one(x.scatter_reduce(axis, &index, source, how, Existing::Included)?)
        }
    }
}

fn reduction(node: &NodeCall<'_>, name: &str) -> Result<ScatterReduction> {
    match name {
        "mul" => Ok(ScatterReduction::Prod),
        "max" => Ok(ScatterReduction::Amax),
        "min" => Ok(ScatterReduction::Amin),
        other => node.no_form(&format!("reduction = {other}")),
    }
}

/// The unique elements or slices, with the position of the first occurrence of each, the index of
/// the unique element for every compared element or slice, and the count of each.
fn unique(node: &NodeCall<'_>) -> Result<Vec<Output>> {
    let x = node.tensor(0)?;
    let axis = node.attribute_integer("axis")?;
    let axis = axis.map(|axis| node.axis(axis, x.shape().len())).transpose()?;
    let compared = axis.map_or(x.element_count(), |axis| x.shape()[axis]);
    let options = UniqueOptions { along: axis.map(Into::into), assumed_count: Some(compared) };
    let Unique { values, inverse, counts } = x.unique(options)?;
    let inverse = inverse.reshape([compared])?;
    // The count comes from the values. A simulated device gets the recorded count.
    let largest = node.integers_of(&inverse.amax(&[0])?)?;
    let count = largest.first().map_or(0, |&largest| largest.max(0) as usize + 1);
    let along = axis.unwrap_or(0);
    let (values, counts) = (values.narrow(along, 0, count)?, counts.narrow(0, 0, count)?);
    let numbers = |len: usize| Tensor::arange(node.device(), 0.0..len as f64, 1.0, DType::I64);
    let first = Tensor::full(node.device(), [count], DType::I64, compared as f64)?;
    let how = (ScatterReduction::Amin, Existing::Included);
    let first = first.index_reduce(0, &inverse, &numbers(compared)?, how.0, how.1)?;
    if node.flag("sorted")?.unwrap_or(true) {
        return Ok([values, first, inverse, counts].map(Output::Tensor).into());
    }
    // The values are ordered by their first places.
    let (first, order) = first.sort(0, SortOrder::Ascending)?;
    let rank = Tensor::zeros(node.device(), [count], DType::I64)?;
    let rank = rank.scatter(0, &order, &numbers(count)?)?;
    let values = values.index_select(along, &order)?;
    let (inverse, counts) = (rank.index_select(0, &inverse)?, counts.index_select(0, &order)?);
    Ok([values, first, inverse, counts].map(Output::Tensor).into())
}

/// Tuples of indices as row indices of a table.
struct Places {
    /// The table's shape: the indexed dimensions as one dimension, then the other dimensions.
    rows: Vec<usize>,
    /// The dimensions that are not indexed.
    rest: Vec<usize>,
    /// A row index for each tuple.
    index: Tensor,
}

impl Places {
    /// The row indices for the tuples in the last dimension of `index`. The first `batch`
    /// dimensions are common to `x` and `index`.
    fn of(node: &NodeCall<'_>, x: &Var, index: &Tensor, batch: usize) -> Result<Self> {
        let (shape, rank) = (*x.shape(), index.shape().len());
        let width = index.shape().last().copied().unwrap_or(0);
        if rank == 0 || batch + width > shape.len() {
            return Err(node.wrong("more indices than dimensions"));
        }
        let (indexed, rest) = shape.split_at(batch + width);
        let index = as_type(node, index.clone(), DType::I64)?;
        let (mut places, mut stride) = (None::<Tensor>, 1);
        for column in (0..width).rev() {
            let len = indexed[batch + column];
            let part = from_first(node, index.select(rank - 1, column)?, len)?;
            let part = part.mul_scalar(stride as f64)?;
            places = Some(match places {
                Some(places) => places.add(&part)?,
                None => part,
            });
            stride *= len;
        }
        let mut places = places.ok_or_else(|| node.wrong("no indices"))?;
        for axis in (0..batch).rev() {
            let samples =
                Tensor::arange(node.device(), 0.0..indexed[axis] as f64, 1.0, DType::I64)?;
            let mut along = vec![1; rank - 1];
            along[axis] = indexed[axis];
            let first = samples.mul_scalar(stride as f64)?.reshape(&along[..])?;
            places = places.add(&first)?;
            stride *= indexed[axis];
        }
        let index = places.reshape([places.element_count()])?;
        let rows = [&[stride], rest].concat();
        Ok(Places { rows, rest: rest.to_vec(), index })
    }
}
