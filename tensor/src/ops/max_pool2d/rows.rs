//! Windows of any kind, for one row of outputs at a time. Neighbouring outputs are computed
//! together, position by position of their windows.

use std::marker::PhantomData;
use std::ops::Range;

use super::cpu::{MaxPool2dShape, exceeds};
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::{Element, Float};

/// Columns of dx whose sums are in memory at once.
const COLUMN_COUNT: usize = 256;

/// The outputs of a row whose window has a column of `columns` at position `kw`, and the first of
/// these columns.
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

/// Writes y and the position of each maximum, for some planes: the first in row-major order; NaN
/// above all.
pub(super) struct ForwardRows<'a, E> {
    pub(super) shape: &'a MaxPool2dShape,
    pub(super) x: &'a [E],
    pub(super) y: &'a mut [E],
    pub(super) positions: &'a mut [u8],
}

impl<E: Element> SimdKernel<f32> for ForwardRows<'_, E> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(mut self, _: S) {
        let [stride, out_width] = [self.shape.stride[1], self.shape.out_size[1]];
        let beyond = (self.shape.kernel[1] - 1) * self.shape.dilation[1];
        // Outputs whose columns fit the buffer.
        let span = HELD_LEN.saturating_sub(beyond) / stride / BLOCK_LEN * BLOCK_LEN;
        if span == 0 {
            return self.one_by_one();
        }
        for first in (0..out_width).step_by(span) {
            let outs = first..out_width.min(first + span);
            match stride {
                1 => self.columns::<1>(outs),
                2 => self.columns::<2>(outs),
                _ => self.columns::<0>(outs),
            }
        }
    }
}

impl<E: Element> ForwardRows<'_, E> {
    /// Computes windows one by one, if they are too far apart for the buffer.
    fn one_by_one(&mut self) {
        let ForwardRows { shape, x, y, positions } = self;
        let ([height, width], [out_height, out_width]) = (shape.in_size, shape.out_size);
        for (at, (y, position)) in y.iter_mut().zip(positions.iter_mut()).enumerate() {
            let (row, q) = (at / out_width, at % out_width);
            let x = &x[row / out_height * height * width..][..height * width];
            (*y, *position) = largest(shape, x, [row % out_height, q]);
        }
    }

    /// Writes the columns `outs` of all rows of y. `STRIDE` is the windows' stride, or 0 for any
    /// stride.
    #[inline(always)]
    fn columns<const STRIDE: usize>(&mut self, outs: Range<usize>) {
        let ForwardRows { shape, x, y, positions } = self;
        let ([height, width], [out_height, out_width]) = (shape.in_size, shape.out_size);
        let (stride, padding) = (shape.stride[1], shape.padding[1]);
        let ([kernel, dilation], len) = ([shape.kernel[1], shape.dilation[1]], outs.len());
        let blocks = len.div_ceil(BLOCK_LEN);
        // Elements of a window outside x are below every number.
        let below = E::Compute::from_f64(f64::NEG_INFINITY);
        let mut lines = [[below; HELD_LEN]; LINE_COUNT];
        // The columns of x in the buffer, and the place of the first one.
        let (start, held) = (outs.start * stride, blocks * BLOCK_LEN * stride);
        let held = held + (kernel - 1) * dilation;
        let first = start.saturating_sub(padding).min(width);
        let end = (start + held).saturating_sub(padding).min(width);
        let at = (first + padding).saturating_sub(start).min(held);
        // The first position of each window inside x: the result of a window that is -∞ everywhere.
        let mut begins = [[0; BLOCK_LEN]; BLOCK_COUNT];
        for (q, begin) in outs.clone().zip(begins.as_flattened_mut()) {
            *begin = shape.window(1, q).0.start as u32;
        }
        let mut found = [([below; BLOCK_LEN], [0; BLOCK_LEN]); BLOCK_COUNT];
        let planes = y.chunks_exact_mut(out_height * out_width);
        let planes = planes.zip(positions.chunks_exact_mut(out_height * out_width));
        for ((y, positions), x) in planes.zip(x.chunks_exact(height * width)) {
            let rows = y.chunks_exact_mut(out_width).zip(positions.chunks_exact_mut(out_width));
            for (row, (y, positions)) in rows.enumerate() {
                let (heights, top) = shape.window(0, row);
                let upper = (heights.start * kernel) as u32;
                for (found, begins) in found[..blocks].iter_mut().zip(&begins) {
                    *found = ([below; BLOCK_LEN], begins.map(|begin| upper + begin));
                }
                for group in heights.clone().step_by(LINE_COUNT) {
                    let group = group..heights.end.min(group + LINE_COUNT);
                    // All lines are written before one is read: reading a line that was just
                    // written is slow.
                    for (kh, line) in group.clone().zip(&mut lines) {
                        let from = top.cast_unsigned().wrapping_add(kh * shape.dilation[0]) * width;
                        let (x, line) = (&x[from + first..from + end], &mut line[at..]);
                        let line = &mut line[..x.len()];
                        for i in 0..x.len() {
                            line[i] = x[i].cast();
                        }
                    }
                    for (block, found) in found[..blocks].iter_mut().enumerate() {
                        let (mut most, mut places) = *found;
                        for (kh, line) in group.clone().zip(&lines) {
                            for kw in 0..kernel {
                                let from = &line[block * BLOCK_LEN * stride + kw * dilation..];
                                let values = every::<_, STRIDE>(from, stride);
                                let place = (kh * kernel + kw) as u32;
                                // No branch, because the processor would mispredict every second
                                // one for random values.
                                for i in 0..BLOCK_LEN {
                                    let wins = exceeds(values[i], most[i]);
                                    most[i] = if wins { values[i] } else { most[i] };
                                    places[i] = if wins { place } else { places[i] };
                                }
                            }
                        }
                        *found = (most, places);
                    }
                }
                let (y, y_rest) = y[outs.clone()].as_chunks_mut::<BLOCK_LEN>();
                let (positions, rest) = positions[outs.clone()].as_chunks_mut::<BLOCK_LEN>();
                for ((y, positions), (most, places)) in y.iter_mut().zip(positions).zip(&found) {
                    for i in 0..BLOCK_LEN {
                        (y[i], positions[i]) = (most[i].cast(), places[i] as u8);
                    }
                }
                let (most, places) = &found[blocks - 1];
                for (i, (y, position)) in y_rest.iter_mut().zip(rest).enumerate() {
                    (*y, *position) = (most[i].cast(), places[i] as u8);
                }
            }
        }
    }
}

