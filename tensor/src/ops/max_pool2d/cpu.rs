//! The maximum over windows of an image, and its gradient, which goes to the place of each maximum.
//!
//! x`[planes, H, W]` → y`[planes, OH, OW]` with the position of each maximum inside its window, kh
//! · KW + kw, as one byte: an eighth of PyTorch's index. Both directions overwrite.

use std::marker::PhantomData;

use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::dtype::{Element, Float};
use crate::ops::windows::{Axis, Kind, for_each_row, window_count};

use super::halves::{BackwardHalves, ForwardHalves};
use super::rows::{BackwardRow, ForwardRows};
use super::{MaxPool, Pool2dGeometry};

/// Largest number of elements of a plane whose sums are all in memory at once.
const PLANE_LEN: usize = 4 * 1024;

/// Smallest number of elements of x or y in a task.
const CHUNK_LEN: usize = 8 * 1024;

/// The sizes of a max pooling. Pairs are (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxPool2dShape {
    /// Images times channels.
    pub(crate) planes: usize,
    pub(crate) in_size: [usize; 2],
    pub(super) out_size: [usize; 2],
    /// Rows and columns of the window: at most 256 positions.
    pub(crate) kernel: [usize; 2],
    pub(super) stride: [usize; 2],
    pub(super) padding: [usize; 2],
    /// Step between neighbouring positions of a window.
    pub(super) dilation: [usize; 2],
}

impl MaxPool2dShape {
    /// The sizes; `None` unless there are windows and every window meets x.
    pub(super) fn new(
        planes: usize,
        in_size: [usize; 2],
        window: Pool2dGeometry,
        options: MaxPool,
    ) -> Option<Self> {
        let Pool2dGeometry { kernel, stride, padding } = window;
        let MaxPool { dilation, rounding } = options;
        // A position in the window must fit a byte.
        let area = kernel[0].checked_mul(kernel[1])?;
        if !(1..=256).contains(&area) || dilation.contains(&0) {
            return None;
        }
        let mut out_size = [0; 2];
        for axis in 0..2 {
            let reach = (kernel[axis] - 1).checked_mul(dilation[axis])?.checked_add(1)?;
            // A window that starts in the padding could step over all of x.
            if padding[axis] > 0 && dilation[axis] > in_size[axis] {
                return None;
            }
            let [stride, padding] = [stride[axis], padding[axis]];
            out_size[axis] = window_count(in_size[axis], reach, stride, padding, rounding)?;
        }
        Some(MaxPool2dShape { planes, in_size, out_size, kernel, stride, padding, dilation })
    }

    /// Rows and columns of y.
    pub(crate) fn out_size(&self) -> [usize; 2] {
        self.out_size
    }

    /// Elements of x.
    pub(crate) fn x_len(&self) -> usize {
        self.planes * self.in_size[0] * self.in_size[1]
    }

    /// Elements of y.
    pub(crate) fn y_len(&self) -> usize {
        self.planes * self.out_size[0] * self.out_size[1]
    }

    /// True for the most frequent windows: 2×2, adjacent and all whole.
    fn halves(&self) -> bool {
        let is_two = |pair: [usize; 2]| pair == [2, 2];
        is_two(self.kernel)
            && is_two(self.stride)
            && self.padding == [0, 0]
            && self.dilation == [1, 1]
            && self.out_size == self.in_size.map(|len| len / 2)
    }

    /// The windows along one axis, with all places between their first and last position.
    pub(super) fn axis(&self, at: usize) -> Axis {
        let (stride, padding) = (self.stride[at], self.padding[at]);
        let kernel = (self.kernel[at] - 1) * self.dilation[at] + 1;
        let kind = Kind::Stepped { kernel, stride, padding };
        Axis { in_len: self.in_size[at], out_len: self.out_size[at], kind }
    }

    /// The position of input `at` in window `out` along one axis. The window must span the input.
    #[inline(always)]
    pub(super) fn position(&self, axis: usize, out: usize, at: usize) -> Option<usize> {
        let offset = at + self.padding[axis] - out * self.stride[axis];
        match self.dilation[axis] {
            // A dilation of 1 is the most frequent; a division would take longer than everything
            // else.
            1 => Some(offset),
            dilation => offset.is_multiple_of(dilation).then(|| offset / dilation),
        }
    }

    /// Planes of a task.
    fn planes_per_chunk(&self) -> usize {
        (CHUNK_LEN / (self.in_size[0] * self.in_size[1]).max(1)).max(1)
    }

    /// The range of positions of output `at`'s window that are inside x along one axis, and the
    /// index in x of position 0, which may be negative.
    pub(super) fn window(&self, axis: usize, at: usize) -> (std::ops::Range<usize>, isize) {
        let start = (at * self.stride[axis]).cast_signed() - self.padding[axis].cast_signed();
        let before = |end: isize| match self.dilation[axis] {
            1 => end.max(0).cast_unsigned(),
            dilation => end.max(0).cast_unsigned().div_ceil(dilation),
        };
        let end = before(self.in_size[axis].cast_signed() - start);
        (before(-start)..self.kernel[axis].min(end), start)
    }
}

