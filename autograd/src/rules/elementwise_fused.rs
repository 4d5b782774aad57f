//! Rules of elementwise operations with a number, of divisions with a remainder, and of fused
//! operations.

use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{change, reuse, unbroadcast, when, zero_gradient};
use crate::var::Var;

/// `factor · dy`.
pub(super) fn scaled(dy: &Tensor, factor: f64) -> Result<Tensor> {
    if factor == 1.0 { Ok(dy.clone()) } else { Ok(dy.mul_scalar(factor)?) }
}

/// A quotient rounded to whole numbers. It is piecewise constant: its gradients are 0.
#[track_caller]
fn whole_quotient(
    op: &'static str,
    a: Var,
    b: Var,
    forward: impl FnOnce(&Tensor, &Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    Var::apply(op, [a, b], |[a, b], _| {
        let (shapes, y) = ([*a.shape(), *b.shape()], forward(&a, &b)?);
        // da = 0, db = 0
        let rule = move |dy: Tensor, needs: Needs| {
            let zeros = |index: usize| {
                when(needs.input(index), || {
                    Ok(Tensor::zeros(dy.device(), shapes[index], dy.dtype())?)
                })
            };
            Ok(vec![zeros(0)?, zeros(1)?])
        };
        Ok((y, rule))
    })
}

impl Var {
    /// `self - value`.
    #[track_caller]
    pub fn sub_scalar(self, value: f64) -> Result<Var> {
        Var::apply("sub_scalar", [self], |[x], save| {
            let y = change(save, x, move |x| x.sub_scalar_(value), move |x| x.sub_scalar(value))?;
            // dx = dy
            Ok((y, |dy: Tensor, _: Needs| Ok(vec![Some(dy)])))
        })
    }

    /// `self / value`.
    #[track_caller]
    pub fn div_scalar(self, value: f64) -> Result<Var> {
        Var::apply("div_scalar", [self], |[x], save| {
            let y = change(save, x, move |x| x.div_scalar_(value), move |x| x.div_scalar(value))?;
            // dx = dy / value
            let rule = move |dy: Tensor, _: Needs| {
                let dx = reuse(dy, |dy| dy.div_scalar_(value), |dy| dy.div_scalar(value))?;
                Ok(vec![Some(dx)])
            };
            Ok((y, rule))
        })
    }

    /// `self / other` rounded down; its gradients are 0.
    #[track_caller]
    pub fn div_floor(self, other: Var) -> Result<Var> {
        whole_quotient("div_floor", self, other, Tensor::div_floor)
    }

    /// `self / value` rounded down; its gradient is 0.
    #[track_caller]
    pub fn div_floor_scalar(self, value: f64) -> Result<Var> {
        zero_gradient("div_floor_scalar", self, |x| x.div_floor_scalar(value))
    }

    /// `self / other` rounded towards 0; its gradients are 0.
    #[track_caller]
    pub fn div_trunc(self, other: Var) -> Result<Var> {
        whole_quotient("div_trunc", self, other, Tensor::div_trunc)
    }

    /// `self / value` rounded towards 0; its gradient is 0.
    #[track_caller]
    pub fn div_trunc_scalar(self, value: f64) -> Result<Var> {
        zero_gradient("div_trunc_scalar", self, |x| x.div_trunc_scalar(value))
    }

    /// `self - other · ⌊self / other⌋`: the remainder of a division that rounds down.
    #[track_caller]
    pub fn remainder(self, other: Var) -> Result<Var> {
        Var::apply("remainder", [self, other], |[a, b], save| {
            let (a_shape, b_shape, y) = (*a.shape(), *b.shape(), a.remainder(&b)?);
            let saved = [&a, &b].map(|x| save.keep(x));
            // da = dy, db = -dy · ⌊a / b⌋
            let rule = move |dy: Tensor, needs: Needs| {
                let [a, b] = saved;
                let da = when(needs.input(0), || unbroadcast(&dy, a_shape))?;
                let db = when(needs.input(1), || {
                    // `div_floor` is exact, while the quotient may be rounded up to a whole number.
                    let mut slope = a.unpack()?.div_floor(&b.unpack()?)?;
                    slope.neg_()?;
                    unbroadcast(&dy.mul(&slope)?, b_shape)
                })?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `self - value · ⌊self / value⌋`: the remainder of a division that rounds down.
    #[track_caller]
    pub fn remainder_scalar(self, value: f64) -> Result<Var> {
        Var::apply("remainder_scalar", [self], |[x], _| {
            let y = reuse(x, |x| x.remainder_scalar_(value), |x| x.remainder_scalar(value))?;
            // dx = dy
            Ok((y, |dy: Tensor, _: Needs| Ok(vec![Some(dy)])))
        })
    }

    /// `self + weight · (end - self)`, broadcast.
    #[track_caller]
    pub fn lerp(self, end: Var, weight: f64) -> Result<Var> {
        Var::apply("lerp", [self, end], |[a, b], _| {
            let (a_shape, b_shape, y) = (*a.shape(), *b.shape(), a.lerp(&b, weight)?);
            // da = (1 - weight) · dy, db = weight · dy
            let rule = move |dy: Tensor, needs: Needs| {
                let da =
                    when(needs.input(0), || unbroadcast(&scaled(&dy, 1.0 - weight)?, a_shape))?;
                let db = when(needs.input(1), || unbroadcast(&scaled(&dy, weight)?, b_shape))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `self + scale · a · b`, broadcast.
    #[track_caller]
    pub fn addcmul(self, a: Var, b: Var, scale: f64) -> Result<Var> {
        Var::apply("addcmul", [self, a, b], |[x, a, b], save| {
            let (x_shape, y) = (*x.shape(), x.addcmul(&a, &b, scale)?);
            let saved = [&a, &b].map(|x| save.keep(x));
            // dx = dy, da = scale · dy · b, db = scale · dy · a
            let rule = move |dy: Tensor, needs: Needs| {
                let [a, b] = saved;
                let (a, b) = (a.unpack()?, b.unpack()?);
                let dx = when(needs.input(0), || unbroadcast(&dy, x_shape))?;
                let dy = scaled(&dy, scale)?;
                let da = when(needs.input(1), || unbroadcast(&dy.mul(&b)?, *a.shape()))?;
                let db = when(needs.input(2), || unbroadcast(&dy.mul(&a)?, *b.shape()))?;
                Ok(vec![dx, da, db])
            };
            Ok((y, rule))
        })
    }

    /// `self + scale · a / b`, broadcast.
    #[track_caller]
    pub fn addcdiv(self, a: Var, b: Var, scale: f64) -> Result<Var> {
        Var::apply("addcdiv", [self, a, b], |[x, a, b], save| {
            let (x_shape, y) = (*x.shape(), x.addcdiv(&a, &b, scale)?);
            let saved = [&a, &b].map(|x| save.keep(x));
            // dx = dy, da = scale · dy / b, db = -scale · dy · a / b²
            let rule = move |dy: Tensor, needs: Needs| {
                let [a, b] = saved;
                let (a, b) = (a.unpack()?, b.unpack()?);
                let dx = when(needs.input(0), || unbroadcast(&dy, x_shape))?;
                let quotient = scaled(&dy, scale)?.div(&b)?;
                let da = when(needs.input(1), || unbroadcast(&quotient, *a.shape()))?;
                let db = when(needs.input(2), || {
                    Ok(unbroadcast(&quotient.mul(&a)?.div(&b)?, *b.shape())?.neg()?)
                })?;
                Ok(vec![dx, da, db])
            };
            Ok((y, rule))
        })
    }
}
