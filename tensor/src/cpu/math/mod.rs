//! Floats as the processor computes with them: vector instructions and the elementary functions.
//!
//! The functions are of one float and written so that the compiler vectorises a loop over them: no
//! branch, no call. In f32 (`single.rs`) they are ours; in f64 (`double.rs`), which is for gradient
//! checks, they are the standard library's, and `libm`'s erf.

use super::arithmetic::Arithmetic;
use super::simd::{Fused, SimdKernel};
use crate::dtype::Float;

/// A float that the processor computes with: f32 or f64. In the functions, `F` says how to multiply
/// and add.
pub(crate) trait SimdFloat: Float + Arithmetic {
    const INFINITY: Self;
    /// Beyond this, `sin_in` and its kin are wrong; use `sin_large` and its kin.
    const TRIG_MAX: Self;
    /// Runs `kernel` with the best instruction set of this processor.
    fn dispatch<K: SimdKernel<Self>>(kernel: K);
    /// Runs `kernel` with vectors that multiply pairs of bf16, which are added up in f32.
    fn dispatch_pairs<K: SimdKernel<Self>>(_: K) {
        unreachable!("no pairs are added up in {}", Self::DTYPE)
    }
    fn exp_in<F: Fused>(self) -> Self;
    /// 2^x for x up to 127, to 2 units in the last place; 0 below -126.
    fn exp2_fast_in<F: Fused>(self) -> Self;
    /// e^x - 1, exact near 0.
    fn expm1_in<F: Fused>(self) -> Self;
    fn log_in<F: Fused>(self) -> Self;
    /// ln(1 + x), exact near 0.
    fn log1p_in<F: Fused>(self) -> Self;
    fn sin_in<F: Fused>(self) -> Self;
    fn cos_in<F: Fused>(self) -> Self;
    fn tan_in<F: Fused>(self) -> Self;
    fn atan_in<F: Fused>(self) -> Self;
    fn tanh_in<F: Fused>(self) -> Self;
    fn erf_in<F: Fused>(self) -> Self;
    /// erf in half the time, to 6 units in the last place of 1.
    fn erf_fast_in<F: Fused>(self) -> Self;
    /// `self^exponent` for a positive finite base and a finite exponent.
    fn pow_in<F: Fused>(self, exponent: Self) -> Self;
    fn asin_in<F: Fused>(self) -> Self;
    fn acos_in<F: Fused>(self) -> Self;
    fn sinh_in<F: Fused>(self) -> Self;
    fn cosh_in<F: Fused>(self) -> Self;
    fn log2_in<F: Fused>(self) -> Self;
    fn log10_in<F: Fused>(self) -> Self;
    fn exp2_in<F: Fused>(self) -> Self;
    /// The angle of the point (`x`, `self`).
    fn atan2_in<F: Fused>(self, x: Self) -> Self;
    /// Any base and exponent, not vectorised.
    fn pow_any(self, exponent: Self) -> Self;
    fn sin_large(self) -> Self;
    fn cos_large(self) -> Self;
    fn tan_large(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    /// To the nearest whole number; to the even one between two.
    fn round_even(self) -> Self;
    /// Its magnitude under the sign of `other`, which zeros and NaN have too.
    fn with_sign_of(self, other: Self) -> Self;
}

/// Functions with one call for both types, whose modules come after the name.
macro_rules! shared {
    ($float:ty, $dispatch:path) => {
        const INFINITY: Self = <$float>::INFINITY;
        #[inline(always)]
        fn dispatch<K: SimdKernel<Self>>(kernel: K) {
            $dispatch(kernel);
        }
        #[inline(always)]
        fn floor(self) -> Self {
            <$float>::floor(self)
        }
        #[inline(always)]
        fn ceil(self) -> Self {
            <$float>::ceil(self)
        }
        #[inline(always)]
        fn trunc(self) -> Self {
            <$float>::trunc(self)
        }
        #[inline(always)]
        fn round_even(self) -> Self {
            <$float>::round_ties_even(self)
        }
        #[inline(always)]
        fn with_sign_of(self, other: Self) -> Self {
            self.copysign(other)
        }
        fn pow_any(self, exponent: Self) -> Self {
            self.powf(exponent)
        }
    };
}

mod coefficients;
mod double;
mod single;
