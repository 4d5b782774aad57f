//! The table of formulas. One entry says everything about a formula.
//!
//! ```text
//! /// What its methods say, if they have the formula's operand alone.
//! pub fn method, method_in_place =
//! Name[scalars](operands) operations [NAME] { y }
//!     => pub fn method, method_in_place = (dy, x or y; scalars) operations [NAME] { dx }
//! ```
//!
//! `operations` are the operations for each element, for the simulated time: roughly the
//! instructions of the f32 loops. `NAME` is the formula's name in `elementwise.cu`, if the file has
//! the formula. The section says for which types the formula is defined. Every formula passes NaN
//! on, as in PyTorch. `{ loop |sources, to| .. }` is a loop that is more than one formula for all
//! elements; its scalars are f64.

use super::cpu::{map, map_or_update, zip, zip_or_update, zip3, zip3_or_update};
#[cfg(feature = "testing")]
use super::listed::{Function, FunctionGradient};
use super::op::{Formula, Op};
use super::parts::{
    GELU_CUBIC, SELU_ALPHA, SELU_SCALE, angles, constant, hard_sigmoid, hypotenuse, is_close, lerp,
    sigmoid, sqrt_2_over_pi, tanh_softplus,
};
use super::pow::pow;
use super::special::{digamma, erf_inverse, trigamma};
use crate::cpu::arithmetic::Arithmetic;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::Fused;
use crate::error::Result;
use crate::tensor::Tensor;

