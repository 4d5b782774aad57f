//! The formulas themselves, as loops over tiles. NaN goes through all of them, as in PyTorch.

use super::gradient::gradient;
use super::op::{Float, Number, Op, Test};
use super::pow::pow;
use crate::cpu::functions::Functions;
use crate::cpu::math::Math;
use crate::cpu::simd::{Fused, Simd, SimdFloat, SimdKernel};
use crate::dtype;
use crate::dtype::Element;

/// A type that formulas compute in: f64, f32 (for the half types too) and i64 (for all integers
/// and truth values; its lower bits are what arithmetic in the narrower type wraps to).
pub(super) trait Lane: Element {
    /// `to[i] = op(sources[..][i])`.
    fn apply(op: Op, sources: &[&[Self]], to: &mut [Self]);
}

/// A formula and its tile, to be compiled for every instruction set.
struct Apply<'a, T> {
    op: Op,
    sources: &'a [&'a [T]],
    to: &'a mut [T],
}

impl<T: Functions + Arithmetic> SimdKernel<T> for Apply<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let Apply { op, sources, to } = self;
        match op {
            Op::Number(op) => number(op, sources, to),
            Op::Test(op) => test(op, sources, to),
            Op::Float(op) => float::<T, S>(op, sources, to),
            Op::Gradient(op) => gradient::<T, S>(op, sources, to),
        }
    }
}

impl Lane for f32 {
    fn apply(op: Op, sources: &[&[f32]], to: &mut [f32]) {
        f32::dispatch(Apply { op, sources, to });
    }
}

impl Lane for f64 {
    fn apply(op: Op, sources: &[&[f64]], to: &mut [f64]) {
        f64::dispatch(Apply { op, sources, to });
    }
}

impl Lane for i64 {
    fn apply(op: Op, sources: &[&[i64]], to: &mut [i64]) {
        match op {
            Op::Number(op) => number(op, sources, to),
            Op::Test(op) => test(op, sources, to),
            Op::Float(_) | Op::Gradient(_) => unreachable!("{op:?} was checked to be of floats"),
        }
    }
}

/// What floats and integers have in common; integers wrap.
pub(crate) trait Arithmetic: Element {
    const ZERO: Self;
    const ONE: Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// The quotient rounded down; 0 for an integer over 0.
    fn div_floor(self, other: Self) -> Self;
    /// The quotient rounded towards 0; 0 for an integer over 0.
    fn div_trunc(self, other: Self) -> Self;
    /// What is left of [`Arithmetic::div_floor`]; has the sign of `other`.
    fn modulo(self, other: Self) -> Self;
    /// Without its sign; -0 becomes 0.
    fn magnitude(self) -> Self;
    fn is_nan(self) -> bool;
    fn is_infinite(self) -> bool;
    /// The larger; a NaN on either side is the result.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if (self > other) | self.is_nan() { self } else { other }
    }
    /// The smaller; a NaN on either side is the result.
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
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn div_floor(self, other: Self) -> Self {
                // As in Python: from the remainder, because the quotient itself is rounded.
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
    const ZERO: Self = 0;
    const ONE: Self = 1;
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
    fn modulo(self, other: Self) -> Self {
        let rest = if other == 0 { 0 } else { self.wrapping_rem(other) };
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

// Loops over indices: what an iterator adaptor is compiled to is a function of its own, which may
// not use the instructions of the one that calls it.

#[inline(always)]
pub(super) fn map<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T) -> T) {
    let x = &sources[0][..to.len()];
    for i in 0..to.len() {
        to[i] = f(x[i]);
    }
}

#[inline(always)]
pub(super) fn zip<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T, T) -> T) {
    let (a, b) = (&sources[0][..to.len()], &sources[1][..to.len()]);
    for i in 0..to.len() {
        to[i] = f(a[i], b[i]);
    }
}

#[inline(always)]
fn zip3<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T, T, T) -> T) {
    let (a, b) = (&sources[0][..to.len()], &sources[1][..to.len()]);
    let c = &sources[2][..to.len()];
    for i in 0..to.len() {
        to[i] = f(a[i], b[i], c[i]);
    }
}

// The same, and where a source is missing, `to` is the first one: reading it there spares a pass
// over the tile. Only for formulas that are small enough to be inlined twice.

#[inline(always)]
fn map_or_update<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T) -> T) {
    if sources.len() == 1 {
        return map(sources, to, f);
    }
    for x in to {
        *x = f(*x);
    }
}

#[inline(always)]
fn zip_or_update<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T, T) -> T) {
    if sources.len() == 2 {
        return zip(sources, to, f);
    }
    let b = &sources[0][..to.len()];
    for i in 0..to.len() {
        to[i] = f(to[i], b[i]);
    }
}

#[inline(always)]
fn zip3_or_update<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T, T, T) -> T) {
    if sources.len() == 3 {
        return zip3(sources, to, f);
    }
    let (b, c) = (&sources[0][..to.len()], &sources[1][..to.len()]);
    for i in 0..to.len() {
        to[i] = f(to[i], b[i], c[i]);
    }
}

