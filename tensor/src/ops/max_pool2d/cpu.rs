//! Maximum over windows of an image, and the scatter back to where each maximum stood.
//!
//! x`[planes, H, W]` → y`[planes, OH, OW]` with the position inside its window, kh · KW + kw, as
//! one byte: an eighth of PyTorch's index. Both directions overwrite.

use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Simd, SimdFloat, SimdKernel};
use crate::dtype::{Element, Float};
use crate::ops::windows::{Axis, Kind, for_each_row};

/// Elements of x or y of a task, at least.
const CHUNK_LEN: usize = 8 * 1024;

/// The sizes of a max pooling. Pairs are (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxPool2dShape {
    /// Images times channels.
    pub(crate) planes: usize,
    pub(crate) in_size: [usize; 2],
    /// Rows and columns of the window: at most 256 positions.
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    /// At most half the window, so that none lies outside x.
    pub(crate) padding: [usize; 2],
}

impl MaxPool2dShape {
    /// Rows and columns of y; 0 where the window does not fit.
    pub(crate) fn out_size(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let room = (self.in_size[axis] + 2 * self.padding[axis]).checked_sub(self.kernel[axis]);
            room.map_or(0, |room| room / self.stride[axis] + 1)
        })
    }

    /// Elements of x.
    pub(crate) fn x_len(&self) -> usize {
        self.planes * self.in_size[0] * self.in_size[1]
    }

    /// Elements of y.
    pub(crate) fn y_len(&self) -> usize {
        self.planes * self.out_size()[0] * self.out_size()[1]
    }

    fn check(&self) {
        assert!((1..=256).contains(&(self.kernel[0] * self.kernel[1])), "{self:?}");
        assert!((0..2).all(|axis| self.padding[axis] * 2 <= self.kernel[axis]), "{self:?}");
        assert!(self.stride.iter().all(|&stride| stride > 0), "{self:?}");
    }

    /// The usual 2×2 windows side by side.
    fn halves(&self) -> bool {
        self.kernel == [2, 2] && self.stride == [2, 2] && self.padding == [0, 0]
    }

    fn axis(&self, at: usize) -> Axis {
        let (kernel, stride, padding) = (self.kernel[at], self.stride[at], self.padding[at]);
        let kind = Kind::Stepped { kernel, stride, padding };
        Axis { in_len: self.in_size[at], out_len: self.out_size()[at], kind }
    }

    /// Planes of a task.
    fn planes_per_chunk(&self) -> usize {
        (CHUNK_LEN / (self.in_size[0] * self.in_size[1]).max(1)).max(1)
    }

    /// Positions in the window of output `at` that are inside x along one axis, and the index in
    /// x of position 0, which may be negative.
    fn window(&self, axis: usize, at: usize) -> (std::ops::Range<usize>, isize) {
        let start = (at * self.stride[axis]).cast_signed() - self.padding[axis].cast_signed();
        let first = (-start).max(0).cast_unsigned();
        let room = (self.in_size[axis].cast_signed() - start).max(0).cast_unsigned();
        (first..self.kernel[axis].min(room), start)
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
    shape.check();
    assert_eq!([x.len(), y.len(), positions.len()], [shape.x_len(), shape.y_len(), shape.y_len()]);
    let (x_plane, y_plane) = (shape.in_size[0] * shape.in_size[1], shape.out_size());
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
            if shape.halves() {
                let x = &x[chunk * planes * x_plane..];
                // Of no type in particular: compiled for every instruction set.
                return f32::dispatch(ForwardHalves { shape, x, y, positions });
            }
            let x = x[chunk * planes * x_plane..].chunks_exact(x_plane);
            let y = y.chunks_exact_mut(y_plane_len);
            for ((x, y), positions) in x.zip(y).zip(positions.chunks_exact_mut(y_plane_len)) {
                forward_plane(shape, x, y, positions);
            }
        },
    );
}

/// Whether `x` takes the place of `max`: the first NaN stays, and so does the first of equals.
#[inline(always)]
pub(crate) fn exceeds<E: Element>(x: E, max: E) -> bool {
    x > max || (is_nan(x) && !is_nan(max))
}

#[inline(always)]
#[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
fn is_nan<E: Element>(x: E) -> bool {
    x != x
}

fn forward_plane<E: Element>(shape: &MaxPool2dShape, x: &[E], y: &mut [E], positions: &mut [u8]) {
    let width = shape.in_size[1];
    let out_width = shape.out_size()[1];
    for (at, (y, position)) in y.iter_mut().zip(positions).enumerate() {
        let (rows, top) = shape.window(0, at / out_width);
        let (cols, left) = shape.window(1, at % out_width);
        // -∞ must win over nothing, so the search starts from the first position itself.
        let mut best: Option<(E, usize)> = None;
        for kh in rows {
            let row = (top + kh.cast_signed()).cast_unsigned() * width;
            for kw in cols.clone() {
                let x = x[row + (left + kw.cast_signed()).cast_unsigned()];
                if best.is_none_or(|(max, _)| exceeds(x, max)) {
                    best = Some((x, kh * shape.kernel[1] + kw));
                }
            }
        }
        let (max, found) = best.expect("padding is at most half the window, so it meets x");
        *y = max;
        *position = found as u8;
    }
}

/// [`forward_plane`] for the usual 2×2 windows side by side, four comparisons without a branch.
struct ForwardHalves<'a, E> {
    shape: &'a MaxPool2dShape,
    x: &'a [E],
    y: &'a mut [E],
    positions: &'a mut [u8],
}

