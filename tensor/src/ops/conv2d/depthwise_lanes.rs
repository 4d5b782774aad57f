//! The inner loops of convolutions with planes for lanes.

#![expect(
    clippy::needless_range_loop,
    reason = "blocks of registers are indexed by column or tap throughout"
)]

use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use crate::cpu::turn::turn_rows;
use crate::dtype::{Element, same_type_mut};

/// One pixel of each plane of a bundle, or a weight of each.
pub(super) type Pixel<T> = [T; LANE_COUNT_MAX];

/// Pixels that are left over from squares, at most, which are copied one by one.
const SCALARS_MAX: usize = 2;

/// A square of planes and pixels, of which narrower vectors use a part. No vector of it straddles
/// two cache lines.
#[repr(align(64))]
struct Square<T>([Pixel<T>; LANE_COUNT_MAX]);

impl<T: SimdFloat> Square<T> {
    #[inline(always)]
    fn new() -> Self {
        Square([zeros(); LANE_COUNT_MAX])
    }
}

pub(super) fn zeros<T: SimdFloat>() -> Pixel<T> {
    [T::ZERO; LANE_COUNT_MAX]
}

/// Kernels`[C, taps]` to a table`[taps, row_len]`, whose rows go round: after the last channel
/// comes the first one again.
pub(super) struct TurnKernels<'a, E, T> {
    pub(super) kernels: &'a [E],
    pub(super) taps: usize,
    pub(super) table: &'a mut [T],
    pub(super) row_len: usize,
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for TurnKernels<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let TurnKernels { kernels, taps, table, row_len } = self;
        let channels = kernels.len() / taps;
        let (from, to) = ((kernels, taps), (&mut *table, row_len));
        turn_rows(simd, from, [channels, taps], to, E::cast, |weight| weight);
        for row in table.chunks_exact_mut(row_len) {
            for at in channels..row_len {
                row[at] = row[at - channels];
            }
        }
    }
}

/// Rows of a bundle's planes, turned to pixels that go to places in rows of `pitch`.
pub(super) struct PlaceRows<'a, E, T> {
    /// From the first of the rows of the first plane on.
    pub(super) source: &'a [E],
    /// Elements from one plane to the next.
    pub(super) plane_len: usize,
    pub(super) plane_count: usize,
    pub(super) row_count: usize,
    /// Elements from what is turned to what will be soon, which is fetched meanwhile: the planes
    /// are too many streams, or too short ones, for the processor to see where they go on.
    pub(super) ahead: usize,
    pub(super) columns: Columns<'a>,
    pub(super) pixels: &'a mut [Pixel<T>],
    pub(super) pitch: usize,
}

/// Where the columns of a row go.
pub(super) enum Columns<'a> {
    /// `width` neighbours, at least the lanes of a vector: they are turned in place.
    Run { first: usize, width: usize },
    /// As many, whose first goes to one run, the second to another, and so on by turns: a stride
    /// of two.
    TwoRuns { firsts: [usize; 2], width: usize },
    /// One place for each.
    Places(&'a [usize]),
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for PlaceRows<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        match self.columns {
            Columns::Run { first, width } => self.turn_run(simd, first, width),
            Columns::TwoRuns { firsts, width } => self.turn_two_runs(simd, firsts, width),
            Columns::Places(places) => self.turn_and_place(simd, places),
        }
    }
}