#[inline(always)]
fn number<T: Arithmetic>(op: Number, sources: &[&[T]], to: &mut [T]) {
    match op {
        Number::Abs => map_or_update(sources, to, T::magnitude),
        Number::Neg => map_or_update(sources, to, |x| x.times(T::ZERO.minus(T::ONE))),
        // NaN has no sign: 0, as in PyTorch.
        Number::Sign => {
            map_or_update(sources, to, |x| T::of(x > T::ZERO).minus(T::of(x < T::ZERO)))
        }
        // -0 stays, as in PyTorch.
        Number::Relu => map_or_update(sources, to, |x| if x < T::ZERO { T::ZERO } else { x }),
        Number::Clamp(low, high) => {
            let [low, high] = [low, high].map(T::from_f64);
            map_or_update(sources, to, |x| x.larger(low).smaller(high));
        }
        Number::Add => zip_or_update(sources, to, T::plus),
        Number::AddScaled(c) => {
            let c = T::from_f64(c);
            zip_or_update(sources, to, |a, b| a.plus(c.times(b)));
        }
        Number::Sub => zip_or_update(sources, to, T::minus),
        Number::Mul => zip_or_update(sources, to, T::times),
        Number::Maximum => zip_or_update(sources, to, T::larger),
        Number::Minimum => zip_or_update(sources, to, T::smaller),
        Number::DivFloor => zip_or_update(sources, to, T::div_floor),
        Number::DivTrunc => zip_or_update(sources, to, T::div_trunc),
        Number::Remainder => zip_or_update(sources, to, T::modulo),
        Number::Where => zip3_or_update(sources, to, |c, a, b| if c.is_true() { a } else { b }),
        Number::MaskedFill => {
            zip3_or_update(sources, to, |x, m, v| if m.is_true() { v } else { x })
        }
        Number::AddCMul(c) => {
            let c = T::from_f64(c);
            zip3_or_update(sources, to, |x, a, b| x.plus(c.times(a).times(b)));
        }
    }
}

#[inline(always)]
fn test<T: Arithmetic>(op: Test, sources: &[&[T]], to: &mut [T]) {
    match op {
        Test::Not => map(sources, to, |x| T::of(!x.is_true())),
        Test::IsFinite => map(sources, to, |x| T::of(!(x.is_nan() | x.is_infinite()))),
        Test::IsInf => map(sources, to, |x| T::of(x.is_infinite())),
        Test::IsNan => map(sources, to, |x| T::of(x.is_nan())),
        Test::Eq => zip(sources, to, |a, b| T::of(a == b)),
        Test::Ne => zip(sources, to, |a, b| T::of(a != b)),
        Test::Lt => zip(sources, to, |a, b| T::of(a < b)),
        Test::Le => zip(sources, to, |a, b| T::of(a <= b)),
        Test::Gt => zip(sources, to, |a, b| T::of(a > b)),
        Test::Ge => zip(sources, to, |a, b| T::of(a >= b)),
        Test::And => zip(sources, to, |a, b| T::of(a.is_true() & b.is_true())),
        Test::Or => zip(sources, to, |a, b| T::of(a.is_true() | b.is_true())),
        Test::Xor => zip(sources, to, |a, b| T::of(a.is_true() ^ b.is_true())),
    }
}