/// Outputs that are computed together: the compiler turns loops of this length into vectors.
const BLOCK_LEN: usize = 16;

/// Columns in the buffer, including the padding.
const HELD_LEN: usize = 512;

/// Largest number of blocks of outputs whose columns are in the buffer at once.
const BLOCK_COUNT: usize = HELD_LEN / BLOCK_LEN;

/// Rows of a window in the buffer at once.
const LINE_COUNT: usize = 4;

/// The largest value of one window and its position.
#[inline(always)]
fn largest<E: Element>(shape: &MaxPool2dShape, x: &[E], [p, q]: [usize; 2]) -> (E, u8) {
    let ((heights, top), (widths, left)) = (shape.window(0, p), shape.window(1, q));
    let mut found: Option<(E, u8)> = None;
    for kh in heights {
        let row = top.cast_unsigned().wrapping_add(kh * shape.dilation[0]);
        for kw in widths.clone() {
            let column = left.cast_unsigned().wrapping_add(kw * shape.dilation[1]);
            let value = x[row * shape.in_size[1] + column];
            if found.is_none_or(|(max, _)| exceeds(value, max)) {
                found = Some((value, (kh * shape.kernel[1] + kw) as u8));
            }
        }
    }
    found.expect("every window meets x")
}

/// A block of elements that are `stride` apart. `STRIDE` is the stride, or 0 for any stride.
#[inline(always)]
fn every<E: Copy + Default, const STRIDE: usize>(from: &[E], stride: usize) -> [E; BLOCK_LEN] {
    let mut block = [E::default(); BLOCK_LEN];
    match STRIDE {
        1 => block.copy_from_slice(&from[..BLOCK_LEN]),
        2 => {
            // With a length known to the compiler, this becomes a shuffle of vectors.
            let (line, _) = from.as_chunks::<{ 2 * BLOCK_LEN }>();
            (0..BLOCK_LEN).for_each(|i| block[i] = line[0][2 * i]);
        }
        _ => (0..BLOCK_LEN).for_each(|i| block[i] = from[i * stride]),
    }
    block
}

/// Computes a row of dx: sums of dy over the windows where an input was the largest, in the order
/// of the outputs.
pub(super) struct BackwardRow<'a, E, T> {
    pub(super) shape: &'a MaxPool2dShape,
    /// dy of the plane.
    pub(super) dy: &'a [E],
    pub(super) positions: &'a [u8],
    pub(super) row: usize,
    pub(super) dx: &'a mut [E],
    /// The type of sums.
    pub(super) sums: PhantomData<T>,
}

impl<E: Element, T: Float> SimdKernel<f32> for BackwardRow<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let &MaxPool2dShape { kernel, stride, dilation, .. } = self.shape;
        let reach =
            self.shape.out_size[1].next_multiple_of(BLOCK_LEN) + (kernel[1] - 1) * dilation[1];
        match stride[1] {
            1 if reach <= HELD_LEN => self.held::<1>(),
            2 if reach <= HELD_LEN => self.held::<2>(),
            _ => self.any(),
        }
    }
}

