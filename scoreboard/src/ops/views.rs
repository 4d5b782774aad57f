//! Views; tensors that are joined, or whose dimensions are moved.

use lowtide_autograd::Var;
use lowtide_tensor::PadMode;

use super::reductions::axis;
use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, at, no_form, no_such, one};

const DIM: At = at(1, "dim");

pub(super) const OPS: Family = &[
    ("T", |call| {
        let x = call.var(INPUT)?;
        let reversed: Vec<usize> = (0..x.shape().len()).rev().collect();
        one(x.permute(&reversed)?)
    }),
    ("mT", |call| one(call.var(INPUT)?.transpose(-2, -1)?)),
    ("constant_pad_nd", |call| padded(call, PadMode::Constant(number(call, at(2, "value"))?))),
    ("diagonal_copy", diagonal),
    ("expand_copy", expand),
    ("narrow_copy", narrow),
    ("permute_copy", permute),
    ("slice", |call| {
        let x = call.var(INPUT)?;
        let dim = call.integer(DIM)?.unwrap_or(0);
        let len = dimension(&x, dim);
        let place = |place: isize| from_first(place, len).min(len);
        let start = call.integer(at(2, "start"))?.map_or(0, place);
        let end = call.integer(at(3, "end"))?.map_or(len, place);
        let step = call.count(at(4, "step"))?.unwrap_or(1);
        one(x.slice(dim, start..end, step)?)
    }),
    ("split_with_sizes_copy", split_with_sizes),
    ("squeeze/multiple", squeeze),
    ("squeeze_copy", squeeze),
    ("t_copy", t),
    ("transpose_copy", transpose),
    ("unbind_copy", unbind),
    ("unflatten", |call| {
        let x = call.var(INPUT)?;
        let dim = from_first(axis(call, DIM, &x)?.unwrap_or(0), x.shape().len());
        let sizes = call.integers(at(2, "sizes"))?.unwrap_or_default();
        let mut shape = x.shape().to_vec();
        let sizes = with_the_rest(call, &sizes, shape.get(dim).copied().unwrap_or(0))?;
        shape.splice(dim..dim + 1, sizes);
        one(x.reshape(&shape[..])?)
    }),
    ("unfold_copy", unfold),
    ("unsqueeze_copy", unsqueeze),
    ("view_copy", view),
    ("broadcast_to", expand),
    ("cat", |call| {
        let dim = call.integer(DIM)?.unwrap_or(0);
        one(Var::cat(call.vars(at(0, "tensors"))?, dim)?)
    }),
    ("chunk", |call| {
        let count = call.count(at(1, "chunks"))?.unwrap_or_default();
        let dim = call.integer(at(2, "dim"))?.unwrap_or(0);
        several(call.var(INPUT)?.chunk(dim, count)?)
    }),
    ("contiguous", |call| one(call.var(INPUT)?.contiguous()?)),
    ("diagonal", diagonal),
    ("expand", expand),
    ("expand_as", |call| {
        let other = call.constant(at(1, "other"))?;
        one(call.var(INPUT)?.expand(*other.shape())?)
    }),
    ("flatten", |call| {
        let x = call.var(INPUT)?;
        let rank = x.shape().len();
        let start = from_first(call.integer(at(1, "start_dim"))?.unwrap_or(0), rank);
        let end = from_first(call.integer(at(2, "end_dim"))?.unwrap_or(-1), rank);
        one(match rank {
            0 => x.reshape([1])?,
            _ => x.flatten(start..end + 1)?,
        })
    }),
    ("flip", |call| {
        let dims = call.integers(at(1, "dims"))?.unwrap_or_default();
        one(call.var(INPUT)?.flip(&dims)?)
    }),
    ("movedim", |call| {
        let x = call.var(INPUT)?;
        let from = call.integers(at(1, "source"))?.unwrap_or_default();
        let to = call.integers(at(2, "destination"))?.unwrap_or_default();
        if let (&[from], &[to]) = (&from[..], &to[..]) {
            return one(x.movedim(from, to)?);
        }
        one(x.movedims(&from, &to)?)
    }),
    ("narrow", narrow),
    ("nn.functional.pad/circular", pad),
    ("nn.functional.pad/constant", pad),
    ("nn.functional.pad/reflect", pad),
    ("nn.functional.pad/replicate", pad),
    ("nn.functional.pad/replicate_negative", pad),
    ("permute", permute),
    ("ravel", |call| {
        let x = call.var(INPUT)?;
        let len = x.shape().element_count();
        one(x.reshape([len])?)
    }),
    ("repeat", |call| {
        let times = call.counts(at(1, "repeats"))?.unwrap_or_default();
        one(call.var(INPUT)?.repeat(&times)?)
    }),
    ("repeat_interleave", |call| {
        let x = call.var(INPUT)?;
        let times = at(1, "repeats");
        if call.value(times).is_some_and(|value| call.var_of(value).is_some()) {
            return no_form("a number of repeats for each position");
        }
        let times = call.count(times)?.unwrap_or(1);
        match axis(call, at(2, "dim"), &x)? {
            Some(dim) => one(x.repeat_interleave(dim, times)?),
            None => {
                let len = x.shape().element_count();
                one(x.reshape([len])?.repeat_interleave(0, times)?)
            }
        }
    }),
    ("reshape", |call| {
        let x = call.var(INPUT)?;
        let shape = sizes(call, &x)?;
        one(x.reshape(&shape[..])?)
    }),
    ("reshape_as", |call| {
        let other = call.constant(at(1, "other"))?;
        one(call.var(INPUT)?.reshape(*other.shape())?)
    }),
    ("roll", |call| {
        let mut x = call.var(INPUT)?;
        let shifts = call.integers(at(1, "shifts"))?.unwrap_or_default();
        let dims = call.integers(at(2, "dims"))?.unwrap_or_default();
        if dims.is_empty() {
            let [shift] = shifts[..] else { return no_such(call, "shifts without dimensions") };
            let shape = *x.shape();
            let flat = x.reshape([shape.element_count()])?.roll(0, shift)?;
            return one(flat.reshape(shape)?);
        }
        if dims.len() != shifts.len() {
            return no_such(call, "as many shifts as dimensions");
        }
        for (dim, shift) in dims.into_iter().zip(shifts) {
            x = x.roll(dim, shift)?;
        }
        one(x)
    }),
    ("select", |call| {
        let x = call.var(INPUT)?;
        let dim = call.integer(DIM)?.unwrap_or(0);
        let index = call.integer(at(2, "index"))?.unwrap_or(0);
        let index = from_first(index, dimension(&x, dim));
        one(x.select(dim, index)?)
    }),
    ("split", |call| {
        let dim = call.integer(at(2, "dim"))?.unwrap_or(0);
        let len = call.count(at(1, "split_size"))?.unwrap_or_default();
        several(call.var(INPUT)?.split(dim, len)?)
    }),
    ("split/list_args", split_with_sizes),
    ("split_with_sizes", split_with_sizes),
    ("squeeze", squeeze),
    ("stack", |call| {
        let dim = call.integer(DIM)?.unwrap_or(0);
        one(Var::stack(call.vars(at(0, "tensors"))?, dim)?)
    }),
    ("t", t),
    ("tile", |call| {
        let times = call.counts(at(1, "dims"))?.unwrap_or_default();
        one(call.var(INPUT)?.repeat(&times)?)
    }),
    ("transpose", transpose),
    ("tril", |call| one(call.var(INPUT)?.tril(call.integer(at(1, "diagonal"))?.unwrap_or(0))?)),
    ("triu", |call| one(call.var(INPUT)?.triu(call.integer(at(1, "diagonal"))?.unwrap_or(0))?)),
    ("unbind", unbind),
    ("unfold", unfold),
    ("unsqueeze", unsqueeze),
    ("view", view),
    ("view_as", |call| {
        let other = call.constant(at(1, "other"))?;
        one(call.var(INPUT)?.view(*other.shape())?)
    }),
];

