//! Tensors that are joined, split, rotated, and put on diagonals.

use lowtide_autograd::{GridOrder, Var};
use lowtide_tensor::Tensor;

use super::reductions::axis;
use super::views::from_first;
use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, at, named, no_form, no_such, one};

pub(super) const OPS: Family = &[
    ("block_diag", |call| one(Var::block_diag(operands(call)?)?)),
    ("broadcast_tensors", |call| {
        let operands = operands(call)?;
        let rank = operands.iter().map(|x| x.shape().len()).max().unwrap_or_default();
        let mut shape = vec![1; rank];
        for x in &operands {
            let own = shape.iter_mut().rev().zip(x.shape().iter().rev());
            own.filter(|(_, len)| **len != 1).for_each(|(all, &len)| *all = len);
        }
        let expanded = operands.into_iter().map(|x| x.expand(&shape[..]));
        expanded.map(|x| Ok(x?.into())).collect()
    }),
    ("column_stack", |call| one(Var::column_stack(operands(call)?)?)),
    ("diag", |call| {
        let x = call.var(INPUT)?;
        let offset = call.integer(at(1, "diagonal"))?.unwrap_or(0);
        match x.shape().len() {
            1 => one(embedded(x, offset, [0, 1])?),
            2 => one(x.diagonal(offset, 0, 1)?),
            _ => no_such(call, "more than two dimensions"),
        }
    }),
    ("diag_embed", |call| {
        let offset = call.integer(at(1, "offset"))?.unwrap_or(0);
        let a = call.integer(at(2, "dim1"))?.unwrap_or(-2);
        let b = call.integer(at(3, "dim2"))?.unwrap_or(-1);
        one(embedded(call.var(INPUT)?, offset, [a, b])?)
    }),
    ("diagflat", |call| {
        let x = call.var(INPUT)?;
        let len = x.shape().element_count();
        let offset = call.integer(at(1, "offset"))?.unwrap_or(0);
        one(embedded(x.reshape([len])?, offset, [0, 1])?)
    }),
    ("dsplit", |call| split_along(call, 2)),
    ("dstack", |call| one(Var::dstack(operands(call)?)?)),
    ("fliplr", |call| one(call.var(INPUT)?.flip(&[1])?)),
    ("flipud", |call| one(call.var(INPUT)?.flip(&[0])?)),
    ("hsplit", |call| {
        let is_vector = call.var(INPUT)?.shape().len() == 1;
        split_along(call, if is_vector { 0 } else { 1 })
    }),
    ("hstack", |call| one(Var::hstack(operands(call)?)?)),
    ("kron", |call| one(call.var(INPUT)?.kron(call.var(at(1, "other"))?)?)),
    ("linalg.diagonal", |call| {
        let offset = call.integer(named("offset"))?.unwrap_or(0);
        let a = call.integer(named("dim1"))?.unwrap_or(-2);
        let b = call.integer(named("dim2"))?.unwrap_or(-1);
        one(call.var(INPUT)?.diagonal(offset, a, b)?)
    }),
    ("linalg.multi_dot", |call| one(Var::multi_dot(operands(call)?)?)),
    ("meshgrid/list_of_tensors", meshgrid),
    ("meshgrid/variadic_tensors", meshgrid),
    ("rot90", |call| {
        let x = call.var(INPUT)?;
        let turns = call.integer(at(1, "k"))?.unwrap_or(1).rem_euclid(4);
        let dims = call.integers(at(2, "dims"))?.unwrap_or_else(|| vec![0, 1]);
        let &[a, b] = &dims[..] else { return no_such(call, "dims") };
        if turns == 2 || a == b {
            return one(x.flip(&[a, b])?);
        }
        one(match turns {
            0 => x,
            1 => x.flip(&[b])?.transpose(a, b)?,
            _ => x.flip(&[a])?.transpose(a, b)?,
        })
    }),
    ("tensor_split", |call| {
        let x = call.var(INPUT)?;
        let dim = from_first(axis(call, at(2, "dim"), &x)?.unwrap_or(0), x.shape().len());
        let parts = at(1, "tensor_indices_or_sections");
        if call.value(parts).is_some_and(|value| call.var_of(value).is_some()) {
            return no_form("a tensor as numbers");
        }
        split_at(call, x, dim, parts)
    }),
    ("tensordot", |call| {
        let (a, b) = (call.var(INPUT)?, call.var(at(1, "other"))?);
        let dims = at(2, "dims");
        let lists = call.value(dims).and_then(|value| value.as_array());
        let Some([first, second]) = lists.map(Vec::as_slice) else {
            let count = call.count(dims)?.unwrap_or(2);
            let rank = a.shape().len();
            let axes: Vec<usize> = (rank.saturating_sub(count)..rank).collect();
            let other_axes: Vec<usize> = (0..count).collect();
            return one(a.tensordot(b, &axes, &other_axes)?);
        };
        let axes = |value: &serde_json::Value| -> Result<Vec<isize>> {
            let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            let axis = |item: &serde_json::Value| item.as_i64().map(|axis| axis as isize);
            let all: Option<Vec<isize>> = items.iter().map(axis).collect();
            all.ok_or_else(|| call.mismatch(dims, value))
        };
        one(a.tensordot(b, &axes(first)?, &axes(second)?)?)
    }),
    ("vsplit", |call| split_along(call, 0)),
    ("vstack", |call| one(Var::vstack(operands(call)?)?)),
];

