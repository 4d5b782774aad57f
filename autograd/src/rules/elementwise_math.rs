//! Rules of the mathematical functions of one element, and of powers and `atan2`. A rule saves the
//! output if its formula allows, so that the input's buffer can be reused.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10};

use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{from_input, from_output, over, reuse, times, unbroadcast, when, zero_gradient};
use crate::var::Var;

/// `1 / √(1 - x²)`.
fn circle_slope(x: &Tensor) -> Result<Tensor> {
    let mut slope = x.mul(x)?;
    slope.neg_()?;
    slope.add_scalar_(1.0)?;
    slope.rsqrt_()?;
    Ok(slope)
}

impl Var {
    /// `e^self`.
    #[track_caller]
    pub fn exp(self) -> Result<Var> {
        // dx = dy · y
        from_output("exp", self, Tensor::exp_, Tensor::exp, |dy, y| times(dy, &y))
    }

    /// `e^self - 1`, exact near 0.
    #[track_caller]
    pub fn expm1(self) -> Result<Var> {
        // dx = dy · (y + 1)
        from_output("expm1", self, Tensor::expm1_, Tensor::expm1, |dy, y| {
            times(dy, &y.add_scalar(1.0)?)
        })
    }

    /// The natural logarithm.
    #[track_caller]
    pub fn log(self) -> Result<Var> {
        // dx = dy / x
        from_input("log", self, Tensor::log, |dy, x| over(dy, &x))
    }

    /// `ln(1 + self)`, exact near 0.
    #[track_caller]
    pub fn log1p(self) -> Result<Var> {
        // dx = dy / (x + 1)
        from_input("log1p", self, Tensor::log1p, |dy, x| over(dy, &x.add_scalar(1.0)?))
    }

    /// The square root.
    #[track_caller]
    pub fn sqrt(self) -> Result<Var> {
        // dx = dy / (2 y)
        from_output("sqrt", self, Tensor::sqrt_, Tensor::sqrt, |dy, y| {
            over(dy, &y.mul_scalar(2.0)?)
        })
    }

    /// `1 / √self`.
    #[track_caller]
    pub fn rsqrt(self) -> Result<Var> {
        // dx = -dy · y³ / 2
        from_output("rsqrt", self, Tensor::rsqrt_, Tensor::rsqrt, |dy, y| {
            let mut slope = y.mul(&y)?;
            slope.mul_(&y)?;
            slope.mul_scalar_(-0.5)?;
            times(dy, &slope)
        })
    }

    /// `1 / self`.
    #[track_caller]
    pub fn reciprocal(self) -> Result<Var> {
        // dx = -dy · y²
        from_output("reciprocal", self, Tensor::reciprocal_, Tensor::reciprocal, |dy, y| {
            let mut slope = y.mul(&y)?;
            slope.neg_()?;
            times(dy, &slope)
        })
    }

