//! The folds and their loops over blocks. Floats are accumulated in f64, integers and truth values
//! in i64, which wraps.

use super::plan::{Along, Block};
use crate::cpu::arithmetic::Arithmetic;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Fused, Simd, SimdKernel};

/// The value that is accumulated over the elements x of an output; `c` is the output's center.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fold {
    /// `Σ x`
    Sum,
    /// `Π x`
    Prod,
    /// The largest element; NaN wins.
    Max,
    /// The smallest element; NaN wins.
    Min,
    /// Number of elements that are not 0. NaN is not 0.
    Count,
    // The following folds are for floats only.
    /// `Σ |x|`
    AbsSum,
    /// The largest |x|; NaN wins.
    AbsMax,
    /// The smallest |x|; NaN wins.
    AbsMin,
    /// `Σ x²`
    SquareSum,
    /// `Σ |x|^p`
    PowerSum(f64),
    /// `Σ (x - c)²`
    SquaredDistance,
    /// `Σ e^(x - c)`
    ExpSum,
}

impl Fold {
    /// The result for no elements.
    #[inline(always)]
    pub(super) fn start<A: Arithmetic>(self) -> A {
        match self {
            Fold::Prod => A::ONE,
            Fold::Max => A::from_f64(f64::NEG_INFINITY),
            Fold::Min | Fold::AbsMin => A::from_f64(f64::INFINITY),
            _ => A::ZERO,
        }
    }

    /// The result for the elements of two results.
    #[inline(always)]
    pub(super) fn merge<A: Arithmetic>(self, a: A, b: A) -> A {
        match self {
            Fold::Prod => a.times(b),
            Fold::Max | Fold::AbsMax => a.larger(b),
            Fold::Min | Fold::AbsMin => a.smaller(b),
            _ => a.plus(b),
        }
    }
}

/// A type that folds compute in.
pub(super) trait Reducible: Arithmetic {
    /// The type of partial results: f64 or i64.
    type Accumulator: Arithmetic;
    /// The float type whose instruction sets the loops are compiled for.
    type Registers: SimdFloat;

    /// Folds the elements of `block` into the accumulators of its outputs. Must be
    /// `#[inline(always)]`.
    fn fold<F: Fused>(folding: Folding<'_, Self>);
}

/// A fold of one block, which is compiled for every instruction set.
pub(super) struct Folding<'a, T: Reducible> {
    pub(super) fold: Fold,
    pub(super) block: Block<'a, T>,
    pub(super) sums: &'a mut [T::Accumulator],
    pub(super) centers: &'a [T::Accumulator],
}

impl<T: Reducible> SimdKernel<T::Registers> for Folding<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T::Registers>, const ROWS: usize, const COLS: usize>(self, _: S) {
        T::fold::<S>(self);
    }
}

macro_rules! reducible_floats {
    ($($float:ty),*) => {$(
        impl Reducible for $float {
            type Accumulator = f64;
            type Registers = $float;
            #[inline(always)]
            fn fold<F: Fused>(Folding { fold, block, sums, centers }: Folding<'_, Self>) {
                fold_floats::<$float, F>(fold, block, sums, centers);
            }
        }
    )*};
}
reducible_floats!(f32, f64);

impl Reducible for i64 {
    type Accumulator = i64;
    // Registers of f64 hold an i64, too.
    type Registers = f64;
    #[inline(always)]
    fn fold<F: Fused>(Folding { fold, block, sums, .. }: Folding<'_, Self>) {
        fold_numbers(fold, block, sums);
    }
}

#[inline(always)]
fn fold_numbers<T: Arithmetic, A: Arithmetic>(fold: Fold, block: Block<'_, T>, sums: &mut [A]) {
    let start = fold.start();
    match fold {
        Fold::Sum => each(block, sums, start, |a, x, _| a.plus(x.cast()), A::plus),
        Fold::Prod => each(block, sums, start, |a, x, _| a.times(x.cast()), A::times),
        Fold::Max => each(block, sums, start, |a, x, _| a.larger(x.cast()), A::larger),
        Fold::Min => each(block, sums, start, |a, x, _| a.smaller(x.cast()), A::smaller),
        Fold::Count => each(block, sums, start, |a, x, _| a.plus(A::of(x.is_true())), A::plus),
        _ => unreachable!("{fold:?} was checked to be of floats"),
    }
}

