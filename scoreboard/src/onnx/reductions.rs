//! Reductions, scans, places of maxima and minima, and softmax.

use lowtide_autograd::Var;
use lowtide_tensor::{DType, PadMode, SortOrder};

use super::node::NodeCall;
use super::{Family, converted};
use crate::call::{Output, Result, one};

macro_rules! over {
    ($node:ident, $drop:ident $keep:ident) => {
        over!($node, $drop $keep, |x: Var| Ok(x))
    };
    ($node:ident, $drop:ident $keep:ident, $before:expr) => {{
        let (x, axes, keep) = over($node)?;
        let before: fn(Var) -> Result<Var> = $before;
        let x = before(x)?;
        in_type($node, if keep { x.$keep(&axes)? } else { x.$drop(&axes)? })
    }};
}

/// The maximum or minimum; for truth values, any or all.
macro_rules! extreme {
    ($node:ident, $drop:ident $keep:ident, $truth:ident $truth_keep:ident) => {{
        if $node.dtype() != DType::Bool {
            return over!($node, $drop $keep);
        }
        let (x, axes, keep) = over($node)?;
        let x = x.value();
        one(if keep { x.$truth_keep(&axes)? } else { x.$truth(&axes)? })
    }};
}

/// The place of the maximum or minimum: the first place, or the last with `select_last_index`.
macro_rules! place {
    ($node:ident, $drop:ident $keep:ident) => {{
        let x = $node.tensor(0)?;
        let axis = $node.attribute_axis("axis", 0, x.shape().len())?;
        let is_kept = $node.flag("keepdims")?.unwrap_or(true);
        let is_last = $node.flag("select_last_index")?.unwrap_or(false);
        let len = x.shape().get(axis).copied().unwrap_or(1);
        let x = if is_last { x.flip(&[axis])? } else { x };
        let place = if is_kept { x.$keep(axis)? } else { x.$drop(axis)? };
        one(if is_last { place.mul_scalar(-1.0)?.add_scalar(len as f64 - 1.0)? } else { place })
    }};
}

pub(super) const OPS: Family = &[
    ("ArgMax", |node| place!(node, argmax_axis argmax_keep)),
    ("ArgMin", |node| place!(node, argmin_axis argmin_keep)),
    ("CumProd", |node| scan(node, 1.0, |x, axis| Ok(x.cumprod(axis)?))),
    ("CumSum", |node| scan(node, 0.0, |x, axis| Ok(x.cumsum(axis)?))),
    ("Hardmax", |node| {
        let x = node.tensor(0)?;
        let axis = softmax_axis(node, x.shape().len())?;
        let [from, to] = axis;
        let shape = *x.shape();
        let x = if to - from == 1 { x } else { x.flatten(from..to)? };
        let classes = x.shape()[from];
        let y = x.argmax_axis(from)?.one_hot(classes, x.dtype())?.movedim(-1, from as isize)?;
        one(y.reshape(shape)?)
    }),
    ("LogSoftmax", |node| softmax(node, |x, axis| Ok(x.log_softmax(axis)?))),
    ("ReduceL1", |node| over!(node, sum sum_keep, |x| Ok(x.abs()?))),
    ("ReduceL2", |node| {
        let (x, axes, keep) = over(node)?;
        in_type(node, if keep { x.norm_keep(&axes, 2.0)? } else { x.norm(&axes, 2.0)? })
    }),
    ("ReduceLogSum", |node| {
        let (x, axes, keep) = over(node)?;
        in_type(node, if keep { x.sum_keep(&axes)?.log()? } else { x.sum(&axes)?.log()? })
    }),
    ("ReduceLogSumExp", |node| over!(node, logsumexp logsumexp_keep)),
    ("ReduceMax", |node| extreme!(node, amax amax_keep, any any_keep)),
    ("ReduceMean", |node| over!(node, mean mean_keep)),
    ("ReduceMin", |node| extreme!(node, amin amin_keep, all all_keep)),
    ("ReduceProd", |node| over!(node, prod prod_keep)),
    ("ReduceSum", |node| over!(node, sum sum_keep)),
    ("ReduceSumSquare", |node| over!(node, sum sum_keep, |x| Ok(x.clone().mul(x)?))),
    ("Softmax", |node| softmax(node, |x, axis| Ok(x.softmax(axis)?))),
    ("TopK", |node| {
        let x = node.var(0)?;
        let k = match node.integers(1)?.as_deref() {
            Some(&[k]) => Some(k),
            _ => node.attribute_integer("k")?,
        };
        let k = k.and_then(|k| usize::try_from(k).ok()).ok_or_else(|| node.wrong("no k"))?;
        let axis = node.attribute_axis("axis", -1, x.shape().len())?;
        let is_largest = node.flag("largest")?.unwrap_or(true);
        // lowtide always sorts.
        node.ignore(&["sorted"]);
        let order = if is_largest { SortOrder::Descending } else { SortOrder::Ascending };
        let (values, places) = x.topk(k, axis, order)?;
        Ok(vec![values.into(), places.into()])
    }),
];