    /// `self^other`, broadcast.
    #[track_caller]
    pub fn pow(self, other: Var) -> Result<Var> {
        Var::apply("pow", [self, other], |[a, b], save| {
            let y = a.pow(&b)?;
            let saved = [&a, &b, &y].map(|x| save.keep(x));
            // da = dy · b · a^(b-1), 0 where b = 0; db = dy · y · ln a, 0 where a = 0 and b ≥ 0
            let rule = move |dy: Tensor, needs: Needs| {
                let [a, b, y] = saved;
                let (a, b, y) = (a.unpack()?, b.unpack()?, y.unpack()?);
                let da = when(needs.input(0), || {
                    let slope = b.mul(&a.pow(&b.add_scalar(-1.0)?)?)?;
                    let slope = slope.masked_fill(&b.eq_scalar(0.0)?, 0.0)?;
                    unbroadcast(&dy.mul(&slope)?, *a.shape())
                })?;
                let db = when(needs.input(1), || {
                    let flat = a.eq_scalar(0.0)?.logical_and(&b.ge_scalar(0.0)?)?;
                    let slope = y.mul(&a.log()?)?.masked_fill(&flat, 0.0)?;
                    unbroadcast(&dy.mul(&slope)?, *b.shape())
                })?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `self^exponent`.
    #[track_caller]
    pub fn pow_scalar(self, exponent: f64) -> Result<Var> {
        let op = "pow_scalar";
        if exponent == 0.0 {
            return zero_gradient(op, self, |x| x.pow_scalar(0.0));
        }
        // dx = dy · p · x^(p-1)
        from_input(
            op,
            self,
            move |x| x.pow_scalar(exponent),
            move |dy, x| {
                let mut slope = x.pow_scalar(exponent - 1.0)?;
                slope.mul_scalar_(exponent)?;
                times(dy, &slope)
            },
        )
    }

    /// The sine of an angle in radians.
    #[track_caller]
    pub fn sin(self) -> Result<Var> {
        // dx = dy · cos x
        from_input("sin", self, Tensor::sin, |dy, x| times(dy, &x.cos()?))
    }

    /// The cosine of an angle in radians.
    #[track_caller]
    pub fn cos(self) -> Result<Var> {
        // dx = -dy · sin x
        from_input("cos", self, Tensor::cos, |dy, x| {
            let mut slope = x.sin()?;
            slope.neg_()?;
            times(dy, &slope)
        })
    }

    /// The tangent of an angle in radians.
    #[track_caller]
    pub fn tan(self) -> Result<Var> {
        // dx = dy · (1 + y²)
        from_output("tan", self, Tensor::tan_, Tensor::tan, |dy, y| {
            let mut slope = y.mul(&y)?;
            slope.add_scalar_(1.0)?;
            times(dy, &slope)
        })
    }

    /// The arctangent in radians, between -π/2 and π/2.
    #[track_caller]
    pub fn atan(self) -> Result<Var> {
        // dx = dy / (1 + x²)
        from_input("atan", self, Tensor::atan, |dy, x| {
            let mut divisor = x.mul(&x)?;
            divisor.add_scalar_(1.0)?;
            over(dy, &divisor)
        })
    }

    /// The arcsine in radians, between -π/2 and π/2; NaN outside of [-1, 1].
    #[track_caller]
    pub fn asin(self) -> Result<Var> {
        // dx = dy / √(1 - x²)
        from_input("asin", self, Tensor::asin, |dy, x| times(dy, &circle_slope(&x)?))
    }

    /// The arccosine in radians, between 0 and π; NaN outside of [-1, 1].
    #[track_caller]
    pub fn acos(self) -> Result<Var> {
        // dx = -dy / √(1 - x²)
        from_input("acos", self, Tensor::acos, |dy, x| {
            let mut slope = circle_slope(&x)?;
            slope.neg_()?;
            times(dy, &slope)
        })
    }

    /// The angle in radians of the point (`other`, `self`), between -π and π, broadcast. The
    /// gradient at the origin is 0.
    #[track_caller]
    pub fn atan2(self, other: Var) -> Result<Var> {
        Var::apply("atan2", [self, other], |[a, b], save| {
            let y = a.atan2(&b)?;
            let saved = [&a, &b].map(|x| save.keep(x));
            // da = dy · b / (a² + b²), db = -dy · a / (a² + b²)
            let rule = move |dy: Tensor, needs: Needs| {
                let [a, b] = saved;
                let (a, b) = (a.unpack()?, b.unpack()?);
                let square = a.mul(&a)?.add(&b.mul(&b)?)?;
                let mut share = dy.div(&square)?;
                share.masked_fill_(&square.eq_scalar(0.0)?, 0.0)?;
                let da = when(needs.input(0), || unbroadcast(&share.mul(&b)?, *a.shape()))?;
                let db = when(needs.input(1), || {
                    share.mul_(&a)?;
                    Ok(unbroadcast(&share, *b.shape())?.neg()?)
                })?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// The hyperbolic sine.
    #[track_caller]
    pub fn sinh(self) -> Result<Var> {
        // dx = dy · cosh x
        from_input("sinh", self, Tensor::sinh, |dy, x| times(dy, &x.cosh()?))
    }

    /// The hyperbolic cosine.
    #[track_caller]
    pub fn cosh(self) -> Result<Var> {
        // dx = dy · sinh x
        from_input("cosh", self, Tensor::cosh, |dy, x| times(dy, &x.sinh()?))
    }

    /// The inverse hyperbolic sine.
    #[track_caller]
    pub fn asinh(self) -> Result<Var> {
        // dx = dy / √(x² + 1)
        from_input("asinh", self, Tensor::asinh, |dy, x| {
            let mut slope = x.mul(&x)?;
            slope.add_scalar_(1.0)?;
            slope.rsqrt_()?;
            times(dy, &slope)
        })
    }

    /// The inverse hyperbolic cosine, which is not negative; NaN below 1.
    #[track_caller]
    pub fn acosh(self) -> Result<Var> {
        // dx = dy / √(x² - 1), in factors, so that it is exact near 1
        from_input("acosh", self, Tensor::acosh, |dy, x| {
            let mut slope = x.sub_scalar(1.0)?;
            slope.mul_(&x.add_scalar(1.0)?)?;
            slope.rsqrt_()?;
            times(dy, &slope)
        })
    }

    /// The inverse hyperbolic tangent; NaN outside of [-1, 1].
    #[track_caller]
    pub fn atanh(self) -> Result<Var> {
        // dx = dy / (1 - x²)
        from_input("atanh", self, Tensor::atanh, |dy, x| {
            let mut divisor = x.mul(&x)?;
            divisor.neg_()?;
            divisor.add_scalar_(1.0)?;
            over(dy, &divisor)
        })
    }

    /// The logarithm to base 2.
    #[track_caller]
    pub fn log2(self) -> Result<Var> {
        // dx = dy / (x · ln 2)
        from_input("log2", self, Tensor::log2, |dy, x| over(dy, &x.mul_scalar(LN_2)?))
    }

    /// The logarithm to base 10.
    #[track_caller]
    pub fn log10(self) -> Result<Var> {
        // dx = dy / (x · ln 10)
        from_input("log10", self, Tensor::log10, |dy, x| over(dy, &x.mul_scalar(LN_10)?))
    }

    /// `2^self`.
    #[track_caller]
    pub fn exp2(self) -> Result<Var> {
        // dx = dy · y · ln 2
        from_output("exp2", self, Tensor::exp2_, Tensor::exp2, |dy, y| {
            times(dy, &y.mul_scalar(LN_2)?)
        })
    }

    /// The hyperbolic tangent.
    #[track_caller]
    pub fn tanh(self) -> Result<Var> {
        // dx = dy · (1 - y²)
        from_output("tanh", self, Tensor::tanh_, Tensor::tanh, |dy, y| {
            reuse(dy, |dy| dy.tanh_backward_(&y), |dy| dy.tanh_backward(&y))
        })
    }

    /// The error function.
    #[track_caller]
    pub fn erf(self) -> Result<Var> {
        // dx = dy · 2/√π · e^(-x²)
        from_input("erf", self, Tensor::erf, |dy, x| {
            let mut slope = x.mul(&x)?;
            slope.neg_()?;
            slope.exp_()?;
            slope.mul_scalar_(FRAC_2_SQRT_PI)?;
            times(dy, &slope)
        })
    }

    /// 1 minus the error function, exact where the error function is close to 1.
    #[track_caller]
    pub fn erfc(self) -> Result<Var> {
        // dx = -dy · 2/√π · e^(-x²)
        from_input("erfc", self, Tensor::erfc, |dy, x| {
            let mut slope = x.mul(&x)?;
            slope.neg_()?;
            slope.exp_()?;
            slope.mul_scalar_(-FRAC_2_SQRT_PI)?;
            times(dy, &slope)
        })
    }

    /// The inverse of the error function.
    #[track_caller]
    pub fn erfinv(self) -> Result<Var> {
        // dx = dy · √π/2 · e^(y²)
        from_output("erfinv", self, Tensor::erfinv_, Tensor::erfinv, |dy, y| {
            let mut slope = y.mul(&y)?;
            slope.exp_()?;
            slope.mul_scalar_(1.0 / FRAC_2_SQRT_PI)?;
            times(dy, &slope)
        })
    }

    /// The logarithm of the magnitude of the gamma function.
    #[track_caller]
    pub fn lgamma(self) -> Result<Var> {
        // dx = dy · ψ(x)
        from_input("lgamma", self, Tensor::lgamma, |dy, x| times(dy, &x.digamma()?))
    }

    /// The derivative ψ of the logarithm of the gamma function.
    #[track_caller]
    pub fn digamma(self) -> Result<Var> {
        // dx = dy · ψ'(x)
        from_input("digamma", self, Tensor::digamma, |dy, x| {
            reuse(dy, |dy| dy.digamma_backward_(&x), |dy| dy.digamma_backward(&x))
        })
    }

    /// The fractional part; its gradient is 1.
    #[track_caller]
    pub fn frac(self) -> Result<Var> {
        Var::apply("frac", [self], |[x], _| {
            // dx = dy
            Ok((x.frac()?, |dy, _: Needs| Ok(vec![Some(dy)])))
        })
    }

    /// The sign: 1, -1 or 0. Its gradient is 0.
    #[track_caller]
    pub fn sign(self) -> Result<Var> {
        zero_gradient("sign", self, Tensor::sign)
    }

    /// The largest whole number not above `self`; its gradient is 0.
    #[track_caller]
    pub fn floor(self) -> Result<Var> {
        zero_gradient("floor", self, Tensor::floor)
    }

    /// The smallest whole number not below `self`; its gradient is 0.
    #[track_caller]
    pub fn ceil(self) -> Result<Var> {
        zero_gradient("ceil", self, Tensor::ceil)
    }

    /// The nearest whole number, ties to even; its gradient is 0.
    #[track_caller]
    pub fn round(self) -> Result<Var> {
        zero_gradient("round", self, Tensor::round)
    }

    /// The whole part, rounded towards 0; its gradient is 0.
    #[track_caller]
    pub fn trunc(self) -> Result<Var> {
        zero_gradient("trunc", self, Tensor::trunc)
    }
}
