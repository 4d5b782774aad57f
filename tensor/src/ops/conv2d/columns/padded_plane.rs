//! A plane of x surrounded by zeros. Each tap moves whole parts of rows instead of single numbers.

use crate::cpu::math::SimdFloat;
use crate::dtype::Element;
use crate::ops::conv2d::shape::Conv2dShape;

/// Largest number of elements of a padded plane, which lies on the stack.
pub(super) const PADDED_LEN_MAX: usize = 1280;

/// Smallest number of columns of y. Shorter rows are moved as fast number by number.
const WIDTH_MIN: usize = 4;

/// Smallest number of taps for which copying the plane pays.
const TAPS_MIN: usize = 3;

/// The padded planes of a convolution whose stride along rows is at most 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaddedPlane {
    shape: Conv2dShape,
    /// Rows and columns of y.
    out_size: [usize; 2],
    /// Rows and columns of the padded plane.
    size: [usize; 2],
}

impl PaddedPlane {
    /// The padded planes of a convolution with outputs. `None` unless planes are small, rows are
    /// not very short and there are several taps.
    pub(super) fn of(shape: &Conv2dShape) -> Option<Self> {
        let Conv2dShape { in_height, in_width, kernel, stride, padding, dilation, .. } = *shape;
        let (in_size, out_size) = ([in_height, in_width], [shape.out_height(), shape.out_width()]);
        let size = [0, 1].map(|axis| {
            let span =
                (out_size[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1;
            span.max(padding[axis] + in_size[axis])
        });
        // Whole steps are read, so the last step may end after the plane.
        let is_small = size[0].saturating_mul(size[1]) < PADDED_LEN_MAX;
        let pays = out_size[1] >= WIDTH_MIN && kernel[0] * kernel[1] >= TAPS_MIN;
        (stride[1] <= 2 && is_small && pays).then_some(PaddedPlane {
            shape: *shape,
            out_size,
            size,
        })
    }

    fn pixels(&self) -> usize {
        self.out_size[0] * self.out_size[1]
    }

    fn taps(&self) -> usize {
        self.shape.kernel[0] * self.shape.kernel[1]
    }

    /// The first element of row `row` of x in the padded plane.
    fn row_of_x(&self, row: usize) -> usize {
        (self.shape.padding[0] + row) * self.size[1] + self.shape.padding[1]
    }

    /// The element of the padded plane where the first output meets tap `tap`.
    fn start_of_tap(&self, tap: usize) -> usize {
        let Conv2dShape { kernel, dilation, .. } = self.shape;
        let (kh, kw) = (tap / kernel[1], tap % kernel[1]);
        kh * dilation[0] * self.size[1] + kw * dilation[1]
    }

    /// Elements of the padded plane from one row of outputs to the next.
    fn step(&self) -> usize {
        self.shape.stride[0] * self.size[1]
    }

    /// Overwrites the columns of a channel, `[taps, images, pixels]`, from the channel's plane of
    /// each image. The slices in `planes` may be longer than a plane. `padded` is zero around the
    /// plane.
    pub(super) fn gather<'a, E: Element>(
        &self,
        planes: impl Iterator<Item = &'a [E]>,
        padded: &mut [E; PADDED_LEN_MAX],
        columns: &mut [E],
    ) {
        match (self.shape.stride[1], self.out_size[1]) {
            (1, 4) => self.gather_rows::<E, 1, 4>(planes, padded, columns),
            (1, 7) => self.gather_rows::<E, 1, 7>(planes, padded, columns),
            (1, 8) => self.gather_rows::<E, 1, 8>(planes, padded, columns),
            (1, _) => self.gather_rows::<E, 1, 0>(planes, padded, columns),
            (_, 4) => self.gather_rows::<E, 2, 4>(planes, padded, columns),
            (_, 7) => self.gather_rows::<E, 2, 7>(planes, padded, columns),
            (_, 8) => self.gather_rows::<E, 2, 8>(planes, padded, columns),
            (_, 16) => self.gather_rows::<E, 2, 16>(planes, padded, columns),
            _ => self.gather_rows::<E, 2, 0>(planes, padded, columns),
        }
    }

    /// [`PaddedPlane::gather`] with steps of `S`, and rows of `W`; rows may have any length if `W`
    /// is 0.
    fn gather_rows<'a, E: Element, const S: usize, const W: usize>(
        &self,
        planes: impl Iterator<Item = &'a [E]>,
        padded: &mut [E; PADDED_LEN_MAX],
        columns: &mut [E],
    ) {
        let (pixels, width) = (self.pixels(), self.out_size[1]);
        let len = columns.len() / self.taps();
        for (image, plane) in planes.enumerate() {
            let rows = plane.chunks_exact(self.shape.in_width).take(self.shape.in_height);
            for (row, from) in rows.enumerate() {
                copy_row::<E, S, W>(from, &mut padded[self.row_of_x(row)..][..from.len()]);
            }
            for (tap, columns) in columns.chunks_exact_mut(len).enumerate() {
                let mut at = self.start_of_tap(tap);
                for to in columns[image * pixels..][..pixels].chunks_exact_mut(width) {
                    copy_steps::<E, S, W>(&padded[at..][..width * S], to);
                    at += self.step();
                }
            }
        }
    }

