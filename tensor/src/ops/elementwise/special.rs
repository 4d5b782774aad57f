//! Special functions, computed in f64 for one number at a time.

use std::f64::consts::{FRAC_2_SQRT_PI, PI};

/// The smallest argument at which Stirling's series reaches the precision of f64.
const SERIES_MIN: f64 = 10.0;

/// The inverse error function. Winitzki's approximation ("A handy approximation for the error
/// function and its inverse", 2008) has three correct digits, and each of Halley's steps triples
/// their number.
pub(super) fn erf_inverse(x: f64) -> f64 {
    let far = x.abs();
    if far >= 1.0 || x.is_nan() {
        return if far == 1.0 { x * f64::INFINITY } else { f64::NAN };
    }
    let a = 0.147;
    let ln = (-far * far).ln_1p();
    let middle = 2.0 / (PI * a) + ln / 2.0;
    let mut y = ((middle * middle - ln / a).sqrt() - middle).max(0.0).sqrt();
    for _ in 0..3 {
        // Near 1 the difference of the complements is more precise.
        let excess = if far > 0.5 { (1.0 - far) - libm::erfc(y) } else { libm::erf(y) - far };
        let step = excess / (FRAC_2_SQRT_PI * (-y * y).exp());
        y -= step / (1.0 + y * step);
    }
    y.copysign(x)
}

/// The derivative of ln Γ(x): by its recurrence up to [`SERIES_MIN`], then by Stirling's series.
/// For negative x by reflection: equation 5.5.4 of the Digital Library of Mathematical Functions.
pub(super) fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        let rest = x.fract();
        return if rest == 0.0 { f64::NAN } else { digamma(1.0 - x) - PI / (PI * rest).tan() };
    }
    let (x, below) = raised(x, |x| 1.0 / x);
    let z = 1.0 / (x * x);
    let terms = [1.0 / 12.0, 1.0 / 120.0, 1.0 / 252.0, 1.0 / 240.0, 1.0 / 132.0, 691.0 / 32760.0];
    x.ln() - 0.5 / x - z * alternating(z, &terms, 1.0 / 12.0) - below
}

/// The derivative of [`digamma`], by the same method.
pub(super) fn trigamma(x: f64) -> f64 {
    if x < 0.5 {
        let slope = PI / (PI * x.fract()).sin();
        return slope * slope - trigamma(1.0 - x);
    }
    let (x, below) = raised(x, |x| 1.0 / (x * x));
    let z = 1.0 / (x * x);
    let terms = [1.0 / 6.0, 1.0 / 30.0, 1.0 / 42.0, 1.0 / 30.0, 5.0 / 66.0, 691.0 / 2730.0];
    below + 1.0 / x + 0.5 * z + z / x * alternating(z, &terms, 7.0 / 6.0)
}

/// Adds 1 to `x` until `x` reaches [`SERIES_MIN`]. Returns the final x, and the sum of `part` over
/// all earlier values of x.
fn raised(mut x: f64, part: impl Fn(f64) -> f64) -> (f64, f64) {
    let mut sum = 0.0;
    while x < SERIES_MIN {
        sum += part(x);
        x += 1.0;
    }
    (x, sum)
}

/// The alternating polynomial `terms[0] - z (terms[1] - z (.. - z last))`.
fn alternating(z: f64, terms: &[f64], last: f64) -> f64 {
    terms.iter().rev().fold(last, |sum, term| term - z * sum)
}
