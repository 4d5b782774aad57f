//! Places from several indices, scatter reductions, and replacement of parts.

use lowtide_autograd::Var;
use lowtide_tensor::{Arrival, DType, Existing, ScatterReduction, Tensor};
use serde_json::Value;

use super::indexing::{expected_len, index};
use super::reductions::axis;
use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, at, named, no_form, one};
use crate::case::Numbers;

const DIM: At = at(1, "dim");

pub(super) const OPS: Family = &[
    ("__getitem__", getitem),
    ("diagonal_scatter", |call| {
        let (x, source) = (call.var(INPUT)?, call.var(at(1, "src"))?);
        let offset = call.integer(at(2, "offset"))?.unwrap_or(0);
        let a = call.integer(at(3, "dim1"))?.unwrap_or(0);
        let b = call.integer(at(4, "dim2"))?.unwrap_or(1);
        one(x.diagonal_scatter(source, offset, a, b)?)
    }),
    ("index_fill", |call| {
        let x = call.var(INPUT)?;
        let dim = axis(call, DIM, &x)?.unwrap_or(0);
        let index = index(call, at(2, "index"))?;
        let value = at(3, "value");
        match call.value(value).and_then(|value| call.var_of(value)) {
            // A value with a gradient is copied to the places.
            Some(value) => {
                let mut slices = x.shape().to_vec();
                let rank = slices.len();
                let along =
                    if dim < 0 { rank.wrapping_add_signed(dim) } else { dim.unsigned_abs() };
                slices[along] = index.shape().element_count();
                one(x.index_copy(dim, &index, value.expand(&slices[..])?)?)
            }
            None => one(x.index_fill(dim, &index, call.number(value)?.unwrap_or_default())?),
        }
    }),
    ("index_put", |call| {
        let (x, values) = (call.var(INPUT)?, call.var(at(2, "values"))?);
        let mut indices = Vec::new();
        for index in call.vars(at(1, "indices"))? {
            let index = index.into_value();
            match index.dtype() {
                DType::Bool => {
                    // The count comes from the values. A simulated device gets the recorded count.
                    let axes: Vec<usize> = (0..index.shape().len()).collect();
                    let count = match call.numbers_of(&index.count_nonzero(&axes)?)? {
                        Numbers::Integers(count) => {
                            count.first().map_or(0, |&count| count as usize)
                        }
                        Numbers::Floats(_) => return no_form("a mask that is none"),
                    };
                    let places = index.nonzero_assuming(count)?;
                    for column in 0..places.shape()[1] {
                        indices.push(places.select(1, column)?);
                    }
                }
                _ => indices.push(index.to_dtype(DType::I64)?),
            }
        }
        let accumulate = call.flag(at(3, "accumulate"))?;
        let refs: Vec<&Tensor> = indices.iter().collect();
        one(x.index_put(&refs, values, arrival(accumulate))?)
    }),
    ("index_reduce/amax", index_reduce),
    ("index_reduce/amin", index_reduce),
    ("index_reduce/mean", index_reduce),
    ("index_reduce/prod", index_reduce),
    ("masked_scatter", |call| {
        let (x, mask) = (call.var(INPUT)?, call.constant(at(1, "mask"))?);
        one(x.masked_scatter(&mask, call.var(at(2, "source"))?)?)
    }),
    ("nonzero_static", |call| {
        let count = call.count(named("size"))?.unwrap_or_default();
        let fill = call.integer(named("fill_value"))?.unwrap_or(-1);
        one(call.var(INPUT)?.value().nonzero_static(count, fill as i64)?)
    }),
    ("put", |call| {
        let (x, index) = (call.var(INPUT)?, index(call, at(1, "index"))?);
        let source = call.var(at(2, "source"))?.reshape(*index.shape())?;
        one(x.put(&index, source, arrival(call.flag(at(3, "accumulate"))?))?)
    }),
    ("scatter_reduce/amax", scatter_reduce),
    ("scatter_reduce/amin", scatter_reduce),
    ("scatter_reduce/mean", scatter_reduce),
    ("scatter_reduce/prod", scatter_reduce),
    ("scatter_reduce/sum", scatter_reduce),
    ("select_scatter", |call| {
        let (x, source) = (call.var(INPUT)?, call.var(at(1, "src"))?);
        let dim = axis(call, at(2, "dim"), &x)?.unwrap_or(0);
        let index = call.integer(at(3, "index"))?.unwrap_or(0);
        let index = from_first(index, along(&x, dim));
        one(x.select_scatter(source, dim, index)?)
    }),
    ("slice_scatter", |call| {
        let (x, source) = (call.var(INPUT)?, call.var(at(1, "src"))?);
        let dim = axis(call, at(2, "dim"), &x)?.unwrap_or(0);
        let len = along(&x, dim);
        let place = |place: isize| from_first(place, len).min(len);
        let start = call.integer(at(3, "start"))?.map_or(0, place);
        let end = call.integer(at(4, "end"))?.map_or(len, place);
        let step = call.count(at(5, "step"))?.unwrap_or(1);
        one(x.slice_scatter(source, dim, start..end, step)?)
    }),
    ("take", |call| one(call.var(INPUT)?.take(&index(call, at(1, "index"))?)?)),
];

fn arrival(accumulate: Option<bool>) -> Arrival {
    if accumulate.unwrap_or(false) { Arrival::Add } else { Arrival::Replace }
}

