//! f64: the standard library's functions.

use super::SimdFloat;
use crate::cpu::simd::{Fused, SimdKernel, dispatch_f64};

/// Functions of f64 that are one call.
macro_rules! standard {
    ($($name:ident => $call:expr;)*) => {$(
        #[inline(always)]
        fn $name<F: Fused>(self) -> f64 {
            $call(self)
        }
    )*};
}

impl SimdFloat for f64 {
    const TRIG_MAX: f64 = f64::INFINITY;

    standard! {
        exp_in => f64::exp;
        exp2_fast_in => f64::exp2;
        expm1_in => f64::exp_m1;
        log_in => f64::ln;
        log1p_in => f64::ln_1p;
        sin_in => f64::sin;
        cos_in => f64::cos;
        tan_in => f64::tan;
        atan_in => f64::atan;
        tanh_in => f64::tanh;
        erf_in => libm::erf;
        erf_fast_in => libm::erf;
        asin_in => f64::asin;
        acos_in => f64::acos;
        sinh_in => f64::sinh;
        cosh_in => f64::cosh;
        log2_in => f64::log2;
        log10_in => f64::log10;
        exp2_in => f64::exp2;
    }

    #[inline(always)]
    fn atan2_in<F: Fused>(self, x: f64) -> f64 {
        self.atan2(x)
    }

    #[inline(always)]
    fn pow_in<F: Fused>(self, exponent: f64) -> f64 {
        self.powf(exponent)
    }

    fn sin_large(self) -> f64 {
        self.sin()
    }

    fn cos_large(self) -> f64 {
        self.cos()
    }

    fn tan_large(self) -> f64 {
        self.tan()
    }

    shared!(f64, dispatch_f64);
}
