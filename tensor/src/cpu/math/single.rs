//! The elementary functions of f32.
//!
//! Largest errors, in units in the last place, against the f64 functions over a sample of all f32
//! (the test `accuracy.rs` checks these limits): sin, cos, tan, atan, asin, acos, atan2, pow, log2,
//! log10 and exp2 0.51, log 0.8, erf 1.0, exp 1.1, tanh 1.3, log1p 1.5, expm1 1.7, sinh and cosh 3.
//!
//! The polynomials are in `coefficients.rs`. The reductions are textbook: Cody and Waite, "Software
//! Manual for the Elementary Functions" (1980), with their ln 2 in two parts, and π/2 in two parts
//! of 33 and 53 bits; log1p's correction is Kahan's, as in Goldberg, "What every computer scientist
//! should know about floating-point arithmetic" (1991), theorem 4. asin and acos are angles of
//! right triangles, and atan2 chooses the quadrant: Abramowitz and Stegun, "Handbook of
//! Mathematical Functions" (1964), 4.4. sinh uses expm1: Kahan, "Branch cuts for complex elementary
//! functions" (1987).

use super::SimdFloat;
use super::coefficients::{
    ATAN, COS, ERF, ERF_OVER, ERF_UNDER, ERFC, EXP, LOG, POW_EXP2, POW_LOG2, SIN, TANH,
};
use crate::cpu::simd::{Fused, SimdKernel, dispatch_f32, dispatch_pairs};

