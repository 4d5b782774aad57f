//! Rules of the functions of two values, broadcast, and of the replacement of values that are not
//! finite.

use lowtide_tensor::{Replacements, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::elementwise_choice::either;
use crate::rules::{over, reuse, times, unbroadcast, unpack, when, when_recorded};
use crate::var::Var;

impl Var {
    /// `√(self² + other²)`; see [`Tensor::hypot`]. The gradients at the origin are NaN, as in
    /// PyTorch.
    #[track_caller]
    pub fn hypot(self, other: Var) -> Result<Var> {
        Var::apply("hypot", [self, other], |[a, b], save| {
            let y = a.hypot(&b)?;
            let saved = [&a, &b, &y].map(|x| save.keep(x));
            // da = dy · a / y, db = dy · b / y
            let rule = move |dy: Tensor, needs: Needs| {
                let [a, b, y] = saved;
                let y = y.unpack()?;
                let part = |x: Tensor| unbroadcast(&times(x.div(&y)?, &dy)?, *x.shape());
                let da = when(needs.input(0), || part(a.unpack()?))?;
                let db = when(needs.input(1), || part(b.unpack()?))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `|self|` with the sign of `other`. The gradient of `other` is 0. The gradient of `self` is 0
    /// where `self` is 0.
    #[track_caller]
    pub fn copysign(self, other: Var) -> Result<Var> {
        Var::apply("copysign", [self, other], |[a, b], save| {
            let (b_shape, y) = (*b.shape(), a.copysign(&b)?);
            let saved = [&a, &y].map(|x| save.keep(x));
            // da = dy · y / a, 0 where a = 0; db = 0
            let rule = move |dy: Tensor, needs: Needs| {
                let [a, y] = saved;
                let db =
                    when(needs.input(1), || Ok(Tensor::zeros(dy.device(), b_shape, dy.dtype())?))?;
                let da = when(needs.input(0), || {
                    let a = a.unpack()?;
                    let mut slope = y.unpack()?.div(&a)?;
                    slope.masked_fill_(&a.eq_scalar(0.0)?, 0.0)?;
                    unbroadcast(&times(slope, &dy)?, *a.shape())
                })?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `ln(e^self + e^other)`; see [`Tensor::logaddexp`]. The gradients of two equal infinities are
    /// NaN, as in PyTorch.
    #[track_caller]
    pub fn logaddexp(self, other: Var) -> Result<Var> {
        Var::apply("logaddexp", [self, other], |[a, b], save| {
            let y = a.logaddexp(&b)?;
            let saved = [&a, &b].map(|x| save.keep(x));
            // da = dy · sigmoid(a - b), db = dy · sigmoid(b - a)
            let rule = move |dy: Tensor, needs: Needs| {
                let [a, b] = saved;
                let (a, b) = (a.unpack()?, b.unpack()?);
                let part = |x: &Tensor, other: &Tensor| {
                    let mut share = x.sub(other)?;
                    share.sigmoid_()?;
                    unbroadcast(&times(share, &dy)?, *x.shape())
                };
                let da = when(needs.input(0), || part(&a, &b))?;
                let db = when(needs.input(1), || part(&b, &a))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `self · ln other`; see [`Tensor::xlogy`]. The gradient of `self` is 0 where `self` is 0 and
    /// `other` has no logarithm.
    #[track_caller]
    pub fn xlogy(self, other: Var) -> Result<Var> {
        Var::apply("xlogy", [self, other], |[a, b], save| {
            let y = a.xlogy(&b)?;
            let saved = [&a, &b].map(|x| save.keep(x));
            // da = dy · ln b, 0 where a = 0 and b ≤ 0; db = dy · a / b
            let rule = move |dy: Tensor, needs: Needs| {
                let [a, b] = saved;
                let (a, b) = (a.unpack()?, b.unpack()?);
                let da = when(needs.input(0), || {
                    let flat = a.eq_scalar(0.0)?.logical_and(&b.le_scalar(0.0)?)?;
                    unbroadcast(&dy.xlogy(&b)?.masked_fill(&flat, 0.0)?, *a.shape())
                })?;
                let db = when(needs.input(1), || unbroadcast(&over(dy.mul(&a)?, &b)?, *b.shape()))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `self - other · trunc(self / other)`: the remainder of a division that rounds towards 0.
    #[track_caller]
    pub fn fmod(self, other: Var) -> Result<Var> {
        Var::apply("fmod", [self, other], |[a, b], save| {
            let (a_shape, y) = (*a.shape(), a.fmod(&b)?);
            let saved = [&a, &b].map(|x| save.keep(x));
            // da = dy, db = -dy · trunc(a / b)
            let rule = move |dy: Tensor, needs: Needs| {
                let [a, b] = saved;
                let da = when(needs.input(0), || unbroadcast(&dy, a_shape))?;
                let db = when(needs.input(1), || {
                    let b = b.unpack()?;
                    let mut slope = a.unpack()?.div_trunc(&b)?;
                    slope.neg_()?;
                    unbroadcast(&times(slope, &dy)?, *b.shape())
                })?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `self - value · trunc(self / value)`: the remainder of a division that rounds towards 0.
    #[track_caller]
    pub fn fmod_scalar(self, value: f64) -> Result<Var> {
        Var::apply("fmod_scalar", [self], |[x], _| {
            let y = reuse(x, |x| x.fmod_scalar_(value), |x| x.fmod_scalar(value))?;
            // dx = dy
            Ok((y, |dy: Tensor, _: Needs| Ok(vec![Some(dy)])))
        })
    }

    /// The larger of `self` and `other`; if one value is NaN, the other value. Equal values share
    /// the gradient.
    #[track_caller]
    pub fn fmax(self, other: Var) -> Result<Var> {
        // If both are NaN, `self` is chosen.
        either(
            "fmax",
            [self, other],
            Tensor::fmax,
            [
                |a, b| a.ge(b)?.logical_or(&b.is_nan()?),
                |a, b| a.gt(b)?.logical_or(&b.is_nan()?)?.logical_not(),
            ],
        )
    }

    /// The smaller of `self` and `other`, with NaN and gradients as in [`Var::fmax`].
    #[track_caller]
    pub fn fmin(self, other: Var) -> Result<Var> {
        either(
            "fmin",
            [self, other],
            Tensor::fmin,
            [
                |a, b| a.le(b)?.logical_or(&b.is_nan()?),
                |a, b| a.lt(b)?.logical_or(&b.is_nan()?)?.logical_not(),
            ],
        )
    }

    /// The Heaviside step: 0 where `self` is negative, 1 where it is positive, `other` where it is
    /// 0. The gradient of `self` is 0.
    #[track_caller]
    pub fn heaviside(self, other: Var) -> Result<Var> {
        Var::apply("heaviside", [self, other], |[x, value], save| {
            let (x_shape, value_shape, y) = (*x.shape(), *value.shape(), x.heaviside(&value)?);
            let saved = when_recorded(save, || x.ne_scalar(0.0))?;
            // dx = 0; dvalue = dy where x = 0, else 0
            let rule = move |dy: Tensor, needs: Needs| {
                let dx =
                    when(needs.input(0), || Ok(Tensor::zeros(dy.device(), x_shape, dy.dtype())?))?;
                let dvalue = when(needs.input(1), || {
                    unbroadcast(&dy.masked_fill(&unpack(saved)?, 0.0)?, value_shape)
                })?;
                Ok(vec![dx, dvalue])
            };
            Ok((y, rule))
        })
    }

    /// `self` with NaN and infinities replaced by numbers of the caller's choice. The gradient of
    /// replaced elements is 0.
    #[track_caller]
    pub fn nan_to_num(self, replacements: Replacements) -> Result<Var> {
        Var::apply("nan_to_num", [self], |[x], save| {
            let y = x.nan_to_num(replacements)?;
            let saved = when_recorded(save, || x.is_finite()?.logical_not())?;
            // dx = dy where x is finite, else 0
            let rule = move |dy: Tensor, _: Needs| {
                let is_replaced = unpack(saved)?;
                let fill = |dy: &mut Tensor| dy.masked_fill_(&is_replaced, 0.0);
                Ok(vec![Some(reuse(dy, fill, |dy| dy.masked_fill(&is_replaced, 0.0))?)])
            };
            Ok((y, rule))
        })
    }
}
