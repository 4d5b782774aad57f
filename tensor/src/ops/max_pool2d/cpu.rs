//! The maximum over windows of an image, and the scatter back to the place of each maximum.
//!
//! x`[planes, H, W]` → y`[planes, OH, OW]` with the position inside its window, kh · KW + kw, as
//! one byte: an eighth of PyTorch's index. Both directions overwrite.

use std::marker::PhantomData;

use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::dtype::{Element, Float};
use crate::ops::windows::{Axis, Kind, for_each_row, window_count};

use super::halves::{BackwardHalves, ForwardHalves};
use super::rows::{BackwardRow, ForwardRows};
use super::{MaxPool, Pool2dGeometry};

/// Elements of a plane, at most, whose sums are all held at once.
const PLANE_LEN: usize = 4 * 1024;

/// Elements of x or y of a task, at least.
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
    /// Places from one position of a window to the next.
    pub(super) dilation: [usize; 2],
}

impl MaxPool2dShape {
    /// The sizes, if there are windows and every one of them meets x.
    pub(super) fn new(
        planes: usize,
        in_size: [usize; 2],
        window: Pool2dGeometry,
        options: MaxPool,
    ) -> Option<Self> {
        let Pool2dGeometry { kernel, stride, padding } = window;
        let MaxPool { dilation, rounding } = options;
        // A position in the window is a byte.
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

    /// The usual 2×2 windows side by side, all of them whole.
    fn halves(&self) -> bool {
        let is_two = |pair: [usize; 2]| pair == [2, 2];
        is_two(self.kernel)
            && is_two(self.stride)
            && self.padding == [0, 0]
            && self.dilation == [1, 1]
            && self.out_size == self.in_size.map(|len| len / 2)
    }

    /// The windows along one axis, with all places that they reach over.
    pub(super) fn axis(&self, at: usize) -> Axis {
        let (stride, padding) = (self.stride[at], self.padding[at]);
        let kernel = (self.kernel[at] - 1) * self.dilation[at] + 1;
        let kind = Kind::Stepped { kernel, stride, padding };
        Axis { in_len: self.in_size[at], out_len: self.out_size[at], kind }
    }

    /// The position in window `out` of input `at`, which it reaches over, along one axis.
    #[inline(always)]
    pub(super) fn position(&self, axis: usize, out: usize, at: usize) -> Option<usize> {
        let offset = at + self.padding[axis] - out * self.stride[axis];
        match self.dilation[axis] {
            // The usual case: a division would take longer than all the rest.
            1 => Some(offset),
            dilation => offset.is_multiple_of(dilation).then(|| offset / dilation),
        }
    }

    /// Planes of a task.
    fn planes_per_chunk(&self) -> usize {
        (CHUNK_LEN / (self.in_size[0] * self.in_size[1]).max(1)).max(1)
    }

    /// Positions in the window of output `at` that are inside x along one axis, and the index in
    /// x of position 0, which may be negative.
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

/// y and the position of each maximum: the first in row-major order, and NaN above all.
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
            // For elements of any type: f32's dispatch compiles for every instruction set.
            if shape.halves() {
                return f32::dispatch(ForwardHalves { shape, x, y, positions });
            }
            f32::dispatch(ForwardRows { shape, x, y, positions });
        },
    );
}

/// True if `x` takes the place of `max`: the first NaN stays, and so does the first of equals.
#[inline(always)]
#[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN is not below or equal")]
pub(crate) fn exceeds<E: Element>(x: E, max: E) -> bool {
    // Two comparisons without a branch, so that loops are compiled to vectors: a number that is not
    // below or equal is above, or one of the two is NaN.
    !(x <= max) & !is_nan(max)
}

#[inline(always)]
#[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
fn is_nan<E: Element>(x: E) -> bool {
    x != x
}

/// Overwrites dx with the sum of dy over the windows in which each input was the largest. Positions
/// outside every window win nothing.
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

