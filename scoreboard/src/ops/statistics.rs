//! Ranked elements, running extremes, counts, distances and covariances.

use lowtide_autograd::Var;
use lowtide_tensor::{
    Covariance, DType, MatrixNorm, QuantileRule, Side, Tensor, Unique, UniqueOptions,
};
use serde_json::Value;

use super::indexing::expected_len;
use super::reductions::{axis, converted, in_type, over};
use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, Stop, at, named, no_form, one};
use crate::outcome::Reason;

/// A value along a dimension and its place, or the value among all elements.
macro_rules! ranked {
    ($call:ident, $all:ident, $drop:ident, $keep:ident) => {{
        let x = $call.var(INPUT)?;
        let keep = $call.flag(at(2, "keepdim"))?.unwrap_or(false);
        match axis($call, at(1, "dim"), &x)? {
            None => one(x.$all()?),
            Some(dim) => {
                let (values, places) = if keep { x.$keep(dim)? } else { x.$drop(dim)? };
                Ok(vec![values.into(), places.into()])
            }
        }
    }};
}

pub(super) const OPS: Family = &[
    ("aminmax", |call| {
        let (x, axes, keep) = over(call, named("dim"), named("keepdim"))?;
        let (low, high) = if keep { x.aminmax_keep(&axes)? } else { x.aminmax(&axes)? };
        Ok(vec![low.into(), high.into()])
    }),
    ("bincount", |call| {
        let x = call.var(INPUT)?.value().to_dtype(DType::I64)?;
        // PyTorch computes weights of other types in f64.
        let weights = match call.optional_constant(at(1, "weights"))? {
            Some(weights) if weights.dtype() != DType::F32 => Some(weights.to_dtype(DType::F64)?),
            weights => weights,
        };
        let count = call.count(at(2, "minlength"))?.unwrap_or(0);
        let assumed = expected_len(call) as i64 - 1;
        one(x.bincount_assuming(weights.as_ref(), count, assumed)?)
    }),
    ("bucketize", |call| {
        let (x, boundaries) = (call.var(INPUT)?, call.constant(at(1, "boundaries"))?);
        let side = side(call)?;
        one(narrowed(call, x.value().bucketize(&boundaries, side)?)?)
    }),
    ("corrcoef", |call| one(call.var(INPUT)?.corrcoef()?)),
    ("cov", |call| {
        let x = call.var(INPUT)?;
        let correction = call.number(named("correction"))?.unwrap_or(1.0);
        let frequencies = call.optional_constant(named("fweights"))?;
        let weights = call.optional_constant(named("aweights"))?;
        let (frequencies, weights) = (frequencies.as_ref(), weights.as_ref());
        one(x.cov(Covariance { correction, frequencies, weights })?)
    }),
    ("cummax", |call| {
        let x = call.var(INPUT)?;
        let (values, places) = x.clone().cummax(axis(call, at(1, "dim"), &x)?.unwrap_or(0))?;
        Ok(vec![values.into(), places.into()])
    }),
    ("cummin", |call| {
        let x = call.var(INPUT)?;
        let (values, places) = x.clone().cummin(axis(call, at(1, "dim"), &x)?.unwrap_or(0))?;
        Ok(vec![values.into(), places.into()])
    }),
    ("diff", |call| {
        let mut x = call.var(INPUT)?;
        let times = call.count(at(1, "n"))?.unwrap_or(1);
        let dim = axis(call, at(2, "dim"), &x)?.unwrap_or(-1);
        let before = call.optional_var(at(3, "prepend"))?;
        let after = call.optional_var(at(4, "append"))?;
        if times > 0 && (before.is_some() || after.is_some()) {
            x = Var::cat(before.into_iter().chain([x]).chain(after).collect(), dim)?;
        }
        if x.value().dtype() == DType::Bool {
            return one(x.value().diff(times, dim)?);
        }
        one(x.diff(times, dim)?)
    }),
    ("dist", |call| {
        let order = call.number(at(2, "p"))?.unwrap_or(2.0);
        one(call.var(INPUT)?.dist(call.var(at(1, "other"))?, order)?)
    }),
    ("histc", |call| {
        let bins = call.count(at(1, "bins"))?.unwrap_or(100);
        let low = call.number(at(2, "min"))?.unwrap_or(0.0);
        let high = call.number(at(3, "max"))?.unwrap_or(0.0);
        one(call.var(INPUT)?.value().histc(bins, low..high)?)
    }),
    ("isin", |call| {
        let others = call.constant(at(1, "test_elements"))?;
        one(call.var(at(0, "elements"))?.value().isin(&others)?)
    }),
    ("kthvalue", |call| {
        let x = call.var(INPUT)?;
        let k = call.count(at(1, "k"))?.unwrap_or_default();
        let dim = axis(call, at(2, "dim"), &x)?.unwrap_or(-1);
        check_dimension(&x)?;
        let keep = call.flag(at(3, "keepdim"))?.unwrap_or(false);
        let (values, places) = if keep { x.kthvalue_keep(k, dim)? } else { x.kthvalue(k, dim)? };
        Ok(vec![values.into(), places.into()])
    }),
    ("linalg.matrix_norm", |call| {
        let x = call.var(INPUT)?;
        let norm = matrix_order(call, at(1, "ord"))?;
        let axes = call.integers(at(2, "dim"))?.unwrap_or_else(|| vec![-2, -1]);
        let keep = call.flag(at(3, "keepdim"))?.unwrap_or(false);
        let x = converted(call, x)?;
        in_type(call, of_matrix(x, norm, &axes, keep)?)
    }),
    ("linalg.norm", linalg_norm),
    ("linalg.norm/subgradients_at_zero", linalg_norm),
    ("logcumsumexp", |call| {
        let x = call.var(INPUT)?;
        let dim = axis(call, at(1, "dim"), &x)?.unwrap_or(0);
        one(x.logcumsumexp(dim)?)
    }),
    ("median", |call| ranked!(call, median_all, median, median_keep)),
    ("mode", |call| {
        let x = call.var(INPUT)?;
        let dim = axis(call, at(1, "dim"), &x)?.unwrap_or(-1);
        check_dimension(&x)?;
        let keep = call.flag(at(2, "keepdim"))?.unwrap_or(false);
        let (values, places) = if keep { x.mode_keep(dim)? } else { x.mode(dim)? };
        Ok(vec![values.into(), places.into()])
    }),
    ("nanmean", |call| {
        let (x, axes, keep) = over(call, at(1, "dim"), at(2, "keepdim"))?;
        let x = converted(call, x)?;
        in_type(call, if keep { x.nanmean_keep(&axes)? } else { x.nanmean(&axes)? })
    }),
    ("nanmedian", |call| ranked!(call, nanmedian_all, nanmedian, nanmedian_keep)),
    ("nanquantile", |call| quantile(call, Var::nanquantile)),
    ("nansum", |call| {
        let (x, axes, keep) = over(call, at(1, "dim"), at(2, "keepdim"))?;
        let x = converted(call, x)?;
        in_type(call, if keep { x.nansum_keep(&axes)? } else { x.nansum(&axes)? })
    }),
    ("quantile", |call| quantile(call, Var::quantile)),
    ("renorm", |call| {
        let x = call.var(INPUT)?;
        let order = call.number(at(1, "p"))?.unwrap_or(2.0);
        let dim = call.integer(at(2, "dim"))?.unwrap_or(0);
        one(x.renorm(order, dim, call.number(at(3, "maxnorm"))?.unwrap_or(1.0))?)
    }),
    ("searchsorted", |call| {
        let mut sorted = call.constant(at(0, "sorted_sequence"))?;
        let place = at(1, "input");
        let values = match call.value(place).filter(|value| call.var_of(value).is_none()) {
            Some(_) => {
                let number = call.number(place)?.unwrap_or_default();
                Tensor::full(&call.device, [], sorted.dtype(), number)?
            }
            None => call.constant(place)?,
        };
        if let Some(sorter) = call.optional_constant(named("sorter"))? {
            sorted = sorted.gather(-1, &sorter)?;
        }
        let side = side(call)?;
        one(narrowed(call, sorted.searchsorted(&values, side)?)?)
    }),
    ("trace", |call| one(call.var(INPUT)?.trace()?)),
    ("unique", |call| {
        // The result is always sorted, as in PyTorch on the CPU.
        call.flag(at(1, "sorted"))?;
        unique(call, Tensor::unique)
    }),
    ("unique_consecutive", |call| unique(call, Tensor::unique_consecutive)),
];

