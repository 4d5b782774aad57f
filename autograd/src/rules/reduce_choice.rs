//! Rules of extremes, sorting and norms. The rules of choices save the position of the chosen
//! element, or a mask.

use lowtide_tensor::{Axis, SortOrder, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{kept, unpack, when_recorded};
use crate::var::Var;

/// A reduction to the largest, smallest or median element. Elements equal to the result share the
/// gradient.
#[track_caller]
pub(super) fn extreme(
    op: &'static str,
    x: Var,
    axes: &[usize],
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    let axes = axes.to_vec();
    Var::apply(op, [x], |[x], save| {
        let (y, spread) = (forward(&x)?, kept(*x.shape(), &axes));
        let chosen = when_recorded(save, || x.eq(&y.reshape(spread)?))?;
        // dx = dy / n where x = y, else 0; n is the number of elements with x = y
        let rule = move |dy: Tensor, _: Needs| {
            let chosen = unpack(chosen)?;
            let count = chosen.count_nonzero_keep(&axes)?.to_dtype(dy.dtype())?;
            let mut dx = chosen.to_dtype(dy.dtype())?;
            dx.mul_(&dy.reshape(spread)?.div(&count)?)?;
            Ok(vec![Some(dx)])
        };
        Ok((y, rule))
    })
}

/// A choice along `axis`: `forward` returns values and their positions, which are all different.
#[track_caller]
pub(super) fn placed(
    op: &'static str,
    x: Var,
    axis: usize,
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<(Tensor, Tensor)>,
) -> Result<(Var, Tensor)> {
    let mut places = None;
    let y = Var::apply(op, [x], |[x], save| {
        let (x_shape, (y, positions)) = (*x.shape(), forward(&x)?);
        let saved = save.keep(&positions);
        let is_dropped = y.shape().len() < x_shape.len();
        places = Some(positions);
        // dx[.., positions[.., k, ..], ..] = dy[.., k, ..], 0 elsewhere
        let rule = move |mut dy: Tensor, _: Needs| {
            let mut positions = saved.unpack()?;
            if is_dropped {
                (dy, positions) = (dy.unsqueeze(axis)?, positions.unsqueeze(axis)?);
            }
            let mut dx = Tensor::zeros(dy.device(), x_shape, dy.dtype())?;
            dx.scatter_(axis, &positions, &dy)?;
            Ok(vec![Some(dx)])
        };
        Ok((y, rule))
    })?;
    Ok((y, places.expect("forward ran")))
}

#[track_caller]
fn powers(
    x: Var,
    axes: &[usize],
    order: f64,
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    let axes = axes.to_vec();
    Var::apply("norm", [x], |[x], save| {
        let (spread, y) = (kept(*x.shape(), &axes), forward(&x)?);
        let (dtype, wide) = (x.dtype(), x.dtype().computed());
        let saved = save.keep(&x);
        // The slopes of orders 0 and 1 do not depend on y. The other slopes contain x / y, so the
        // rounded y of a half type would be too coarse: it is recomputed in f32.
        let norms = (order != 0.0 && order != 1.0 && dtype == wide).then(|| save.keep(&y));
        let rule = move |dy: Tensor, _: Needs| {
            let x = saved.unpack()?.to_dtype(wide)?;
            let mut slope = match norms {
                Some(norms) => norm_slope(&x, &norms.unpack()?.reshape(spread)?, &axes, order)?,
                None if order == 1.0 => x.sign()?,
                None if order == 0.0 => Tensor::zeros(x.device(), *x.shape(), wide)?,
                None => norm_slope(&x, &x.norm_keep(&axes, order)?, &axes, order)?,
            };
            slope.mul_(&dy.reshape(spread)?.to_dtype(wide)?)?;
            Ok(vec![Some(slope.to_dtype(dtype)?)])
        };
        Ok((y, rule))
    })
}

/// The derivative of the norm y with respect to x.
///
/// For a finite order it is `sign x · (|x| / y)^(order - 1)`, and 0 where x or y is 0. For an
/// infinite order it is `sign x / n` at the n elements with |x| = y, and 0 elsewhere.
pub(super) fn norm_slope(x: &Tensor, y: &Tensor, axes: &[usize], order: f64) -> Result<Tensor> {
    if order == 0.0 {
        return Ok(Tensor::zeros(x.device(), *x.shape(), x.dtype())?);
    }
    if order.is_infinite() {
        let chosen = x.abs()?.eq(y)?;
        let count = chosen.count_nonzero_keep(axes)?.to_dtype(x.dtype())?;
        let mut slope = x.sign()?;
        slope.masked_fill_(&chosen.logical_not()?, 0.0)?;
        slope.div_(&count)?;
        return Ok(slope);
    }
    if order == 1.0 {
        return Ok(x.sign()?);
    }
    let mut ratio = x.div(y)?;
    if order != 2.0 {
        ratio.abs_()?;
        ratio.pow_scalar_(order - 1.0)?;
        ratio.mul_(&x.sign()?)?;
        if order < 1.0 {
            ratio.masked_fill_(&x.eq_scalar(0.0)?, 0.0)?;
        }
    }
    ratio.masked_fill_(&y.eq_scalar(0.0)?, 0.0)?;
    Ok(ratio)
}

/// Positions have type i64 and no gradient.
impl Var {
    /// The largest values over `axes`; see [`Tensor::amax`]. Equal values share the gradient.
    #[track_caller]
    pub fn amax(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("amax", axes)?;
        extreme("amax", self, axes, |x| x.amax(axes))
    }

    /// [`Var::amax`] with the dimensions kept, of length 1.
    #[track_caller]
    pub fn amax_keep(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("amax_keep", axes)?;
        extreme("amax", self, axes, |x| x.amax_keep(axes))
    }

    /// The smallest values over `axes`; see [`Tensor::amin`]. Equal values share the gradient.
    #[track_caller]
    pub fn amin(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("amin", axes)?;
        extreme("amin", self, axes, |x| x.amin(axes))
    }

    /// [`Var::amin`] with the dimensions kept, of length 1.
    #[track_caller]
    pub fn amin_keep(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("amin_keep", axes)?;
        extreme("amin", self, axes, |x| x.amin_keep(axes))
    }

    /// The largest values along `axis`, and their positions; see [`Tensor::max`]. The gradient goes
    /// only to these positions.
    #[track_caller]
    pub fn max(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("max", axis)?;
        placed("max", self, axis, |x| x.max(axis))
    }

    /// [`Var::max`] with the dimension kept, of length 1.
    #[track_caller]
    pub fn max_keep(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("max_keep", axis)?;
        placed("max", self, axis, |x| x.max_keep(axis))
    }

    /// The smallest values along `axis`, and their positions; see [`Tensor::min`]. The gradient
    /// goes only to these positions.
    #[track_caller]
    pub fn min(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("min", axis)?;
        placed("min", self, axis, |x| x.min(axis))
    }

    /// [`Var::min`] with the dimension kept, of length 1.
    #[track_caller]
    pub fn min_keep(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("min_keep", axis)?;
        placed("min", self, axis, |x| x.min_keep(axis))
    }

    /// The values along `axis` in order, and their positions before sorting; see [`Tensor::sort`].
    #[track_caller]
    pub fn sort(self, axis: impl Into<Axis>, order: SortOrder) -> Result<(Var, Tensor)> {
        let axis = self.axis("sort", axis)?;
        placed("sort", self, axis, |x| x.sort(axis, order))
    }

    /// The first `k` values along `axis` in the given order, and their positions; see
    /// [`Tensor::topk`].
    #[track_caller]
    pub fn topk(self, k: usize, axis: impl Into<Axis>, order: SortOrder) -> Result<(Var, Tensor)> {
        let axis = self.axis("topk", axis)?;
        placed("topk", self, axis, |x| x.topk(k, axis, order))
    }

    /// The norm `(Σ |self|^order)^(1/order)` over `axes`; see [`Tensor::norm`]. The gradient is 0
    /// where the norm is 0. For an infinite order, equal elements share the gradient.
    #[track_caller]
    pub fn norm(self, axes: &[impl Into<Axis> + Copy], order: f64) -> Result<Var> {
        let axes = &self.axes("norm", axes)?;
        powers(self, axes, order, |x| x.norm(axes, order))
    }

    /// [`Var::norm`] with the dimensions kept, of length 1.
    #[track_caller]
    pub fn norm_keep(self, axes: &[impl Into<Axis> + Copy], order: f64) -> Result<Var> {
        let axes = &self.axes("norm_keep", axes)?;
        powers(self, axes, order, |x| x.norm_keep(axes, order))
    }
}
