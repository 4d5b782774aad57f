//! Rules of the scans: what came in at a position has gone into all later ones.

use lowtide_tensor::{Axis, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::var::Var;

/// `dx[i] = Σ dy[t] · ∏ x[j]` over `t ≥ i` and `j ≤ t` but `j ≠ i`.
///
/// Before the first zero of a row that is `Σ dy[t] · y[t] / x[i]`, and after it nothing. At the
/// zero the products are those with 1 in its place.
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

impl Var {
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
