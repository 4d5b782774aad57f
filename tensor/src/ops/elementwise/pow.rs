//! Powers: exponents with a shorter computation, the vectorised loop, and the special cases.

use super::cpu::{map, zip};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::Fused;
use crate::cpu::tiles::TILE_LEN;

/// `to[i] = sources[0][i]^exponent`, or `^sources[1][i]`. This is inlined in one place only: its
/// one loop must be compiled for the instruction set of the caller.
#[inline(always)]
pub(super) fn pow<T: SimdFloat, F: Fused>(sources: &[&[T]], exponent: Option<f64>, to: &mut [T]) {
    if exponent.is_some_and(|exponent| short_pow(exponent, sources, to)) {
        return;
    }
    let exponents = [T::from_f64(exponent.unwrap_or(0.0)); TILE_LEN];
    for (tile, to) in to.chunks_mut(TILE_LEN).enumerate() {
        let places = tile * TILE_LEN..tile * TILE_LEN + to.len();
        let a = &sources[0][places.clone()];
        let b = if exponent.is_some() { &exponents[..to.len()] } else { &sources[1][places] };
        zip(&[a, b], to, |a, b| a.pow_in::<F>(b));
        let mut is_any_special = false;
        for i in 0..to.len() {
            is_any_special |= is_special_pow(a[i], b[i]);
        }
        if is_any_special {
            let indices = (0..to.len()).filter(|&i| is_special_pow(a[i], b[i]));
            indices.for_each(|i| to[i] = a[i].pow_any(b[i]));
        }
    }
}

/// True if [`SimdFloat::pow_in`] does not cover this power: the base is not positive and finite, or
/// the exponent is not finite.
#[inline(always)]
fn is_special_pow<T: SimdFloat>(a: T, b: T) -> bool {
    let is_usual = (a > T::ZERO) & (a.magnitude() < T::INFINITY) & (b.magnitude() < T::INFINITY);
    !is_usual
}

/// Computes powers whose exponent has a shorter computation, as in PyTorch. Returns false for other
/// exponents.
#[inline(always)]
fn short_pow<T: SimdFloat>(exponent: f64, sources: &[&[T]], to: &mut [T]) -> bool {
    let one = T::ONE;
    if exponent == 0.0 {
        to.fill(one);
    } else if exponent == 1.0 {
        map(sources, to, |x| x);
    } else if exponent == 2.0 {
        map(sources, to, |x| x * x);
    } else if exponent == 3.0 {
        map(sources, to, |x| x * x * x);
    } else if exponent == 0.5 {
        map(sources, to, T::sqrt);
    } else if exponent == -0.5 {
        map(sources, to, |x| one / x.sqrt());
    } else if exponent == -1.0 {
        map(sources, to, |x| one / x);
    } else if exponent == -2.0 {
        map(sources, to, |x| one / (x * x));
    } else {
        return false;
    }
    true
}