#[inline(always)]
fn fused32<F: Fused>(a: f32, b: f32, c: f32) -> f32 {
    if F::IS_FUSED { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn fused64<F: Fused>(a: f64, b: f64, c: f64) -> f64 {
    if F::IS_FUSED { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn poly32<F: Fused, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    // A loop, not a fold: see `ops/elementwise/cpu.rs`.
    let mut y = coefficients[N - 1];
    for i in 1..N {
        y = fused32::<F>(y, x, coefficients[N - 1 - i]);
    }
    y
}

#[inline(always)]
fn poly64<F: Fused, const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    // A loop, not a fold: see `ops/elementwise/cpu.rs`.
    let mut y = coefficients[N - 1];
    for i in 1..N {
        y = fused64::<F>(y, x, coefficients[N - 1 - i]);
    }
    y
}

/// 1.5 · 2^23 and 1.5 · 2^52: added to a small number, they leave its whole part in the low bits.
const SHIFT32: f32 = 12_582_912.0;
const SHIFT64: f64 = 6_755_399_441_055_744.0;
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
const PI_2_HIGH: f64 = 1.570_796_326_734_125_6;
const PI_2_LOW: f64 = 6.077_100_506_506_192e-11;

/// Splits x = n·ln 2 + r with whole n; returns n and e^r - 1.
#[inline(always)]
fn split_exp<F: Fused>(x: f32) -> (i32, f32) {
    let shifted = fused32::<F>(x, std::f32::consts::LOG2_E, SHIFT32);
    let n = shifted - SHIFT32;
    let r = fused32::<F>(n, -LN2_LOW, fused32::<F>(n, -LN2_HIGH, x));
    let n = (shifted.to_bits() as i32).wrapping_sub(SHIFT32.to_bits() as i32);
    (n, fused32::<F>(poly32::<F, 5>(r, EXP) * r, r, r))
}

/// 2^n for -126 ≤ n ≤ 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Limits `x` to `low..=high`; NaN stays.
#[inline(always)]
fn within(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > high { high } else { x };
    if x < low { low } else { x }
}

/// Reduces x to r = x - n·π/2 with |r| ≤ π/4. Returns r, and a number with n in its low bits.
#[inline(always)]
fn reduce_angle<F: Fused>(x: f32) -> (f64, u64) {
    let x = f64::from(x);
    let shifted = fused64::<F>(x, std::f64::consts::FRAC_2_PI, SHIFT64);
    let n = shifted - SHIFT64;
    (fused64::<F>(n, -PI_2_LOW, fused64::<F>(n, -PI_2_HIGH, x)), shifted.to_bits())
}

/// The sine and the cosine of |r| ≤ π/4.
#[inline(always)]
fn sin_cos<F: Fused>(r: f64) -> (f64, f64) {
    let s = r * r;
    let sin = r * fused64::<F>(s, poly64::<F, 4>(s, SIN), 1.0);
    let cos = fused64::<F>(s * s, poly64::<F, 4>(s, COS), fused64::<F>(s, -0.5, 1.0));
    (sin, cos)
}

/// The logarithm of any f32, from a `log` that is right for positive finite numbers.
#[inline(always)]
fn any_log(x: f32, log: f64) -> f32 {
    let y = if x > 0.0 { log as f32 } else { f32::NAN };
    let y = if x == f32::INFINITY { x } else { y };
    if x == 0.0 { f32::NEG_INFINITY } else { y }
}

impl SimdFloat for f32 {
    // Up to this magnitude n·PI_2_HIGH is exact.
    const TRIG_MAX: f32 = 1_000_000.0;

    #[inline(always)]
    fn exp_in<F: Fused>(self) -> f32 {
        // e^89 is above every f32, and e^-104 is rounded to 0.
        let (n, expm1) = split_exp::<F>(within(self, -104.0, 89.0));
        // Scaled in two steps, because 2^n itself may not be an f32.
        let half = n >> 1;
        (1.0 + expm1) * power_of_two(half) * power_of_two(n.wrapping_sub(half))
    }

    #[inline(always)]
    fn exp2_fast_in<F: Fused>(self) -> f32 {
        let x = within(self, -126.0, 127.0);
        let shifted = x + SHIFT32;
        let r = (x - (shifted - SHIFT32)) * std::f32::consts::LN_2;
        let n = (shifted.to_bits() as i32).wrapping_sub(SHIFT32.to_bits() as i32);
        let expm1 = fused32::<F>(poly32::<F, 5>(r, EXP) * r, r, r);
        let y = (1.0 + expm1) * power_of_two(n);
        if self < -126.0 { 0.0 } else { y }
    }

    #[inline(always)]
    fn expm1_in<F: Fused>(self) -> f32 {
        let (n, expm1) = split_exp::<F>(within(self, -18.0, 89.0));
        // Uses half of 2^n: 2^128 is not an f32, but the result may still be an f32.
        let scale = power_of_two(n.wrapping_sub(1));
        let y = 2.0 * fused32::<F>(scale, expm1, scale - 0.5);
        if self == 0.0 { self } else { y }
    }

    #[inline(always)]
    fn log_in<F: Fused>(self) -> f32 {
        let is_tiny = self < f32::MIN_POSITIVE;
        let x = if is_tiny { self * (1 << 23) as f32 } else { self };
        let bits = x.to_bits() as i32;
        let exponent = bits.wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32) >> 23;
        let f = f32::from_bits(bits.wrapping_sub(exponent << 23) as u32) - 1.0;
        let e = exponent as f32 - if is_tiny { 23.0 } else { 0.0 };
        let s = f * f;
        let tail = fused32::<F>(e, LN2_LOW, poly32::<F, 9>(f, LOG) * f * s);
        let y = fused32::<F>(e, LN2_HIGH, f + fused32::<F>(-0.5, s, tail));
        let y = if self < f32::INFINITY { y } else { self };
        let y = if self < 0.0 { f32::NAN } else { y };
        if self == 0.0 { f32::NEG_INFINITY } else { y }
    }

    #[inline(always)]
    fn log1p_in<F: Fused>(self) -> f32 {
        let u = 1.0 + self;
        // The rounding error of the sum.
        let lost = self - (u - 1.0);
        let log = u.log_in::<F>();
        let y = if (u > 0.0) & (u < f32::INFINITY) { log + lost / u } else { log };
        if self == 0.0 { self } else { y }
    }

    #[inline(always)]
    fn sin_in<F: Fused>(self) -> f32 {
        let (r, quadrant) = reduce_angle::<F>(self);
        let (sin, cos) = sin_cos::<F>(r);
        let y = if quadrant & 1 == 0 { sin } else { cos };
        f64::from_bits(y.to_bits() ^ ((quadrant & 2) << 62)) as f32
    }

    #[inline(always)]
    fn cos_in<F: Fused>(self) -> f32 {
        let (r, quadrant) = reduce_angle::<F>(self);
        let (sin, cos) = sin_cos::<F>(r);
        let y = if quadrant & 1 == 0 { cos } else { sin };
        f64::from_bits(y.to_bits() ^ ((quadrant.wrapping_add(1) & 2) << 62)) as f32
    }

    #[inline(always)]
    fn tan_in<F: Fused>(self) -> f32 {
        let (r, quadrant) = reduce_angle::<F>(self);
        let (sin, cos) = sin_cos::<F>(r);
        let is_even = quadrant & 1 == 0;
        let (over, under) = if is_even { (sin, cos) } else { (-cos, sin) };
        (over / under) as f32
    }

    #[inline(always)]
    fn atan_in<F: Fused>(self) -> f32 {
        (atan_of::<F>(f64::from(self).abs()) as f32).copysign(self)
    }

    #[inline(always)]
    fn tanh_in<F: Fused>(self) -> f32 {
        let x = f32::abs(self);
        let s = x * x;
        let small = fused32::<F>(x * s, poly32::<F, 6>(s, TANH), x);
        let large = 1.0 - 2.0 / ((x + x).exp_in::<F>() + 1.0);
        (if x < 0.625 { small } else { large }).copysign(self)
    }

    #[inline(always)]
    fn erf_in<F: Fused>(self) -> f32 {
        let x = f32::abs(self);
        let small = fused32::<F>(x, poly32::<F, 7>(x * x, ERF), x);
        let t = within(x, 0.0, 3.95);
        let large = 1.0 - (-t * poly32::<F, 8>(t, ERFC)).exp_in::<F>();
        (if x < 1.0 { small } else { large }).copysign(self)
    }

    #[inline(always)]
    fn erf_fast_in<F: Fused>(self) -> f32 {
        let s = self * self;
        let y = self * poly32::<F, 6>(s, ERF_OVER) / poly32::<F, 6>(s, ERF_UNDER);
        // Exactly 1 or -1: users may multiply 1 ± erf(x) by a large number.
        let y = if self > 3.925 { 1.0 } else { y };
        if self < -3.925 { -1.0 } else { y }
    }

    #[inline(always)]
    fn pow_in<F: Fused>(self, exponent: f32) -> f32 {
        exp2_of::<F>(f64::from(exponent) * log2_of::<F>(f64::from(self))) as f32
    }

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
        // From 88 on, e^x may overflow although half of it does not.
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
        // The quotient of two zeros or two infinities counts as 1.
        let a = if y == x { std::f64::consts::FRAC_PI_4 } else { a };
        let a = if (y == 0.0) & (x >= 0.0) { 0.0 } else { a };
        let is_left = signed_x.to_bits() >> 63 != 0;
        let a = if is_left { std::f64::consts::PI - a } else { a };
        (a as f32).copysign(self)
    }

    fn sin_large(self) -> f32 {
        f64::from(self).sin() as f32
    }

    fn cos_large(self) -> f32 {
        f64::from(self).cos() as f32
    }

    fn tan_large(self) -> f32 {
        f64::from(self).tan() as f32
    }

    #[inline(always)]
    fn dispatch_pairs<K: SimdKernel<Self>>(kernel: K) {
        dispatch_pairs(kernel);
    }

    shared!(f32, dispatch_f32);
}

