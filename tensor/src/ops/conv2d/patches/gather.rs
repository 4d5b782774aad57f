//! Copies between planes of x and their columns.

use super::{Block, Patches};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use crate::cpu::stored::narrow;
use crate::cpu::turn::turn_rows;
use crate::dtype::{Element, is_same_type};
use crate::ops::conv2d::rows::fill_row;
use crate::ops::conv2d::shape::Conv2dShape;

/// Smallest number of kernel columns for which a row is moved by a transpose.
const TRANSPOSED_MIN: usize = 4;

/// Copies planes of x to their columns.
pub(super) struct Gather<'a, E> {
    pub(super) patches: &'a Patches,
    pub(super) block: &'a Block,
    pub(super) x: &'a [E],
    pub(super) columns: &'a mut [E],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for Gather<'_, E> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let Gather { patches, block, x, columns } = self;
        let (len, width) = (block.len(), block.size[1]);
        let Conv2dShape { kernel: [_, taps], stride: [_, stride], .. } = patches.shape;
        let columns = columns.chunks_exact_mut(patches.taps * len);
        for (x, columns) in x.chunks_exact(patches.in_pixels).zip(columns) {
            for [at, place] in patches.rows(block) {
                let x = &x[place..][..(width - 1) * stride + taps];
                let columns = &mut columns[at..][..(taps - 1) * len + width];
                if [taps, stride] == [4, 4] && width >= LANE_COUNT_MAX {
                    split_steps::<E, 4>(x, width, columns, len);
                    continue;
                }
                if taps >= TRANSPOSED_MIN {
                    turn_rows(simd, (x, stride), [width, taps], (columns, len), carry, carried);
                    continue;
                }
                for (kw, columns) in columns.chunks_mut(len).enumerate() {
                    fill_row(&x[kw..], stride, 0, &mut columns[..width]);
                }
            }
        }
    }
}

/// `to[j * to_stride + i] = from[i * N + j]` for `i` below `width` and `j` below N. `width` is at
/// least the lanes of a vector. The compiler knows the size of the blocks; the last block starts
/// early enough to be whole.
#[inline(always)]
fn split_steps<E: Element, const N: usize>(
    from: &[E],
    width: usize,
    to: &mut [E],
    to_stride: usize,
) {
    let (steps, _) = from.as_chunks::<N>();
    for at in (0..width).step_by(LANE_COUNT_MAX) {
        let at = at.min(width - LANE_COUNT_MAX);
        let steps = &steps[at..][..LANE_COUNT_MAX];
        for j in 0..N {
            let to = &mut to[j * to_stride + at..][..LANE_COUNT_MAX];
            for (to, step) in to.iter_mut().zip(steps) {
                *to = step[j];
            }
        }
    }
}

/// The bits of x in a number of type T, which is at least as large.
#[inline(always)]
fn carry<E: Element, T: SimdFloat>(x: E) -> T {
    if is_same_type::<E, T>() { bytemuck::cast(x) } else { bytemuck::cast([x, E::ZERO]) }
}

/// The inverse of [`carry`].
#[inline(always)]
fn carried<E: Element, T: SimdFloat>(x: T) -> E {
    if is_same_type::<E, T>() { bytemuck::cast(x) } else { bytemuck::cast::<T, [E; 2]>(x)[0] }
}

/// Adds columns to the planes of dx.
pub(super) struct PutBack<'a, E, T> {
    pub(super) patches: &'a Patches,
    pub(super) block: &'a Block,
    pub(super) columns: &'a [T],
    pub(super) b: Option<&'a [E]>,
    /// The channel of the first plane.
    pub(super) first_channel: usize,
    /// The planes of dx, filled with their bias. Places that no tap meets keep the bias.
    pub(super) dx: &'a mut [E],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for PutBack<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let PutBack { patches, block, columns, b, first_channel, dx } = self;
        let (len, width) = (block.len(), block.size[1]);
        let Conv2dShape { kernel: [_, taps], stride: [_, stride], .. } = patches.shape;
        let columns = columns.chunks_exact(patches.taps * len);
        let planes = dx.chunks_exact_mut(patches.in_pixels).zip(columns).enumerate();
        for (nth, (dx, columns)) in planes {
            let bias = b.map_or(T::ZERO, |b| b[(first_channel + nth) % b.len()].cast());
            for [at, place] in patches.rows(block) {
                let dx = &mut dx[place..][..(width - 1) * stride + taps];
                let columns = &columns[at..][..(taps - 1) * len + width];
                if [taps, stride] == [2, 2] {
                    let columns = [&columns[..width], &columns[len..][..width]];
                    put_back_pairs(simd, columns, bias, dx.as_chunks_mut().0);
                    continue;
                }
                for (kw, columns) in columns.chunks(len).enumerate() {
                    let places = dx[kw..].iter_mut().step_by(stride);
                    for (dx, &column) in places.zip(&columns[..width]) {
                        *dx = (dx.cast::<T>() + column).cast();
                    }
                }
            }
        }
    }
}

/// Adds a bias to two columns and interleaves both in dx, in vectors.
#[inline(always)]
fn put_back_pairs<E: Element, T: SimdFloat, S: Simd<T>>(
    simd: S,
    [even, odd]: [&[T]; 2],
    bias: T,
    dx: &mut [[E; 2]],
) {
    const LEN: usize = 4 * LANE_COUNT_MAX;
    let mut sums = [T::ZERO; LEN];
    let mut rounded = [[E::ZERO; LEN]; 2];
    for ((even, odd), dx) in even.chunks(LEN).zip(odd.chunks(LEN)).zip(dx.chunks_mut(LEN)) {
        for (column, rounded) in [even, odd].into_iter().zip(&mut rounded) {
            let sums = &mut sums[..column.len()];
            sums.iter_mut().zip(column).for_each(|(sum, &x)| *sum = x + bias);
            narrow(simd, sums, &mut rounded[..column.len()]);
        }
        let [even, odd] = &rounded;
        for (dx, (&even, &odd)) in dx.iter_mut().zip(even.iter().zip(odd)) {
            *dx = [even, odd];
        }
    }
}
