//! The f32 functions of a processor that does not multiply and add in one instruction.

use crate::cpu::math::SimdFloat;
use crate::cpu::simd::Fused;

struct Unfused;

impl Fused for Unfused {
    const IS_FUSED: bool = false;
}

/// The largest angle of [`sin`], [`cos`] and [`tan`].
pub const TRIG_MAX: f32 = <f32 as SimdFloat>::TRIG_MAX;

macro_rules! functions {
    ($($name:ident = $method:ident),*) => {$(
        #[doc = concat!("The function of `", stringify!($method), "`.")]
        pub fn $name(x: f32) -> f32 {
            x.$method::<Unfused>()
        }
    )*};
}
functions!(
    exp = exp_in,
    exp2_fast = exp2_fast_in,
    expm1 = expm1_in,
    log = log_in,
    log1p = log1p_in,
    atan = atan_in,
    tanh = tanh_in,
    erf = erf_in,
    erf_fast = erf_fast_in,
    sin = sin_in,
    cos = cos_in,
    tan = tan_in
);

/// `base` to the power of `exponent`.
pub fn pow(base: f32, exponent: f32) -> f32 {
    base.pow_in::<Unfused>(exponent)
}
