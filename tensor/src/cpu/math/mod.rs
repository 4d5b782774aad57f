//! Floats as the processor computes with them: vector instructions and the elementary functions.
//!
//! A function takes one float and has no branch and no call, so that the compiler vectorises a loop
//! over it. Functions of f32 are written out in `single.rs`. Functions of f64, a type for gradient
//! checks, come from the standard library, and erf from `libm` (`double.rs`).

use super::arithmetic::Arithmetic;
use super::simd::{Fused, SimdKernel};
use crate::dtype::Float;

/// A float that the processor computes with: f32 or f64. The parameter `F` of a function decides
/// how it multiplies and adds.
pub(crate) trait SimdFloat: Float + Arithmetic {
    const INFINITY: Self;
    /// Largest magnitude for `sin_in`, `cos_in` and `tan_in`. For larger numbers use `sin_large`,
    /// `cos_large` and `tan_large`.
    const TRIG_MAX: Self;
    /// Runs `kernel` with the best instruction set of this processor.
    fn dispatch<K: SimdKernel<Self>>(kernel: K);
    /// Runs `kernel` with vectors that multiply pairs of bf16 and add the products in f32.
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
    /// erf in half the time, with an error of up to 6 units in the last place of 1.
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
    /// `self^exponent` for any base and exponent, not vectorised.
    fn pow_any(self, exponent: Self) -> Self;
    fn sin_large(self) -> Self;
    fn cos_large(self) -> Self;
    fn tan_large(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    /// Rounds to the nearest whole number; halves go to the even one.
    fn round_even(self) -> Self;
    /// The magnitude of this number with the sign of `other`. Zeros and NaN have signs too.
    fn with_sign_of(self, other: Self) -> Self;
}

/// The functions that are alike for both types. The modules follow the macro because they use it.
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
