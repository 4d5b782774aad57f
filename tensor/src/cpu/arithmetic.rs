//! The arithmetic of the types that kernels compute in: f64, f32 and i64.

use crate::dtype::Element;

/// Arithmetic that floats and integers have in common; integers wrap.
pub(crate) trait Arithmetic: Element {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// The quotient rounded down; 0 if an integer is divided by 0.
    fn div_floor(self, other: Self) -> Self;
    /// The quotient rounded towards 0; 0 if an integer is divided by 0.
    fn div_trunc(self, other: Self) -> Self;
    /// The remainder of [`Arithmetic::div_trunc`]; has the sign of `self`.
    fn rest(self, other: Self) -> Self;
    /// The remainder of [`Arithmetic::div_floor`]; has the sign of `other`.
    fn modulo(self, other: Self) -> Self;
    /// The number without its sign; -0 becomes 0.
    fn magnitude(self) -> Self;
    fn is_nan(self) -> bool;
    fn is_infinite(self) -> bool;
    /// The larger number; NaN if either is NaN.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if (self > other) | self.is_nan() { self } else { other }
    }
    /// The smaller number; NaN if either is NaN.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if (self < other) | self.is_nan() { self } else { other }
    }
    #[inline(always)]
    fn of(truth: bool) -> Self {
        if truth { Self::ONE } else { Self::ZERO }
    }
    #[inline(always)]
    fn is_true(self) -> bool {
        self != Self::ZERO
    }
}

macro_rules! float_arithmetic {
    ($($type:ty),*) => {$(
        impl Arithmetic for $type {
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn div_floor(self, other: Self) -> Self {
                // Computed from the remainder, as in Python: a rounded quotient may be one too
                // large.
                let rest = self % other;
                let quotient = (self - rest) / other;
                let is_above = (rest != 0.0) & ((other < 0.0) != (rest < 0.0));
                let quotient = if is_above { quotient - 1.0 } else { quotient };
                let floor = quotient.floor();
                let y = if quotient - floor > 0.5 { floor + 1.0 } else { floor };
                let y = if quotient == 0.0 { (0.0 as $type).copysign(self / other) } else { y };
                if other == 0.0 { self / other } else { y }
            }
            #[inline(always)]
            fn div_trunc(self, other: Self) -> Self { (self / other).trunc() }
            #[inline(always)]
            fn rest(self, other: Self) -> Self { self % other }
            #[inline(always)]
            fn modulo(self, other: Self) -> Self {
                let rest = self % other;
                let is_opposite = (rest != 0.0) & ((other < 0.0) != (rest < 0.0));
                if is_opposite { rest + other } else { rest }
            }
            #[inline(always)]
            fn magnitude(self) -> Self { self.abs() }
            #[inline(always)]
            fn is_nan(self) -> bool { self != self }
            #[inline(always)]
            fn is_infinite(self) -> bool { self.abs() == Self::INFINITY }
        }
    )*};
}
float_arithmetic!(f32, f64);

impl Arithmetic for i64 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
    #[inline(always)]
    fn div_floor(self, other: Self) -> Self {
        let quotient = self.div_trunc(other);
        let is_above = (quotient.wrapping_mul(other) != self) & ((self < 0) != (other < 0));
        quotient.wrapping_sub(is_above.into())
    }
    #[inline(always)]
    fn div_trunc(self, other: Self) -> Self {
        if other == 0 { 0 } else { self.wrapping_div(other) }
    }
    #[inline(always)]
    fn rest(self, other: Self) -> Self {
        if other == 0 { 0 } else { self.wrapping_rem(other) }
    }
    #[inline(always)]
    fn modulo(self, other: Self) -> Self {
        let rest = self.rest(other);
        let is_opposite = (rest != 0) & ((other < 0) != (rest < 0));
        if is_opposite { rest.wrapping_add(other) } else { rest }
    }
    #[inline(always)]
    fn magnitude(self) -> Self {
        self.wrapping_abs()
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
    #[inline(always)]
    fn is_infinite(self) -> bool {
        false
    }
}