/// Checks that a tensor has dimensions. PyTorch treats a tensor without dimensions as having one
/// dimension of length 1.
fn check_dimension(x: &Var) -> Result<()> {
    if x.shape().is_empty() {
        return Err(Stop::NotApplicable(Reason::NoDimensions, "the last dimension".to_owned()));
    }
    Ok(())
}

fn side(call: &Call<'_>) -> Result<Side> {
    let by_name = call.text(named("side"))? == Some("right");
    let is_right = call.flag(named("right"))?.unwrap_or(false) || by_name;
    Ok(if is_right { Side::Right } else { Side::Left })
}

/// Places in the requested type.
fn narrowed(call: &Call<'_>, places: Tensor) -> Result<Tensor> {
    let is_narrow = call.flag(named("out_int32"))?.unwrap_or(false);
    Ok(if is_narrow { places.to_dtype(DType::I32)? } else { places })
}

type Quantile = fn(Var, &[f64], isize, QuantileRule) -> lowtide_autograd::AutogradResult<Var>;

fn quantile(call: &Call<'_>, of: Quantile) -> Result<Vec<Output>> {
    let mut x = call.var(INPUT)?;
    let rule = match call.text(named("interpolation"))? {
        None | Some("linear") => QuantileRule::Linear,
        Some("lower") => QuantileRule::Lower,
        Some("higher") => QuantileRule::Higher,
        Some("midpoint") => QuantileRule::Midpoint,
        Some(_) => QuantileRule::Nearest,
    };
    let place = at(1, "q");
    let is_number = call.value(place).is_some_and(|value| call.var_of(value).is_none());
    let (quantiles, is_one) = if is_number {
        (vec![call.number(place)?.unwrap_or_default()], true)
    } else {
        let q = call.constant(place)?;
        (q.to_dtype(DType::F64)?.to_vec::<f64>()?, q.shape().is_empty())
    };
    let keep = call.flag(at(3, "keepdim"))?.unwrap_or(false);
    let rank = x.shape().len();
    let dim = match axis(call, at(2, "dim"), &x)? {
        Some(dim) => Some(if dim < 0 { dim + rank as isize } else { dim }),
        None => {
            let count = x.shape().element_count();
            x = x.reshape([count])?;
            None
        }
    };
    let mut y = of(x, &quantiles, dim.unwrap_or(0), rule)?;
    if keep {
        y = match dim {
            Some(dim) => y.unsqueeze(dim + 1)?,
            None => y.reshape(&[vec![quantiles.len()], vec![1; rank]].concat()[..])?,
        };
    }
    one(if is_one { y.select(0, 0)? } else { y })
}

