//! The most frequent windows: 2×2, adjacent and all whole.

use super::cpu::MaxPool2dShape;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::Element;

/// Outputs that are computed together, in the lanes of vectors.
const LANE_COUNT: usize = 16;

/// The larger of two values with its position: the first of equal values, and the first NaN. There
/// is no branch, because the processor would mispredict every second one for random values.
#[inline(always)]
#[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
fn larger<E: Element>((a, a_at): (E, u32), (b, b_at): (E, u32)) -> (E, u32) {
    let b_wins = (b > a) | ((b != b) & (a == a));
    (if b_wins { b } else { a }, if b_wins { b_at } else { a_at })
}

/// The largest value of a window, given as an upper and a lower pair, with its position.
#[inline(always)]
fn largest<E: Element>(upper: [E; 2], lower: [E; 2]) -> (E, u32) {
    let [upper, lower] = [upper, lower].map(|pair| pair.map(|x| x.cast::<E::Compute>()));
    let upper = larger((upper[0], 0), (upper[1], 1));
    let (most, at) = larger(upper, larger((lower[0], 2), (lower[1], 3)));
    (most.cast(), at)
}

/// Writes y and the position of each maximum, for some planes.
pub(super) struct ForwardHalves<'a, E> {
    pub(super) shape: &'a MaxPool2dShape,
    pub(super) x: &'a [E],
    pub(super) y: &'a mut [E],
    pub(super) positions: &'a mut [u8],
}

impl<E: Element> SimdKernel<f32> for ForwardHalves<'_, E> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let ([height, width], out_width) = (self.shape.in_size, self.shape.out_size[1]);
        let rows = self.y.chunks_exact_mut(out_width);
        for (at, (y, positions)) in rows.zip(self.positions.chunks_exact_mut(out_width)).enumerate()
        {
            let (plane, row) = (at / (height / 2), at % (height / 2));
            let x = &self.x[(plane * height + 2 * row) * width..][..2 * width];
            let (upper, lower) = x.split_at(width);
            let (y, y_rest) = y.as_chunks_mut::<LANE_COUNT>();
            let (positions, positions_rest) = positions.as_chunks_mut::<LANE_COUNT>();
            let (upper, upper_rest) = upper.as_chunks::<{ 2 * LANE_COUNT }>();
            let (lower, lower_rest) = lower.as_chunks::<{ 2 * LANE_COUNT }>();
            for (((y, position), upper), lower) in y.iter_mut().zip(positions).zip(upper).zip(lower)
            {
                let mut found = [0; LANE_COUNT];
                for i in 0..LANE_COUNT {
                    let (at, next) = (2 * i, 2 * i + 1);
                    let (upper, lower) = ([upper[at], upper[next]], [lower[at], lower[next]]);
                    (y[i], found[i]) = largest(upper, lower);
                }
                // Up to here positions are as wide as the values, so that all vectors have the same
                // lanes.
                position
                    .iter_mut()
                    .zip(found)
                    .for_each(|(position, found)| *position = found as u8);
            }
            let pairs = upper_rest.as_chunks::<2>().0.iter().zip(lower_rest.as_chunks::<2>().0);
            for ((y, position), (&upper, &lower)) in
                y_rest.iter_mut().zip(positions_rest).zip(pairs)
            {
                let (max, found) = largest(upper, lower);
                (*y, *position) = (max, found as u8);
            }
        }
    }
}

/// Writes dx of some planes. Every input is in at most one window.
pub(super) struct BackwardHalves<'a, E> {
    pub(super) shape: &'a MaxPool2dShape,
    pub(super) dy: &'a [E],
    pub(super) positions: &'a [u8],
    pub(super) dx: &'a mut [E],
}

impl<E: Element> SimdKernel<f32> for BackwardHalves<'_, E> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let ([height, width], out_width) = (self.shape.in_size, self.shape.out_size[1]);
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