fn several(vars: Vec<Var>) -> Result<Vec<Output>> {
    Ok(vars.into_iter().map(Output::Var).collect())
}

/// A place counted from the first. A place that does not exist stays out of range.
pub(super) fn from_first(place: isize, len: usize) -> usize {
    if place < 0 { len.wrapping_add_signed(place) } else { place.unsigned_abs() }
}

/// The length of a dimension; 0 if there is no such dimension.
fn dimension(x: &Var, dim: isize) -> usize {
    x.shape().get(from_first(dim, x.shape().len())).copied().unwrap_or(0)
}

fn expand(call: &Call<'_>) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let sizes = call.integers(at(1, "size"))?.unwrap_or_default();
    // -1 keeps the length of a dimension.
    let before = sizes.len().saturating_sub(x.shape().len());
    let kept = |index: usize| index.checked_sub(before).map_or(0, |index| x.shape()[index]);
    let sizes = sizes.iter().enumerate();
    let sizes: Vec<usize> =
        sizes.map(|(i, &size)| usize::try_from(size).unwrap_or_else(|_| kept(i))).collect();
    one(x.expand(&sizes[..])?)
}

/// A shape in the arguments, where -1 stands for the remaining elements.
fn sizes(call: &Call<'_>, x: &Var) -> Result<Vec<usize>> {
    let sizes = call.integers(at(1, "shape"))?.unwrap_or_default();
    with_the_rest(call, &sizes, x.shape().element_count())
}

