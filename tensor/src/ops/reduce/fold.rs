//! The folds by name, and their loops over blocks. Floats are accumulated in f64, integers and
//! truth values in i64, which wraps.

use super::plan::{Along, Block};
use crate::cpu::arithmetic::Arithmetic;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Fused, Simd, SimdKernel};
use crate::dtype::{Bool, Element};
use half::{bf16, f16};

/// What is accumulated of the elements x of an output; `c` is the output's center.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fold {
    /// Σ x
    Sum,
    /// Π x
    Prod,
    /// The largest; NaN wins.
    Max,
    /// The smallest; NaN wins.
    Min,
    /// How many are not 0; NaN is not.
    Count,
    // Floats only from here.
    /// Σ |x|
    AbsSum,
    /// The largest |x|; NaN wins.
    AbsMax,
    /// The smallest |x|; NaN wins.
    AbsMin,
    /// Σ x²
    SquareSum,
    /// Σ |x|^p
    PowerSum(f64),
    /// Σ (x - c)²
    SquaredDistance,
    /// Σ e^(x - c)
    ExpSum,
}

/// What partial results are kept in: f64 or i64.
pub(super) trait Accumulator: Arithmetic {
    /// The result for no elements.
    #[inline(always)]
    fn start(fold: Fold) -> Self {
        match fold {
            Fold::Prod => Self::ONE,
            Fold::Max => Self::from_f64(f64::NEG_INFINITY),
            Fold::Min | Fold::AbsMin => Self::from_f64(f64::INFINITY),
            _ => Self::ZERO,
        }
    }

    /// The result for the elements of both.
    #[inline(always)]
    fn merge(fold: Fold, a: Self, b: Self) -> Self {
        match fold {
            Fold::Prod => a.times(b),
            Fold::Max | Fold::AbsMax => a.larger(b),
            Fold::Min | Fold::AbsMin => a.smaller(b),
            _ => a.plus(b),
        }
    }
}

impl Accumulator for f64 {}
impl Accumulator for i64 {}

/// An element type and the one that folds compute in.
pub(super) trait Reducible: Element {
    type Lane: Lane;
}

macro_rules! reducible {
    ($($type:ty => $lane:ty),*) => {$( impl Reducible for $type { type Lane = $lane; } )*};
}
reducible!(
    f64 => f64, f32 => f32, f16 => f32, bf16 => f32,
    i64 => i64, i32 => i64, u8 => i64, Bool => i64
);

/// A type that folds compute in.
pub(super) trait Lane: Arithmetic {
    type Acc: Accumulator;

    /// Takes the elements of `block` into the accumulators of its outputs.
    fn fold(fold: Fold, block: Block<'_, Self>, sums: &mut [Self::Acc], centers: &[Self::Acc]);

    /// Takes the elements of `block` into the best of its outputs and their positions.
    fn improve(end: super::End, block: Block<'_, Self>, best: super::Best<'_, Self::Acc>);
}

/// A fold of one block, to be compiled for every instruction set.
struct Folding<'a, L: Lane> {
    fold: Fold,
    block: Block<'a, L>,
    sums: &'a mut [L::Acc],
    centers: &'a [L::Acc],
}

/// [`Lane::improve`], to be compiled for every instruction set.
struct Improving<'a, L: Lane> {
    end: super::End,
    block: Block<'a, L>,
    best: super::Best<'a, L::Acc>,
}

