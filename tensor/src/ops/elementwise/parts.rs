//! Parts that several formulas share, and computations of more than one formula.

use super::cpu::{map, zip};
use crate::cpu::arithmetic::Arithmetic;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::Fused;
use crate::dtype::Element;

/// A number in the type of the computation.
#[inline(always)]
pub(super) fn constant<T: Element>(value: f64) -> T {
    T::from_f64(value)
}

/// Hendrycks and Gimpel, "Gaussian error linear units" (2016).
pub(super) const GELU_CUBIC: f64 = 0.044715;

#[inline(always)]
pub(super) fn sqrt_2_over_pi<T: Element>() -> T {
    constant((2.0 / std::f64::consts::PI).sqrt())
}

/// Klambauer et al., "Self-normalizing neural networks" (2017).
pub(super) const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
pub(super) const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// `tanh(ln(1 + e^x))` as a quotient of powers of e: Misra, "Mish" (2019).
#[inline(always)]
pub(super) fn tanh_softplus<T: SimdFloat, F: Fused>(x: T) -> T {
    let [two, large] = [2.0, 20.0].map(T::from_f64);
    let e = (if x > large { large } else { x }).exp_in::<F>();
    let n = e * (e + two);
    n / (n + two)
}

/// `min(max(x + 3, 0), 6) / 6`: Howard et al., "Searching for MobileNetV3" (2019).
#[inline(always)]
pub(super) fn hard_sigmoid<T: SimdFloat>(x: T) -> T {
    let [three, six] = [3.0, 6.0].map(T::from_f64);
    (x + three).larger(T::ZERO).smaller(six) / six
}

/// A function of angles: one loop over all, then the few angles that are too large for the loop one
/// by one.
#[inline(always)]
pub(super) fn angles<T: SimdFloat>(
    sources: &[&[T]],
    to: &mut [T],
    f: impl Fn(T) -> T,
    large: impl Fn(T) -> T,
) {
    map(sources, to, f);
    let x = &sources[0][..to.len()];
    let is_large = |x: T| x.magnitude() > T::TRIG_MAX;
    // A loop over all elements vectorises; a loop that stops early does not.
    let mut is_any_large = false;
    for &x in x {
        is_any_large |= is_large(x);
    }
    if is_any_large {
        (0..x.len()).filter(|&i| is_large(x[i])).for_each(|i| to[i] = large(x[i]));
    }
}

#[inline(always)]
pub(super) fn sigmoid<T: SimdFloat, F: Fused>(x: T) -> T {
    let one = constant::<T>(1.0);
    one / (one + (-x).exp_in::<F>())
}

/// `a + weight · (b - a)`, computed from the nearer end, so that weights 0 and 1 give the ends
/// exactly.
#[inline(always)]
pub(super) fn lerp<T: SimdFloat>(sources: &[&[T]], weight: f64, to: &mut [T]) {
    let [w, v] = [weight, 1.0 - weight].map(constant::<T>);
    match weight < 0.5 {
        true => zip(sources, to, |a, b| a + w * (b - a)),
        false => zip(sources, to, |a, b| b - (b - a) * v),
    }
}

/// `√(a² + b²)` by the quotient of the smaller and the larger operand, whose square does not
/// overflow.
#[inline(always)]
pub(super) fn hypotenuse<T: SimdFloat>(a: T, b: T) -> T {
    let [a, b] = [a, b].map(T::magnitude);
    let (high, low) = (a.larger(b), a.smaller(b));
    let ratio = low / high;
    let y = high * (T::ONE + ratio * ratio).sqrt();
    let y = if high == T::ZERO { high } else { y };
    // Infinite even if the other operand is NaN, as in C.
    if a.is_infinite() | b.is_infinite() { T::INFINITY } else { y }
}

/// True if both are equal, or if both are finite and `|a - b| <= absolute + relative · |b|`; in
/// f64.
#[inline(always)]
pub(super) fn is_close<T: Arithmetic>(a: T, b: T, relative: f64, absolute: f64) -> bool {
    let expected = b.to_f64();
    let distance = (a.to_f64() - expected).abs();
    let is_near = (distance < f64::INFINITY) & (distance <= absolute + relative * expected.abs());
    (a == b) | is_near
}
