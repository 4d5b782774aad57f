//! Rows to columns, square by square: what a loop over single elements, each with a place and a
//! check of its own, does at half the speed.

use super::simd::{LANE_COUNT_MAX, Simd};
use crate::dtype::{Element, Float};

/// `to[j * to_stride + i] = write(read(from[i * from_stride + j]))` for `i` below `rows` and `j`
/// below `cols`: rows become columns. In between, numbers are of the type that `simd` turns.
#[inline(always)]
pub(crate) fn turn_rows<E: Element, C: Float, T: Element, S: Simd<C>>(
    simd: S,
    (from, from_stride): (&[E], usize),
    [rows, cols]: [usize; 2],
    (to, to_stride): (&mut [T], usize),
    read: impl Fn(E) -> C,
    write: impl Fn(C) -> T,
) {
    let lanes = S::LANE_COUNT;
    let mut square = [C::ZERO; LANE_COUNT_MAX * LANE_COUNT_MAX];
    let mut turned = [C::ZERO; LANE_COUNT_MAX * LANE_COUNT_MAX];
    // Along the rows: long runs of a few rows are fetched ahead, a piece of each of many is not.
    for row in (0..rows).step_by(lanes) {
        for col in (0..cols).step_by(lanes) {
            let [height, width] = [lanes.min(rows - row), lanes.min(cols - col)];
            for i in 0..height {
                let from = &from[(row + i) * from_stride + col..][..width];
                map_row(from, &mut square[i * lanes..][..width], lanes, &read);
            }
            simd.transpose(&square, lanes, &mut turned, lanes);
            for j in 0..width {
                let to = &mut to[(col + j) * to_stride + row..][..height];
                map_row(&turned[j * lanes..][..height], to, lanes, &write);
            }
        }
    }
}

/// Rows of `lanes` in a loop of a length that the compiler knows: it becomes an instruction.
#[inline(always)]
fn map_row<E: Copy, T>(from: &[E], to: &mut [T], lanes: usize, map: &impl Fn(E) -> T) {
    if from.len() == lanes {
        for lane in 0..lanes {
            to[lane] = map(from[lane]);
        }
    } else {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = map(from);
        }
    }
}
