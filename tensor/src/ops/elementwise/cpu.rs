//! Formulas as loops over tiles, and the arithmetic that floats and integers have in common.

use super::op::{Formula, Op};
use super::table::{float, gradient, number, test};
use crate::cpu::functions::Functions;
use crate::cpu::simd::{Fused, Simd, SimdFloat, SimdKernel};
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
        let Apply { op: Op { formula, scalars }, sources, to } = self;
        match formula {
            Formula::Number(formula) => number::<T, S>(formula, scalars, sources, to),
            Formula::Test(formula) => test::<T, S>(formula, scalars, sources, to),
            Formula::Float(formula) => float::<T, S>(formula, scalars, sources, to),
            Formula::Gradient(formula) => gradient::<T, S>(formula, scalars, sources, to),
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
        let Op { formula, scalars } = op;
        match formula {
            Formula::Number(formula) => number::<_, Integers>(formula, scalars, sources, to),
            Formula::Test(formula) => test::<_, Integers>(formula, scalars, sources, to),
            Formula::Float(_) | Formula::Gradient(_) => {
                unreachable!("{formula:?} was checked to be of floats")
            }
        }
    }
}

/// Integers have no instruction that rounds once.
struct Integers;

impl Fused for Integers {
    const IS_FUSED: bool = false;
}

/// What floats and integers have in common; integers wrap.
pub(crate) trait Arithmetic: Element {
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
pub(super) fn zip3<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T, T, T) -> T) {
    let (a, b) = (&sources[0][..to.len()], &sources[1][..to.len()]);
    let c = &sources[2][..to.len()];
    for i in 0..to.len() {
        to[i] = f(a[i], b[i], c[i]);
    }
}

// The same, and where a source is missing, `to` is the first one: reading it there spares a pass
// over the tile. Only for formulas that are small enough to be inlined twice.

#[inline(always)]
pub(super) fn map_or_update<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T) -> T) {
    if sources.len() == 1 {
        return map(sources, to, f);
    }
    for x in to {
        *x = f(*x);
    }
}

#[inline(always)]
pub(super) fn zip_or_update<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T, T) -> T) {
    if sources.len() == 2 {
        return zip(sources, to, f);
    }
    let b = &sources[0][..to.len()];
    for i in 0..to.len() {
        to[i] = f(to[i], b[i]);
    }
}

#[inline(always)]
pub(super) fn zip3_or_update<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T, T, T) -> T) {
    if sources.len() == 3 {
        return zip3(sources, to, f);
    }
    let (b, c) = (&sources[0][..to.len()], &sources[1][..to.len()]);
    for i in 0..to.len() {
        to[i] = f(to[i], b[i], c[i]);
    }
}