/// The gradient of whole planes: each dy is added where its window found the maximum, in the order
/// of the outputs.
fn scatter<E: Element, T: Float>(shape: &MaxPool2dShape, dy: &[E], positions: &[u8], dx: &mut [E]) {
    let &MaxPool2dShape { in_size: [height, width], out_size, kernel, .. } = shape;
    let &MaxPool2dShape { stride, padding, dilation, .. } = shape;
    // The steps from position 0 of a window to each other position; other numbers lead out of x.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::windows::SizeRounding;

    /// The definition, with the flat index of each maximum.
    fn naive<T: Float>(shape: &MaxPool2dShape, x: &[T]) -> Vec<(T, usize)> {
        let [oh, ow] = shape.out_size;
        let [height, width] = shape.in_size;
        (0..shape.y_len())
            .map(|at| {
                let (plane, p, q) = (at / ow / oh, at / ow % oh, at % ow);
                let mut best: Option<(T, usize)> = None;
                for row in 0..height {
                    for col in 0..width {
                        let inside = |at: usize, axis: usize, out: usize| {
                            let start = out * shape.stride[axis];
                            let position = |k: usize| start + k * shape.dilation[axis];
                            let at = at + shape.padding[axis];
                            (0..shape.kernel[axis]).any(|k| position(k) == at)
                        };
                        let index = (plane * height + row) * width + col;
                        let better = best.is_none_or(|(max, _)| {
                            let nan = x[index].to_f64().is_nan();
                            x[index] > max || (nan && !max.to_f64().is_nan())
                        });
                        if inside(row, 0, p) && inside(col, 1, q) && better {
                            best = Some((x[index], index));
                        }
                    }
                }
                best.expect("a window outside x")
            })
            .collect()
    }

    fn check_against_definition<T: Float>(shape: &MaxPool2dShape, seed: usize) {
        let pool = Pool::new(2);
        let values = [0.0, 1.0, -2.0, f64::NEG_INFINITY, f64::NAN, 3.0, 3.0];
        let x: Vec<T> = (0..shape.x_len())
            .map(|i| T::from_f64(values[(i * i + 3 * i + i / 7 + seed) % values.len()]))
            .collect();
        let dy: Vec<T> = (0..shape.y_len()).map(|i| T::from_f64((i % 5) as f64 - 1.0)).collect();
        let mut y = vec![T::from_f64(7.0); dy.len()];
        let mut positions = vec![255; dy.len()];
        let mut dx = vec![T::from_f64(7.0); x.len()];
        forward(&pool, shape, &x, &mut y, &mut positions);
        backward::<T, T>(&pool, shape, &dy, &positions, &mut dx);
        let mut dx_expected = vec![T::ZERO; x.len()];
        for (at, (max, index)) in naive(shape, &x).into_iter().enumerate() {
            assert_eq!(y[at].to_f64().to_bits(), max.to_f64().to_bits(), "{shape:?} y[{at}]");
            dx_expected[index] += dy[at];
        }
        assert_eq!(dx, dx_expected, "{shape:?}");
    }

    fn shapes() -> impl Strategy<Value = MaxPool2dShape> {
        let kernel = [1..=4usize, 1..=4usize];
        let stride = [1..=3usize, 1..=3usize];
        let dilation = [1..=3usize, 1..=2usize];
        let size = [1..=12usize, 1..=12usize];
        let rounding = prop::sample::select(vec![SizeRounding::Down, SizeRounding::Up]);
        (0..=5usize, size, kernel, stride, dilation, any::<[bool; 2]>(), rounding).prop_filter_map(
            "windows that fit",
            |(planes, in_size, kernel, stride, dilation, padded, rounding)| {
                let reach = |i: usize| (kernel[i] - 1) * dilation[i] + 1;
                let padding = [0, 1].map(|i| if padded[i] { reach(i) / 2 } else { 0 });
                let window = Pool2dGeometry { kernel, stride, padding };
                MaxPool2dShape::new(planes, in_size, window, MaxPool { dilation, rounding })
            },
        )
    }

    proptest! {
        #[test]
        fn maxima_and_gradients_agree_with_the_definition(shape in shapes(), seed in 0..50usize) {
            check_against_definition::<f32>(&shape, seed);
            check_against_definition::<f64>(&shape, seed);
        }
    }

    /// More columns than are held at once, and windows so far apart that few are held.
    #[test]
    fn wide_rows_agree_with_the_definition() {
        for (width, kernel, stride, padding) in
            [(700, 3, 1, 1), (700, 3, 2, 1), (1100, 3, 2, 1), (700, 5, 3, 2), (900, 3, 40, 0)]
        {
            let window =
                Pool2dGeometry { kernel: [2, kernel], stride: [1, stride], padding: [1, padding] };
            let shape = MaxPool2dShape::new(2, [3, width], window, MaxPool::default());
            check_against_definition::<f32>(&shape.expect("it fits"), 3);
        }
    }

    #[test]
    fn halving_agrees_with_the_definition() {
        for side in [2, 3, 8, 17] {
            for seed in 0..10 {
                let window = Pool2dGeometry::square(2);
                for rounding in [SizeRounding::Down, SizeRounding::Up] {
                    let options = MaxPool { rounding, ..Default::default() };
                    let shape = MaxPool2dShape::new(70, [side, side + 1], window, options);
                    check_against_definition::<f32>(&shape.expect("it fits"), seed);
                }
            }
        }
    }
}