impl<E: Element, T: Float> BackwardRow<'_, E, T> {
    /// Computes a row whose sums, with the padding, fit the buffer. Neighbouring outputs are added
    /// to neighbouring sums: sums of columns with the same remainder modulo the stride are
    /// contiguous.
    #[inline(always)]
    fn held<const STRIDE: usize>(self) {
        let BackwardRow { shape, dy, positions, row, dx, .. } = self;
        let (out_width, padding) = (shape.out_size[1], shape.padding[1]);
        let mut sums = [[T::ZERO; HELD_LEN]; STRIDE];
        for p in shape.axis(0).covering(row) {
            let Some(kh) = shape.position(0, p, row) else { continue };
            let (dy, dy_rest) = dy[p * out_width..][..out_width].as_chunks::<BLOCK_LEN>();
            let positions = &positions[p * out_width..][..out_width];
            let (positions, positions_rest) = positions.as_chunks::<BLOCK_LEN>();
            for (block, (dy, positions)) in dy.iter().zip(positions).enumerate() {
                add_block(shape, kh, &mut sums, &OutputBlock { index: block, dy, positions });
            }
            if !dy_rest.is_empty() {
                let (mut last, mut last_positions) = ([E::default(); BLOCK_LEN], [0; BLOCK_LEN]);
                last[..dy_rest.len()].copy_from_slice(dy_rest);
                last_positions[..dy_rest.len()].copy_from_slice(positions_rest);
                let block = OutputBlock { index: dy.len(), dy: &last, positions: &last_positions };
                add_block(shape, kh, &mut sums, &block);
            }
        }
        // The sums of columns `at`, `at + STRIDE`, and so on.
        let from = |at: usize| &sums[(at + padding) % STRIDE][(at + padding) / STRIDE..];
        let (whole, rest) = dx.as_chunks_mut::<STRIDE>();
        let count = whole.len();
        let columns: [&[T]; STRIDE] = std::array::from_fn(|at| &from(at)[..count]);
        for (index, dx) in whole.iter_mut().enumerate() {
            (0..STRIDE).for_each(|at| dx[at] = columns[at][index].cast());
        }
        rest.iter_mut().enumerate().for_each(|(at, dx)| *dx = from(at)[count].cast());
    }

    /// Computes a row of any kind.
    #[inline(always)]
    fn any(self) {
        let BackwardRow { shape, dy, positions, row, dx, .. } = self;
        let (kernel, out_width) = (shape.kernel[1], shape.out_size[1]);
        let mut sums = [T::ZERO; COLUMN_COUNT];
        for (block, dx) in dx.chunks_mut(COLUMN_COUNT).enumerate() {
            let begin = block * COLUMN_COUNT;
            let sums = &mut sums[..dx.len()];
            sums.fill(T::ZERO);
            for p in shape.axis(0).covering(row) {
                let Some(kh) = shape.position(0, p, row) else { continue };
                // Positions go backwards, so that outputs are added in order.
                for kw in (0..kernel).rev() {
                    let (outs, first) = outputs(shape, kw, begin..begin + dx.len());
                    let place = (kh * kernel + kw) as u8;
                    let own = dy[p * out_width..][outs.clone()].iter();
                    let own = own.zip(&positions[p * out_width..][outs]);
                    let sums = sums.get_mut(first.wrapping_sub(begin)..).unwrap_or_default();
                    for ((dy, &position), sum) in own.zip(sums.iter_mut().step_by(shape.stride[1]))
                    {
                        *sum += if position == place { dy.cast() } else { T::ZERO };
                    }
                }
            }
            dx.iter_mut().zip(sums).for_each(|(dx, sum)| *dx = sum.cast());
        }
    }
}

/// Neighbouring outputs.
struct OutputBlock<'a, E> {
    /// The index of the block in its row.
    index: usize,
    dy: &'a [E; BLOCK_LEN],
    positions: &'a [u8; BLOCK_LEN],
}

/// Adds a block of dy to the sums of the columns where its windows have their maximum in window row
/// `kh`. Zeros that pad the block change nothing.
#[inline(always)]
fn add_block<E: Element, T: Float, const STRIDE: usize>(
    shape: &MaxPool2dShape,
    kh: usize,
    sums: &mut [[T; HELD_LEN]; STRIDE],
    block: &OutputBlock<'_, E>,
) {
    let &OutputBlock { index, dy, positions } = block;
    let (kernel, dilation) = (shape.kernel[1], shape.dilation[1]);
    // Places are widened to four bytes, the size of f32.
    let (values, places): ([T; BLOCK_LEN], _) = (dy.map(|dy| dy.cast()), positions.map(u32::from));
    // Positions go backwards, so that outputs are added in order.
    for kw in (0..kernel).rev() {
        let (place, shift) = ((kh * kernel + kw) as u32, kw * dilation);
        let first = index * BLOCK_LEN + shift / STRIDE;
        let sums = &mut sums[shift % STRIDE][first..][..BLOCK_LEN];
        for i in 0..BLOCK_LEN {
            sums[i] += if places[i] == place { values[i] } else { T::ZERO };
        }
    }
}
