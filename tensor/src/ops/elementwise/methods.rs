//! The methods of the elementwise family. Most are one entry of a list, with all its forms.

use super::op::{Float, Number, Op, Test};
use crate::error::Result;
use crate::tensor::Tensor;

/// Methods of one operand, each with its form in place where it has one.
macro_rules! unary {
    ($($(#[$doc:meta])+ pub fn $name:ident $(, $in_place:ident)? = $op:expr;)*) => {$(
        $(#[$doc])+
        ///
        /// # Errors
        /// Those of [`Tensor::add`].
        #[track_caller]
        pub fn $name(&self) -> Result<Tensor> {
            Tensor::elementwise(stringify!($name), $op, &[self], None)
        }
        $(
            #[doc = concat!("[`Tensor::", stringify!($name), "`] in place.")]
            ///
            /// # Errors
            /// Those of [`Tensor::add_`].
            #[track_caller]
            pub fn $in_place(&mut self) -> Result<()> {
                self.elementwise_(stringify!($name), $op, &[], None)
            }
        )?
    )*};
}

/// Methods of two operands: broadcast, in place, and both with a number on the right.
macro_rules! binary {
    ($($(#[$doc:meta])+
        pub fn $name:ident, $in_place:ident $(, $scalar:ident, $scalar_in_place:ident)? = $op:expr;
    )*) => {$(
        $(#[$doc])+
        ///
        /// # Errors
        /// Those of [`Tensor::add`].
        #[track_caller]
        pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
            Tensor::elementwise(stringify!($name), $op, &[self, other], None)
        }

        #[doc = concat!("[`Tensor::", stringify!($name), "`] in place.")]
        ///
        /// # Errors
        /// Those of [`Tensor::add_`].
        #[track_caller]
        pub fn $in_place(&mut self, other: &Tensor) -> Result<()> {
            self.elementwise_(stringify!($name), $op, &[other], None)
        }
        $(
            #[doc = concat!("[`Tensor::", stringify!($name), "`] with a number on the right.")]
            ///
            /// # Errors
            /// Those of [`Tensor::add`].
            #[track_caller]
            pub fn $scalar(&self, value: f64) -> Result<Tensor> {
                Tensor::elementwise(stringify!($scalar), $op, &[self], Some(value))
            }

            #[doc = concat!("[`Tensor::", stringify!($scalar), "`] in place.")]
            ///
            /// # Errors
            /// Those of [`Tensor::add_`].
            #[track_caller]
            pub fn $scalar_in_place(&mut self, value: f64) -> Result<()> {
                self.elementwise_(stringify!($scalar), $op, &[], Some(value))
            }
        )?
    )*};
}

/// Methods of one operand and numbers, each with its form in place.
macro_rules! parameterised {
    ($($(#[$doc:meta])+
        pub fn $name:ident, $in_place:ident ($($number:ident),+) = $op:expr;
    )*) => {$(
        $(#[$doc])+
        ///
        /// # Errors
        /// Those of [`Tensor::add`].
        #[track_caller]
        pub fn $name(&self, $($number: f64),+) -> Result<Tensor> {
            Tensor::elementwise(stringify!($name), $op, &[self], None)
        }

        #[doc = concat!("[`Tensor::", stringify!($name), "`] in place.")]
        ///
        /// # Errors
        /// Those of [`Tensor::add_`].
        #[track_caller]
        pub fn $in_place(&mut self, $($number: f64),+) -> Result<()> {
            self.elementwise_(stringify!($name), $op, &[], None)
        }
    )*};
}

/// Arithmetic of two operands.
impl Tensor {
    /// `self + other`, broadcast. Integers wrap.
    ///
    /// # Errors
    /// `Shape`; `DType` when the types differ, when the operation is not defined for them, or when
    /// a number beside a tensor of integers is no integer; `OutOfMemory`. So for all of this
    /// family.
    #[track_caller]
    pub fn add(&self, other: &Tensor) -> Result<Tensor> {
        Tensor::elementwise("add", Op::Number(Number::Add), &[self, other], None)
    }

    /// `self += other`; `other` broadcasts to this shape.
    ///
    /// # Errors
    /// Those of [`Tensor::add`] but never `OutOfMemory`, and `Frozen` and `Overlap`. So for all of
    /// this family in place.
    #[track_caller]
    pub fn add_(&mut self, other: &Tensor) -> Result<()> {
        self.elementwise_("add", Op::Number(Number::Add), &[other], None)
    }

    /// `self + value`; errors as [`Tensor::add`].
    #[track_caller]
    pub fn add_scalar(&self, value: f64) -> Result<Tensor> {
        Tensor::elementwise("add_scalar", Op::Number(Number::Add), &[self], Some(value))
    }

    /// `self += value`; errors as [`Tensor::add_`].
    #[track_caller]
    pub fn add_scalar_(&mut self, value: f64) -> Result<()> {
        self.elementwise_("add_scalar", Op::Number(Number::Add), &[], Some(value))
    }

    /// `self += scale · other`; errors as [`Tensor::add_`].
    #[track_caller]
    pub fn add_scaled_(&mut self, other: &Tensor, scale: f64) -> Result<()> {
        let op = Op::Number(Number::AddScaled(scale));
        self.elementwise_("add_scaled", op, &[other], None)
    }

    binary! {
        /// `self - other`, broadcast. Integers wrap.
        pub fn sub, sub_, sub_scalar, sub_scalar_ = Op::Number(Number::Sub);
        /// `self · other`, element by element, broadcast. Integers wrap.
        pub fn mul, mul_, mul_scalar, mul_scalar_ = Op::Number(Number::Mul);
        /// `self / other`, broadcast. Floats only.
        pub fn div, div_, div_scalar, div_scalar_ = Op::Float(Float::Div);
        /// `self / other` rounded down, as Python's `//`. Integers by 0 are the error
        /// `DivisionByZero`.
        pub fn div_floor, div_floor_, div_floor_scalar, div_floor_scalar_ =
            Op::Number(Number::DivFloor);
        /// `self / other` rounded towards 0, as in C. Integers by 0 are the error
        /// `DivisionByZero`.
        pub fn div_trunc, div_trunc_, div_trunc_scalar, div_trunc_scalar_ =
            Op::Number(Number::DivTrunc);
        /// What is left of a division that rounds down: it has the sign of `other`, as in Python.
        /// Integers by 0 are the error `DivisionByZero`.
        pub fn remainder, remainder_, remainder_scalar, remainder_scalar_ =
            Op::Number(Number::Remainder);
        /// The larger of both; NaN if one of them is.
        pub fn maximum, maximum_, maximum_scalar, maximum_scalar_ = Op::Number(Number::Maximum);
        /// The smaller of both; NaN if one of them is.
        pub fn minimum, minimum_, minimum_scalar, minimum_scalar_ = Op::Number(Number::Minimum);
        /// `self^other`, broadcast. Floats only.
        pub fn pow, pow_ = Op::Float(Float::Pow);
        /// The angle in radians of the point (`other`, `self`), between -π and π. Floats only.
        pub fn atan2, atan2_ = Op::Float(Float::Atan2);
    }

    parameterised! {
        /// `self^exponent`, by products and roots for small exponents. Floats only.
        pub fn pow_scalar, pow_scalar_ (exponent) = Op::Float(Float::PowScalar(exponent));
        /// Not below `low` and not above `high`, either of which may be infinite; `high` wins.
        pub fn clamp, clamp_ (low, high) = Op::Number(Number::Clamp(low, high));
    }

    /// `self + weight · (end - self)`, exactly `self` and `end` for weights 0 and 1. Floats only;
    /// errors as [`Tensor::add`].
    #[track_caller]
    pub fn lerp(&self, end: &Tensor, weight: f64) -> Result<Tensor> {
        Tensor::elementwise("lerp", Op::Float(Float::Lerp(weight)), &[self, end], None)
    }

    /// [`Tensor::lerp`] in place; errors as [`Tensor::add_`].
    #[track_caller]
    pub fn lerp_(&mut self, end: &Tensor, weight: f64) -> Result<()> {
        self.elementwise_("lerp", Op::Float(Float::Lerp(weight)), &[end], None)
    }

    /// `self + scale · a · b`, broadcast; errors as [`Tensor::add`].
    #[track_caller]
    pub fn addcmul(&self, a: &Tensor, b: &Tensor, scale: f64) -> Result<Tensor> {
        Tensor::elementwise("addcmul", Op::Number(Number::AddCMul(scale)), &[self, a, b], None)
    }

    /// [`Tensor::addcmul`] in place; errors as [`Tensor::add_`].
    #[track_caller]
    pub fn addcmul_(&mut self, a: &Tensor, b: &Tensor, scale: f64) -> Result<()> {
        self.elementwise_("addcmul", Op::Number(Number::AddCMul(scale)), &[a, b], None)
    }

    /// `self + scale · a / b`, broadcast. Floats only; errors as [`Tensor::add`].
    #[track_caller]
    pub fn addcdiv(&self, a: &Tensor, b: &Tensor, scale: f64) -> Result<Tensor> {
        Tensor::elementwise("addcdiv", Op::Float(Float::AddCDiv(scale)), &[self, a, b], None)
    }

    /// [`Tensor::addcdiv`] in place; errors as [`Tensor::add_`].
    #[track_caller]
    pub fn addcdiv_(&mut self, a: &Tensor, b: &Tensor, scale: f64) -> Result<()> {
        self.elementwise_("addcdiv", Op::Float(Float::AddCDiv(scale)), &[a, b], None)
    }
}

/// Comparison, logic and choice. Any element type. The result of a comparison holds truth values;
/// in place it holds 1 and 0 of its own type.
impl Tensor {
    binary! {
        /// Where both are equal; NaN equals nothing.
        pub fn eq, eq_, eq_scalar, eq_scalar_ = Op::Test(Test::Eq);
        /// Where they differ; NaN differs from everything.
        pub fn ne, ne_, ne_scalar, ne_scalar_ = Op::Test(Test::Ne);
        /// Where `self < other`.
        pub fn lt, lt_, lt_scalar, lt_scalar_ = Op::Test(Test::Lt);
        /// Where `self <= other`.
        pub fn le, le_, le_scalar, le_scalar_ = Op::Test(Test::Le);
        /// Where `self > other`.
        pub fn gt, gt_, gt_scalar, gt_scalar_ = Op::Test(Test::Gt);
        /// Where `self >= other`.
        pub fn ge, ge_, ge_scalar, ge_scalar_ = Op::Test(Test::Ge);
        /// Where both are true, that is, not 0.
        pub fn logical_and, logical_and_ = Op::Test(Test::And);
        /// Where one or both are true, that is, not 0.
        pub fn logical_or, logical_or_ = Op::Test(Test::Or);
        /// Where exactly one is true, that is, not 0.
        pub fn logical_xor, logical_xor_ = Op::Test(Test::Xor);
    }

    unary! {
        /// Where the element is 0.
        pub fn logical_not, logical_not_ = Op::Test(Test::Not);
        /// Where the element is neither infinite nor NaN.
        pub fn is_finite = Op::Test(Test::IsFinite);
        /// Where the element is infinite.
        pub fn is_inf = Op::Test(Test::IsInf);
        /// Where the element is NaN.
        pub fn is_nan = Op::Test(Test::IsNan);
    }

    /// `a` where this mask is true and `b` elsewhere, all three broadcast.
    ///
    /// # Errors
    /// `DType` unless this tensor is of truth values, and those of [`Tensor::add`].
    #[track_caller]
    pub fn where_cond(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Tensor::elementwise("where_cond", Op::Number(Number::Where), &[self, a, b], None)
    }

    /// `value` where `mask` is true, this tensor elsewhere; the mask is broadcast.
    ///
    /// # Errors
    /// `DType` unless the mask is of truth values, and those of [`Tensor::add`].
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> Result<Tensor> {
        let op = Op::Number(Number::MaskedFill);
        Tensor::elementwise("masked_fill", op, &[self, mask], Some(value))
    }

    /// [`Tensor::masked_fill`] in place.
    ///
    /// # Errors
    /// `DType` unless the mask is of truth values, and those of [`Tensor::add_`].
    #[track_caller]
    pub fn masked_fill_(&mut self, mask: &Tensor, value: f64) -> Result<()> {
        let op = Op::Number(Number::MaskedFill);
        self.elementwise_("masked_fill", op, &[mask], Some(value))
    }

    /// [`Tensor::where_cond`] in place: `source` where `mask` is true, this tensor elsewhere; both
    /// are broadcast.
    ///
    /// # Errors
    /// `DType` unless the mask is of truth values, and those of [`Tensor::add_`].
    #[track_caller]
    pub fn masked_copy_(&mut self, mask: &Tensor, source: &Tensor) -> Result<()> {
        let op = Op::Number(Number::MaskedFill);
        self.elementwise_("masked_copy", op, &[mask, source], None)
    }
}

/// Functions of one element. Floats only, but for the first five.
impl Tensor {
    unary! {
        /// Without its sign. The smallest integer has none without and stays.
        pub fn abs, abs_ = Op::Number(Number::Abs);
        /// `-x`. Integers wrap.
        pub fn neg, neg_ = Op::Number(Number::Neg);
        /// 1, -1 or, for 0 and NaN, 0.
        pub fn sign, sign_ = Op::Number(Number::Sign);
        /// `max(x, 0)`; NaN stays NaN.
        pub fn relu, relu_ = Op::Number(Number::Relu);
        /// `e^x`.
        pub fn exp, exp_ = Op::Float(Float::Exp);
        /// `e^x - 1`, exact near 0.
        pub fn expm1, expm1_ = Op::Float(Float::Expm1);
        /// The natural logarithm.
        pub fn log, log_ = Op::Float(Float::Log);
        /// `ln(1 + x)`, exact near 0.
        pub fn log1p, log1p_ = Op::Float(Float::Log1p);
        /// The square root.
        pub fn sqrt, sqrt_ = Op::Float(Float::Sqrt);
        /// `1 / √x`.
        pub fn rsqrt, rsqrt_ = Op::Float(Float::Rsqrt);
        /// `1 / x`.
        pub fn reciprocal, reciprocal_ = Op::Float(Float::Reciprocal);
        /// The sine of an angle in radians.
        pub fn sin, sin_ = Op::Float(Float::Sin);
        /// The cosine of an angle in radians.
        pub fn cos, cos_ = Op::Float(Float::Cos);
        /// The tangent of an angle in radians.
        pub fn tan, tan_ = Op::Float(Float::Tan);
        /// The angle in radians with this tangent, between -π/2 and π/2.
        pub fn atan, atan_ = Op::Float(Float::Atan);
        /// The angle in radians with this sine, between -π/2 and π/2; NaN beyond -1 and 1.
        pub fn asin, asin_ = Op::Float(Float::Asin);
        /// The angle in radians with this cosine, between 0 and π; NaN beyond -1 and 1.
        pub fn acos, acos_ = Op::Float(Float::Acos);
        /// The hyperbolic sine.
        pub fn sinh, sinh_ = Op::Float(Float::Sinh);
        /// The hyperbolic cosine.
        pub fn cosh, cosh_ = Op::Float(Float::Cosh);
        /// The logarithm to base 2.
        pub fn log2, log2_ = Op::Float(Float::Log2);
        /// The logarithm to base 10.
        pub fn log10, log10_ = Op::Float(Float::Log10);
        /// `2^x`.
        pub fn exp2, exp2_ = Op::Float(Float::Exp2);
        /// The hyperbolic tangent.
        pub fn tanh, tanh_ = Op::Float(Float::Tanh);
        /// The error function, 2/√π · ∫₀ˣ e^(-t²) dt.
        pub fn erf, erf_ = Op::Float(Float::Erf);
        /// `1 / (1 + e^-x)`.
        pub fn sigmoid, sigmoid_ = Op::Float(Float::Sigmoid);
        /// `x / (1 + e^-x)`.
        pub fn silu, silu_ = Op::Float(Float::Silu);
        /// `x/2 · (1 + erf(x/√2))`; in f32 to 3e-7 · |x|, like PyTorch's.
        pub fn gelu, gelu_ = Op::Float(Float::Gelu);
        /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`.
        pub fn gelu_tanh, gelu_tanh_ = Op::Float(Float::GeluTanh);
        /// `x · tanh(ln(1 + e^x))`.
        pub fn mish, mish_ = Op::Float(Float::Mish);
        /// `x · min(max(x + 3, 0), 6) / 6`.
        pub fn hardswish, hardswish_ = Op::Float(Float::HardSwish);
        /// `min(max(x + 3, 0), 6) / 6`.
        pub fn hardsigmoid, hardsigmoid_ = Op::Float(Float::HardSigmoid);
        /// `1.0507 · elu(x)` with `alpha` 1.6733, which keep mean and variance of a layer.
        pub fn selu, selu_ = Op::Float(Float::Selu);
        /// `x / (1 + |x|)`.
        pub fn softsign, softsign_ = Op::Float(Float::Softsign);
        /// `ln(1 / (1 + e^-x))`, exact for large `|x|`.
        pub fn logsigmoid, logsigmoid_ = Op::Float(Float::LogSigmoid);
        /// The largest whole number that is not above `x`.
        pub fn floor, floor_ = Op::Float(Float::Floor);
        /// The smallest whole number that is not below `x`.
        pub fn ceil, ceil_ = Op::Float(Float::Ceil);
        /// The nearest whole number, of two equally near ones the even one.
        pub fn round, round_ = Op::Float(Float::Round);
        /// Without the digits after the point.
        pub fn trunc, trunc_ = Op::Float(Float::Trunc);
    }

    parameterised! {
        /// `x` where it is positive, `slope · x` elsewhere.
        pub fn leaky_relu, leaky_relu_ (slope) = Op::Float(Float::LeakyRelu(slope));
        /// `x` where it is positive, `alpha · (e^x - 1)` elsewhere.
        pub fn elu, elu_ (alpha) = Op::Float(Float::Elu(alpha));
        /// `ln(1 + e^(beta·x)) / beta`, and `x` where `beta·x` is above `threshold`.
        pub fn softplus, softplus_ (beta, threshold) =
            Op::Float(Float::Softplus { beta, threshold });
    }
}
