//! The inner loops of depthwise convolutions: sums over taps, and over pixels for dw.

use super::transpose::Pixel;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel};

/// Computes rows of sums: a bias plus the products of the taps in order.
pub(super) struct SumRows<'a, T> {
    pub(super) frame: &'a [Pixel<T>],
    /// Pixels of the frame between neighbouring rows of sums.
    pub(super) row_step: usize,
    pub(super) bias: &'a Pixel<T>,
    /// A weight for each tap.
    pub(super) weights: &'a [Pixel<T>],
    /// The pixel of the frame that each tap meets for the first sum.
    pub(super) offsets: &'a [usize],
    /// Rows and columns of sums.
    pub(super) size: [usize; 2],
    pub(super) sums: &'a mut [Pixel<T>],
    /// Pixels between neighbouring rows, and neighbouring columns, of sums.
    pub(super) sums_step: [usize; 2],
}

impl<T: SimdFloat> SimdKernel<T> for SumRows<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        match block_columns(self.size[1]) {
            14 => self.rows::<S, 14>(simd),
            8 => self.rows::<S, 8>(simd),
            7 => self.rows::<S, 7>(simd),
            4 => self.rows::<S, 4>(simd),
            _ => self.rows::<S, 1>(simd),
        }
    }
}

/// Columns of a block of sums: the count that is fastest for `width`. A tap loads a weight and a
/// pixel for each sum. A tap takes at least as long as eight loads, because a multiply-add waits
/// four cycles for the previous multiply-add. Planes of 7 · 2^n columns are the most frequent ones.
fn block_columns(width: usize) -> usize {
    let cost = |&columns: &usize| width.div_ceil(columns) * (columns + 1).max(8);
    let fitting = [14, 8, 7, 4].into_iter().filter(|&columns| columns <= width);
    fitting.min_by_key(cost).unwrap_or(1)
}

impl<T: SimdFloat> SumRows<'_, T> {
    #[inline(always)]
    fn rows<S: Simd<T>, const COLUMNS: usize>(&mut self, simd: S) {
        let [height, width] = self.size;
        for row in 0..height {
            for first in (0..width).step_by(COLUMNS) {
                // The last block computes some sums of the previous block again.
                let first = first.min(width - COLUMNS);
                for lane in (0..LANE_COUNT_MAX).step_by(S::LANE_COUNT) {
                    self.block::<S, COLUMNS>(simd, row, first, lane);
                }
            }
        }
    }

    #[inline(always)]
    fn block<S: Simd<T>, const COLUMNS: usize>(
        &mut self,
        simd: S,
        row: usize,
        first: usize,
        lane: usize,
    ) {
        // Asserted once; otherwise each load would be checked.
        assert!(lane + S::LANE_COUNT <= LANE_COUNT_MAX);
        let mut sums = [simd.load(&self.bias[lane..]); COLUMNS];
        let at = row * self.row_step + first;
        for (weight, &offset) in self.weights.iter().zip(self.offsets) {
            let x = &self.frame[at + offset..][..COLUMNS];
            let weight = simd.load(&weight[lane..]);
            for column in 0..COLUMNS {
                sums[column] = simd.mul_add(weight, simd.load(&x[column][lane..]), sums[column]);
            }
        }
        let [row_step, step] = self.sums_step;
        let to = &mut self.sums[row * row_step + first * step..][..(COLUMNS - 1) * step + 1];
        for column in 0..COLUMNS {
            simd.store(sums[column], &mut to[column * step][lane..]);
        }
    }
}

/// Adds the products of dy and the frame to dw.
pub(super) struct SumTaps<'a, T> {
    pub(super) dy: &'a [Pixel<T>],
    pub(super) frame: &'a [Pixel<T>],
    /// Pixels of the frame between neighbouring rows of dy.
    pub(super) row_step: usize,
    /// For each tap, the pixel of the frame that is multiplied with the first pixel of dy.
    pub(super) offsets: &'a [usize],
    /// Rows and columns of dy.
    pub(super) size: [usize; 2],
    /// A sum for each tap.
    pub(super) dw: &'a mut [Pixel<T>],
}

impl<T: SimdFloat> SimdKernel<T> for SumTaps<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        let count = self.offsets.len();
        let mut tap = 0;
        while tap < count {
            // Blocks are nearly equal, because a multiply-add waits four cycles for the previous
            // multiply-add.
            let left = count - tap;
            tap += match left.div_ceil(left.div_ceil(TAPS_MAX)) {
                9 => self.taps::<S, 9>(simd, tap),
                8 => self.taps::<S, 8>(simd, tap),
                7 => self.taps::<S, 7>(simd, tap),
                6 => self.taps::<S, 6>(simd, tap),
                5 => self.taps::<S, 5>(simd, tap),
                4 => self.taps::<S, 4>(simd, tap),
                3 => self.taps::<S, 3>(simd, tap),
                _ => self.taps::<S, 1>(simd, tap),
            };
        }
    }
}

/// Largest number of taps of a block. Each tap has a pointer and a sum in registers.
const TAPS_MAX: usize = 9;

impl<T: SimdFloat> SumTaps<'_, T> {
    /// Adds the products of TAPS taps, for all lanes. Returns TAPS.
    #[inline(always)]
    fn taps<S: Simd<T>, const TAPS: usize>(&mut self, simd: S, tap: usize) -> usize {
        for lane in (0..LANE_COUNT_MAX).step_by(S::LANE_COUNT) {
            self.block::<S, TAPS>(simd, tap, lane);
        }
        TAPS
    }

    #[inline(always)]
    fn block<S: Simd<T>, const TAPS: usize>(&mut self, simd: S, tap: usize, lane: usize) {
        // Asserted once; otherwise each load would be checked.
        assert!(lane + S::LANE_COUNT <= LANE_COUNT_MAX);
        let [height, width] = self.size;
        let offsets = &self.offsets[tap..][..TAPS];
        let mut sums = [simd.splat(T::ZERO); TAPS];
        for row in 0..height {
            let dy = &self.dy[row * width..][..width];
            let frame = &self.frame[row * self.row_step..];
            let mut x: [&[Pixel<T>]; TAPS] = [&[]; TAPS];
            for tap in 0..TAPS {
                x[tap] = &frame[offsets[tap]..][..width];
            }
            for column in 0..width {
                let dy = simd.load(&dy[column][lane..]);
                for tap in 0..TAPS {
                    sums[tap] = simd.mul_add(dy, simd.load(&x[tap][column][lane..]), sums[tap]);
                }
            }
        }
        let dw = &mut self.dw[tap..][..TAPS];
        for tap in 0..TAPS {
            let sum = simd.add(simd.load(&dw[tap][lane..]), sums[tap]);
            simd.store(sum, &mut dw[tap][lane..]);
        }
    }
}
