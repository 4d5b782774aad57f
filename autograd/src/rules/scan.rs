//! Rules of the scans along a dimension. The input at a position contributes to the outputs at that
//! position and all later ones.

use lowtide_tensor::{Axis, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::var::Var;

/// The gradient of a cumulative product.
///
/// `dx[i] = Σ dy[t] · ∏ x[j]` over `t ≥ i` and `j ≤ t`, `j ≠ i`. Before the first zero of a row
/// this is `Σ dy[t] · y[t] / x[i]`, and after the first zero it is 0. At the first zero, the
/// products are those of the row with 1 in its place.
fn cumprod_gradient(dy: &Tensor, x: &Tensor, y: &Tensor, axis: usize) -> Result<Tensor> {
    let zero = x.eq_scalar(0.0)?;
    let zero_count = zero.cumsum(axis)?;
    let first = zero_count.eq_scalar(1.0)?.logical_and(&zero)?;
    let later = zero_count.gt_scalar(0.0)?.logical_xor(&first)?;
    drop((zero, zero_count));
    let mut before = dy.mul(y)?.cumsum_backward(axis)?;
    before.div_(x)?;
    let mut without = x.masked_fill(&first, 1.0)?.cumprod(axis)?;
    without.mul_(dy)?;
    let mut dx = first.where_cond(&without.cumsum_backward(axis)?, &before)?;
    dx.masked_fill_(&later, 0.0)?;
    Ok(dx)
}

/// A running extreme along `axis`: `forward` returns the values and their positions.
#[track_caller]
fn running(
    op: &'static str,
    x: Var,
    axis: usize,
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<(Tensor, Tensor)>,
) -> Result<(Var, Tensor)> {
    let mut places = None;
    let y = Var::apply(op, [x], |[x], save| {
        let (x_shape, (y, positions)) = (*x.shape(), forward(&x)?);
        let saved = save.keep(&positions);
        places = Some(positions);
        // dx[.., positions[.., t, ..], ..] += dy[.., t, ..]
        let rule = move |dy: Tensor, _: Needs| {
            let zero = Tensor::zeros(dy.device(), x_shape, dy.dtype())?;
            Ok(vec![Some(zero.scatter_add(axis, &saved.unpack()?, &dy)?)])
        };
        Ok((y, rule))
    })?;
    Ok((y, places.expect("forward ran")))
}

impl Var {
    /// The largest values up to each position along `axis`, and their positions; see
    /// [`Tensor::cummax`].
    #[track_caller]
    pub fn cummax(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("cummax", axis)?;
        running("cummax", self, axis, |x| x.cummax(axis))
    }

    /// The smallest values up to each position along `axis`, and their positions; see
    /// [`Tensor::cummin`].
    #[track_caller]
    pub fn cummin(self, axis: impl Into<Axis>) -> Result<(Var, Tensor)> {
        let axis = self.axis("cummin", axis)?;
        running("cummin", self, axis, |x| x.cummin(axis))
    }

    /// `ln Σ e^self` up to each position along `axis`; see [`Tensor::logcumsumexp`].
    #[track_caller]
    pub fn logcumsumexp(self, axis: impl Into<Axis>) -> Result<Var> {
        let axis = self.axis("logcumsumexp", axis)?;
        Var::apply("logcumsumexp", [self], |[x], save| {
            let y = x.logcumsumexp(axis)?;
            let (dtype, wide) = (x.dtype(), x.dtype().computed());
            let kept = save.keep(&x);
            // A rounding error of y becomes a factor of dx, so the y of a half type is recomputed.
            let sums = (dtype == wide).then(|| save.keep(&y));
            // dx[i] = Σ dy[t] · e^(x[i] - y[t]) over t ≥ i
            let rule = move |dy: Tensor, _: Needs| {
                let x = kept.unpack()?.to_dtype(wide)?;
                let y = match sums {
                    Some(sums) => sums.unpack()?,
                    None => x.logcumsumexp(axis)?,
                };
                let dx = dy.to_dtype(wide)?.logcumsumexp_backward(&x, &y, axis)?;
                Ok(vec![Some(dx.to_dtype(dtype)?)])
            };
            Ok((y, rule))
        })
    }

    /// The sums up to each position along `axis`; see [`Tensor::cumsum`].
    #[track_caller]
    pub fn cumsum(self, axis: impl Into<Axis>) -> Result<Var> {
        let axis = self.axis("cumsum", axis)?;
        Var::apply("cumsum", [self], |[x], _| {
            // dx[i] = Σ dy[t] over t ≥ i
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.cumsum_backward(axis)?)]);
            Ok((x.cumsum(axis)?, rule))
        })
    }

    /// The products up to each position along `axis`; see [`Tensor::cumprod`].
    #[track_caller]
    pub fn cumprod(self, axis: impl Into<Axis>) -> Result<Var> {
        let axis = self.axis("cumprod", axis)?;
        Var::apply("cumprod", [self], |[x], save| {
            let y = x.cumprod(axis)?;
            let saved = [&x, &y].map(|x| save.keep(x));
            let rule = move |dy: Tensor, _: Needs| {
                let [x, y] = saved;
                let (x, y) = (x.unpack()?, y.unpack()?);
                Ok(vec![Some(cumprod_gradient(&dy, &x, &y, axis)?)])
            };
            Ok((y, rule))
        })
    }
}
