//! Rules of views of parts of a tensor, of splits, and of replaced parts.

use std::ops::Range;

use lowtide_tensor::{Axis, Shape, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{placed, when};
use crate::var::Var;

/// A split of `x` into consecutive parts along `axis`.
#[track_caller]
fn parts(
    op: &'static str,
    x: Var,
    axis: usize,
    split: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Vec<Tensor>>,
) -> Result<Vec<Var>> {
    Var::apply_many(op, vec![x], |values, _| {
        let (x_shape, ys) = (*values[0].shape(), split(&values[0])?);
        let lens: Vec<usize> = ys.iter().map(|y| y.shape()[axis]).collect();
        // dx = the gradients of the parts joined, 0 for parts without a gradient
        let rule =
            move |dys: Vec<Option<Tensor>>, _: Needs| Ok(vec![joined(&dys, x_shape, axis, &lens)?]);
        Ok((ys, rule))
    })
}

/// The gradients of parts with the given lengths joined along `axis`; `None` if no part has one.
fn joined(
    dys: &[Option<Tensor>],
    shape: Shape,
    axis: usize,
    lens: &[usize],
) -> Result<Option<Tensor>> {
    let present: Vec<&Tensor> = dys.iter().flatten().collect();
    let Some(&first) = present.first() else { return Ok(None) };
    if present.len() == dys.len() {
        return Ok(Some(Tensor::cat(&present, axis)?));
    }
    let dx = Tensor::zeros(first.device(), shape, first.dtype())?;
    let mut start = 0;
    for (dy, &len) in dys.iter().zip(lens) {
        if let Some(dy) = dy {
            dx.narrow(axis, start, len)?.copy_(dy)?;
        }
        start += len;
    }
    Ok(Some(dx))
}

/// The gradient of [`Var::unfold`]: for each position along `axis`, the sum over the windows that
/// contain it. Half types are summed in f32.
fn fold(dy: &Tensor, x: Shape, axis: usize, len: usize, step: usize) -> Result<Tensor> {
    if step >= len {
        return placed(dy, x, |dx| dx.unfold(axis, len, step));
    }
    let wide = dy.dtype().computed();
    let dx = Tensor::zeros(dy.device(), x, wide)?;
    let last = x.len();
    let count = dy.shape()[axis];
    // One addition for each window, or one for each place in a window, whichever are fewer.
    if count < len {
        for window in 0..count {
            let part = dy.select(axis, window)?.movedim(last - 1, axis)?;
            dx.narrow(axis, window * step, len)?.add_(&part.to_dtype(wide)?)?;
        }
    } else {
        for place in 0..len {
            let positions = place..place + (count - 1) * step + 1;
            let part = dy.select(last, place)?.to_dtype(wide)?;
            dx.slice(axis, positions, step)?.add_(&part)?;
        }
    }
    Ok(dx.to_dtype(dy.dtype())?)
}

/// `x` with the elements of its view `part` replaced by `source`.
#[track_caller]
fn with_part(
    op: &'static str,
    [x, source]: [Var; 2],
    forward: impl FnOnce(&Tensor, &Tensor) -> lowtide_tensor::TensorResult<Tensor>,
    part: impl Fn(&Tensor) -> lowtide_tensor::TensorResult<Tensor> + 'static,
) -> Result<Var> {
    Var::apply(op, [x, source], |[x, source], _| {
        let y = forward(&x, &source)?;
        // dsource = the view of dy; dx = dy with 0 in the view
        let rule = move |dy: Tensor, needs: Needs| {
            let ds = when(needs.input(1), || Ok(part(&dy)?.copied()?))?;
            let dx = when(needs.input(0), || {
                let dx = if dy.is_reusable() { dy } else { dy.copied()? };
                part(&dx)?.zero_()?;
                Ok(dx)
            })?;
            Ok(vec![dx, ds])
        };
        Ok((y, rule))
    })
}

impl Var {
    /// `self` with `source` at position `index` along `axis`; see [`Tensor::select_scatter`].
    #[track_caller]
    pub fn select_scatter(self, source: Var, axis: impl Into<Axis>, index: usize) -> Result<Var> {
        let axis = self.axis("select_scatter", axis)?;
        let forward = |x: &Tensor, source: &Tensor| x.select_scatter(source, axis, index);
        with_part("select_scatter", [self, source], forward, move |x| x.select(axis, index))
    }

    /// `self` with `source` at every `step`-th of `positions` along `axis`; see
    /// [`Tensor::slice_scatter`].
    #[track_caller]
    pub fn slice_scatter(
        self,
        source: Var,
        axis: impl Into<Axis>,
        positions: Range<usize>,
        step: usize,
    ) -> Result<Var> {
        let axis = self.axis("slice_scatter", axis)?;
        let part = positions.clone();
        let forward = |x: &Tensor, source: &Tensor| x.slice_scatter(source, axis, positions, step);
        with_part("slice_scatter", [self, source], forward, move |x| {
            x.slice(axis, part.clone(), step)
        })
    }

    /// `self` with `source` on a diagonal; see [`Tensor::diagonal_scatter`].
    #[track_caller]
    pub fn diagonal_scatter(
        self,
        source: Var,
        offset: isize,
        a: impl Into<Axis>,
        b: impl Into<Axis>,
    ) -> Result<Var> {
        let a = self.axis("diagonal_scatter", a)?;
        let b = self.axis("diagonal_scatter", b)?;
        let forward = |x: &Tensor, source: &Tensor| x.diagonal_scatter(source, offset, a, b);
        with_part("diagonal_scatter", [self, source], forward, move |x| x.diagonal(offset, a, b))
    }

    /// The slice of every `step`-th of `positions` along `axis`; see [`Tensor::slice`].
    #[track_caller]
    pub fn slice(self, axis: impl Into<Axis>, positions: Range<usize>, step: usize) -> Result<Var> {
        let axis = self.axis("slice", axis)?;
        Var::apply("slice", [self], |[x], _| {
            let (x_shape, y) = (*x.shape(), x.slice(axis, positions.clone(), step)?);
            // dx = dy at these positions, 0 elsewhere
            let rule = move |dy: Tensor, _: Needs| {
                Ok(vec![Some(placed(&dy, x_shape, |dx| dx.slice(axis, positions, step))?)])
            };
            Ok((y, rule))
        })
    }

    /// Parts of `len` positions along `axis`; the last part may be shorter. See [`Tensor::split`].
    #[track_caller]
    pub fn split(self, axis: impl Into<Axis>, len: usize) -> Result<Vec<Var>> {
        let axis = self.axis("split", axis)?;
        parts("split", self, axis, |x| x.split(axis, len))
    }

    /// Parts of the given lengths along `axis`; see [`Tensor::split_with_sizes`].
    #[track_caller]
    pub fn split_with_sizes(self, axis: impl Into<Axis>, lens: &[usize]) -> Result<Vec<Var>> {
        let axis = self.axis("split_with_sizes", axis)?;
        if lens.is_empty() {
            self.value().split_with_sizes(axis, lens)?;
            return Ok(Vec::new());
        }
        parts("split_with_sizes", self, axis, |x| x.split_with_sizes(axis, lens))
    }

    /// At most `count` parts of equal length along `axis`; see [`Tensor::chunk`].
    #[track_caller]
    pub fn chunk(self, axis: impl Into<Axis>, count: usize) -> Result<Vec<Var>> {
        let axis = self.axis("chunk", axis)?;
        parts("chunk", self, axis, |x| x.chunk(axis, count))
    }

    /// The elements whose position along `b` is the position along `a` plus `offset`; see
    /// [`Tensor::diagonal`].
    #[track_caller]
    pub fn diagonal(self, offset: isize, a: impl Into<Axis>, b: impl Into<Axis>) -> Result<Var> {
        let a = self.axis("diagonal", a)?;
        let b = self.axis("diagonal", b)?;
        Var::apply("diagonal", [self], |[x], _| {
            let (x_shape, y) = (*x.shape(), x.diagonal(offset, a, b)?);
            // dx = dy on the diagonal, 0 elsewhere
            let rule = move |dy: Tensor, _: Needs| {
                Ok(vec![Some(placed(&dy, x_shape, |dx| dx.diagonal(offset, a, b))?)])
            };
            Ok((y, rule))
        })
    }

    /// Windows of `len` positions along `axis`, `step` apart. The positions of a window are a new
    /// last dimension; see [`Tensor::unfold`].
    #[track_caller]
    pub fn unfold(self, axis: impl Into<Axis>, len: usize, step: usize) -> Result<Var> {
        let axis = self.axis("unfold", axis)?;
        Var::apply("unfold", [self], |[x], _| {
            let (x_shape, y) = (*x.shape(), x.unfold(axis, len, step)?);
            // dx[.., p, ..] = Σ dy[.., i, .., k] over windows i and places k with i · step + k = p
            let rule =
                move |dy: Tensor, _: Needs| Ok(vec![Some(fold(&dy, x_shape, axis, len, step)?)]);
            Ok((y, rule))
        })
    }
}