impl<E: Element> SimdKernel<f32> for ForwardHalves<'_, E> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let ([height, width], out_width) = (self.shape.in_size, self.shape.out_size()[1]);
        let rows = self.y.chunks_exact_mut(out_width);
        for (at, (y, positions)) in rows.zip(self.positions.chunks_exact_mut(out_width)).enumerate()
        {
            let (plane, row) = (at / (height / 2), at % (height / 2));
            let x = &self.x[(plane * height + 2 * row) * width..][..2 * width];
            let (upper, lower) = x.split_at(width);
            let pairs = upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0);
            for ((y, position), (upper, lower)) in y.iter_mut().zip(positions).zip(pairs) {
                let (mut max, mut found) = (upper[0], 0);
                for (index, x) in [(1, upper[1]), (2, lower[0]), (3, lower[1])] {
                    let wins = exceeds(x, max);
                    max = if wins { x } else { max };
                    found = if wins { index } else { found };
                }
                *y = max;
                *position = found;
            }
        }
    }
}

/// dx: the sum of dy over the windows in which this input was the largest. Positions that are in
/// no window win nothing.
pub(crate) fn backward<E: Element, T: Float>(
    pool: &Pool,
    shape: &MaxPool2dShape,
    dy: &[E],
    positions: &[u8],
    dx: &mut [E],
) {
    shape.check();
    assert_eq!([dx.len(), dy.len()], [shape.x_len(), shape.y_len()]);
    assert_eq!(positions.len(), dy.len());
    let [out_height, out_width] = shape.out_size();
    let y_plane = out_height * out_width;
    if shape.halves() {
        let planes = shape.planes_per_chunk();
        let x_plane = shape.in_size[0] * shape.in_size[1];
        return for_each_chunk(pool, dx, planes * x_plane, |chunk, dx| {
            let from = chunk * planes * y_plane;
            let (dy, positions) = (&dy[from..], &positions[from..]);
            f32::dispatch(BackwardHalves { shape, dy, positions, dx });
        });
    }
    let axes = [shape.axis(0), shape.axis(1)];
    for_each_row(pool, dx, shape.in_size, |plane, row, dx| {
        let (dy, positions) =
            (&dy[plane * y_plane..][..y_plane], &positions[plane * y_plane..][..y_plane]);
        let rows = axes[0].covering(row);
        for (col, dx) in dx.iter_mut().enumerate() {
            let cols = axes[1].covering(col);
            let mut sum = T::ZERO;
            for p in rows.clone() {
                let kh = row + shape.padding[0] - p * shape.stride[0];
                for q in cols.clone() {
                    let tap = kh * shape.kernel[1] + col + shape.padding[1] - q * shape.stride[1];
                    if usize::from(positions[p * out_width + q]) == tap {
                        sum += dy[p * out_width + q].cast();
                    }
                }
            }
            *dx = sum.cast();
        }
    });
}

/// [`backward`] for 2×2 windows side by side: every input is in one window at most.
struct BackwardHalves<'a, E> {
    shape: &'a MaxPool2dShape,
    dy: &'a [E],
    positions: &'a [u8],
    dx: &'a mut [E],
}

impl<E: Element> SimdKernel<f32> for BackwardHalves<'_, E> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let ([height, width], out_width) = (self.shape.in_size, self.shape.out_size()[1]);
        let out_height = height / 2;
        for (at, dx) in self.dx.chunks_exact_mut(width).enumerate() {
            let (plane, row) = (at / height, at % height);
            if row / 2 == out_height {
                dx.fill(E::default());
                continue;
            }
            let from = (plane * out_height + row / 2) * out_width;
            let outputs = self.dy[from..][..out_width].iter();
            let left = row as u8 % 2 * 2;
            let (pairs, last) = dx.as_chunks_mut::<2>();
            for ((&dy, &position), dx) in
                outputs.zip(&self.positions[from..][..out_width]).zip(pairs)
            {
                dx[0] = if position == left { dy } else { E::default() };
                dx[1] = if position == left + 1 { dy } else { E::default() };
            }
            last.fill(E::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, with the flat index of each maximum.
    fn naive<T: Float>(shape: &MaxPool2dShape, x: &[T]) -> Vec<(T, usize)> {
        let [oh, ow] = shape.out_size();
        let [height, width] = shape.in_size;
        (0..shape.y_len())
            .map(|at| {
                let (plane, p, q) = (at / ow / oh, at / ow % oh, at % ow);
                let mut best: Option<(T, usize)> = None;
                for row in 0..height {
                    for col in 0..width {
                        let inside = |at: usize, axis: usize, out: usize| {
                            let start = out * shape.stride[axis];
                            let at = at + shape.padding[axis];
                            (start..start + shape.kernel[axis]).contains(&at)
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
        (0..=5usize, [0..=9usize, 0..=9usize], kernel, stride, any::<[bool; 2]>()).prop_map(
            |(planes, in_size, kernel, stride, padded)| {
                let padding = [0, 1].map(|i| if padded[i] { kernel[i] / 2 } else { 0 });
                // An empty image with padding would have windows that meet nothing.
                let in_size = [0, 1].map(|i| if padded[i] { in_size[i] + 1 } else { in_size[i] });
                MaxPool2dShape { planes, in_size, kernel, stride, padding }
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

    #[test]
    fn halving_agrees_with_the_definition() {
        for side in [2, 3, 8, 17] {
            for seed in 0..10 {
                let shape = MaxPool2dShape {
                    planes: 70,
                    in_size: [side, side + 1],
                    kernel: [2, 2],
                    stride: [2, 2],
                    padding: [0, 0],
                };
                check_against_definition::<f32>(&shape, seed);
            }
        }
    }
}
