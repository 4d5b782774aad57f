//! Formulas as loops over tiles.

use super::op::{Formula, Op};
use super::table::{float, gradient, number, test};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Fused, Simd, SimdKernel};

/// A formula and its tile, to be compiled for every instruction set.
struct Apply<'a, T> {
    op: Op,
    sources: &'a [&'a [T]],
    to: &'a mut [T],
}

impl<T: SimdFloat> SimdKernel<T> for Apply<'_, T> {
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

/// `to[i] = op(sources[..][i])` in f64 or f32.
pub(super) fn apply_to_floats<T: SimdFloat>(op: Op, sources: &[&[T]], to: &mut [T]) {
    T::dispatch(Apply { op, sources, to });
}

/// [`apply_to_floats`] in i64. Arithmetic in a narrower type wraps to the lower bits of these
/// results.
pub(super) fn apply_to_integers(op: Op, sources: &[&[i64]], to: &mut [i64]) {
    let Op { formula, scalars } = op;
    match formula {
        Formula::Number(formula) => number::<_, Integers>(formula, scalars, sources, to),
        Formula::Test(formula) => test::<_, Integers>(formula, scalars, sources, to),
        Formula::Float(_) | Formula::Gradient(_) => {
            unreachable!("{formula:?} was checked to be of floats")
        }
    }
}

/// Integer arithmetic, which has no fused multiply-add.
struct Integers;

impl Fused for Integers {
    const IS_FUSED: bool = false;
}

// Loops use indices. The compiler makes an iterator adaptor a function of its own, which may not
// use the instruction set of its caller.

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

// Loops of formulas whose first source may be missing. In that case `to` holds the source, and the
// loop reads it from there, which saves a pass over the tile. Only for formulas that are small
// enough to be inlined twice.

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
