//! The inner loops of a convolution: weights times a tile, vectors over pixels.

#![expect(
    clippy::needless_range_loop,
    reason = "blocks of registers are indexed by row and column throughout"
)]

use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdFloat, SimdKernel};

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Start {
    /// From the bias, or zero.
    Overwrite,
    /// From what earlier channels or taps left in y.
    Accumulate,
}

/// y`[O, P]` = or += w`[O, K]` · tile`[K, P]` for the taps and channels of one tile.
pub(super) struct OutputTile<'a, T> {
    pub(super) w: &'a [T],
    /// Weights from one output channel to the next.
    pub(super) k_len: usize,
    pub(super) first_k: usize,
    /// Weights from one source channel to the next.
    pub(super) taps_len: usize,
    pub(super) tile: &'a [T],
    pub(super) plane_len: usize,
    pub(super) offsets: &'a [usize],
    pub(super) b: Option<&'a [T]>,
    pub(super) y: &'a mut [T],
    /// Values from one output channel to the next.
    pub(super) out_len: usize,
    pub(super) first_pixel: usize,
    pub(super) pixel_count: usize,
    pub(super) start: Start,
}

impl<T: SimdFloat> SimdKernel<T> for OutputTile<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        let wide = COLS * S::LANE_COUNT;
        let mut pixel = 0;
        while pixel + wide <= self.pixel_count {
            self.columns::<S, ROWS, COLS>(simd, pixel, wide);
            pixel += wide;
        }
        while pixel < self.pixel_count {
            let len = S::LANE_COUNT.min(self.pixel_count - pixel);
            self.columns::<S, ROWS, 1>(simd, pixel, len);
            pixel += len;
        }
    }
}

impl<T: SimdFloat> OutputTile<'_, T> {
    /// All output channels of `len` pixels, at most COLS vectors.
    #[inline(always)]
    fn columns<S: Simd<T>, const ROWS: usize, const COLS: usize>(
        &mut self,
        simd: S,
        pixel: usize,
        len: usize,
    ) {
        let channels = self.w.len() / self.k_len;
        let mut channel = 0;
        while channel + ROWS <= channels {
            self.block::<S, ROWS, COLS>(simd, channel, pixel, len);
            channel += ROWS;
        }
        if ROWS > 4 && channel + 4 <= channels {
            self.block::<S, 4, COLS>(simd, channel, pixel, len);
            channel += 4;
        }
        if channel + 2 <= channels {
            self.block::<S, 2, COLS>(simd, channel, pixel, len);
            channel += 2;
        }
        if channel < channels {
            self.block::<S, 1, COLS>(simd, channel, pixel, len);
        }
    }

    #[inline(always)]
    fn block<S: Simd<T>, const ROWS: usize, const COLS: usize>(
        &mut self,
        simd: S,
        channel: usize,
        pixel: usize,
        len: usize,
    ) {
        let lanes = S::LANE_COUNT;
        let mut sums = [[simd.splat(T::ZERO); COLS]; ROWS];
        let mut edge = [T::ZERO; LANE_COUNT_MAX];
        for row in 0..ROWS {
            let at = (channel + row) * self.out_len + self.first_pixel + pixel;
            for col in 0..COLS {
                if self.start == Start::Overwrite {
                    let b = self.b.map_or(T::ZERO, |b| b[channel + row]);
                    sums[row][col] = simd.splat(b);
                } else if len == COLS * lanes {
                    sums[row][col] = simd.load(&self.y[at + col * lanes..]);
                } else {
                    edge[..len].copy_from_slice(&self.y[at..][..len]);
                    sums[row][col] = simd.load(&edge);
                }
            }
        }
        let tap_count = self.offsets.len();
        let planes = (self.tile.len() - LANE_COUNT_MAX) / self.plane_len;
        for plane in 0..planes {
            let tile = &self.tile[plane * self.plane_len + pixel..];
            let mut w: [&[T]; ROWS] = [&[]; ROWS];
            for row in 0..ROWS {
                let at = (channel + row) * self.k_len + self.first_k + plane * self.taps_len;
                w[row] = &self.w[at..][..tap_count];
            }
            for tap in 0..tap_count {
                let x = &tile[self.offsets[tap]..][..COLS * lanes];
                let mut vectors = [simd.splat(T::ZERO); COLS];
                for col in 0..COLS {
                    vectors[col] = simd.load(&x[col * lanes..]);
                }
                for row in 0..ROWS {
                    let weight = simd.splat(w[row][tap]);
                    for col in 0..COLS {
                        sums[row][col] = simd.mul_add(weight, vectors[col], sums[row][col]);
                    }
                }
            }
        }
        for row in 0..ROWS {
            let at = (channel + row) * self.out_len + self.first_pixel + pixel;
            for col in 0..COLS {
                if len == COLS * lanes {
                    simd.store(sums[row][col], &mut self.y[at + col * lanes..]);
                } else {
                    simd.store(sums[row][col], &mut edge);
                    self.y[at..][..len].copy_from_slice(&edge[..len]);
                }
            }
        }
    }
}
