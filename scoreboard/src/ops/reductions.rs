//! Reductions, scans and sorting.

use lowtide_autograd::Var;
use lowtide_tensor::{DType, SortOrder, Tensor};

use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, Stop, at, named, one};
use crate::outcome::Reason;

/// A reduction over dimensions, whose result has a gradient.
macro_rules! over {
    ($($name:literal $drop:ident $keep:ident)*) => {
        &[$(($name, |call| {
            let (x, axes, keep) = over(call, at(1, "dim"), at(2, "keepdim"))?;
            let x = converted(call, x)?;
            in_type(call, if keep { x.$keep(&axes)? } else { x.$drop(&axes)? })
        })),*]
    };
}

/// A reduction over dimensions, whose result has no gradient.
macro_rules! over_values {
    ($($name:literal $drop:ident $keep:ident)*) => {
        &[$(($name, |call| {
            let (x, axes, keep) = over(call, at(1, "dim"), at(2, "keepdim"))?;
            let x = x.value();
            let y = if keep { x.$keep(&axes)? } else { x.$drop(&axes)? };
            one(byte_for_byte(x, y)?)
        })),*]
    };
}

/// The maximum or minimum along a dimension, and its place.
macro_rules! extremes {
    ($call:ident, $drop:ident, $keep:ident) => {{
        let x = $call.var(INPUT)?;
        let dim = axis($call, at(1, "dim"), &x)?.unwrap_or(-1);
        let keep = $call.flag(at(2, "keepdim"))?.unwrap_or(false);
        let (values, places) = if keep { x.$keep(dim)? } else { x.$drop(dim)? };
        Ok(vec![values.into(), places.into()])
    }};
}

macro_rules! positions {
    ($call:ident, $all:ident, $drop:ident, $keep:ident) => {{
        let var = $call.var(INPUT)?;
        let x = var.value();
        let keep = $call.flag(at(2, "keepdim"))?.unwrap_or(false);
        match axis($call, at(1, "dim"), &var)? {
            Some(dim) => one(if keep { x.$keep(dim)? } else { x.$drop(dim)? }),
            None if keep => one(x.$all()?.reshape(&vec![1; x.shape().len()][..])?),
            None => one(x.$all()?),
        }
    }};
}

pub(super) const SUMS: Family = over! {
    "amax" amax amax_keep "amin" amin amin_keep "mean" mean mean_keep "prod" prod prod_keep
    "sum" sum sum_keep
};

pub(super) const COUNTS: Family = over_values! {
    "all" all all_keep "any" any any_keep
    "count_nonzero" count_nonzero count_nonzero_keep
};

