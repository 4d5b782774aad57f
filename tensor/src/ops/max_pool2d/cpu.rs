//! Maximum over windows of an image, and the scatter back to where each maximum stood.
//!
//! x`[planes, H, W]` → y`[planes, OH, OW]` with the position inside its window, kh · KW + kw, as
//! one byte: an eighth of PyTorch's index. Both directions overwrite.

use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::pool::Pool;
use crate::dtype::Float;

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
pub(crate) fn forward<T: Float>(
    pool: &Pool,
    shape: &MaxPool2dShape,
    x: &[T],
    y: &mut [T],
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
            let x = x[chunk * planes * x_plane..].chunks_exact(x_plane);
            let y = y.chunks_exact_mut(y_plane_len);
            for ((x, y), positions) in x.zip(y).zip(positions.chunks_exact_mut(y_plane_len)) {
                if shape.kernel == [2, 2] && shape.stride == [2, 2] && shape.padding == [0, 0] {
                    forward_halves(shape, x, y, positions);
                } else {
                    forward_plane(shape, x, y, positions);
                }
            }
        },
    );
}

/// Whether `x` takes the place of `max`: the first NaN stays, and so does the first of equals.
#[inline(always)]
fn exceeds<T: Float>(x: T, max: T) -> bool {
    x > max || (is_nan(x) && !is_nan(max))
}

#[inline(always)]
#[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
fn is_nan<T: Float>(x: T) -> bool {
    x != x
}

fn forward_plane<T: Float>(shape: &MaxPool2dShape, x: &[T], y: &mut [T], positions: &mut [u8]) {
    let width = shape.in_size[1];
    let out_width = shape.out_size()[1];
    for (at, (y, position)) in y.iter_mut().zip(positions).enumerate() {
        let (rows, top) = shape.window(0, at / out_width);
        let (cols, left) = shape.window(1, at % out_width);
        // -∞ must win over nothing, so the search starts from the first position itself.
        let mut best: Option<(T, usize)> = None;
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
fn forward_halves<T: Float>(shape: &MaxPool2dShape, x: &[T], y: &mut [T], positions: &mut [u8]) {
    let width = shape.in_size[1];
    let out_width = shape.out_size()[1];
    let rows = y.chunks_exact_mut(out_width).zip(positions.chunks_exact_mut(out_width));
    for ((y, positions), x) in rows.zip(x.chunks_exact(2 * width)) {
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

/// dx: each dy goes to the place of its maximum; windows that overlap add up in order of output.
pub(crate) fn backward<T: Float>(
    pool: &Pool,
    shape: &MaxPool2dShape,
    dy: &[T],
    positions: &[u8],
    dx: &mut [T],
) {
    shape.check();
    assert_eq!([dx.len(), dy.len()], [shape.x_len(), shape.y_len()]);
    assert_eq!(positions.len(), dy.len());
    let (x_plane, out_width) = (shape.in_size[0] * shape.in_size[1], shape.out_size()[1]);
    let y_plane = shape.out_size()[0] * out_width;
    let planes = shape.planes_per_chunk();
    for_each_chunk(pool, dx, planes * x_plane, |chunk, dx| {
        dx.fill(T::ZERO);
        for (index, dx) in dx.chunks_exact_mut(x_plane).enumerate() {
            let from = (chunk * planes + index) * y_plane..(chunk * planes + index + 1) * y_plane;
            let mut outputs = dy[from.clone()].iter().zip(&positions[from]);
            for row in 0..shape.out_size()[0] {
                for (col, (&dy, &position)) in outputs.by_ref().take(out_width).enumerate() {
                    let position = usize::from(position);
                    let (kh, kw) = (position / shape.kernel[1], position % shape.kernel[1]);
                    let row = row * shape.stride[0] + kh - shape.padding[0];
                    let col = col * shape.stride[1] + kw - shape.padding[1];
                    dx[row * shape.in_size[1] + col] += dy;
                }
            }
        }
    });
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
        backward(&pool, shape, &dy, &positions, &mut dx);
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