/// The input of a reduction, its dimensions, and true if the dimensions are kept.
fn over(node: &NodeCall<'_>) -> Result<(Var, Vec<usize>, bool)> {
    let x = node.var(0)?;
    let rank = x.shape().len();
    let axes = node.integers_or(1, "axes")?.unwrap_or_default();
    let keep = node.flag("keepdims")?.unwrap_or(true);
    let is_none = node.flag("noop_with_empty_axes")?.unwrap_or(false);
    let axes = if axes.is_empty() && !is_none {
        (0..rank).collect()
    } else {
        axes.into_iter().map(|axis| node.axis(axis, rank)).collect::<Result<_>>()?
    };
    Ok((x, axes, keep))
}

/// A result in the type of the input, because lowtide sums narrow integers in i64.
fn in_type(node: &NodeCall<'_>, y: Var) -> Result<Vec<Output>> {
    one(converted(node, y, node.dtype())?)
}

/// A scan from either end, over the elements up to each element, with or without the element
/// itself.
fn scan(
    node: &NodeCall<'_>,
    start: f64,
    run: fn(Var, usize) -> Result<Var>,
) -> Result<Vec<Output>> {
    let mut x = node.var(0)?;
    let axis = node.integers(1)?.and_then(|axes| axes.first().copied()).unwrap_or(0);
    let axis = node.axis(axis, x.shape().len())?;
    let is_reverse = node.flag("reverse")?.unwrap_or(false);
    if is_reverse {
        x = x.flip(&[axis])?;
    }
    if node.flag("exclusive")?.unwrap_or(false) {
        let len = x.shape()[axis];
        let mut padding = vec![[0, 0]; x.shape().len()];
        padding[axis] = [1, 0];
        x = x.pad(&padding, PadMode::Constant(start))?.narrow(axis, 0, len)?;
    }
    let y = run(x, axis)?;
    in_type(node, if is_reverse { y.flip(&[axis])? } else { y })
}

/// The dimensions of a softmax. Before version 13 these are all dimensions from `axis` on.
fn softmax_axis(node: &NodeCall<'_>, rank: usize) -> Result<[usize; 2]> {
    let is_old = (1..13).contains(&node.opset);
    let axis = node.attribute_axis("axis", if is_old { 1 } else { -1 }, rank)?;
    Ok([axis, if is_old { rank } else { axis + 1 }])
}

fn softmax(node: &NodeCall<'_>, run: fn(Var, usize) -> Result<Var>) -> Result<Vec<Output>> {
    let x = node.var(0)?;
    let [from, to] = softmax_axis(node, x.shape().len())?;
    if to - from == 1 {
        return one(run(x, from)?);
    }
    let shape = *x.shape();
    one(run(x.flatten(from..to)?, from)?.reshape(shape)?)
}
