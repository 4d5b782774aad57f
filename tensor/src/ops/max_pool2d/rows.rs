//! Windows of any kind, a row of outputs at a time: for each position in the windows its column of
//! outputs, so that neighbours are computed side by side.

use std::marker::PhantomData;
use std::ops::Range;

use super::cpu::{MaxPool2dShape, exceeds};
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::{Element, Float};

/// Columns of dx whose sums are held at once.
const COLUMN_COUNT: usize = 256;

/// The outputs along a row whose window has a column of x from `columns` at position `kw`, and the
/// first of these columns.
#[inline(always)]
fn outputs(shape: &MaxPool2dShape, kw: usize, columns: Range<usize>) -> (Range<usize>, usize) {
    let stride = shape.stride[1];
    let offset = (kw * shape.dilation[1]).cast_signed() - shape.padding[1].cast_signed();
    let before =
        |column: usize| (column.cast_signed() - offset).max(0).cast_unsigned().div_ceil(stride);
    let end = before(columns.end).min(shape.out_size[1]);
    let start = before(columns.start).min(end);
    (start..end, (start * stride).saturating_add_signed(offset))
}

/// y and the position of each maximum of some planes: the first in row-major order, and NaN above
/// all.
pub(super) struct ForwardRows<'a, E> {
    pub(super) shape: &'a MaxPool2dShape,
    pub(super) x: &'a [E],
    pub(super) y: &'a mut [E],
    pub(super) positions: &'a mut [u8],
}

impl<E: Element> SimdKernel<f32> for ForwardRows<'_, E> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let ([height, width], [out_height, out_width]) = (self.shape.in_size, self.shape.out_size);
        let kernel = self.shape.kernel[1];
        let rows = self.y.chunks_exact_mut(out_width);
        for (at, (y, positions)) in rows.zip(self.positions.chunks_exact_mut(out_width)).enumerate()
        {
            let x = &self.x[at / out_height * height * width..][..height * width];
            let (heights, top) = self.shape.window(0, at % out_height);
            let mut meet = |kh: usize, kw: usize, is_first: bool| {
                let row = (top + (kh * self.shape.dilation[0]).cast_signed()).cast_unsigned();
                let (outs, first) = outputs(self.shape, kw, 0..width);
                let from = x[row * width..][..width].get(first..).unwrap_or_default();
                let (y, positions) = (&mut y[outs.clone()], &mut positions[outs]);
                let place = (kh * kernel + kw) as u8;
                // The usual strides are constants, with which the loops are compiled to vectors.
                match self.shape.stride[1] {
                    1 => take::<E, 1>(from, y, positions, place, is_first),
                    2 => take::<E, 2>(from, y, positions, place, is_first),
                    stride => {
                        let x = from.iter().step_by(stride);
                        for ((y, position), &x) in y.iter_mut().zip(positions).zip(x) {
                            larger(x, y, position, place, is_first);
                        }
                    }
                }
            };
            // The first position that a window has inside x begins; it is written last.
            (0..kernel).rev().for_each(|kw| meet(heights.start, kw, true));
            for kh in heights {
                (0..kernel).for_each(|kw| meet(kh, kw, false));
            }
        }
    }
}

/// Without a branch, which on random values would be taken wrong every other time.
#[inline(always)]
fn larger<E: Element>(x: E, y: &mut E, position: &mut u8, place: u8, is_first: bool) {
    let wins = is_first | exceeds(x, *y);
    *y = if wins { x } else { *y };
    *position = if wins { place } else { *position };
}

/// Every `STRIDE`-th element of `from` meets one of y.
#[inline(always)]
fn take<E: Element, const STRIDE: usize>(
    from: &[E],
    y: &mut [E],
    positions: &mut [u8],
    place: u8,
    is_first: bool,
) {
    let (steps, last) = from.as_chunks::<STRIDE>();
    let whole = steps.len().min(y.len());
    let (y, y_last) = y.split_at_mut(whole);
    let (positions, positions_last) = positions.split_at_mut(whole);
    for ((y, position), step) in y.iter_mut().zip(positions).zip(&steps[..whole]) {
        larger(step[0], y, position, place, is_first);
    }
    if let (&[x, ..], [y, ..], [position, ..]) = (last, y_last, positions_last) {
        larger(x, y, position, place, is_first);
    }
}

/// A row of dx: the sums of dy over the windows in which an input was the largest, in the order of
/// the outputs.
pub(super) struct BackwardRow<'a, E, T> {
    pub(super) shape: &'a MaxPool2dShape,
    /// Of its plane.
    pub(super) dy: &'a [E],
    pub(super) positions: &'a [u8],
    pub(super) row: usize,
    pub(super) dx: &'a mut [E],
    /// What is added up in.
    pub(super) sums: PhantomData<T>,
}

impl<E: Element, T: Float> SimdKernel<f32> for BackwardRow<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let BackwardRow { shape, dy, positions, row, dx, .. } = self;
        let (kernel, out_width) = (shape.kernel[1], shape.out_size[1]);
        let mut sums = [T::ZERO; COLUMN_COUNT];
        for (block, dx) in dx.chunks_mut(COLUMN_COUNT).enumerate() {
            let begin = block * COLUMN_COUNT;
            let sums = &mut sums[..dx.len()];
            sums.fill(T::ZERO);
            for p in shape.axis(0).covering(row) {
                let Some(kh) = shape.position(0, p, row) else { continue };
                // Of later positions earlier outputs.
                for kw in (0..kernel).rev() {
                    let (outs, first) = outputs(shape, kw, begin..begin + dx.len());
                    let place = (kh * kernel + kw) as u8;
                    let dy = &dy[p * out_width..][outs.clone()];
                    let positions = &positions[p * out_width..][outs];
                    let sums = sums.get_mut(first.wrapping_sub(begin)..).unwrap_or_default();
                    match shape.stride[1] {
                        1 => give::<E, T, 1>(dy, positions, place, sums),
                        2 => give::<E, T, 2>(dy, positions, place, sums),
                        stride => {
                            let sums = sums.iter_mut().step_by(stride);
                            for ((&dy, &position), sum) in dy.iter().zip(positions).zip(sums) {
                                *sum += own(dy, position == place);
                            }
                        }
                    }
                }
            }
            dx.iter_mut().zip(sums).for_each(|(dx, sum)| *dx = sum.cast());
        }
    }
}

#[inline(always)]
fn own<E: Element, T: Float>(dy: E, is_own: bool) -> T {
    if is_own { dy.cast() } else { T::ZERO }
}

/// Every element of dy is added to every `STRIDE`-th of `sums`, where its position is the place.
#[inline(always)]
fn give<E: Element, T: Float, const STRIDE: usize>(
    dy: &[E],
    positions: &[u8],
    place: u8,
    sums: &mut [T],
) {
    let (steps, last) = sums.as_chunks_mut::<STRIDE>();
    let whole = steps.len().min(dy.len());
    let (dy, dy_last) = dy.split_at(whole);
    let (positions, positions_last) = positions.split_at(whole);
    for ((&dy, &position), step) in dy.iter().zip(positions).zip(steps) {
        step[0] += own::<E, T>(dy, position == place);
    }
    if let ([sum, ..], [dy, ..], [position, ..]) = (last, dy_last, positions_last) {
        *sum += own::<E, T>(*dy, *position == place);
    }
}
