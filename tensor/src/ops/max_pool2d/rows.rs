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
        let ForwardRows { shape, x, y, positions } = self;
        let ([height, width], [out_height, out_width]) = (shape.in_size, shape.out_size);
        let rows = y.chunks_exact_mut(out_width).zip(positions.chunks_exact_mut(out_width));
        for (at, (y, positions)) in rows.enumerate() {
            let x = &x[at / out_height * height * width..][..height * width];
            let (heights, top) = shape.window(0, at % out_height);
            let row = |kh: usize| (top + (kh * shape.dilation[0]).cast_signed()).cast_unsigned();
            let blocks = y.chunks_mut(BLOCK_LEN).zip(positions.chunks_mut(BLOCK_LEN));
            for (block, (y, positions)) in blocks.enumerate() {
                let mut maxima = Maxima::of_none();
                for kh in heights.clone() {
                    let x = &x[row(kh) * width..][..width];
                    maxima.meet_row(shape, x, block * BLOCK_LEN, kh * shape.kernel[1]);
                }
                y.copy_from_slice(&maxima.values[..y.len()]);
                for (position, place) in positions.iter_mut().zip(maxima.places) {
                    *position = place as u8;
                }
            }
        }
    }
}

/// Outputs side by side that are computed at once: loops over so many are compiled to vectors.
const BLOCK_LEN: usize = 16;

/// Columns of x that a block's windows reach over, if they are not more.
const REACH_MAX: usize = 128;

/// The place of an output that has met nothing yet.
const NOWHERE: u32 = u32::MAX;

/// The largest values that a block of windows has met, and their places in the window.
struct Maxima<E> {
    values: [E; BLOCK_LEN],
    places: [u32; BLOCK_LEN],
}

impl<E: Element> Maxima<E> {
    #[inline(always)]
    fn of_none() -> Self {
        Maxima { values: [E::default(); BLOCK_LEN], places: [NOWHERE; BLOCK_LEN] }
    }

    /// A row of x, for the outputs from number `first` on; its places begin at `place`.
    #[inline(always)]
    fn meet_row(&mut self, shape: &MaxPool2dShape, x: &[E], first: usize, place: usize) {
        let [kernel, stride, dilation] = [shape.kernel[1], shape.stride[1], shape.dilation[1]];
        // Column 0 of x in what is held; columns beside x hold any number.
        let origin = shape.padding[1].cast_signed() - (first * stride).cast_signed();
        let mut held = [E::default(); REACH_MAX];
        let is_held = BLOCK_LEN * stride + (kernel - 1) * dilation <= REACH_MAX;
        if is_held {
            let skip = (-origin).max(0).cast_unsigned().min(x.len());
            let at = origin.max(0).cast_unsigned().min(REACH_MAX);
            let count = (x.len() - skip).min(REACH_MAX - at);
            held[at..at + count].copy_from_slice(&x[skip..skip + count]);
        }
        for kw in 0..kernel {
            let shift = kw * dilation;
            let mut found = [E::default(); BLOCK_LEN];
            match stride {
                1 if is_held => found.copy_from_slice(&held[shift..][..BLOCK_LEN]),
                2 if is_held => {
                    // Of a length that the compiler knows: it becomes a shuffle of vectors.
                    let (line, _) = held[shift..].as_chunks::<{ 2 * BLOCK_LEN }>();
                    (0..BLOCK_LEN).for_each(|i| found[i] = line[0][2 * i]);
                }
                _ => {
                    for (i, found) in found.iter_mut().enumerate() {
                        let column = (i * stride + shift).cast_signed() - origin;
                        *found = x.get(column.cast_unsigned()).copied().unwrap_or_default();
                    }
                }
            }
            // The outputs that have a column of x here.
            let before = |column: isize| {
                (column + origin - shift.cast_signed()).max(0).cast_unsigned().div_ceil(stride)
            };
            let inside = before(0) as u32..before(x.len().cast_signed()) as u32;
            self.meet(&found, inside, (place + kw) as u32);
        }
    }

    /// Without a branch, which on random values would be taken wrong every other time.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "three arrays of one length that is known")]
    fn meet(&mut self, found: &[E; BLOCK_LEN], inside: Range<u32>, place: u32) {
        for i in 0..BLOCK_LEN {
            let is_inside = (inside.start <= i as u32) & ((i as u32) < inside.end);
            let is_first = self.places[i] == NOWHERE;
            let wins = is_inside & (is_first | exceeds(found[i], self.values[i]));
            self.values[i] = if wins { found[i] } else { self.values[i] };
            self.places[i] = if wins { place } else { self.places[i] };
        }
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

/// Sums of a row that are held at once, for each remainder of the stride.
const HELD_LEN: usize = 512;

impl<E: Element, T: Float> BackwardRow<'_, E, T> {
    /// A row whose sums are held with the padding around it: outputs side by side are added to sums
    /// side by side, those of columns with the same remainder by the stride.
    #[inline(always)]
    fn held<const STRIDE: usize>(self) {
        let BackwardRow { shape, dy, positions, row, dx, .. } = self;
        let (kernel, out_width) = (shape.kernel[1], shape.out_size[1]);
        let (dilation, padding) = (shape.dilation[1], shape.padding[1]);
        let mut sums = [[T::ZERO; HELD_LEN]; STRIDE];
        for p in shape.axis(0).covering(row) {
            let Some(kh) = shape.position(0, p, row) else { continue };
            let dy = dy[p * out_width..][..out_width].chunks(BLOCK_LEN);
            let positions = positions[p * out_width..][..out_width].chunks(BLOCK_LEN);
            for (block, (dy, positions)) in dy.zip(positions).enumerate() {
                // Numbers of four bytes, of which a vector has as many as of f32.
                let (mut values, mut places) = ([T::ZERO; BLOCK_LEN], [0; BLOCK_LEN]);
                values.iter_mut().zip(dy).for_each(|(value, dy)| *value = dy.cast());
                places.iter_mut().zip(positions).for_each(|(place, &at)| *place = u32::from(at));
                // Of later positions earlier outputs.
                for kw in (0..kernel).rev() {
                    let (place, shift) = ((kh * kernel + kw) as u32, kw * dilation);
                    let first = block * BLOCK_LEN + shift / STRIDE;
                    let sums = &mut sums[shift % STRIDE][first..][..BLOCK_LEN];
                    for i in 0..BLOCK_LEN {
                        sums[i] += if places[i] == place { values[i] } else { T::ZERO };
                    }
                }
            }
        }
        for (remainder, sums) in sums.iter().enumerate() {
            // The first column of x with this remainder, counted with the padding before it.
            let skip = (remainder + STRIDE - padding % STRIDE) % STRIDE;
            let sums = &sums[(padding + skip) / STRIDE..];
            let dx = dx.get_mut(skip..).unwrap_or_default().iter_mut().step_by(STRIDE);
            dx.zip(sums).for_each(|(dx, sum)| *dx = sum.cast());
        }
    }

    /// A row of any other kind.
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
                // Of later positions earlier outputs.
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
