//! The methods of formulas of several operands. Methods of one operand are in `table.rs`.

use super::op::Op;
use super::table::{Float, Number, Test};
use crate::error::Result;
use crate::tensor::Tensor;

/// Methods of one operand without an in-place form.
macro_rules! tests {
    ($($(#[$doc:meta])+ pub fn $name:ident = $op:expr;)*) => {$(
        $(#[$doc])+
        ///
        /// # Errors
        /// The errors of [`Tensor::add`].
        #[track_caller]
        pub fn $name(&self) -> Result<Tensor> {
            Tensor::elementwise(stringify!($name), $op.into(), &[self], None)
        }
    )*};
}

/// Methods of two operands, which broadcast: with tensors or with a number on the right, each also
/// in place.
macro_rules! binary {
    ($($(#[$doc:meta])+
        pub fn $name:ident, $in_place:ident $(, $scalar:ident, $scalar_in_place:ident)? = $op:expr;
    )*) => {$(
        $(#[$doc])+
        ///
        /// # Errors
        /// The errors of [`Tensor::add`].
        #[track_caller]
        pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
            Tensor::elementwise(stringify!($name), $op.into(), &[self, other], None)
        }

        #[doc = concat!("[`Tensor::", stringify!($name), "`] in place.")]
        ///
        /// # Errors
        /// The errors of [`Tensor::add_`].
        #[track_caller]
        pub fn $in_place(&mut self, other: &Tensor) -> Result<()> {
            self.elementwise_(stringify!($name), $op.into(), &[other], None)
        }
        $(
            #[doc = concat!("[`Tensor::", stringify!($name), "`] with a number on the right.")]
            ///
            /// # Errors
            /// The errors of [`Tensor::add`].
            #[track_caller]
            pub fn $scalar(&self, value: f64) -> Result<Tensor> {
                Tensor::elementwise(stringify!($scalar), $op.into(), &[self], Some(value))
            }

            #[doc = concat!("[`Tensor::", stringify!($scalar), "`] in place.")]
            ///
            /// # Errors
            /// The errors of [`Tensor::add_`].
            #[track_caller]
            pub fn $scalar_in_place(&mut self, value: f64) -> Result<()> {
                self.elementwise_(stringify!($scalar), $op.into(), &[], Some(value))
            }
        )?
    )*};
}

/// Arithmetic of two operands.
impl Tensor {
    /// `self + other`, broadcast. Integers wrap.
    ///
    /// # Errors
    /// `Shape`; `DType` if the types differ, if the operation is not defined for them, or if a
    /// number beside a tensor of integers is no integer; `OutOfMemory`. All methods of this family
    /// have these errors.
    #[track_caller]
    pub fn add(&self, other: &Tensor) -> Result<Tensor> {
        Tensor::elementwise("add", Number::Add.into(), &[self, other], None)
    }

    /// `self += other`; `other` broadcasts to this shape.
    ///
    /// # Errors
    /// The errors of [`Tensor::add`] without `OutOfMemory`, and `Frozen` and `Overlap`. All
    /// in-place methods of this family have these errors.
    #[track_caller]
    pub fn add_(&mut self, other: &Tensor) -> Result<()> {
        self.elementwise_("add", Number::Add.into(), &[other], None)
    }

    /// `self + value`; errors as [`Tensor::add`].
    #[track_caller]
    pub fn add_scalar(&self, value: f64) -> Result<Tensor> {
        Tensor::elementwise("add_scalar", Number::Add.into(), &[self], Some(value))
    }

    /// `self += value`; errors as [`Tensor::add_`].
    #[track_caller]
    pub fn add_scalar_(&mut self, value: f64) -> Result<()> {
        self.elementwise_("add_scalar", Number::Add.into(), &[], Some(value))
    }

    /// `self += scale · other`; errors as [`Tensor::add_`].
    #[track_caller]
    pub fn add_scaled_(&mut self, other: &Tensor, scale: f64) -> Result<()> {
        let op = Op::with(Number::AddScaled, &[scale]);
        self.elementwise_("add_scaled", op, &[other], None)
    }

    binary! {
        /// `self - other`, broadcast. Integers wrap.
        pub fn sub, sub_, sub_scalar, sub_scalar_ = Number::Sub;
        /// `self · other`, element by element, broadcast. Integers wrap.
        pub fn mul, mul_, mul_scalar, mul_scalar_ = Number::Mul;
        /// `self / other`, broadcast. Floats only.
        pub fn div, div_, div_scalar, div_scalar_ = Float::Div;
        /// `self / other` rounded down, as Python's `//`. For integers, a divisor of 0 is the error
        /// `DivisionByZero`.
        pub fn div_floor, div_floor_, div_floor_scalar, div_floor_scalar_ =
            Number::DivFloor;
        /// `self / other` rounded towards 0, as in C. For integers, a divisor of 0 is the error
        /// `DivisionByZero`.
        pub fn div_trunc, div_trunc_, div_trunc_scalar, div_trunc_scalar_ =
            Number::DivTrunc;
        /// The remainder of a division that rounds down, with the sign of `other`, as in Python.
        /// For integers, a divisor of 0 is the error `DivisionByZero`.
        pub fn remainder, remainder_, remainder_scalar, remainder_scalar_ =
            Number::Remainder;
        /// The remainder of a division that rounds towards 0, with the sign of `self`, as in C. For
        /// integers, a divisor of 0 is the error `DivisionByZero`.
        pub fn fmod, fmod_, fmod_scalar, fmod_scalar_ = Number::Fmod;
        /// The larger of both numbers; if one is NaN, the other number.
        pub fn fmax, fmax_ = Number::Fmax;
        /// The smaller of both numbers; if one is NaN, the other number.
        pub fn fmin, fmin_ = Number::Fmin;
        /// 0 where `self` is negative or NaN, 1 where `self` is positive, `other` where `self` is
        /// 0.
        pub fn heaviside, heaviside_ = Number::Heaviside;
        /// The larger of both numbers; NaN if one of them is NaN.
        pub fn maximum, maximum_, maximum_scalar, maximum_scalar_ = Number::Maximum;
        /// The smaller of both numbers; NaN if one of them is NaN.
        pub fn minimum, minimum_, minimum_scalar, minimum_scalar_ = Number::Minimum;
        /// `self^other`, broadcast. Floats only.
        pub fn pow, pow_ = Float::Pow;
        /// The angle in radians of the point (`other`, `self`), between -π and π. Floats only.
        pub fn atan2, atan2_ = Float::Atan2;
        /// `√(self² + other²)`, which overflows only if the root does. Infinite if one operand is
        /// infinite, even if the other is NaN. Floats only.
        pub fn hypot, hypot_ = Float::Hypot;
        /// The magnitude of `self` with the sign of `other`; -0 and NaN have signs too. Floats
        /// only.
        pub fn copysign, copysign_ = Float::Copysign;
        /// `ln(e^self + e^other)`, computed from the larger operand so that it does not overflow.
        /// Floats only.
        pub fn logaddexp, logaddexp_ = Float::LogAddExp;
        /// `self · ln other`; 0 where `self` is 0, unless `other` is NaN. Floats only.
        pub fn xlogy, xlogy_ = Float::XLogY;
    }

    /// `self + weight · (end - self)`, exactly `self` and `end` for weights 0 and 1. Floats only;
    /// errors as [`Tensor::add`].
    #[track_caller]
    pub fn lerp(&self, end: &Tensor, weight: f64) -> Result<Tensor> {
        Tensor::elementwise("lerp", Op::with(Float::Lerp, &[weight]), &[self, end], None)
    }

    /// [`Tensor::lerp`] in place; errors as [`Tensor::add_`].
    #[track_caller]
    pub fn lerp_(&mut self, end: &Tensor, weight: f64) -> Result<()> {
        self.elementwise_("lerp", Op::with(Float::Lerp, &[weight]), &[end], None)
    }

    /// `self + scale · a · b`, broadcast; errors as [`Tensor::add`].
    #[track_caller]
    pub fn addcmul(&self, a: &Tensor, b: &Tensor, scale: f64) -> Result<Tensor> {
        Tensor::elementwise("addcmul", Op::with(Number::AddCMul, &[scale]), &[self, a, b], None)
    }

    /// [`Tensor::addcmul`] in place; errors as [`Tensor::add_`].
    #[track_caller]
    pub fn addcmul_(&mut self, a: &Tensor, b: &Tensor, scale: f64) -> Result<()> {
        self.elementwise_("addcmul", Op::with(Number::AddCMul, &[scale]), &[a, b], None)
    }

    /// `self + scale · a / b`, broadcast. Floats only; errors as [`Tensor::add`].
    #[track_caller]
    pub fn addcdiv(&self, a: &Tensor, b: &Tensor, scale: f64) -> Result<Tensor> {
        Tensor::elementwise("addcdiv", Op::with(Float::AddCDiv, &[scale]), &[self, a, b], None)
    }

    /// [`Tensor::addcdiv`] in place; errors as [`Tensor::add_`].
    #[track_caller]
    pub fn addcdiv_(&mut self, a: &Tensor, b: &Tensor, scale: f64) -> Result<()> {
        self.elementwise_("addcdiv", Op::with(Float::AddCDiv, &[scale]), &[a, b], None)
    }
}

/// Comparison, logic and choice. Any element type. The result of a comparison holds truth values;
/// in place it holds 1 and 0 of its own type.
impl Tensor {
    binary! {
        /// True where both elements are equal; NaN equals nothing.
        pub fn eq, eq_, eq_scalar, eq_scalar_ = Test::Eq;
        /// True where the elements differ; NaN differs from everything.
        pub fn ne, ne_, ne_scalar, ne_scalar_ = Test::Ne;
        /// True where `self < other`.
        pub fn lt, lt_, lt_scalar, lt_scalar_ = Test::Lt;
        /// True where `self <= other`.
        pub fn le, le_, le_scalar, le_scalar_ = Test::Le;
        /// True where `self > other`.
        pub fn gt, gt_, gt_scalar, gt_scalar_ = Test::Gt;
        /// True where `self >= other`.
        pub fn ge, ge_, ge_scalar, ge_scalar_ = Test::Ge;
        /// True where both elements are true (not 0).
        pub fn logical_and, logical_and_ = Test::And;
        /// True where one or both elements are true (not 0).
        pub fn logical_or, logical_or_ = Test::Or;
        /// True where exactly one element is true (not 0).
        pub fn logical_xor, logical_xor_ = Test::Xor;
    }

    tests! {
        /// True where the element is neither infinite nor NaN.
        pub fn is_finite = Test::IsFinite;
        /// True where the element is infinite.
        pub fn is_inf = Test::IsInf;
        /// True where the element is NaN.
        pub fn is_nan = Test::IsNan;
    }

    /// `a` where this mask is true and `b` elsewhere; all three are broadcast.
    ///
    /// # Errors
    /// `DType` unless this tensor is of truth values, and the errors of [`Tensor::add`].
    #[track_caller]
    pub fn where_cond(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Tensor::elementwise("where_cond", Number::Where.into(), &[self, a, b], None)
    }

    /// `value` where `mask` is true, this tensor elsewhere; the mask is broadcast.
    ///
    /// # Errors
    /// `DType` unless the mask is of truth values, and the errors of [`Tensor::add`].
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> Result<Tensor> {
        let op = Op::from(Number::MaskedFill);
        Tensor::elementwise("masked_fill", op, &[self, mask], Some(value))
    }

    /// [`Tensor::masked_fill`] in place.
    ///
    /// # Errors
    /// `DType` unless the mask is of truth values, and the errors of [`Tensor::add_`].
    #[track_caller]
    pub fn masked_fill_(&mut self, mask: &Tensor, value: f64) -> Result<()> {
        let op = Op::from(Number::MaskedFill);
        self.elementwise_("masked_fill", op, &[mask], Some(value))
    }

    /// [`Tensor::where_cond`] in place: `source` where `mask` is true, this tensor elsewhere. Both
    /// arguments are broadcast.
    ///
    /// # Errors
    /// `DType` unless the mask is of truth values, and the errors of [`Tensor::add_`].
    #[track_caller]
    pub fn masked_copy_(&mut self, mask: &Tensor, source: &Tensor) -> Result<()> {
        let op = Op::from(Number::MaskedFill);
        self.elementwise_("masked_copy", op, &[mask, source], None)
    }
}
