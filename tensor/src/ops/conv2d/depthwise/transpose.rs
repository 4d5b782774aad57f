//! Transposes between planes and pixels of a bundle.

#![expect(clippy::needless_range_loop, reason = "planes are lanes, which have numbers")]

use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use crate::cpu::turn::turn_rows;
use crate::dtype::{Element, same_type_mut};

/// One pixel, or one weight, of each plane of a bundle.
pub(super) type Pixel<T> = [T; LANE_COUNT_MAX];

/// Largest number of leftover pixels that are copied one by one instead of as a square.
const SCALARS_MAX: usize = 2;

/// A square of planes and pixels; narrower vectors use a part of the square. No vector straddles
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

/// Transposes kernels `[C, taps]` to a table `[taps, row_len]`. Rows of the table wrap around: the
/// first channel follows the last channel.
pub(super) struct TransposeKernels<'a, E, T> {
    pub(super) kernels: &'a [E],
    pub(super) taps: usize,
    pub(super) table: &'a mut [T],
    pub(super) row_len: usize,
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for TransposeKernels<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let TransposeKernels { kernels, taps, table, row_len } = self;
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

/// Transposes rows of a bundle's planes to pixels, and writes the pixels to rows of `pitch`.
pub(super) struct PlaceRows<'a, E, T> {
    /// The elements from the first row of the first plane on.
    pub(super) source: &'a [E],
    /// Elements between neighbouring planes.
    pub(super) plane_len: usize,
    pub(super) plane_count: usize,
    pub(super) row_count: usize,
    /// Elements between the element that is transposed and the element that is prefetched. The
    /// processor's own prefetching does not follow the planes: there are too many of them, or they
    /// are too short.
    pub(super) ahead: usize,
    pub(super) columns: Placement<'a>,
    pub(super) pixels: &'a mut [Pixel<T>],
    pub(super) pitch: usize,
}

/// The places of a row's columns.
pub(super) enum Placement<'a> {
    /// `width` contiguous places, at least the lanes of a vector. Columns are transposed into
    /// place.
    Run { first: usize, width: usize },
    /// `width` columns that alternate between two runs, for a stride of two.
    TwoRuns { firsts: [usize; 2], width: usize },
    /// A place for each column.
    Places(&'a [usize]),
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for PlaceRows<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        match self.columns {
            Placement::Run { first, width } => self.place_run(simd, first, width),
            Placement::TwoRuns { firsts, width } => self.place_two_runs(simd, firsts, width),
            Placement::Places(places) => self.place_each(simd, places),
        }
    }
}

impl<E: Element, T: SimdFloat> PlaceRows<'_, E, T> {
    /// Transposes squares of whole rows.
    #[inline(always)]
    fn place_run<S: Simd<T>>(&mut self, simd: S, first: usize, width: usize) {
        let lanes = S::LANE_COUNT;
        let pixels = std::mem::take(&mut self.pixels);
        for row in 0..self.row_count {
            for column in (0..width).step_by(lanes) {
                // The last square starts early enough to be whole.
                let column = column.min(width - lanes);
                let to = &mut pixels[row * self.pitch + first + column..][..lanes];
                for lane in (0..LANE_COUNT_MAX).step_by(lanes) {
                    self.transpose(simd, lane, row * width + column, lanes, to);
                }
            }
        }
    }

    /// Transposes squares of whole rows, and splits them between two runs.
    #[inline(always)]
    fn place_two_runs<S: Simd<T>>(&mut self, simd: S, firsts: [usize; 2], width: usize) {
        let (lanes, pairs) = (S::LANE_COUNT, S::LANE_COUNT / 2);
        let mut square = Square::new();
        for row in 0..self.row_count {
            for column in (0..width).step_by(lanes) {
                // The last square starts early enough to be whole, at the start of a pair.
                let column = column.min((width - lanes).next_multiple_of(2));
                let count = lanes.min(width - column);
                for lane in (0..LANE_COUNT_MAX).step_by(lanes) {
                    self.transpose(simd, lane, row * width + column, count, &mut square.0);
                }
                for (odd, first) in firsts.into_iter().enumerate() {
                    let start = row * self.pitch + first + column / 2;
                    let to = &mut self.pixels[start..][..pairs - odd * (lanes - count)];
                    for (pair, to) in to.iter_mut().enumerate() {
                        *to = square.0[2 * pair + odd];
                    }
                }
            }
        }
    }

    /// Transposes squares that continue in the next row. For narrow planes, few squares are then
    /// half empty.
    #[inline(always)]
    fn place_each<S: Simd<T>>(&mut self, simd: S, places: &[usize]) {
        let lanes = S::LANE_COUNT;
        let pixel_count = self.row_count * places.len();
        let mut square = Square::new();
        let (mut row_start, mut column) = (0, 0);
        for first in (0..pixel_count).step_by(lanes) {
            let left = pixel_count - first;
            if left <= SCALARS_MAX && column + left == places.len() {
                self.copy(first, &places[column..]);
                return;
            }
            // The last square starts early enough to be whole.
            let from = first.min(pixel_count.saturating_sub(lanes));
            let count = lanes.min(pixel_count - from);
            for lane in (0..LANE_COUNT_MAX).step_by(lanes) {
                self.transpose(simd, lane, from, count, &mut square.0);
            }
            for pixel in &square.0[first - from..count] {
                self.pixels[row_start + places[column]] = *pixel;
                column += 1;
                if column == places.len() {
                    (row_start, column) = (row_start + self.pitch, 0);
                }
            }
        }
    }

    /// Copies the pixels from `first` on, which are the last columns of the last row.
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

    /// Transposes the pixels `from..from + count` of a vector of planes.
    #[inline(always)]
    fn transpose<S: Simd<T>>(
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

/// Transposes pixels of results to rows of a bundle's planes.
pub(super) struct TransposeBack<'a, E, T> {
    /// The pixels, followed by room for one more square.
    pub(super) pixels: &'a [Pixel<T>],
    pub(super) pixel_count: usize,
    /// The elements from the first row of the first plane on.
    pub(super) y: &'a mut [E],
    /// Elements between neighbouring planes.
    pub(super) plane_len: usize,
    pub(super) plane_count: usize,
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for TransposeBack<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        let lanes = S::LANE_COUNT;
        for first in (0..self.pixel_count).step_by(lanes) {
            let count = self.pixel_count - first;
            if count <= SCALARS_MAX {
                self.copy(first, count);
                return;
            }
            // The last square starts early enough to be whole.
            let from = first.min(self.pixel_count.saturating_sub(lanes));
            for lane in (0..self.plane_count).step_by(lanes) {
                self.transpose(simd, lane, from);
            }
        }
    }
}

impl<E: Element, T: SimdFloat> TransposeBack<'_, E, T> {
    /// Copies the last pixels, from `first` on.
    #[inline(always)]
    fn copy(&mut self, first: usize, count: usize) {
        for (at, pixel) in self.pixels[first..][..count].iter().enumerate() {
            for plane in 0..self.plane_count {
                self.y[plane * self.plane_len + first + at] = pixel[plane].cast();
            }
        }
    }

    /// Transposes the pixels from `from` on of a vector of planes.
    #[inline(always)]
    fn transpose<S: Simd<T>>(&mut self, simd: S, lane: usize, from: usize) {
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