    /// Adds the columns of a channel of one image to `sums`, a plane of x, tap by tap.
    pub(super) fn add_up<T: SimdFloat>(
        &self,
        columns: &[T],
        image: usize,
        padded: &mut [T; PADDED_LEN_MAX],
        sums: &mut [T],
    ) {
        match (self.shape.stride[1], self.out_size[1]) {
            (1, 4) => self.add_up_rows::<T, 1, 4>(columns, image, padded, sums),
            (1, 7) => self.add_up_rows::<T, 1, 7>(columns, image, padded, sums),
            (1, 8) => self.add_up_rows::<T, 1, 8>(columns, image, padded, sums),
            (1, _) => self.add_up_rows::<T, 1, 0>(columns, image, padded, sums),
            (_, 4) => self.add_up_rows::<T, 2, 4>(columns, image, padded, sums),
            (_, 7) => self.add_up_rows::<T, 2, 7>(columns, image, padded, sums),
            (_, 8) => self.add_up_rows::<T, 2, 8>(columns, image, padded, sums),
            (_, 16) => self.add_up_rows::<T, 2, 16>(columns, image, padded, sums),
            _ => self.add_up_rows::<T, 2, 0>(columns, image, padded, sums),
        }
    }

    /// [`PaddedPlane::add_up`] with steps of `S`, and rows of `W`; rows may have any length if `W`
    /// is 0.
    fn add_up_rows<T: SimdFloat, const S: usize, const W: usize>(
        &self,
        columns: &[T],
        image: usize,
        padded: &mut [T; PADDED_LEN_MAX],
        sums: &mut [T],
    ) {
        let (pixels, width) = (self.pixels(), self.out_size[1]);
        let len = columns.len() / self.taps();
        for (row, from) in sums.chunks_exact(self.shape.in_width).enumerate() {
            copy_row::<T, S, W>(from, &mut padded[self.row_of_x(row)..][..from.len()]);
        }
        for (tap, columns) in columns.chunks_exact(len).enumerate() {
            let mut at = self.start_of_tap(tap);
            for from in columns[image * pixels..][..pixels].chunks_exact(width) {
                add_steps::<T, S, W>(from, &mut padded[at..][..width * S]);
                at += self.step();
            }
        }
        for (row, to) in sums.chunks_exact_mut(self.shape.in_width).enumerate() {
            copy_row::<T, S, W>(&padded[self.row_of_x(row)..][..to.len()], to);
        }
    }
}

/// Copies a row. Rows of `W` steps take a few instructions, other rows a call.
#[inline(always)]
fn copy_row<E: Element, const S: usize, const W: usize>(from: &[E], to: &mut [E]) {
    let (steps, []) = from.as_chunks::<S>() else { return to.copy_from_slice(from) };
    let (to_steps, _) = to.as_chunks_mut::<S>();
    match (<&[[E; S]; W]>::try_from(steps), <&mut [[E; S]; W]>::try_from(to_steps)) {
        (Ok(steps), Ok(to_steps)) => *to_steps = *steps,
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first of every `S` numbers of `from`. `W` such numbers take a few instructions.
#[inline(always)]
fn copy_steps<E: Element, const S: usize, const W: usize>(from: &[E], to: &mut [E]) {
    let (from, _) = from.as_chunks::<S>();
    match (<&[[E; S]; W]>::try_from(from), <&mut [E; W]>::try_from(&mut *to)) {
        (Ok(from), Ok(to)) => {
            for lane in 0..W {
                to[lane] = from[lane][0];
            }
        }
        _ => to.iter_mut().zip(from).for_each(|(to, from)| *to = from[0]),
    }
}

/// Adds `from` to the first of every `S` numbers of `to`.
#[inline(always)]
fn add_steps<T: SimdFloat, const S: usize, const W: usize>(from: &[T], to: &mut [T]) {
    let (to, _) = to.as_chunks_mut::<S>();
    match (<&[T; W]>::try_from(from), <&mut [[T; S]; W]>::try_from(&mut *to)) {
        (Ok(from), Ok(to)) => {
            for lane in 0..W {
                to[lane][0] += from[lane];
            }
        }
        _ => to.iter_mut().zip(from).for_each(|(to, &from)| to[0] += from),
    }
}
