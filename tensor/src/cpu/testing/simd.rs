//! Single vector operations.

use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{self, Simd, SimdKernel};
use crate::cpu::turn::turn_rows;
use crate::dtype::{Element, Float};

/// The most lanes of any instruction set.
pub const LANE_COUNT_MAX: usize = simd::LANE_COUNT_MAX;

/// Vectors of a float, with the widest instruction set that may be used.
pub trait Vectors: Float {
    /// The lanes of a vector.
    fn lane_count() -> usize;

    /// y += a · x, for all whole vectors.
    fn multiply_add(a: Self, x: &[Self], y: &mut [Self]);

    /// The lanes of the vector at the start of `lanes` added up.
    fn sum(lanes: &[Self]) -> Self;

    /// The lanes of each vector added up, for up to 40 vectors at once.
    fn sum_each(vectors: &[[Self; LANE_COUNT_MAX]], sums: &mut [Self]);

    /// A square of [`lane_count`](Self::lane_count) rows with its columns as rows. The strides are
    /// from row to row.
    fn transpose(from: (&[Self], usize), to: (&mut [Self], usize));
}

macro_rules! vectors {
    ($($float:ty),*) => {$(
        impl Vectors for $float {
            fn lane_count() -> usize {
                let mut count = 0;
                <$float>::dispatch(LaneCount(&mut count));
                count
            }

            fn multiply_add(a: Self, x: &[Self], y: &mut [Self]) {
                <$float>::dispatch(MultiplyAdd(a, x, y));
            }

            fn sum(lanes: &[Self]) -> Self {
                let mut sum = 0.0;
                <$float>::dispatch(Sum(lanes, &mut sum));
                sum
            }

            fn sum_each(vectors: &[[Self; LANE_COUNT_MAX]], sums: &mut [Self]) {
                <$float>::dispatch(SumEach(vectors, sums));
            }

            fn transpose(from: (&[Self], usize), to: (&mut [Self], usize)) {
                <$float>::dispatch(Transpose(from, to));
            }
        }
    )*};
}
vectors!(f32, f64);

struct LaneCount<'a>(&'a mut usize);

impl<T> SimdKernel<T> for LaneCount<'_> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        *self.0 = S::LANE_COUNT;
    }
}

struct MultiplyAdd<'a, T>(T, &'a [T], &'a mut [T]);

impl<T: Float> SimdKernel<T> for MultiplyAdd<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let MultiplyAdd(a, x, y) = self;
        for (x, y) in x.chunks_exact(S::LANE_COUNT).zip(y.chunks_exact_mut(S::LANE_COUNT)) {
            simd.store(simd.mul_add(simd.splat(a), simd.load(x), simd.load(y)), y);
        }
    }
}

struct Sum<'a, T>(&'a [T], &'a mut T);

impl<T> SimdKernel<T> for Sum<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        *self.1 = simd.sum(simd.load(self.0));
    }
}

struct SumEach<'a, T>(&'a [[T; LANE_COUNT_MAX]], &'a mut [T]);

impl<T: Float> SimdKernel<T> for SumEach<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let SumEach(all, sums) = self;
        let mut vectors = [simd.splat(T::ZERO); 40];
        for (vector, lanes) in vectors.iter_mut().zip(all) {
            *vector = simd.load(lanes);
        }
        simd.sum_each(&vectors[..all.len()], sums);
    }
}

struct Transpose<'a, T>((&'a [T], usize), (&'a mut [T], usize));

impl<T: Element> SimdKernel<T> for Transpose<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let Transpose((from, from_stride), (to, to_stride)) = self;
        simd.transpose(from, from_stride, to, to_stride);
    }
}

/// A vector of elements as f32. `from` has at least as many as lanes.
pub fn widen<E: Element>(from: &[E]) -> [f32; LANE_COUNT_MAX] {
    let mut wide = [0.0; LANE_COUNT_MAX];
    f32::dispatch(Widen(from, &mut wide));
    wide
}

struct Widen<'a, E>(&'a [E], &'a mut [f32; LANE_COUNT_MAX]);

impl<E: Element> SimdKernel<f32> for Widen<'_, E> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        simd.store(simd.widen(self.0), self.1);
    }
}

/// A vector of f32 as elements.
pub fn narrow<E: Element>(from: &[f32; LANE_COUNT_MAX]) -> [E; LANE_COUNT_MAX] {
    let mut narrow = [E::ZERO; LANE_COUNT_MAX];
    f32::dispatch(Narrow(from, &mut narrow));
    narrow
}

struct Narrow<'a, E>(&'a [f32; LANE_COUNT_MAX], &'a mut [E; LANE_COUNT_MAX]);

impl<E: Element> SimdKernel<f32> for Narrow<'_, E> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        simd.narrow(simd.load(self.0), self.1);
    }
}

/// Twice the numbers of `[rows, cols]`, turned as f32 and written as f64. The strides are from row
/// to row.
pub fn turn_doubled(from: (&[f32], usize), size: [usize; 2], to: (&mut [f64], usize)) {
    f32::dispatch(TurnDoubled { from, size, to });
}

struct TurnDoubled<'a> {
    from: (&'a [f32], usize),
    size: [usize; 2],
    to: (&'a mut [f64], usize),
}

impl SimdKernel<f32> for TurnDoubled<'_> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        turn_rows(simd, self.from, self.size, self.to, |x| 2.0 * x, |x: f32| f64::from(x));
    }
}