/// Writes y and the position of each maximum: the first in row-major order; NaN above all.
pub(crate) fn forward<E: Element>(
    pool: &Pool,
    shape: &MaxPool2dShape,
    x: &[E],
    y: &mut [E],
    positions: &mut [u8],
) {
    assert_eq!([x.len(), y.len(), positions.len()], [shape.x_len(), shape.y_len(), shape.y_len()]);
    let (x_plane, y_plane) = (shape.in_size[0] * shape.in_size[1], shape.out_size);
    let y_plane_len = y_plane[0] * y_plane[1];
    if y.is_empty() {
        return;
    }
    let planes = shape.planes_per_chunk();
    for_each_chunk2(
        pool,
        Chunked::new(y, planes * y_plane_len),
        Chunked::new(positions, planes * y_plane_len),
        |chunk, y, positions| {
            let x = &x[chunk * planes * x_plane..];
            // For elements of any type. The dispatch of f32 compiles the loop for every instruction
            // set.
            if shape.halves() {
                return f32::dispatch(ForwardHalves { shape, x, y, positions });
            }
            f32::dispatch(ForwardRows { shape, x, y, positions });
        },
    );
}

/// True if `x` replaces `max`. The first NaN wins, and the first of equal values.
#[inline(always)]
#[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN is not below or equal")]
pub(crate) fn exceeds<E: Element>(x: E, max: E) -> bool {
    // Two comparisons without a branch, so that loops compile to vectors. A number that is not
    // below or equal is above, or one of the two is NaN.
    !(x <= max) & !is_nan(max)
}

#[inline(always)]
#[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
fn is_nan<E: Element>(x: E) -> bool {
    x != x
}

/// Overwrites dx. Each input gets the sum of dy over the windows where it was the largest.
/// Positions outside every window get 0.
pub(crate) fn backward<E: Element, T: Float>(
    pool: &Pool,
    shape: &MaxPool2dShape,
    dy: &[E],
    positions: &[u8],
    dx: &mut [E],
) {
    assert_eq!([dx.len(), dy.len()], [shape.x_len(), shape.y_len()]);
    assert_eq!(positions.len(), dy.len());
    let [out_height, out_width] = shape.out_size;
    let y_plane = out_height * out_width;
    if shape.halves() {
        let (planes, x_plane) = (shape.planes_per_chunk(), shape.in_size[0] * shape.in_size[1]);
        return for_each_chunk(pool, dx, planes * x_plane, |chunk, dx| {
            let from = chunk * planes * y_plane;
            let (dy, positions) = (&dy[from..], &positions[from..]);
            f32::dispatch(BackwardHalves { shape, dy, positions, dx });
        });
    }
    let x_plane = shape.in_size[0] * shape.in_size[1];
    if x_plane <= PLANE_LEN {
        let planes = shape.planes_per_chunk();
        return for_each_chunk(pool, dx, planes * x_plane, |chunk, dx| {
            let from = chunk * planes * y_plane;
            scatter::<E, T>(shape, &dy[from..], &positions[from..], dx);
        });
    }
    for_each_row(pool, dx, shape.in_size, |plane, row, dx| {
        let (dy, positions) =
            (&dy[plane * y_plane..][..y_plane], &positions[plane * y_plane..][..y_plane]);
        let sums = PhantomData::<T>;
        f32::dispatch(BackwardRow { shape, dy, positions, row, dx, sums });
    });
}

/// The gradient of whole planes. Each dy is added at the place of its window's maximum, in the
/// order of the outputs.
fn scatter<E: Element, T: Float>(shape: &MaxPool2dShape, dy: &[E], positions: &[u8], dx: &mut [E]) {
    let &MaxPool2dShape { in_size: [height, width], out_size, kernel, .. } = shape;
    let &MaxPool2dShape { stride, padding, dilation, .. } = shape;
    // The steps from position 0 of a window to each other position. Unused numbers lead out of x.
    let mut steps = [[usize::MAX / 2; 2]; 256];
    for (place, step) in steps.iter_mut().enumerate().take(kernel[0] * kernel[1]) {
        *step = [place / kernel[1] * dilation[0], place % kernel[1] * dilation[1]];
    }
    let mut sums = [T::ZERO; PLANE_LEN];
    let y_plane = out_size[0] * out_size[1];
    let of_y = dy.chunks_exact(y_plane).zip(positions.chunks_exact(y_plane));
    for (dx, (dy, positions)) in dx.chunks_exact_mut(height * width).zip(of_y) {
        let sums = &mut sums[..dx.len()];
        sums.fill(T::ZERO);
        let rows = dy.chunks_exact(out_size[1]).zip(positions.chunks_exact(out_size[1]));
        for (p, (dy, positions)) in rows.enumerate() {
            for (q, (dy, &position)) in dy.iter().zip(positions).enumerate() {
                let [down, right] = steps[usize::from(position)];
                // Rows and columns in the padding wrap to numbers above any size.
                let row = (p * stride[0] + down).wrapping_sub(padding[0]);
                let column = (q * stride[1] + right).wrapping_sub(padding[1]);
                if row < height && column < width {
                    sums[row * width + column] += dy.cast();
                }
            }
        }
        dx.iter_mut().zip(sums).for_each(|(dx, sum)| *dx = sum.cast());
    }
}