/// Sizes, where -1 stands for the rest of `len` elements.
fn with_the_rest(call: &Call<'_>, sizes: &[isize], len: usize) -> Result<Vec<usize>> {
    let known: usize = sizes.iter().filter_map(|&size| usize::try_from(size).ok()).product();
    if known == 0 && sizes.iter().any(|&size| size < 0) {
        return no_such(call, "a size that is left");
    }
    let left = len.checked_div(known).unwrap_or(0);
    Ok(sizes.iter().map(|&size| usize::try_from(size).unwrap_or(left)).collect())
}

fn split_with_sizes(call: &Call<'_>) -> Result<Vec<Output>> {
    let dim = call.integer(at(2, "dim"))?.unwrap_or(0);
    let sizes = call.counts(at(1, "split_sizes"))?.unwrap_or_default();
    several(call.var(INPUT)?.split_with_sizes(dim, &sizes)?)
}

fn number(call: &Call<'_>, at: At) -> Result<f64> {
    Ok(call.number(at)?.unwrap_or(0.0))
}

fn pad(call: &Call<'_>) -> Result<Vec<Output>> {
    let value = number(call, at(3, "value"))?;
    let mode = match call.text(at(2, "mode"))?.unwrap_or("constant") {
        "constant" => PadMode::Constant(value),
        "reflect" => PadMode::Reflect,
        "replicate" => PadMode::Replicate,
        "circular" => PadMode::Circular,
        _ => return no_such(call, "mode"),
    };
    padded(call, mode)
}

fn padded(call: &Call<'_>, mode: PadMode) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let amounts = call.integers(at(1, "pad"))?.unwrap_or_default();
    // PyTorch lists the last dimension first.
    let padding: Vec<[isize; 2]> = amounts.as_chunks().0.iter().rev().copied().collect();
    one(x.pad_or_crop(&padding, mode)?)
}

fn diagonal(call: &Call<'_>) -> Result<Vec<Output>> {
    let offset = call.integer(at(1, "offset"))?.unwrap_or(0);
    let a = call.integer(at(2, "dim1"))?.unwrap_or(0);
    let b = call.integer(at(3, "dim2"))?.unwrap_or(1);
    one(call.var(INPUT)?.diagonal(offset, a, b)?)
}

fn narrow(call: &Call<'_>) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let (dim, start) = (call.integer(DIM)?.unwrap_or(0), at(2, "start"));
    if call.value(start).is_some_and(|value| call.var_of(value).is_some()) {
        return no_such(call, "a tensor as a number");
    }
    let len = call.count(at(3, "length"))?.unwrap_or_default();
    let start = call.integer(start)?.unwrap_or(0);
    let start = from_first(start, dimension(&x, dim));
    one(x.narrow(dim, start, len)?)
}

fn permute(call: &Call<'_>) -> Result<Vec<Output>> {
    let dims = call.integers(at(1, "dims"))?.unwrap_or_default();
    one(call.var(INPUT)?.permute(&dims)?)
}

fn squeeze(call: &Call<'_>) -> Result<Vec<Output>> {
    let mut x = call.var(INPUT)?;
    let dims = match call.integers(DIM)? {
        Some(dims) if !x.shape().is_empty() => dims,
        // A tensor without dimensions stays unchanged for every `dim`.
        Some(_) => Vec::new(),
        None => (0..x.shape().len() as isize).collect(),
    };
    let dims: Vec<usize> = dims.iter().map(|&dim| from_first(dim, x.shape().len())).collect();
    // Dimensions longer than 1 are kept.
    let mut dims: Vec<usize> =
        dims.into_iter().filter(|&dim| x.shape().get(dim) == Some(&1)).collect();
    dims.sort_unstable();
    for dim in dims.into_iter().rev() {
        x = x.squeeze(dim)?;
    }
    one(x)
}

fn t(call: &Call<'_>) -> Result<Vec<Output>> {
    one(call.var(INPUT)?.t()?)
}

fn transpose(call: &Call<'_>) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let [a, b] = [axis(call, at(1, "dim0"), &x)?, axis(call, at(2, "dim1"), &x)?];
    one(x.transpose(a.unwrap_or(0), b.unwrap_or(1))?)
}

fn unbind(call: &Call<'_>) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let dim = call.integer(DIM)?.unwrap_or(0);
    several(x.unbind(dim)?)
}

fn unfold(call: &Call<'_>) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let dim = axis(call, at(1, "dimension"), &x)?.unwrap_or(0);
    let len = call.count(at(2, "size"))?.unwrap_or_default();
    let step = call.count(at(3, "step"))?.unwrap_or_default();
    one(x.unfold(dim, len, step)?)
}

fn unsqueeze(call: &Call<'_>) -> Result<Vec<Output>> {
    one(call.var(INPUT)?.unsqueeze(call.integer(DIM)?.unwrap_or(0))?)
}

fn view(call: &Call<'_>) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let shape = sizes(call, &x)?;
    one(x.view(&shape[..])?)
}