/// The angle of a tangent x ≥ 0 with the digits of an f32, a few digits more exact than an f32.
#[inline(always)]
fn atan_of<F: Fused>(x: f64) -> f64 {
    const TAN_PI_8: f64 = 0.414_213_562_373_095_03;
    const TAN_3PI_8: f64 = 2.414_213_562_373_095;
    let (over, under, base) = (x, 1.0, 0.0);
    let is_middle = x > TAN_PI_8;
    let (over, under, base) = if is_middle {
        (x - 1.0, x + 1.0, std::f64::consts::FRAC_PI_4)
    } else {
        (over, under, base)
    };
    let is_large = x > TAN_3PI_8;
    let (over, under, base) =
        if is_large { (-1.0, x, std::f64::consts::FRAC_PI_2) } else { (over, under, base) };
    let t = over / under;
    let s = t * t;
    base + t * fused64::<F>(s, poly64::<F, 6>(s, ATAN), 1.0)
}

/// The binary logarithm of a positive finite x that an f32 holds.
#[inline(always)]
fn log2_of<F: Fused>(x: f64) -> f64 {
    let bits = x.to_bits();
    let shift = bits.wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits());
    // The binary exponent, in its place in the bits: 2^52 stands for one.
    let e = shift & 0xFFF0_0000_0000_0000;
    let m = f64::from_bits(bits.wrapping_sub(e));
    // Converts e to a float. e is a multiple of 2^52 with at most 12 bits, and the lowest bit of
    // `SHIFT64` stands for one.
    let e = f64::from_bits(SHIFT64.to_bits().wrapping_add(signed_top_bits(e))) - SHIFT64;
    let s = (m - 1.0) / (m + 1.0);
    fused64::<F>(s, poly64::<F, 6>(s * s, POW_LOG2), e)
}

/// 2^x in the range of an f32.
#[inline(always)]
fn exp2_of<F: Fused>(x: f64) -> f64 {
    let y = if x > 200.0 { 200.0 } else { x };
    let y = if y < -200.0 { -200.0 } else { y };
    let shifted = y + SHIFT64;
    let r = y - (shifted - SHIFT64);
    let scale = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    poly64::<F, 9>(r, POW_EXP2) * scale
}

/// The upper 12 bits as a signed number, without a 64-bit arithmetic shift, which AVX2 lacks.
#[inline(always)]
fn signed_top_bits(x: u64) -> u64 {
    const SIGN: u64 = 1 << 11;
    ((x >> 52) ^ SIGN).wrapping_sub(SIGN)
}
