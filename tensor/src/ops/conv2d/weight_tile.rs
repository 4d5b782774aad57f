//! The inner loops of the gradient for w: a tile times dy, vectors over output channels.
//!
//! dy arrives channel by channel; it is turned to `[P, O]` first, which costs a copy of dy and
//! saves adding up the lanes of every sum. Results are kept as `[K, O]` until the whole
//! batch is in.

#![expect(
    clippy::needless_range_loop,
    reason = "blocks of registers are indexed by row and column throughout"
)]

use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdFloat, SimdKernel};
use crate::dtype::Element;

/// Output channels rounded up to whole vectors of any instruction set.
pub(super) fn padded_channels(channels: usize) -> usize {
    channels.next_multiple_of(LANE_COUNT_MAX)
}

/// Pixels `skip..` of dy`[O, out_len]` to `[pixel_count, O]` with O padded by zeros.
pub(super) fn turn_pixels<E: Element, T: SimdFloat>(
    dy: &[E],
    out_len: usize,
    skip: usize,
    pixel_count: usize,
    turned: &mut [T],
) {
    let channels = dy.len() / out_len;
    let padded = padded_channels(channels);
    let turned = &mut turned[..pixel_count * padded];
    for first in (0..padded).step_by(LANE_COUNT_MAX) {
        let count = LANE_COUNT_MAX.min(channels - first);
        let mut rows: [&[E]; LANE_COUNT_MAX] = [&[]; LANE_COUNT_MAX];
        for (channel, row) in rows[..count].iter_mut().enumerate() {
            *row = &dy[(first + channel) * out_len + skip..][..pixel_count];
        }
        if count == LANE_COUNT_MAX {
            for (pixel, to) in turned.chunks_exact_mut(padded).enumerate() {
                let to = &mut to[first..][..LANE_COUNT_MAX];
                to.iter_mut().zip(&rows).for_each(|(to, row)| *to = row[pixel].cast());
            }
        } else {
            for (pixel, to) in turned.chunks_exact_mut(padded).enumerate() {
                let (to, rest) = to[first..][..LANE_COUNT_MAX].split_at_mut(count);
                to.iter_mut().zip(&rows).for_each(|(to, row)| *to = row[pixel].cast());
                rest.fill(T::ZERO);
            }
        }
    }
}

/// dw`[K, O]` += Σ over images of tile`[K, P]` · dy`[P, O]`.
pub(super) struct WeightTile<'a, T> {
    /// For each image, `pixel_count` rows of padded channels.
    pub(super) dy: &'a [T],
    pub(super) channels: usize,
    pub(super) pixel_count: usize,
    pub(super) image_count: usize,
    pub(super) tile: &'a [T],
    /// Elements of the tile from one image to the next.
    pub(super) image_len: usize,
    pub(super) plane_len: usize,
    pub(super) plane_count: usize,
    pub(super) offsets: &'a [usize],
    /// Rows of padded channels, one for each of K.
    pub(super) dw: &'a mut [T],
    pub(super) first_k: usize,
    /// Rows of dw from one source channel to the next.
    pub(super) taps_len: usize,
}

impl<T: SimdFloat> SimdKernel<T> for WeightTile<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        let mut channel = 0;
        while channel + (COLS - 1) * S::LANE_COUNT < self.channels {
            self.column::<S, ROWS, COLS>(simd, channel);
            channel += COLS * S::LANE_COUNT;
        }
        while channel < self.channels {
            self.column::<S, ROWS, 1>(simd, channel);
            channel += S::LANE_COUNT;
        }
    }
}

impl<T: SimdFloat> WeightTile<'_, T> {
    /// COLS vectors of output channels, for all of K.
    #[inline(always)]
    fn column<S: Simd<T>, const ROWS: usize, const COLS: usize>(
        &mut self,
        simd: S,
        channel: usize,
    ) {
        let row_count = self.plane_count * self.offsets.len();
        let mut row = 0;
        while row + ROWS <= row_count {
            self.block::<S, ROWS, COLS>(simd, row, channel);
            row += ROWS;
        }
        if ROWS > 4 && row + 4 <= row_count {
            self.block::<S, 4, COLS>(simd, row, channel);
            row += 4;
        }
        while row < row_count {
            self.block::<S, 1, COLS>(simd, row, channel);
            row += 1;
        }
    }

    #[inline(always)]
    fn block<S: Simd<T>, const ROWS: usize, const COLS: usize>(
        &mut self,
        simd: S,
        first_row: usize,
        channel: usize,
    ) {
        let (lanes, padded) = (S::LANE_COUNT, padded_channels(self.channels));
        let tap_count = self.offsets.len();
        let mut starts = [0; ROWS];
        let mut results = [0; ROWS];
        for row in 0..ROWS {
            let (plane, tap) = ((first_row + row) / tap_count, (first_row + row) % tap_count);
            starts[row] = plane * self.plane_len + self.offsets[tap];
            results[row] = (self.first_k + plane * self.taps_len + tap) * padded + channel;
        }
        let mut sums = [[simd.splat(T::ZERO); COLS]; ROWS];
        for row in 0..ROWS {
            for col in 0..COLS {
                sums[row][col] = simd.load(&self.dw[results[row] + col * lanes..]);
            }
        }
        for image in 0..self.image_count {
            let dy = &self.dy[image * self.pixel_count * padded..][..self.pixel_count * padded];
            let mut x: [&[T]; ROWS] = [&[]; ROWS];
            for row in 0..ROWS {
                x[row] = &self.tile[image * self.image_len + starts[row]..][..self.pixel_count];
            }
            for pixel in 0..self.pixel_count {
                let dy = &dy[pixel * padded + channel..][..COLS * lanes];
                let mut vectors = [simd.splat(T::ZERO); COLS];
                for col in 0..COLS {
                    vectors[col] = simd.load(&dy[col * lanes..]);
                }
                for row in 0..ROWS {
                    let x = simd.splat(x[row][pixel]);
                    for col in 0..COLS {
                        sums[row][col] = simd.mul_add(x, vectors[col], sums[row][col]);
                    }
                }
            }
        }
        for row in 0..ROWS {
            for col in 0..COLS {
                simd.store(sums[row][col], &mut self.dw[results[row] + col * lanes..]);
            }
        }
    }
}