formulas! {
    // Floats, and integers, which wrap. Choices are of any type.
    Number, number, [Arithmetic], update {
        /// The magnitude. The smallest integer stays, because its magnitude is out of range.
        pub fn abs, abs_ =
        Abs(x) 1.0 [ABS] { x.magnitude() }
        /// `-x`. Integers wrap.
        pub fn neg, neg_ =
        Neg(x) 1.0 [NEG] { x.times(T::ZERO.minus(T::ONE)) }
        /// 1, -1 or, for 0 and NaN, 0.
        pub fn sign, sign_ =
        Sign(x) 1.0 [SIGN] { T::of(x > T::ZERO).minus(T::of(x < T::ZERO)) }
        /// `max(x, 0)`; NaN stays NaN.
        pub fn relu, relu_ =
        // -0 stays -0. NaN passes its gradient on, as in PyTorch.
        Relu(x) 1.0 [RELU] { if x < T::ZERO { T::ZERO } else { x } }
            => pub fn relu_backward, relu_backward_ = (dy, y) 2.0 [D_RELU] {
                if y <= constant(0.0) { constant(0.0) } else { dy }
            }
        /// `x` limited to at least `low` and at most `high`. Either limit may be infinite. If the
        /// limits cross, `high` wins.
        pub fn clamp, clamp_ =
        Clamp[low, high](x) 1.0 [CLAMP] { x.larger(low).smaller(high) }
            // A function of y, for limits that y's type can hold: PyTorch's `hardtanh`. The slope
            // at the limits is 0, and NaN passes its gradient on.
            => pub fn hardtanh_backward, hardtanh_backward_ = (dy, y; low, high) 2.0 [D_HARDTANH] {
                if (y <= low) | (y >= high) { constant(0.0) } else { dy }
            }
        Add(a, b) 1.0 { a.plus(b) }
        AddScaled[scale](a, b) 1.0 [ADD_SCALED] { a.plus(scale.times(b)) }
        Sub(a, b) 1.0 [SUB] { a.minus(b) }
        Mul(a, b) 1.0 [MUL] { a.times(b) }
        Maximum(a, b) 1.0 [MAXIMUM] { a.larger(b) }
        Minimum(a, b) 1.0 [MINIMUM] { a.smaller(b) }
        DivFloor(a, b) 50.0 [DIV_FLOOR] { a.div_floor(b) }
        DivTrunc(a, b) 50.0 [DIV_TRUNC] { a.div_trunc(b) }
        Remainder(a, b) 50.0 [REMAINDER] { a.modulo(b) }
        Fmod(a, b) 50.0 [FMOD] { a.rest(b) }
        Fmax(a, b) 1.0 [FMAX] { if (a >= b) | b.is_nan() { a } else { b } }
        Fmin(a, b) 1.0 [FMIN] { if (a <= b) | b.is_nan() { a } else { b } }
        Heaviside(x, value) 1.0 [HEAVISIDE] {
            if x == T::ZERO { value } else { T::of(x > T::ZERO) }
        }
        Where(condition, a, b) 1.0 [WHERE] { if condition.is_true() { a } else { b } }
        MaskedFill(x, mask, value) 1.0 [MASKED_FILL] { if mask.is_true() { value } else { x } }
        AddCMul[scale](x, a, b) 1.0 [ADDCMUL] { x.plus(scale.times(a).times(b)) }
    }

    Float, float, [SimdFloat], write {
        /// `e^x`.
        pub fn exp, exp_ =
        Exp(x) 20.0 [EXP] { x.exp_in::<F>() }
        /// `e^x - 1`, exact near 0.
        pub fn expm1, expm1_ =
        Expm1(x) 20.0 [EXPM1] { x.expm1_in::<F>() }
        /// The natural logarithm.
        pub fn log, log_ =
        Log(x) 20.0 [LOG] { x.log_in::<F>() }
        /// `ln(1 + x)`, exact near 0.
        pub fn log1p, log1p_ =
        Log1p(x) 20.0 [LOG1P] { x.log1p_in::<F>() }
        /// The square root.
        pub fn sqrt, sqrt_ =
        Sqrt(x) 4.0 [SQRT] { x.sqrt() }
        /// `1 / √x`.
        pub fn rsqrt, rsqrt_ =
        Rsqrt(x) 4.0 [RSQRT] { constant::<T>(1.0) / x.sqrt() }
        /// `1 / x`.
        pub fn reciprocal, reciprocal_ =
        Reciprocal(x) 4.0 [RECIPROCAL] { constant::<T>(1.0) / x }
        /// The sine of an angle in radians.
        pub fn sin, sin_ =
        Sin(x) 20.0 [SIN] { loop |sources, to| angles(sources, to, T::sin_in::<F>, T::sin_large) }
        /// The cosine of an angle in radians.
        pub fn cos, cos_ =
        Cos(x) 20.0 [COS] { loop |sources, to| angles(sources, to, T::cos_in::<F>, T::cos_large) }
        /// The tangent of an angle in radians.
        pub fn tan, tan_ =
        Tan(x) 20.0 [TAN] { loop |sources, to| angles(sources, to, T::tan_in::<F>, T::tan_large) }
        /// The angle in radians with this tangent, between -π/2 and π/2.
        pub fn atan, atan_ =
        Atan(x) 20.0 [ATAN] { x.atan_in::<F>() }
        /// The angle in radians with this sine, between -π/2 and π/2; NaN beyond -1 and 1.
        pub fn asin, asin_ =
        Asin(x) 20.0 [ASIN] { x.asin_in::<F>() }
        /// The angle in radians with this cosine, between 0 and π; NaN beyond -1 and 1.
        pub fn acos, acos_ =
        Acos(x) 20.0 [ACOS] { x.acos_in::<F>() }
        /// The hyperbolic sine.
        pub fn sinh, sinh_ =
        Sinh(x) 20.0 [SINH] { x.sinh_in::<F>() }
        /// The hyperbolic cosine.
        pub fn cosh, cosh_ =
        Cosh(x) 20.0 [COSH] { x.cosh_in::<F>() }
        // Rare, so computed by the standard library in f64, one by one.
        /// The number with this hyperbolic sine.
        pub fn asinh, asinh_ =
        Asinh(x) 50.0 [ASINH] { constant(x.to_f64().asinh()) }
        /// The number of at least 0 with this hyperbolic cosine; NaN below 1.
        pub fn acosh, acosh_ =
        Acosh(x) 50.0 [ACOSH] { constant(x.to_f64().acosh()) }
        /// The number with this hyperbolic tangent; NaN beyond -1 and 1.
        pub fn atanh, atanh_ =
        Atanh(x) 50.0 [ATANH] { constant(x.to_f64().atanh()) }
        /// 1 minus the error function, exact where the error function is near 1.
        pub fn erfc, erfc_ =
        Erfc(x) 50.0 [ERFC] { constant(libm::erfc(x.to_f64())) }
        /// The number with this error function; infinite for -1 and 1, NaN beyond.
        pub fn erfinv, erfinv_ =
        ErfInv(x) 200.0 { constant(erf_inverse(x.to_f64())) }
        /// The logarithm of the magnitude of the gamma function, `ln |Γ(x)|`.
        pub fn lgamma, lgamma_ =
        LGamma(x) 50.0 { constant(libm::lgamma(x.to_f64())) }
        /// The slope of `ln Γ(x)`; NaN at negative whole numbers, infinite at 0.
        pub fn digamma, digamma_ =
        Digamma(x) 50.0 { constant(digamma(x.to_f64())) }
            => pub fn digamma_backward, digamma_backward_ = (dy, x) 50.0 {
                dy * constant(trigamma(x.to_f64()))
            }
        /// The digits after the point, with the number's sign.
        pub fn frac, frac_ =
        Frac(x) 2.0 [FRAC] { x - x.trunc() }
        /// The logarithm to base 2.
        pub fn log2, log2_ =
        Log2(x) 20.0 [LOG2] { x.log2_in::<F>() }
        /// The logarithm to base 10.
        pub fn log10, log10_ =
        Log10(x) 20.0 [LOG10] { x.log10_in::<F>() }
        /// `2^x`.
        pub fn exp2, exp2_ =
        Exp2(x) 20.0 [EXP2] { x.exp2_in::<F>() }
        /// The hyperbolic tangent.
        pub fn tanh, tanh_ =
        Tanh(x) 20.0 [TANH] { x.tanh_in::<F>() }
            => pub fn tanh_backward, tanh_backward_ = (dy, y) 20.0 [D_TANH] {
                dy * (constant::<T>(1.0) - y * y)
            }
        /// The error function, 2/√π · ∫₀ˣ e^(-t²) dt.
        pub fn erf, erf_ =
        Erf(x) 20.0 [ERF] { x.erf_in::<F>() }
        /// `1 / (1 + e^-x)`.
        pub fn sigmoid, sigmoid_ =
        Sigmoid(x) 20.0 [SIGMOID] { sigmoid::<T, F>(x) }
            => pub fn sigmoid_backward, sigmoid_backward_ = (dy, y) 20.0 [D_SIGMOID] {
                dy * (constant::<T>(1.0) - y) * y
            }
        /// `x / (1 + e^-x)`.
        pub fn silu, silu_ =
        Silu(x) 20.0 [SILU] { x / (constant::<T>(1.0) + (-x).exp_in::<F>()) }
            => pub fn silu_backward, silu_backward_ = (dy, x) 20.0 [D_SILU] {
                let (one, s) = (constant::<T>(1.0), sigmoid::<T, F>(x));
                dy * s * (one + x * (one - s))
            }
        /// `x/2 · (1 + erf(x/√2))`; in f32 with an error of 3e-7 · |x|, like PyTorch's.
        pub fn gelu, gelu_ =
        Gelu(x) 20.0 [GELU] {
            let scale = constant(std::f64::consts::FRAC_1_SQRT_2);
            constant::<T>(0.5) * x * (constant::<T>(1.0) + (x * scale).erf_fast_in::<F>())
        }
            => pub fn gelu_backward, gelu_backward_ = (dy, x) 20.0 [D_GELU] {
                let [half, one] = [0.5, 1.0].map(constant::<T>);
                let scale = constant(std::f64::consts::FRAC_1_SQRT_2);
                let density = constant((0.5 / std::f64::consts::PI).sqrt());
                let below = half * (one + (x * scale).erf_fast_in::<F>());
                dy * (below + x * density * (-half * x * x).exp_in::<F>())
            }
        /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`.
        pub fn gelu_tanh, gelu_tanh_ =
        // Hendrycks and Gimpel, "Gaussian error linear units" (2016).
        GeluTanh(x) 20.0 [GELU_TANH] {
            let [half, one, cubic] = [0.5, 1.0, GELU_CUBIC].map(constant::<T>);
            let scale = sqrt_2_over_pi::<T>();
            half * x * (one + (scale * (x + cubic * x * x * x)).tanh_in::<F>())
        }
            => pub fn gelu_tanh_backward, gelu_tanh_backward_ = (dy, x) 20.0 [D_GELU_TANH] {
                let [half, one] = [0.5, 1.0].map(constant::<T>);
                let [cubic, slope] = [GELU_CUBIC, 3.0 * GELU_CUBIC].map(constant::<T>);
                let scale = sqrt_2_over_pi::<T>();
                let tanh = (scale * (x + cubic * x * x * x)).tanh_in::<F>();
                let inner = scale * (one + slope * x * x);
                dy * half * (one + tanh + x * (one - tanh * tanh) * inner)
            }
        /// `x · tanh(ln(1 + e^x))`.
        pub fn mish, mish_ =
        Mish(x) 20.0 [MISH] { x * tanh_softplus::<T, F>(x) }
            => pub fn mish_backward, mish_backward_ = (dy, x) 20.0 [D_MISH] {
                let tanh = tanh_softplus::<T, F>(x);
                dy * (tanh + x * sigmoid::<T, F>(x) * (constant::<T>(1.0) - tanh * tanh))
            }
        /// `x · min(max(x + 3, 0), 6) / 6`.
        pub fn hardswish, hardswish_ =
        HardSwish(x) 20.0 [HARDSWISH] { x * hard_sigmoid(x) }
            => pub fn hardswish_backward, hardswish_backward_ = (dy, x) 20.0 [D_HARDSWISH] {
                let [zero, half, three] = [0.0, 0.5, 3.0].map(constant::<T>);
                let dx = dy * (x / three + half);
                let dx = if x >= three { dy } else { dx };
                if x <= -three { zero } else { dx }
            }
        /// `min(max(x + 3, 0), 6) / 6`.
        pub fn hardsigmoid, hardsigmoid_ =
        HardSigmoid(x) 20.0 [HARDSIGMOID] { hard_sigmoid(x) }
            => pub fn hardsigmoid_backward, hardsigmoid_backward_ = (dy, x) 20.0 [D_HARDSIGMOID] {
                let [zero, three, sixth] = [0.0, 3.0, 1.0 / 6.0].map(constant::<T>);
                if (x > -three) & (x < three) { dy * sixth } else { zero }
            }
        /// `1.0507 · elu(x)` with `alpha` 1.6733. These constants keep mean and variance of a
        /// layer.
        pub fn selu, selu_ =
        Selu(x) 20.0 [SELU] {
            let [scale, alpha] = [SELU_SCALE, SELU_SCALE * SELU_ALPHA].map(constant::<T>);
            if x > constant(0.0) { scale * x } else { alpha * x.expm1_in::<F>() }
        }
            => pub fn selu_backward, selu_backward_ = (dy, x) 20.0 [D_SELU] {
                let [scale, alpha] = [SELU_SCALE, SELU_SCALE * SELU_ALPHA].map(constant::<T>);
                dy * if x > constant(0.0) { scale } else { alpha * x.exp_in::<F>() }
            }
        /// `x / (1 + |x|)`.
        pub fn softsign, softsign_ =
        Softsign(x) 20.0 [SOFTSIGN] { x / (constant::<T>(1.0) + x.magnitude()) }
            => pub fn softsign_backward, softsign_backward_ = (dy, x) 20.0 [D_SOFTSIGN] {
                let y = constant::<T>(1.0) + x.magnitude();
                dy / (y * y)
            }
        /// `ln(1 / (1 + e^-x))`, exact for large `|x|`.
        pub fn logsigmoid, logsigmoid_ =
        LogSigmoid(x) 20.0 [LOGSIGMOID] {
            let low = if x > constant(0.0) { constant(0.0) } else { x };
            low - (-x.magnitude()).exp_in::<F>().log1p_in::<F>()
        }
            => pub fn logsigmoid_backward, logsigmoid_backward_ = (dy, x) 20.0 [D_LOGSIGMOID] {
                dy * sigmoid::<T, F>(-x)
            }
        /// `x` where it is positive, `slope · x` elsewhere.
        pub fn leaky_relu, leaky_relu_ =
        LeakyRelu[slope](x) 2.0 [LEAKY_RELU] { if x > constant(0.0) { x } else { x * slope } }
            => pub fn leaky_relu_backward, leaky_relu_backward_ = (dy, x; slope) 2.0
            [D_LEAKY_RELU] {
                if x > constant(0.0) { dy } else { dy * slope }
            }
        /// `x` where it is positive, `alpha · (e^x - 1)` elsewhere.
        pub fn elu, elu_ =
        Elu[alpha](x) 20.0 [ELU] { if x > constant(0.0) { x } else { alpha * x.expm1_in::<F>() } }
            => pub fn elu_backward, elu_backward_ = (dy, x; alpha) 20.0 [D_ELU] {
                if x > constant(0.0) { dy } else { dy * alpha * x.exp_in::<F>() }
            }
        /// `x` where it is positive, `alpha · (e^(x/alpha) - 1)` elsewhere; `alpha` is not 0.
        pub fn celu, celu_ =
        Celu[alpha](x) 20.0 [CELU] {
            if x > constant(0.0) { x } else { alpha * (x / alpha).expm1_in::<F>() }
        }
            => pub fn celu_backward, celu_backward_ = (dy, x; alpha) 20.0 [D_CELU] {
                if x > constant(0.0) { dy } else { dy * (x / alpha).exp_in::<F>() }
            }
        /// `ln(1 + e^(beta·x)) / beta`, and `x` where `beta·x` is above `threshold`.
        pub fn softplus, softplus_ =
        Softplus[beta, threshold](x) 20.0 [SOFTPLUS] {
            let y = (x * beta).exp_in::<F>().log1p_in::<F>() / beta;
            if x * beta > threshold { x } else { y }
        }
            => pub fn softplus_backward, softplus_backward_ = (dy, x; beta, threshold) 20.0
            [D_SOFTPLUS] {
                let slope = dy * sigmoid::<T, F>(x * beta);
                if x * beta > threshold { dy } else { slope }
            }
        /// The largest whole number that is not above `x`.
        pub fn floor, floor_ =
        Floor(x) 1.0 [FLOOR] { x.floor() }
        /// The smallest whole number that is not below `x`.
        pub fn ceil, ceil_ =
        Ceil(x) 1.0 [CEIL] { x.ceil() }
        /// The nearest whole number; ties go to the even number.
        pub fn round, round_ =
        Round(x) 1.0 [ROUND] { x.round_even() }
        /// The number without the digits after the point.
        pub fn trunc, trunc_ =
        Trunc(x) 1.0 [TRUNC] { x.trunc() }
        /// `self^exponent`, by products and roots for small exponents. Floats only.
        pub fn pow_scalar, pow_scalar_ =
        PowScalar[exponent](x) 50.0 [POW_SCALAR] {
            loop |sources, to| pow::<T, F>(sources, Some(exponent), to)
        }
        Pow(a, b) 50.0 [POW] { loop |sources, to| pow::<T, F>(sources, None, to) }
        Div(a, b) 4.0 [DIV] { a / b }
        Atan2(a, b) 50.0 [ATAN2] { a.atan2_in::<F>(b) }
        Hypot(a, b) 10.0 [HYPOT] { hypotenuse(a, b) }
        Copysign(a, b) 1.0 [COPYSIGN] { a.with_sign_of(b) }
        LogAddExp(a, b) 50.0 [LOGADDEXP] {
            let below = (-(a - b).magnitude()).exp_in::<F>().log1p_in::<F>();
            // The difference of two equal infinities is NaN.
            if (a == b) & a.is_infinite() { a } else { a.larger(b) + below }
        }
        XLogY(x, b) 20.0 [XLOGY] {
            let y = if x == constant(0.0) { constant(0.0) } else { x * b.log_in::<F>() };
            if b.is_nan() { b } else { y }
        }
        NanToNum[high, low](x, nan) 2.0 [NAN_TO_NUM] {
            let y = if x == T::INFINITY { high } else { x };
            let y = if x == -T::INFINITY { low } else { y };
            if x.is_nan() { nan } else { y }
        }
        Lerp[weight](a, b) 2.0 [LERP] { loop |sources, to| lerp::<T>(sources, weight, to) }
        AddCDiv[scale](x, a, b) 20.0 [ADDCDIV] { x + scale * (a / b) }
    }

    // Every type; the result is a truth value.
    Test, test, [Arithmetic], write {
        /// True where the element is 0.
        pub fn logical_not, logical_not_ =
        Not(x) 1.0 [NOT] { T::of(!x.is_true()) }
        IsFinite(x) 1.0 [IS_FINITE] { T::of(!(x.is_nan() | x.is_infinite())) }
        IsInf(x) 1.0 [IS_INF] { T::of(x.is_infinite()) }
        IsNan(x) 1.0 [IS_NAN] { T::of(x.is_nan()) }
        Eq(a, b) 1.0 [EQ] { T::of(a == b) }
        Ne(a, b) 1.0 [NE] { T::of(a != b) }
        IsClose[relative, absolute](a, b) 5.0 [IS_CLOSE] {
            loop |sources, to| zip(sources, to, |a, b| T::of(is_close(a, b, relative, absolute)))
        }
        IsCloseOrNan[relative, absolute](a, b) 5.0 [IS_CLOSE_OR_NAN] {
            loop |sources, to| zip(sources, to, |a, b| {
                let is_nan = a.is_nan() & b.is_nan();
                T::of(is_nan | is_close(a, b, relative, absolute))
            })
        }
        Lt(a, b) 1.0 [LT] { T::of(a < b) }
        Le(a, b) 1.0 [LE] { T::of(a <= b) }
        Gt(a, b) 1.0 [GT] { T::of(a > b) }
        Ge(a, b) 1.0 [GE] { T::of(a >= b) }
        And(a, b) 1.0 [AND] { T::of(a.is_true() & b.is_true()) }
        Or(a, b) 1.0 [OR] { T::of(a.is_true() | b.is_true()) }
        Xor(a, b) 1.0 [XOR] { T::of(a.is_true() ^ b.is_true()) }
    }
}