/// All operands: a list, or separate arguments.
fn operands(call: &Call<'_>) -> Result<Vec<Var>> {
    const LIST: At = at(0, "tensors");
    if call.value(LIST).is_some_and(|value| value.is_array()) {
        return call.vars(LIST);
    }
    let var = |value| call.var_of(value).ok_or_else(|| call.mismatch(LIST, value));
    call.rest(0).iter().map(var).collect()
}

fn meshgrid(call: &Call<'_>) -> Result<Vec<Output>> {
    let order = match call.text(named("indexing"))? {
        None | Some("ij") => GridOrder::Matrix,
        Some("xy") => GridOrder::Plane,
        Some(_) => return no_such(call, "indexing"),
    };
    let points = Var::meshgrid(operands(call)?, order)?;
    Ok(points.into_iter().map(Output::Var).collect())
}

/// Matrices in two new dimensions, with the last dimension of `x` on a diagonal.
fn embedded(x: Var, offset: isize, dims: [isize; 2]) -> Result<Var> {
    let Some((&len, before)) = x.shape().split_last() else {
        // lowtide's error for a tensor without dimensions.
        return Ok(x.diagonal(offset, 0, 1)?);
    };
    let side = len + offset.unsigned_abs();
    let shape = [before, &[side, side]].concat();
    let zeros = Tensor::zeros(x.value().device(), &shape[..], x.value().dtype())?;
    let y = x.pass().constant(zeros).diagonal_scatter(x.clone(), offset, -2, -1)?;
    Ok(y.movedims(&[-2, -1], &dims)?)
}

/// Equal parts along a dimension, or parts between given places.
fn split_along(call: &Call<'_>, dim: usize) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let parts = at(1, "indices_or_sections");
    if let Some(&len) = x.shape().get(dim)
        && call.value(parts).is_some_and(|value| !value.is_array())
    {
        let count = call.count(parts)?.unwrap_or_default();
        if count == 0 || len % count != 0 {
            return no_such(call, "parts that are not equal");
        }
    }
    split_at(call, x, dim, parts)
}

/// Splits along a dimension: at given places, or into a number of parts. If the parts cannot be
/// equal, the first parts are longer.
fn split_at(call: &Call<'_>, x: Var, dim: usize, parts: At) -> Result<Vec<Output>> {
    let Some(&len) = x.shape().get(dim) else { return Ok(vec![x.unbind(dim)?.remove(0).into()]) };
    let places: Vec<usize> = if call.value(parts).is_some_and(|value| value.is_array()) {
        let places = call.integers(parts)?.unwrap_or_default();
        let place = |place: isize| {
            if place < 0 { len.saturating_add_signed(place) } else { place.unsigned_abs().min(len) }
        };
        places.into_iter().map(place).collect()
    } else {
        let count = call.count(parts)?.unwrap_or_default();
        if count == 0 {
            return no_such(call, "no parts");
        }
        (1..count).map(|part| part * (len / count) + part.min(len % count)).collect()
    };
    let starts = [0].into_iter().chain(places.iter().copied());
    let parts = starts
        .zip(places.iter().copied().chain([len]))
        .map(|(start, end)| Ok(x.clone().narrow(dim, start, end.saturating_sub(start))?.into()));
    parts.collect()
}