/// The length of a dimension.
fn along(x: &Var, dim: isize) -> usize {
    let axis = from_first(dim, x.shape().len());
    x.shape().get(axis).copied().unwrap_or(0)
}

/// A place counted from the first; a negative place counts from the end.
fn from_first(place: isize, len: usize) -> usize {
    if place < 0 { len.saturating_add_signed(place) } else { place.unsigned_abs() }
}

/// The reduction, and the treatment of existing elements.
fn how(call: &Call<'_>) -> Result<(ScatterReduction, Existing)> {
    let reduction = match call.text(at(4, "reduce"))? {
        Some("sum") => ScatterReduction::Sum,
        Some("prod") => ScatterReduction::Prod,
        Some("mean") => ScatterReduction::Mean,
        Some("amax") => ScatterReduction::Amax,
        Some("amin") => ScatterReduction::Amin,
        _ => return no_form("another reduction"),
    };
    let include = call.flag(named("include_self"))?.unwrap_or(true);
    Ok((reduction, if include { Existing::Included } else { Existing::Replaced }))
}

fn scatter_reduce(call: &Call<'_>) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let dim = axis(call, DIM, &x)?.unwrap_or(0);
    let (index, source) = (index(call, at(2, "index"))?, call.var(at(3, "src"))?);
    let (reduction, existing) = how(call)?;
    one(x.scatter_reduce(dim, &index, source, reduction, existing)?)
}

fn index_reduce(call: &Call<'_>) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let dim = axis(call, DIM, &x)?.unwrap_or(0);
    let (index, source) = (index(call, at(2, "index"))?, call.var(at(3, "source"))?);
    let (reduction, existing) = how(call)?;
    one(x.index_reduce(dim, &index, source, reduction, existing)?)
}

/// Indexing by brackets. Whole numbers and slices make views. Lists and tensors select places
/// together. If the indexed dimensions are adjacent, the dimension of the places replaces them;
/// otherwise the dimension of the places comes first.
fn getitem(call: &Call<'_>) -> Result<Vec<Output>> {
    let place = at(1, "key");
    let key = call.value(place).cloned().unwrap_or_default();
    // A key of numbers alone is one list of places.
    let is_tuple = key.as_array().is_some_and(|items| !items.iter().all(Value::is_i64));
    let items = if is_tuple { key.as_array().cloned().unwrap_or_default() } else { vec![key] };
    let mut x = call.var(INPUT)?;
    let (mut dim, mut named): (usize, Vec<(usize, Tensor)>) = (0, Vec::new());
    for item in &items {
        if let Some(number) = item.as_i64() {
            let len = x.shape().get(dim).copied().unwrap_or(0);
            x = x.select(dim, from_first(number as isize, len))?;
        } else if let Some(slice) = item.get("slice").and_then(Value::as_array) {
            let len = x.shape().get(dim).copied().unwrap_or(0);
            let [start, end, step] = [0, 1, 2].map(|at| slice.get(at).and_then(Value::as_i64));
            let of = |place: Option<i64>, default: usize| {
                place.map_or(default, |place| from_first(place as isize, len).min(len))
            };
            let step = step.unwrap_or(1).unsigned_abs() as usize;
            x = x.slice(dim, of(start, 0)..of(end, len), step)?;
            dim += 1;
        } else if item.get("ellipsis").is_some() {
            dim += x.shape().len() - dim - (items.len() - 1);
        } else {
            for index in places(call, place, item)? {
                named.push((dim, index));
                dim += 1;
            }
        }
    }
    let (Some(first), Some(last)) = (named.first(), named.last()) else { return one(x) };
    let (first, are_neighbours) = (first.0, last.0 - first.0 + 1 == named.len());
    let axes: Vec<usize> = named.iter().map(|(axis, _)| *axis).collect();
    let rest = (0..x.shape().len()).filter(|axis| !axes.contains(axis));
    let order: Vec<usize> = axes.iter().copied().chain(rest).collect();
    let refs: Vec<&Tensor> = named.iter().map(|(_, index)| index).collect();
    let kept_rank = x.shape().len() - named.len();
    let mut y = x.permute(&order)?.index(&refs)?;
    if are_neighbours {
        let named_rank = y.shape().len() - kept_rank;
        let before = named_rank..named_rank + first;
        let after = named_rank + first..y.shape().len();
        let order: Vec<usize> = before.chain(0..named_rank).chain(after).collect();
        y = y.permute(&order)?;
    }
    one(y)
}

/// The indices of a list or tensor in the key; for a mask, one index tensor for each dimension.
fn places(call: &Call<'_>, place: At, item: &Value) -> Result<Vec<Tensor>> {
    if let Some(index) = call.var_of(item) {
        let index = index.into_value();
        if index.dtype() != DType::Bool {
            return Ok(vec![index.to_dtype(DType::I64)?]);
        }
        let places = index.nonzero_assuming(expected_len(call))?;
        let columns = (0..places.shape()[1]).map(|column| places.select(1, column));
        return Ok(columns.collect::<std::result::Result<_, _>>()?);
    }
    let numbers: Option<Vec<i64>> =
        item.as_array().and_then(|items| items.iter().map(Value::as_i64).collect());
    let numbers = numbers.ok_or_else(|| call.mismatch(place, item))?;
    Ok(vec![Tensor::from_slice(&call.device, [numbers.len()], &numbers)?])
}