pub(super) const OPS: Family = &[
    ("argmax", |call| positions!(call, argmax_all, argmax_axis, argmax_keep)),
    ("argmin", |call| positions!(call, argmin_all, argmin_axis, argmin_keep)),
    ("argsort", |call| {
        let (x, dim, order) = sorted(call)?;
        one(x.value().argsort(dim, order)?)
    }),
    ("cumprod", |call| {
        let x = converted(call, call.var(INPUT)?)?;
        let dim = axis(call, at(1, "dim"), &x)?.unwrap_or(-1);
        in_type(call, x.cumprod(dim)?)
    }),
    ("cumsum", |call| {
        let x = converted(call, call.var(INPUT)?)?;
        let dim = axis(call, at(1, "dim"), &x)?.unwrap_or(-1);
        in_type(call, x.cumsum(dim)?)
    }),
    ("linalg.vector_norm", |call| {
        let (x, axes, keep) = over(call, at(2, "dim"), at(3, "keepdim"))?;
        let order = call.number(at(1, "ord"))?.unwrap_or(2.0);
        let x = converted(call, x)?;
        one(if keep { x.norm_keep(&axes, order)? } else { x.norm(&axes, order)? })
    }),
    ("logsumexp", |call| {
        let (x, axes, keep) = over(call, at(1, "dim"), at(2, "keepdim"))?;
        one(if keep { x.logsumexp_keep(&axes)? } else { x.logsumexp(&axes)? })
    }),
    ("max/reduction_no_dim", |call| {
        let x = call.var(INPUT)?;
        let axes = all_axes(&x);
        one(x.amax(&axes)?)
    }),
    ("max/reduction_with_dim", |call| extremes!(call, max, max_keep)),
    ("min/reduction_no_dim", |call| {
        let x = call.var(INPUT)?;
        let axes = all_axes(&x);
        one(x.amin(&axes)?)
    }),
    ("min/reduction_with_dim", |call| extremes!(call, min, min_keep)),
    ("msort", |call| one(call.var(INPUT)?.sort(0, SortOrder::Ascending)?.0)),
    ("norm", |call| {
        let (x, axes, keep) = over(call, at(2, "dim"), at(3, "keepdim"))?;
        let order = call.number(at(1, "p"))?.unwrap_or(2.0);
        one(if keep { x.norm_keep(&axes, order)? } else { x.norm(&axes, order)? })
    }),
    ("norm/fro", |call| {
        // The argument is the word for order 2.
        call.value(at(1, "p"));
        let (x, axes, keep) = over(call, at(2, "dim"), at(3, "keepdim"))?;
        one(if keep { x.norm_keep(&axes, 2.0)? } else { x.norm(&axes, 2.0)? })
    }),
    ("norm/inf", |call| {
        let (x, axes, keep) = over(call, at(2, "dim"), at(3, "keepdim"))?;
        let order = call.number(at(1, "p"))?.unwrap_or(2.0);
        one(if keep { x.norm_keep(&axes, order)? } else { x.norm(&axes, order)? })
    }),
    ("sort", |call| {
        let (x, dim, order) = sorted(call)?;
        let (values, places) = x.sort(dim, order)?;
        Ok(vec![values.into(), places.into()])
    }),
    ("std", |call| {
        let (x, axes, correction, keep) = spread(call)?;
        one(if keep { x.std_keep(&axes, correction)? } else { x.std(&axes, correction)? })
    }),
    ("std/unbiased", |call| {
        let (x, axes, correction, keep) = spread(call)?;
        one(if keep { x.std_keep(&axes, correction)? } else { x.std(&axes, correction)? })
    }),
    ("std_mean", std_mean),
    ("std_mean/unbiased", std_mean),
    ("sum_to_size", |call| {
        let sizes = if call.case().arguments.get(1).is_some_and(|value| value.is_array()) {
            call.counts(at(1, "size"))?.unwrap_or_default()
        } else {
            let sizes = call.rest(1).iter();
            sizes.map(|size| call.count_of(at(1, "size"), size)).collect::<Result<_>>()?
        };
        one(call.var(INPUT)?.sum_to(&sizes[..])?)
    }),
    ("topk", |call| {
        let x = call.var(INPUT)?;
        let k = call.count(at(1, "k"))?.unwrap_or_default();
        let dim = axis(call, at(2, "dim"), &x)?.unwrap_or(-1);
        check_dimension(&x, dim)?;
        let largest = call.flag(at(3, "largest"))?.unwrap_or(true);
        // lowtide always sorts.
        call.flag(at(4, "sorted"))?;
        let order = if largest { SortOrder::Descending } else { SortOrder::Ascending };
        let (values, places) = x.topk(k, dim, order)?;
        Ok(vec![values.into(), places.into()])
    }),
    ("var", |call| {
        let (x, axes, correction, keep) = spread(call)?;
        one(if keep { x.var_keep(&axes, correction)? } else { x.var(&axes, correction)? })
    }),
    ("var/unbiased", |call| {
        let (x, axes, correction, keep) = spread(call)?;
        one(if keep { x.var_keep(&axes, correction)? } else { x.var(&axes, correction)? })
    }),
    ("var_mean", var_mean),
    ("var_mean/unbiased", var_mean),
];

fn std_mean(call: &Call<'_>) -> Result<Vec<Output>> {
    let (x, axes, correction, keep) = spread(call)?;
    let mean = if keep { x.clone().mean_keep(&axes)? } else { x.clone().mean(&axes)? };
    let std = if keep { x.std_keep(&axes, correction)? } else { x.std(&axes, correction)? };
    Ok(vec![std.into(), mean.into()])
}