impl<E: Element, T: SimdFloat> PlaceRows<'_, E, T> {
    /// Squares of whole rows.
    #[inline(always)]
    fn turn_run<S: Simd<T>>(&mut self, simd: S, first: usize, width: usize) {
        let lanes = S::LANE_COUNT;
        let pixels = std::mem::take(&mut self.pixels);
        for row in 0..self.row_count {
            for column in (0..width).step_by(lanes) {
                // The last ones come with some before them, so that squares are whole.
                let column = column.min(width - lanes);
                let to = &mut pixels[row * self.pitch + first + column..][..lanes];
                for lane in (0..LANE_COUNT_MAX).step_by(lanes) {
                    self.turn(simd, lane, row * width + column, lanes, to);
                }
            }
        }
    }

    #[inline(always)]
    fn turn_two_runs<S: Simd<T>>(&mut self, simd: S, firsts: [usize; 2], width: usize) {
        let (lanes, pairs) = (S::LANE_COUNT, S::LANE_COUNT / 2);
        let mut turned = Square::new();
        for row in 0..self.row_count {
            for column in (0..width).step_by(lanes) {
                // As above; one more of them keeps pairs together.
                let column = column.min((width - lanes).next_multiple_of(2));
                let count = lanes.min(width - column);
                for lane in (0..LANE_COUNT_MAX).step_by(lanes) {
                    self.turn(simd, lane, row * width + column, count, &mut turned.0);
                }
                for (odd, first) in firsts.into_iter().enumerate() {
                    let start = row * self.pitch + first + column / 2;
                    let to = &mut self.pixels[start..][..pairs - odd * (lanes - count)];
                    for (pair, to) in to.iter_mut().enumerate() {
                        *to = turned.0[2 * pair + odd];
                    }
                }
            }
        }
    }

    /// Squares that go on in the next row: of narrow planes fewer are half empty.
    #[inline(always)]
    fn turn_and_place<S: Simd<T>>(&mut self, simd: S, places: &[usize]) {
        let lanes = S::LANE_COUNT;
        let pixel_count = self.row_count * places.len();
        let mut turned = Square::new();
        let (mut row_start, mut column) = (0, 0);
        for first in (0..pixel_count).step_by(lanes) {
            let left = pixel_count - first;
            if left <= SCALARS_MAX && column + left == places.len() {
                self.copy(first, &places[column..]);
                return;
            }
            // As above.
            let from = first.min(pixel_count.saturating_sub(lanes));
            let count = lanes.min(pixel_count - from);
            for lane in (0..LANE_COUNT_MAX).step_by(lanes) {
                self.turn(simd, lane, from, count, &mut turned.0);
            }
            for pixel in &turned.0[first - from..count] {
                self.pixels[row_start + places[column]] = *pixel;
                column += 1;
                if column == places.len() {
                    (row_start, column) = (row_start + self.pitch, 0);
                }
            }
        }
    }

    /// The pixels from `first` on, which are the last columns of the last row.
    #[inline(always)]
    fn copy(&mut self, first: usize, places: &[usize]) {
        let row = (self.row_count - 1) * self.pitch;
        for (at, place) in places.iter().enumerate() {
            let pixel = &mut self.pixels[row + place];
            for plane in 0..self.plane_count {
                pixel[plane] = self.source[plane * self.plane_len + first + at].cast();
            }
        }
    }

    /// The pixels `from..from + count` of a vector of planes.
    #[inline(always)]
    fn turn<S: Simd<T>>(
        &mut self,
        simd: S,
        lane: usize,
        from: usize,
        count: usize,
        to: &mut [Pixel<T>],
    ) {
        let lanes = S::LANE_COUNT;
        let planes = self.plane_count.saturating_sub(lane).min(lanes);
        let to = &mut to.as_flattened_mut()[lane..];
        if [planes, count] == [lanes; 2] {
            let source = &self.source[lane * self.plane_len + from..];
            for plane in 0..lanes {
                if let Some(next) = source.get(plane * self.plane_len + self.ahead) {
                    simd.fetch(next);
                }
            }
            simd.transpose(source, self.plane_len, to, LANE_COUNT_MAX);
            return;
        }
        let mut square = Square::<T>::new();
        for plane in 0..planes {
            let source = &self.source[(lane + plane) * self.plane_len + from..][..count];
            square.0[plane].iter_mut().zip(source).for_each(|(to, from)| *to = from.cast());
        }
        simd.transpose(square.0.as_flattened(), LANE_COUNT_MAX, to, LANE_COUNT_MAX);
    }
}

/// Pixels of results, turned back to rows of a bundle's planes.
pub(super) struct TurnBack<'a, E, T> {
    /// With a square more than are turned.
    pub(super) pixels: &'a [Pixel<T>],
    pub(super) pixel_count: usize,
    /// From the first of the rows of the first plane on.
    pub(super) y: &'a mut [E],
    /// Elements from one plane to the next.
    pub(super) plane_len: usize,
    pub(super) plane_count: usize,
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for TurnBack<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        let lanes = S::LANE_COUNT;
        for first in (0..self.pixel_count).step_by(lanes) {
            let count = self.pixel_count - first;
            if count <= SCALARS_MAX {
                self.copy(first, count);
                return;
            }
            // The last ones come with some before them, so that squares are whole.
            let from = first.min(self.pixel_count.saturating_sub(lanes));
            for lane in (0..self.plane_count).step_by(lanes) {
                self.turn(simd, lane, from);
            }
        }
    }
}

