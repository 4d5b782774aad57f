//! More functions of floats, made of those in `math.rs`; there is also said how they are written.
//!
//! Largest errors in f32, in units in the last place, as in `math.rs`: asin, acos, atan2, log2,
//! log10 and exp2 0.51, sinh and cosh 3.
//!
//! asin and acos are angles of right triangles, atan2 is its quadrants: Abramowitz and Stegun,
//! "Handbook of Mathematical Functions" (1964), 4.4; sinh by expm1: Kahan, "Branch cuts for complex
//! elementary functions" (1987).

use super::math::{Math, atan_of, exp2_of, log2_of};
use super::simd::Fused;

/// A float with these functions; `F` says how to multiply and add.
pub(crate) trait Functions: Math {
    fn asin_in<F: Fused>(self) -> Self;
    fn acos_in<F: Fused>(self) -> Self;
    fn sinh_in<F: Fused>(self) -> Self;
    fn cosh_in<F: Fused>(self) -> Self;
    fn log2_in<F: Fused>(self) -> Self;
    fn log10_in<F: Fused>(self) -> Self;
    fn exp2_in<F: Fused>(self) -> Self;
    /// The angle of the point (`x`, `self`).
    fn atan2_in<F: Fused>(self, x: Self) -> Self;
    fn abs(self) -> Self;
}

/// The logarithm of any f32 from `log`, that of a positive finite one.
#[inline(always)]
fn any_log(x: f32, log: f64) -> f32 {
    let y = if x > 0.0 { log as f32 } else { f32::NAN };
    let y = if x == f32::INFINITY { x } else { y };
    if x == 0.0 { f32::NEG_INFINITY } else { y }
}

impl Functions for f32 {
    #[inline(always)]
    fn asin_in<F: Fused>(self) -> f32 {
        let x = f64::from(self).abs();
        (atan_of::<F>(x / ((1.0 - x) * (1.0 + x)).sqrt()) as f32).copysign(self)
    }

    #[inline(always)]
    fn acos_in<F: Fused>(self) -> f32 {
        let x = f64::from(self);
        (2.0 * atan_of::<F>(((1.0 - x) / (1.0 + x)).sqrt())) as f32
    }

    #[inline(always)]
    fn sinh_in<F: Fused>(self) -> f32 {
        let x = f32::abs(self);
        let u = x.expm1_in::<F>();
        // Beyond, e^x overflows before half of it does.
        let h = (0.5 * x).exp_in::<F>();
        let y = if x < 88.0 { 0.5 * (u + u / (u + 1.0)) } else { 0.5 * h * h };
        y.copysign(self)
    }

    #[inline(always)]
    fn cosh_in<F: Fused>(self) -> f32 {
        let x = f32::abs(self);
        let e = x.exp_in::<F>();
        let h = (0.5 * x).exp_in::<F>();
        if x < 88.0 { 0.5 * (e + 1.0 / e) } else { 0.5 * h * h }
    }

    #[inline(always)]
    fn log2_in<F: Fused>(self) -> f32 {
        any_log(self, log2_of::<F>(f64::from(self)))
    }

    #[inline(always)]
    fn log10_in<F: Fused>(self) -> f32 {
        any_log(self, log2_of::<F>(f64::from(self)) * std::f64::consts::LOG10_2)
    }

    #[inline(always)]
    fn exp2_in<F: Fused>(self) -> f32 {
        exp2_of::<F>(f64::from(self)) as f32
    }

    #[inline(always)]
    fn atan2_in<F: Fused>(self, x: f32) -> f32 {
        let (y, signed_x) = (f64::from(self).abs(), f64::from(x));
        let x = signed_x.abs();
        let a = atan_of::<F>(y / x);
        // What the quotient of two zeros or two infinities stands for.
        let a = if y == x { std::f64::consts::FRAC_PI_4 } else { a };
        let a = if (y == 0.0) & (x >= 0.0) { 0.0 } else { a };
        let is_left = signed_x.to_bits() >> 63 != 0;
        let a = if is_left { std::f64::consts::PI - a } else { a };
        (a as f32).copysign(self)
    }

    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }
}

macro_rules! standard {
    ($($name:ident => $call:path;)*) => {$(
        #[inline(always)]
        fn $name<F: Fused>(self) -> f64 {
            $call(self)
        }
    )*};
}

impl Functions for f64 {
    standard! {
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
    fn abs(self) -> f64 {
        f64::abs(self)
    }
}