/// The matrix norm for a number or a word.
fn matrix_order(call: &Call<'_>, place: At) -> Result<MatrixNorm> {
    if call.value(place).is_none_or(Value::is_string) {
        return match call.text(place)? {
            None | Some("fro") => Ok(MatrixNorm::Frobenius),
            Some(_) => no_form("a norm that needs a decomposition"),
        };
    }
    let number = call.number(place)?.unwrap_or_default();
    match number {
        1.0 => Ok(MatrixNorm::LargestColumn),
        -1.0 => Ok(MatrixNorm::SmallestColumn),
        f64::INFINITY => Ok(MatrixNorm::LargestRow),
        f64::NEG_INFINITY => Ok(MatrixNorm::SmallestRow),
        _ => no_form("a norm that needs a decomposition"),
    }
}

fn of_matrix(x: Var, norm: MatrixNorm, axes: &[isize], keep: bool) -> Result<Var> {
    let &[row, column] = axes else { return no_form("other than two dimensions") };
    let axes = [row, column];
    Ok(if keep { x.matrix_norm_keep(norm, axes)? } else { x.matrix_norm(norm, axes)? })
}

/// The matrix norm over two dimensions, otherwise the vector norm.
fn linalg_norm(call: &Call<'_>) -> Result<Vec<Output>> {
    let order = at(1, "ord");
    let (x, axes, keep) = over(call, at(2, "dim"), at(3, "keepdim"))?;
    let has_order = call.value(order).is_some();
    let is_word = call.value(order).is_some_and(Value::is_string);
    let is_all = call.value(at(2, "dim")).is_none();
    let is_matrix = axes.len() == 2 && (has_order || !is_all);
    if is_word || is_matrix && has_order {
        let norm = matrix_order(call, order)?;
        return one(of_matrix(x, norm, &axes, keep)?);
    }
    let order = call.number(order)?.unwrap_or(2.0);
    one(if keep { x.norm_keep(&axes, order)? } else { x.norm(&axes, order)? })
}

type Different = fn(&Tensor, UniqueOptions) -> lowtide_tensor::TensorResult<Unique>;

fn unique(call: &Call<'_>, of: Different) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let dim = axis(call, named("dim"), &x)?;
    // Number of unique values along the compared dimension, from the case: a simulated device
    // cannot count them.
    let case = call.case();
    let values = case.outputs.first().and_then(|output| case.tensor(output));
    let along = match dim {
        Some(dim) if dim < 0 => x.shape().len().wrapping_add_signed(dim),
        dim => dim.unwrap_or(0).unsigned_abs(),
    };
    let count = values.and_then(|values| values.shape.get(along).copied()).unwrap_or(0);
    let along = dim.map(Into::into);
    let options = UniqueOptions { along, assumed_count: Some(count) };
    let Unique { values, inverse, counts } = of(x.value(), options)?;
    let wants = |name| call.flag(named(name)).map(|flag| flag.unwrap_or(false));
    let mut outputs = vec![Output::Tensor(values)];
    outputs.extend(wants("return_inverse")?.then_some(Output::Tensor(inverse)));
    outputs.extend(wants("return_counts")?.then_some(Output::Tensor(counts)));
    Ok(outputs)
}