macro_rules! float_lanes {
    ($($lane:ty),*) => {$(
        impl Lane for $lane {
            type Acc = f64;

            fn fold(fold: Fold, block: Block<'_, Self>, sums: &mut [f64], centers: &[f64]) {
                <$lane>::dispatch(Folding { fold, block, sums, centers });
            }

            fn improve(end: super::End, block: Block<'_, Self>, best: super::Best<'_, f64>) {
                <$lane>::dispatch(Improving { end, block, best });
            }
        }

        impl SimdKernel<$lane> for Folding<'_, $lane> {
            #[inline(always)]
            fn run<S: Simd<$lane>, const ROWS: usize, const COLS: usize>(self, _: S) {
                let Folding { fold, block, sums, centers } = self;
                fold_floats::<$lane, S>(fold, block, sums, centers);
            }
        }

        impl SimdKernel<$lane> for Improving<'_, $lane> {
            #[inline(always)]
            fn run<S: Simd<$lane>, const ROWS: usize, const COLS: usize>(self, _: S) {
                super::extreme::improve(self.end, self.block, self.best);
            }
        }
    )*};
}
float_lanes!(f32, f64);

impl Lane for i64 {
    type Acc = i64;

    fn fold(fold: Fold, block: Block<'_, i64>, sums: &mut [i64], centers: &[i64]) {
        f64::dispatch(Folding { fold, block, sums, centers });
    }

    fn improve(end: super::End, block: Block<'_, i64>, best: super::Best<'_, i64>) {
        f64::dispatch(Improving { end, block, best });
    }
}

// The instruction sets are those of f64, whose registers hold an i64 too.
impl SimdKernel<f64> for Folding<'_, i64> {
    #[inline(always)]
    fn run<S: Simd<f64>, const ROWS: usize, const COLS: usize>(self, _: S) {
        fold_numbers(self.fold, self.block, self.sums);
    }
}

impl SimdKernel<f64> for Improving<'_, i64> {
    #[inline(always)]
    fn run<S: Simd<f64>, const ROWS: usize, const COLS: usize>(self, _: S) {
        super::extreme::improve(self.end, self.block, self.best);
    }
}

#[inline(always)]
fn fold_numbers<L: Arithmetic, A: Accumulator>(fold: Fold, block: Block<'_, L>, sums: &mut [A]) {
    let start = A::start(fold);
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
fn fold_floats<L: SimdFloat, F: Fused>(
    fold: Fold,
    block: Block<'_, L>,
    sums: &mut [f64],
    centers: &[f64],
) {
    type A = f64;
    let start = A::start(fold);
    let wide = |x: L| x.cast::<A>();
    match fold {
        Fold::AbsSum => each(block, sums, start, |a, x, _| a + wide(x).abs(), A::plus),
        Fold::AbsMax => each(block, sums, start, |a, x, _| a.larger(wide(x).abs()), A::larger),
        Fold::AbsMin => each(block, sums, start, |a, x, _| a.smaller(wide(x).abs()), A::smaller),
        Fold::SquareSum => each(block, sums, start, |a, x, _| a + wide(x) * wide(x), A::plus),
        Fold::PowerSum(p) => {
            each(block, sums, start, |a, x, _| a + wide(x).abs().powf(p), A::plus);
        }
        Fold::SquaredDistance => {
            let square = |a: A, x: L, k: usize| {
                let d = wide(x) - centers[k];
                a + d * d
            };
            each(block, sums, start, square, A::plus);
        }
        Fold::ExpSum => {
            let exp = |a: A, x: L, k: usize| a + wide((x - L::from_f64(centers[k])).exp_in::<F>());
            each(block, sums, start, exp, A::plus);
        }
        _ => fold_numbers(fold, block, sums),
    }
}

/// Accumulators of one row: enough for the latency of an addition in the widest registers.
const LANE_COUNT: usize = 32;
/// Lines that go into an accumulator before it is stored again.
const LINE_COUNT: usize = 4;

/// `sums[k] = f(sums[k], x, k)` for every element x of output k.
#[inline(always)]
fn each<L: Copy, A: Copy>(
    block: Block<'_, L>,
    sums: &mut [A],
    start: A,
    f: impl Fn(A, L, usize) -> A,
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
    // Loops over indices: see `ops/elementwise/cpu.rs`.
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
fn row<L: Copy, A: Copy>(
    run: &[L],
    output: usize,
    mut sum: A,
    start: A,
    f: &impl Fn(A, L, usize) -> A,
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
