//! The inner loops of the gradient of w with output channels in the lanes: a tile times dy.
//!
//! dy is stored channel by channel. It is first transposed to `[P, O]`: this costs a copy of dy,
//! and saves adding up the lanes of every sum. Sums stay `[K, O]` until the whole batch is added.
//!
//! If bf16 is multiplied in pairs, a pair is two neighbouring pixels. The pairs of dy are
//! transposed as lanes. The tile is of bf16, and its pairs are read in place.

#![expect(
    clippy::needless_range_loop,
    reason = "blocks of registers are indexed by row and column throughout"
)]

use super::tiling::{Runs, Taps};
use crate::cpu::gemm::Matrix;
use crate::cpu::math::SimdFloat;
use crate::cpu::pairs::turn_pairs;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use crate::cpu::turn::turn_rows;
use crate::dtype::Element;
use crate::ops::conv2d::rows::lane;

/// Output channels, rounded up to whole vectors of any instruction set.
pub(super) fn padded_channels(channels: usize) -> usize {
    channels.next_multiple_of(LANE_COUNT_MAX)
}

/// Transposes pixels from `skip` on of dy`[O, out_len]` to `[pixel_count, O]`. Zeros pad O.
pub(super) struct TransposePixels<'a, E, T> {
    pub(super) dy: &'a [E],
    pub(super) out_len: usize,
    pub(super) skip: usize,
    pub(super) pixel_count: usize,
    pub(super) transposed: &'a mut [T],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for TransposePixels<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let TransposePixels { dy, out_len, skip, pixel_count, transposed } = self;
        let channels = dy.len() / out_len;
        let padded = padded_channels(channels);
        let transposed = &mut transposed[..pixel_count * padded];
        let (from, to) = ((&dy[skip..], out_len), (&mut *transposed, padded));
        turn_rows(simd, from, [channels, pixel_count], to, E::cast, |dy| dy);
        if channels < padded {
            transposed.chunks_exact_mut(padded).for_each(|pixel| pixel[channels..].fill(T::ZERO));
        }
    }
}

/// Transposes pairs of pixels to `[pixel_count / 2, O]`, rounded up. The padding of O may hold any
/// numbers.
pub(super) fn transpose_pixel_pairs<E: Element, T: SimdFloat>(
    dy: &[E],
    out_len: usize,
    [skip, pixel_count]: [usize; 2],
    transposed: &mut [T],
) {
    let channels = dy.len() / out_len;
    let rows = Matrix { data: &dy[skip..], row_stride: out_len, col_stride: 1 };
    turn_pairs(rows, [channels, pixel_count], padded_channels(channels), transposed);
}

/// dw`[K, O]` += Σ over images of tile`[K, P]` · dy`[P, O]`, with `PIXELS` pixels at once: 1, or 2
/// in pairs.
pub(super) struct ChannelTile<'a, E, T, const PIXELS: usize> {
    /// Rows of padded channels: one for each pixel, or pair of pixels, in each run of each image.
    pub(super) dy: &'a [T],
    pub(super) channels: usize,
    /// The runs of an image.
    pub(super) runs: Runs,
    pub(super) taps: Taps<'a, E>,
    /// Rows of padded channels, one for each element of K.
    pub(super) dw: &'a mut [T],
}

impl<E: Element, T: SimdFloat, const PIXELS: usize> SimdKernel<T>
    for ChannelTile<'_, E, T, PIXELS>
{
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        let lanes = S::LANE_COUNT;
        let mut channel = 0;
        while channel < self.channels {
            let vectors = (self.channels - channel).div_ceil(lanes);
            channel += lanes
                * match vectors {
                    // Nine rows are the taps of a 3x3 kernel.
                    1 if S::REGISTER_COUNT == 32 => self.column::<S, 9, 1>(simd, channel),
                    2 | 3 if S::REGISTER_COUNT == 32 => self.column::<S, 9, 2>(simd, channel),
                    4.. if S::REGISTER_COUNT == 32 => self.column::<S, 6, 4>(simd, channel),
                    1 => self.column::<S, ROWS, 1>(simd, channel),
                    _ => self.column::<S, ROWS, COLS>(simd, channel),
                };
        }
    }
}

