//! The inner loops of y and dx: weights times a tile, with pixels in the lanes.
//!
//! Weights are packed in blocks of a few output channels, `[K, block]` each, so that a block is
//! read once and in order.

#![expect(
    clippy::needless_range_loop,
    reason = "blocks of registers are indexed by row and column throughout"
)]

use super::tiling::Runs;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use crate::dtype::Element;
use crate::ops::conv2d::rows::lane;
use crate::ops::conv2d::weight_order::WeightOrder;
use crate::write_mode::WriteMode;

/// Number of channels in the next block, if `left` are left and the registers hold `rows`.
fn block_len(rows: usize, left: usize) -> usize {
    match left {
        _ if left >= rows => rows,
        4.. => 4,
        _ => left,
    }
}

/// The weights of output channels `first..first + channels`, in the order of [`OutputTile`].
pub(super) struct PackWeights<'a, E, T> {
    pub(super) w: &'a [E],
    pub(super) order: WeightOrder,
    pub(super) first: usize,
    pub(super) channels: usize,
    pub(super) to: &'a mut [T],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for PackWeights<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, _: S) {
        while self.channels > 0 {
            match block_len(ROWS, self.channels) {
                1 => self.block::<1>(),
                2 => self.block::<2>(),
                3 => self.block::<3>(),
                4 => self.block::<4>(),
                _ => self.block::<ROWS>(),
            }
        }
    }
}

impl<E: Element, T: SimdFloat> PackWeights<'_, E, T> {
    /// The weights of the next R channels.
    #[inline(always)]
    fn block<const R: usize>(&mut self) {
        let WeightOrder { channels: [_, sources], kernel, taps, plane_channels, .. } = self.order;
        let [heights, widths] = taps;
        let k_len = sources.div_ceil(plane_channels) * heights.count * widths.count;
        let (block, rest) = std::mem::take(&mut self.to).split_at_mut(R * k_len);
        let mut steps = block.as_chunks_mut::<R>().0.iter_mut();
        for source in (0..sources).step_by(plane_channels) {
            let mut kernels: [&[E]; R] = [&[]; R];
            let mut others: [&[E]; R] = [&[]; R];
            for row in 0..R {
                kernels[row] = self.order.kernel_of(self.w, self.first + row, source);
                if plane_channels == 2 && source + 1 < sources {
                    others[row] = self.order.kernel_of(self.w, self.first + row, source + 1);
                }
            }
            for height in heights.places() {
                // `zip` takes from its first iterator before it finds the second one at its end. So
                // the longer iterator is the second.
                for (width, to) in widths.places().zip(steps.by_ref()) {
                    let at = height * kernel[1] + width;
                    for row in 0..R {
                        to[row] = match plane_channels {
                            1 => kernels[row][at].cast(),
                            _ => {
                                let other = others[row].get(at).copied().unwrap_or(E::ZERO);
                                lane([kernels[row][at], other])
                            }
                        };
                    }
                }
            }
        }
        (self.to, self.first, self.channels) = (rest, self.first + R, self.channels - R);
    }
}

/// y`[O, P]` = or += w`[O, K]` · tile`[K, P]` for the taps and channels of one tile.
pub(super) struct OutputTile<'a, T> {
    /// Weights, packed by [`PackWeights`].
    pub(super) w: &'a [T],
    /// Weights of one output channel.
    pub(super) k_len: usize,
    /// The index of the first weight for `offsets`.
    pub(super) first_k: usize,
    pub(super) tile: &'a [T],
    /// The first element of each tap in the tile.
    pub(super) offsets: &'a [usize],
    pub(super) b: &'a [T],
    pub(super) y: &'a mut [T],
    /// Values between neighbouring output channels.
    pub(super) out_len: usize,
    pub(super) first_pixel: usize,
    pub(super) runs: Runs,
    pub(super) start: WriteMode,
}