#[inline(always)]
fn float<T: Functions + Arithmetic, F: Fused>(op: Float, sources: &[&[T]], to: &mut [T]) {
    let one = <T as dtype::Float>::ONE;
    let zero = <T as dtype::Float>::ZERO;
    let half = T::from_f64(0.5);
    match op {
        Float::Exp => map(sources, to, T::exp_in::<F>),
        Float::Expm1 => map(sources, to, T::expm1_in::<F>),
        Float::Log => map(sources, to, T::log_in::<F>),
        Float::Log1p => map(sources, to, T::log1p_in::<F>),
        Float::Sqrt => map(sources, to, T::sqrt),
        Float::Rsqrt => map(sources, to, |x| one / x.sqrt()),
        Float::Reciprocal => map(sources, to, |x| one / x),
        Float::Sin => angles(sources, to, T::sin_in::<F>, T::sin_large),
        Float::Cos => angles(sources, to, T::cos_in::<F>, T::cos_large),
        Float::Tan => angles(sources, to, T::tan_in::<F>, T::tan_large),
        Float::Tanh => map(sources, to, T::tanh_in::<F>),
        Float::Atan => map(sources, to, T::atan_in::<F>),
        Float::Asin => map(sources, to, T::asin_in::<F>),
        Float::Acos => map(sources, to, T::acos_in::<F>),
        Float::Sinh => map(sources, to, T::sinh_in::<F>),
        Float::Cosh => map(sources, to, T::cosh_in::<F>),
        Float::Log2 => map(sources, to, T::log2_in::<F>),
        Float::Log10 => map(sources, to, T::log10_in::<F>),
        Float::Exp2 => map(sources, to, T::exp2_in::<F>),
        Float::Erf => map(sources, to, T::erf_in::<F>),
        Float::Mish => map(sources, to, |x| x * tanh_softplus::<T, F>(x)),
        Float::HardSwish => map(sources, to, |x| x * hard_sigmoid(x)),
        Float::HardSigmoid => map(sources, to, hard_sigmoid),
        Float::Selu => {
            let [scale, alpha] = [SELU_SCALE, SELU_SCALE * SELU_ALPHA].map(T::from_f64);
            map(sources, to, |x| if x > zero { scale * x } else { alpha * x.expm1_in::<F>() });
        }
        Float::Softsign => map(sources, to, |x| x / (one + Functions::abs(x))),
        Float::LogSigmoid => map(sources, to, |x| {
            let low = if x > zero { zero } else { x };
            low - (-Functions::abs(x)).exp_in::<F>().log1p_in::<F>()
        }),
        Float::Sigmoid => map(sources, to, |x| one / (one + (-x).exp_in::<F>())),
        Float::Silu => map(sources, to, |x| x / (one + (-x).exp_in::<F>())),
        Float::LeakyRelu(slope) => {
            let slope = T::from_f64(slope);
            map(sources, to, |x| if x > zero { x } else { x * slope });
        }
        Float::Elu(alpha) => {
            let alpha = T::from_f64(alpha);
            map(sources, to, |x| if x > zero { x } else { alpha * x.expm1_in::<F>() });
        }
        Float::Gelu => {
            let scale = T::from_f64(std::f64::consts::FRAC_1_SQRT_2);
            map(sources, to, |x| half * x * (one + (x * scale).erf_fast_in::<F>()));
        }
        Float::GeluTanh => {
            // Hendrycks and Gimpel, "Gaussian error linear units" (2016).
            let scale = T::from_f64((2.0 / std::f64::consts::PI).sqrt());
            let cubic = T::from_f64(0.044715);
            map(sources, to, |x| {
                half * x * (one + (scale * (x + cubic * x * x * x)).tanh_in::<F>())
            });
        }
        Float::Softplus { beta, threshold } => {
            let [beta, threshold] = [beta, threshold].map(T::from_f64);
            map(sources, to, |x| {
                let y = (x * beta).exp_in::<F>().log1p_in::<F>() / beta;
                if x * beta > threshold { x } else { y }
            });
        }
        Float::Floor => map(sources, to, T::floor),
        Float::Ceil => map(sources, to, T::ceil),
        Float::Round => map(sources, to, T::round_even),
        Float::Trunc => map(sources, to, T::trunc),
        Float::Div => zip(sources, to, |a, b| a / b),
        Float::Pow | Float::PowScalar(_) => {
            let exponent = if let Float::PowScalar(exponent) = op { Some(exponent) } else { None };
            pow::<T, F>(sources, exponent, to);
        }
        Float::Atan2 => zip(sources, to, T::atan2_in::<F>),
        Float::Lerp(weight) => {
            let [w, v] = [weight, 1.0 - weight].map(T::from_f64);
            // From the nearer end, so that weights 0 and 1 give the ends exactly.
            match weight < 0.5 {
                true => zip(sources, to, |a, b| a + w * (b - a)),
                false => zip(sources, to, |a, b| b - (b - a) * v),
            }
        }
        Float::AddCDiv(c) => {
            let c = T::from_f64(c);
            zip3(sources, to, |x, a, b| x + c * (a / b));
        }
    }
}

/// Klambauer et al., "Self-normalizing neural networks" (2017).
pub(super) const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
pub(super) const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// `tanh(ln(1 + e^x))` as a quotient of powers of e: Misra, "Mish" (2019).
#[inline(always)]
pub(super) fn tanh_softplus<T: Math, F: Fused>(x: T) -> T {
    let [two, large] = [2.0, 20.0].map(T::from_f64);
    let e = (if x > large { large } else { x }).exp_in::<F>();
    let n = e * (e + two);
    n / (n + two)
}

/// `min(max(x + 3, 0), 6) / 6`: Howard et al., "Searching for MobileNetV3" (2019).
#[inline(always)]
fn hard_sigmoid<T: Math + Arithmetic>(x: T) -> T {
    let [three, six] = [3.0, 6.0].map(T::from_f64);
    (x + three).larger(<T as Arithmetic>::ZERO).smaller(six) / six
}

/// A function of angles: in one loop, and then the few that are too large for it one by one.
#[inline(always)]
fn angles<T: Math + Arithmetic>(
    sources: &[&[T]],
    to: &mut [T],
    f: impl Fn(T) -> T,
    large: impl Fn(T) -> T,
) {
    map(sources, to, f);
    let x = &sources[0][..to.len()];
    let is_large = |x: T| x.magnitude() > T::TRIG_MAX;
    // Looking at all vectorises, stopping at the first does not.
    let mut is_any_large = false;
    for &x in x {
        is_any_large |= is_large(x);
    }
    if is_any_large {
        (0..x.len()).filter(|&i| is_large(x[i])).for_each(|i| to[i] = large(x[i]));
    }
}