impl<E: Element, T: SimdFloat, const PIXELS: usize> ChannelTile<'_, E, T, PIXELS> {
    /// Computes COLS vectors of output channels for all of K. Returns COLS.
    #[inline(always)]
    fn column<S: Simd<T>, const ROWS: usize, const COLS: usize>(
        &mut self,
        simd: S,
        channel: usize,
    ) -> usize {
        let row_count = self.taps.offsets.len();
        let mut row = 0;
        while row + ROWS <= row_count {
            self.block::<S, ROWS, COLS>(simd, row, channel);
            row += ROWS;
        }
        while row + 4 <= row_count {
            self.block::<S, 4, COLS>(simd, row, channel);
            row += 4;
        }
        // The last rows are computed together, because a multiply-add waits four cycles for the
        // previous one.
        match row_count - row {
            0 => {}
            1 => self.block::<S, 1, COLS>(simd, row, channel),
            2 => self.block::<S, 2, COLS>(simd, row, channel),
            _ => self.block::<S, 3, COLS>(simd, row, channel),
        }
        COLS
    }

    #[inline(always)]
    fn block<S: Simd<T>, const ROWS: usize, const COLS: usize>(
        &mut self,
        simd: S,
        first_row: usize,
        channel: usize,
    ) {
        let (lanes, padded) = (S::LANE_COUNT, padded_channels(self.channels));
        let Taps { tile, image_count, image_len, offsets, first_k } = self.taps;
        let offsets = &offsets[first_row..][..ROWS];
        let first_result = (first_k + first_row) * padded + channel;
        let mut sums = [[simd.splat(T::ZERO); COLS]; ROWS];
        for row in 0..ROWS {
            for col in 0..COLS {
                sums[row][col] = simd.load(&self.dw[first_result + row * padded + col * lanes..]);
            }
        }
        let runs = self.runs;
        let steps = runs.len.div_ceil(PIXELS);
        for index in 0..image_count * runs.count {
            let (image, run) = (index / runs.count, index % runs.count);
            let dy = &self.dy[index * steps * padded..][..steps * padded];
            let whole = runs.len / PIXELS;
            let mut x: [&[[E; PIXELS]]; ROWS] = [&[]; ROWS];
            let first = image * image_len + run * runs.step;
            for row in 0..ROWS {
                let x_run = &tile[first + offsets[row]..][..runs.len];
                x[row] = &x_run.as_chunks().0[..whole];
            }
            for step in 0..whole {
                let dy = &dy[step * padded + channel..][..COLS * lanes];
                let mut vectors = [simd.splat(T::ZERO); COLS];
                for col in 0..COLS {
                    vectors[col] = simd.load(&dy[col * lanes..]);
                }
                // Each factor is loaded at its use, so that it becomes a memory operand.
                for row in 0..ROWS {
                    let x = simd.splat(factor(x[row][step]));
                    for col in 0..COLS {
                        sums[row][col] = simd.mul_add(x, vectors[col], sums[row][col]);
                    }
                }
            }
            if whole < steps {
                let mut factors = [T::ZERO; ROWS];
                for row in 0..ROWS {
                    let last = tile[first + offsets[row] + runs.len - 1];
                    factors[row] = lane([last, E::ZERO]);
                }
                add_step(simd, &factors, &dy[whole * padded + channel..], &mut sums);
            }
        }
        for row in 0..ROWS {
            for col in 0..COLS {
                simd.store(
                    sums[row][col],
                    &mut self.dw[first_result + row * padded + col * lanes..],
                );
            }
        }
    }
}

/// Adds the products with the last pixel of an odd number of pixels, for each tap and some vectors
/// of dy.
#[inline(always)]
fn add_step<T: SimdFloat, S: Simd<T>, const ROWS: usize, const COLS: usize>(
    simd: S,
    factors: &[T; ROWS],
    dy: &[T],
    sums: &mut [[S::Vector; COLS]; ROWS],
) {
    let lanes = S::LANE_COUNT;
    let dy = &dy[..COLS * lanes];
    let mut vectors = [simd.splat(T::ZERO); COLS];
    for col in 0..COLS {
        vectors[col] = simd.load(&dy[col * lanes..]);
    }
    for row in 0..ROWS {
        let x = simd.splat(factors[row]);
        for col in 0..COLS {
            sums[row][col] = simd.mul_add(x, vectors[col], sums[row][col]);
        }
    }
}

/// The factor for all lanes of dy: a pixel, or a pair in one lane.
#[inline(always)]
fn factor<E: Element, T: Element, const PIXELS: usize>(pixels: [E; PIXELS]) -> T {
    match PIXELS {
        1 => pixels[0].cast(),
        _ => lane([pixels[0], pixels[1]]),
    }
}