impl<T: SimdFloat> SimdKernel<T> for OutputTile<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        let channels = self.b.len();
        let mut channel = channels - channels % ROWS;
        if S::REGISTER_COUNT == 32 {
            self.panel::<S, ROWS, 3>(simd, 0..channel);
        } else {
            self.panel::<S, ROWS, COLS>(simd, 0..channel);
        }
        // Fewer rows take more columns. A multiply-add waits four cycles for the previous
        // multiply-add, so that two units need eight sums to be busy.
        while channel < channels {
            let rows = block_len(ROWS, channels - channel);
            let range = channel..channel + rows;
            match rows {
                1 => self.panel::<S, 1, 8>(simd, range),
                2 => self.panel::<S, 2, 4>(simd, range),
                3 => self.panel::<S, 3, 3>(simd, range),
                _ => self.panel::<S, 4, 2>(simd, range),
            }
            channel += rows;
        }
    }
}

impl<T: SimdFloat> OutputTile<'_, T> {
    /// All pixels of some output channels, in blocks of ROWS channels and at most COLS vectors.
    #[inline(always)]
    fn panel<S: Simd<T>, const ROWS: usize, const COLS: usize>(
        &mut self,
        simd: S,
        channels: std::ops::Range<usize>,
    ) {
        for run in 0..self.runs.count {
            self.run::<S, ROWS, COLS>(simd, channels.clone(), run);
        }
    }

    /// The pixels of one run, as [`OutputTile::panel`].
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(
        &mut self,
        simd: S,
        channels: std::ops::Range<usize>,
        run: usize,
    ) {
        let lanes = S::LANE_COUNT;
        let mut pixel = 0;
        while pixel < self.runs.len {
            let at = [run, pixel];
            let left = self.runs.len - pixel;
            let len = match left / lanes {
                // Four vectors are two and two: a single vector would wait for its own sums.
                4 if COLS == 3 => 2 * lanes,
                vectors if vectors >= COLS => COLS * lanes,
                2.. => 2 * lanes,
                _ => lanes.min(left),
            };
            for channel in channels.clone().step_by(ROWS) {
                if len == COLS * lanes {
                    self.block::<S, ROWS, COLS>(simd, channel, at, len);
                } else if len == 2 * lanes {
                    self.block::<S, ROWS, 2>(simd, channel, at, len);
                } else {
                    self.block::<S, ROWS, 1>(simd, channel, at, len);
                }
            }
            pixel += len;
        }
    }

    #[inline(always)]
    fn block<S: Simd<T>, const ROWS: usize, const COLS: usize>(
        &mut self,
        simd: S,
        channel: usize,
        [run, pixel]: [usize; 2],
        len: usize,
    ) {
        let lanes = S::LANE_COUNT;
        let first_pixel = self.first_pixel + run * self.runs.len + pixel;
        let mut sums = [[simd.splat(T::ZERO); COLS]; ROWS];
        let mut edge = [T::ZERO; LANE_COUNT_MAX];
        for row in 0..ROWS {
            let at = (channel + row) * self.out_len + first_pixel;
            for col in 0..COLS {
                if self.start == WriteMode::Overwrite {
                    sums[row][col] = simd.splat(self.b[channel + row]);
                } else if len == COLS * lanes {
                    sums[row][col] = simd.load(&self.y[at + col * lanes..]);
                } else {
                    edge[..len].copy_from_slice(&self.y[at..][..len]);
                    sums[row][col] = simd.load(&edge);
                }
            }
        }
        let tile = &self.tile[run * self.runs.step + pixel..];
        let w = &self.w[channel * self.k_len + self.first_k * ROWS..];
        for (w, &offset) in w.as_chunks::<ROWS>().0.iter().zip(self.offsets) {
            let x = &tile[offset..][..COLS * lanes];
            let mut vectors = [simd.splat(T::ZERO); COLS];
            for col in 0..COLS {
                vectors[col] = simd.load(&x[col * lanes..]);
            }
            for row in 0..ROWS {
                let weight = simd.splat(w[row]);
                for col in 0..COLS {
                    sums[row][col] = simd.mul_add(weight, vectors[col], sums[row][col]);
                }
            }
        }
        for row in 0..ROWS {
            let at = (channel + row) * self.out_len + first_pixel;
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