fn var_mean(call: &Call<'_>) -> Result<Vec<Output>> {
    let (x, axes, correction, keep) = spread(call)?;
    let mean = if keep { x.clone().mean_keep(&axes)? } else { x.clone().mean(&axes)? };
    let var = if keep { x.var_keep(&axes, correction)? } else { x.var(&axes, correction)? };
    Ok(vec![var.into(), mean.into()])
}

fn all_axes(x: &Var) -> Vec<isize> {
    (0..x.shape().len() as isize).collect()
}

/// Checks that a tensor without dimensions is not reduced along dimension 0. PyTorch treats such a
/// tensor as having one dimension of length 1.
fn check_dimension(x: &Var, dim: isize) -> Result<()> {
    if x.shape().is_empty() && (-1..=0).contains(&dim) {
        return Err(Stop::NotApplicable(Reason::NoDimensions, format!("dimension {dim}")));
    }
    Ok(())
}

/// A dimension, if one is given.
pub(super) fn axis(call: &Call<'_>, at: At, x: &Var) -> Result<Option<isize>> {
    let dim = call.integer(at)?;
    dim.map_or(Ok(()), |dim| check_dimension(x, dim))?;
    Ok(dim)
}

/// The operand, the dimensions to reduce (all if none are given), and true if the dimensions are
/// kept.
pub(super) fn over(call: &Call<'_>, dims: At, keep: At) -> Result<(Var, Vec<isize>, bool)> {
    let x = call.var(INPUT)?;
    let axes = call.integers(dims)?.filter(|axes| !axes.is_empty());
    axes.iter().flatten().try_for_each(|&dim| check_dimension(&x, dim))?;
    let axes = axes.unwrap_or_else(|| all_axes(&x));
    Ok((x, axes, call.flag(keep)?.unwrap_or(false)))
}

/// The operand in the type of the reduction.
pub(super) fn converted(call: &Call<'_>, x: Var) -> Result<Var> {
    match call.element_type(named("dtype"))? {
        None => Ok(x),
        Some(dtype) if dtype.is_float() && x.value().dtype().is_float() => Ok(x.to_dtype(dtype)?),
        Some(dtype) => Ok(call.pass.constant(x.value().to_dtype(dtype)?)),
    }
}

/// The result in the requested type. Without a requested type, a reduction of integers gives i64.
pub(super) fn in_type(call: &Call<'_>, y: Var) -> Result<Vec<Output>> {
    match call.element_type(named("dtype"))? {
        Some(dtype) if dtype != y.value().dtype() => one(y.value().to_dtype(dtype)?),
        _ => one(y),
    }
}

/// `y` as bytes if `x` has bytes and `y` has truth values, as in PyTorch.
fn byte_for_byte(x: &Tensor, y: Tensor) -> Result<Tensor> {
    match (x.dtype(), y.dtype()) {
        (DType::U8, DType::Bool) => Ok(y.to_dtype(DType::U8)?),
        _ => Ok(y),
    }
}

fn sorted(call: &Call<'_>) -> Result<(Var, isize, SortOrder)> {
    let x = call.var(INPUT)?;
    let dim = axis(call, at(1, "dim"), &x)?.unwrap_or(-1);
    check_dimension(&x, dim)?;
    // Every sort of lowtide is stable.
    call.flag(named("stable"))?;
    let descending = call.flag(at(2, "descending"))?.unwrap_or(false);
    Ok((x, dim, if descending { SortOrder::Descending } else { SortOrder::Ascending }))
}

/// The arguments of a variance.
fn spread(call: &Call<'_>) -> Result<(Var, Vec<isize>, f64, bool)> {
    let (by_position, by_name) = (at(1, "dim"), named("unbiased"));
    let has_flag = call.case().arguments.get(1).is_some_and(|value| value.is_boolean());
    let (dims, unbiased) = if has_flag {
        (named("dim"), call.flag(by_position)?)
    } else {
        (by_position, call.flag(by_name)?)
    };
    let (x, axes, keep) = over(call, dims, named("keepdim"))?;
    let correction = call.number(named("correction"))?;
    let by_flag = unbiased.map(|unbiased| if unbiased { 1.0 } else { 0.0 });
    Ok((x, axes, correction.or(by_flag).unwrap_or(1.0), keep))
}