#[inline(always)]
fn fold_floats<T: SimdFloat, F: Fused>(
    fold: Fold,
    block: Block<'_, T>,
    sums: &mut [f64],
    centers: &[f64],
) {
    type A = f64;
    let start = fold.start();
    let wide = |x: T| x.cast::<A>();
    match fold {
        Fold::AbsSum => each(block, sums, start, |a, x, _| a + wide(x).abs(), A::plus),
        Fold::AbsMax => each(block, sums, start, |a, x, _| a.larger(wide(x).abs()), A::larger),
        Fold::AbsMin => each(block, sums, start, |a, x, _| a.smaller(wide(x).abs()), A::smaller),
        Fold::SquareSum => each(block, sums, start, |a, x, _| a + wide(x) * wide(x), A::plus),
        Fold::PowerSum(p) => {
            each(block, sums, start, |a, x, _| a + wide(x).abs().powf(p), A::plus);
        }
        Fold::SquaredDistance => {
            let square = |a: A, x: T, k: usize| {
                let d = wide(x) - centers[k];
                a + d * d
            };
            each(block, sums, start, square, A::plus);
        }
        Fold::ExpSum => {
            let exp = |a: A, x: T, k: usize| a + wide((x - T::from_f64(centers[k])).exp_in::<F>());
            each(block, sums, start, exp, A::plus);
        }
        _ => fold_numbers(fold, block, sums),
    }
}

/// Accumulators of one row: enough to hide the latency of an addition in the widest registers.
const LANE_COUNT: usize = 32;
/// Lines that are added to an accumulator before it is stored again.
const LINE_COUNT: usize = 4;

/// `sums[k] = f(sums[k], x, k)` for every element x of output k.
#[inline(always)]
fn each<T: Copy, A: Copy>(
    block: Block<'_, T>,
    sums: &mut [A],
    start: A,
    f: impl Fn(A, T, usize) -> A,
    merge: impl Fn(A, A) -> A,
) {
    let first = block.output;
    if block.along == Along::Rows {
        for k in 0..block.count {
            let run = block.run(k);
            sums[first + k] = row(run, first + k, sums[first + k], start, &f, &merge);
        }
        return;
    }
    // Loops over indices instead of iterators: see `ops/elementwise/cpu.rs`.
    let whole = block.count / LINE_COUNT * LINE_COUNT;
    let sums = &mut sums[first..first + block.len];
    for index in (0..whole).step_by(LINE_COUNT) {
        let [a, b, c, d] = [0, 1, 2, 3].map(|line| block.run(index + line));
        for k in 0..sums.len() {
            let at = first + k;
            sums[k] = f(f(f(f(sums[k], a[k], at), b[k], at), c[k], at), d[k], at);
        }
    }
    for index in whole..block.count {
        let line = block.run(index);
        for k in 0..sums.len() {
            sums[k] = f(sums[k], line[k], first + k);
        }
    }
}

#[inline(always)]
fn row<T: Copy, A: Copy>(
    run: &[T],
    output: usize,
    mut sum: A,
    start: A,
    f: &impl Fn(A, T, usize) -> A,
    merge: &impl Fn(A, A) -> A,
) -> A {
    let whole = run.len() / LANE_COUNT * LANE_COUNT;
    if whole > 0 {
        let mut lanes = [start; LANE_COUNT];
        let mut at = 0;
        while at < whole {
            let block = &run[at..at + LANE_COUNT];
            for lane in 0..LANE_COUNT {
                lanes[lane] = f(lanes[lane], block[lane], output);
            }
            at += LANE_COUNT;
        }
        for lane in lanes {
            sum = merge(sum, lane);
        }
    }
    for &x in &run[whole..] {
        sum = f(sum, x, output);
    }
    sum
}
