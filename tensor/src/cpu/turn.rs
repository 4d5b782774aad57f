//! Transposition, square by square. A loop over single elements, each with an index and a bounds
//! check of its own, takes twice as long.

use super::simd::{LANE_COUNT_MAX, Simd};
use crate::dtype::{Element, Float};

/// `to[j * to_stride + i] = write(read(from[i * from_stride + j]))` for `i` below `rows` and `j`
/// below `cols`: rows become columns. Between `read` and `write`, numbers have the type that `simd`
/// transposes.
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
    // Goes along the rows: the processor fetches long runs of a few rows ahead, but not a piece of
    // each of many rows.
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

/// Maps a row. The loop over a row of `lanes` numbers has a known length and becomes an
/// instruction.
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