impl<E: Element, T: SimdFloat> TurnBack<'_, E, T> {
    #[inline(always)]
    fn copy(&mut self, first: usize, count: usize) {
        for (at, pixel) in self.pixels[first..][..count].iter().enumerate() {
            for plane in 0..self.plane_count {
                self.y[plane * self.plane_len + first + at] = pixel[plane].cast();
            }
        }
    }

    /// The pixels from `from` on of a vector of planes.
    #[inline(always)]
    fn turn<S: Simd<T>>(&mut self, simd: S, lane: usize, from: usize) {
        let lanes = S::LANE_COUNT;
        let planes = lanes.min(self.plane_count - lane);
        let count = lanes.min(self.pixel_count - from);
        let pixels = &self.pixels[from..].as_flattened()[lane..];
        let y = &mut self.y[lane * self.plane_len + from..];
        if [planes, count] == [lanes; 2]
            && let Some(y) = same_type_mut::<E, T>(y)
        {
            simd.transpose(pixels, LANE_COUNT_MAX, y, self.plane_len);
            return;
        }
        let mut square = Square::<T>::new();
        simd.transpose(pixels, LANE_COUNT_MAX, square.0.as_flattened_mut(), LANE_COUNT_MAX);
        for plane in 0..planes {
            let y = &mut y[plane * self.plane_len..][..count];
            if count == lanes {
                simd.narrow(simd.load(&square.0[plane]), y);
            } else {
                y.iter_mut().zip(square.0[plane]).for_each(|(y, sum)| *y = sum.cast());
            }
        }
    }
}

/// Rows of sums: a bias, and the products of the taps in their order.
pub(super) struct SumRows<'a, T> {
    pub(super) frame: &'a [Pixel<T>],
    /// Pixels of the frame from one row of sums to the next.
    pub(super) row_step: usize,
    pub(super) bias: &'a Pixel<T>,
    /// One for each tap.
    pub(super) weights: &'a [Pixel<T>],
    /// The pixel of the frame that a tap meets for the first sum.
    pub(super) offsets: &'a [usize],
    /// Rows and columns of sums.
    pub(super) size: [usize; 2],
    pub(super) sums: &'a mut [Pixel<T>],
    /// From one row, and column, of sums to the next.
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

/// Columns of a block of sums, as many as take the least time for `width`: a tap loads a weight and
/// a pixel for each sum, and takes as long as eight loads at least, since a multiply-add waits four
/// cycles for the one before it. Planes have 7 · 2^n columns more often than any other number.
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
                // The last block computes some sums of the one before it again.
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
        // Said once, or each load would be checked.
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

/// The products of dy and the frame, added to dw.
pub(super) struct SumTaps<'a, T> {
    pub(super) dy: &'a [Pixel<T>],
    pub(super) frame: &'a [Pixel<T>],
    /// Pixels of the frame from one row of dy to the next.
    pub(super) row_step: usize,
    /// The pixel of the frame that a tap meets for the first pixel of dy.
    pub(super) offsets: &'a [usize],
    /// Rows and columns of dy.
    pub(super) size: [usize; 2],
    /// One for each tap.
    pub(super) dw: &'a mut [Pixel<T>],
}

impl<T: SimdFloat> SimdKernel<T> for SumTaps<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        let count = self.offsets.len();
        let mut tap = 0;
        while tap < count {
            // Blocks as equal as can be: a multiply-add waits four cycles for the one before it.
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

/// Taps of a block: each has a pointer, which are to stay in registers, and a sum.
const TAPS_MAX: usize = 9;

impl<T: SimdFloat> SumTaps<'_, T> {
    /// TAPS taps of all lanes. Returns TAPS.
    #[inline(always)]
    fn taps<S: Simd<T>, const TAPS: usize>(&mut self, simd: S, tap: usize) -> usize {
        for lane in (0..LANE_COUNT_MAX).step_by(S::LANE_COUNT) {
            self.block::<S, TAPS>(simd, tap, lane);
        }
        TAPS
    }

    #[inline(always)]
    fn block<S: Simd<T>, const TAPS: usize>(&mut self, simd: S, tap: usize, lane: usize) {
        // Said once, or each load would be checked.
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
