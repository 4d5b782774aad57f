//! Rules of the operations that choose between values: they save masks of one byte an element.

use lowtide_tensor::Tensor;

use crate::rules::{from_input, times, unbroadcast, unpack, when, when_recorded};
use crate::{Needs, Result, Var};

/// `choose(x)`, whose gradient passes where `mask(x)` is true.
#[track_caller]
fn passes_where(
    op: &'static str,
    x: Var,
    choose: impl FnOnce(&Tensor) -> lowtide_tensor::Result<Tensor>,
    mask: impl FnOnce(&Tensor) -> lowtide_tensor::Result<Tensor>,
) -> Result<Var> {
    Var::apply(op, [x], |[x], save| {
        let y = choose(&x)?;
        let saved = when_recorded(save, || mask(&x)?.logical_not())?;
        let rule =
            move |dy: Tensor, _: Needs| Ok(vec![Some(dy.masked_fill(&unpack(saved)?, 0.0)?)]);
        Ok((y, rule))
    })
}

/// The larger or the smaller of both; `first` tells where that is `a` alone.
#[track_caller]
fn either(
    op: &'static str,
    inputs: [Var; 2],
    choose: impl FnOnce(&Tensor, &Tensor) -> lowtide_tensor::Result<Tensor>,
    first: impl FnOnce(&Tensor, &Tensor) -> lowtide_tensor::Result<Tensor>,
) -> Result<Var> {
    Var::apply(op, inputs, |[a, b], save| {
        let (a_shape, b_shape, y) = (*a.shape(), *b.shape(), choose(&a, &b)?);
        let first = when_recorded(save, || first(&a, &b))?;
        let equal = when_recorded(save, || a.eq(&b))?;
        // da = dy where a is chosen, dy / 2 where both are equal; db the same for b
        let rule = move |dy: Tensor, needs: Needs| {
            let (first, equal) = (unpack(first)?, unpack(equal)?);
            let half = equal.where_cond(&dy.mul_scalar(0.5)?, &dy)?;
            let da = when(needs.input(0), || {
                let others = first.logical_or(&equal)?.logical_not()?;
                unbroadcast(&half.masked_fill(&others, 0.0)?, a_shape)
            })?;
            let db =
                when(needs.input(1), || unbroadcast(&half.masked_fill(&first, 0.0)?, b_shape))?;
            Ok(vec![da, db])
        };
        Ok((y, rule))
    })
}

impl Var {
    /// Without its sign; the gradient at 0 is 0.
    #[track_caller]
    pub fn abs(self) -> Result<Var> {
        // dx = dy · sign x
        from_input("abs", self, Tensor::abs, |dy, x| times(dy, &x.sign()?))
    }

    /// Not below `low` and not above `high`, either of which may be infinite.
    #[track_caller]
    pub fn clamp(self, low: f64, high: f64) -> Result<Var> {
        // dx = dy where low ≤ x ≤ high, else 0
        passes_where(
            "clamp",
            self,
            |x| x.clamp(low, high),
            |x| x.ge_scalar(low)?.logical_and(&x.le_scalar(high)?),
        )
    }

    /// The larger of `self` and `value`.
    #[track_caller]
    pub fn maximum_scalar(self, value: f64) -> Result<Var> {
        // dx = dy where x ≥ value, else 0
        let op = "maximum_scalar";
        passes_where(op, self, |x| x.maximum_scalar(value), |x| x.ge_scalar(value))
    }

    /// The smaller of `self` and `value`.
    #[track_caller]
    pub fn minimum_scalar(self, value: f64) -> Result<Var> {
        // dx = dy where x ≤ value, else 0
        let op = "minimum_scalar";
        passes_where(op, self, |x| x.minimum_scalar(value), |x| x.le_scalar(value))
    }

    /// The larger of both, broadcast; equal ones share the gradient.
    #[track_caller]
    pub fn maximum(self, other: Var) -> Result<Var> {
        either("maximum", [self, other], Tensor::maximum, Tensor::gt)
    }

    /// The smaller of both, broadcast; equal ones share the gradient.
    #[track_caller]
    pub fn minimum(self, other: Var) -> Result<Var> {
        either("minimum", [self, other], Tensor::minimum, Tensor::lt)
    }

    /// `self` where `mask` is true and `other` elsewhere, all three broadcast; see
    /// [`Tensor::where_cond`].
    #[track_caller]
    pub fn where_cond(self, mask: &Tensor, other: Var) -> Result<Var> {
        Var::apply("where_cond", [self, other], |[a, b], save| {
            let (a_shape, b_shape, y) = (*a.shape(), *b.shape(), mask.where_cond(&a, &b)?);
            let saved = save.keep(mask);
            // da = dy where the mask is true, else 0; db = dy where it is false, else 0
            let rule = move |dy: Tensor, needs: Needs| {
                let mask = saved.unpack()?;
                let da = when(needs.input(0), || {
                    unbroadcast(&dy.masked_fill(&mask.logical_not()?, 0.0)?, a_shape)
                })?;
                let db =
                    when(needs.input(1), || unbroadcast(&dy.masked_fill(&mask, 0.0)?, b_shape))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `value` where `mask` is true, `self` elsewhere; see [`Tensor::masked_fill`].
    #[track_caller]
    pub fn masked_fill(self, mask: &Tensor, value: f64) -> Result<Var> {
        Var::apply("masked_fill", [self], |[x], save| {
            let (x_shape, y) = (*x.shape(), x.masked_fill(mask, value)?);
            let saved = save.keep(mask);
            // dx = dy where the mask is false, else 0
            let rule = move |dy: Tensor, _: Needs| {
                let dy = dy.masked_fill(&saved.unpack()?, 0.0)?;
                Ok(vec![Some(unbroadcast(&dy, x_shape)?)])
            };
            Ok((y, rule))
        })
    }
}
