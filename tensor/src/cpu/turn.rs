//! Rows to columns, block by block: what a loop over single elements, each with a place and a check
//! of its own, does at half the speed.

use crate::dtype::Element;

/// Rows and columns of a block.
const BLOCK_LEN: usize = 8;

/// `to[j * to_stride + i] = map(from[i * from_stride + j])` for `i` below `rows` and `j` below
/// `cols`: rows become columns.
#[inline(always)]
pub(crate) fn turn_rows<E: Element, T: Element>(
    from: &[E],
    from_stride: usize,
    [rows, cols]: [usize; 2],
    to: &mut [T],
    to_stride: usize,
    map: impl Fn(E) -> T,
) {
    let [whole_rows, whole_cols] = [rows, cols].map(|len| len - len % BLOCK_LEN);
    for col in (0..whole_cols).step_by(BLOCK_LEN) {
        for row in (0..whole_rows).step_by(BLOCK_LEN) {
            let mut block = [[T::default(); BLOCK_LEN]; BLOCK_LEN];
            for (i, block) in block.iter_mut().enumerate() {
                let from = &from[(row + i) * from_stride + col..][..BLOCK_LEN];
                block.iter_mut().zip(from).for_each(|(to, &from)| *to = map(from));
            }
            for j in 0..BLOCK_LEN {
                let to = &mut to[(col + j) * to_stride + row..][..BLOCK_LEN];
                to.iter_mut().zip(&block).for_each(|(to, block)| *to = block[j]);
            }
        }
    }
    for row in 0..rows {
        let first = if row < whole_rows { whole_cols } else { 0 };
        for col in first..cols {
            to[col * to_stride + row] = map(from[row * from_stride + col]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_become_columns(
            rows in 0..=19usize,
            cols in 0..=19usize,
            gaps in [0..=3usize, 0..=3usize],
        ) {
            let (from_stride, to_stride) = (cols + gaps[0], rows + gaps[1]);
            let from: Vec<f32> = (0..rows * from_stride).map(|i| i as f32 + 1.0).collect();
            let mut to = vec![0.0_f64; cols * to_stride];
            turn_rows(&from, from_stride, [rows, cols], &mut to, to_stride, |x| {
                2.0 * f64::from(x)
            });
            for (at, &found) in to.iter().enumerate() {
                let (col, row) = (at / to_stride, at % to_stride);
                let expected =
                    if row < rows { 2.0 * f64::from(from[row * from_stride + col]) } else { 0.0 };
                prop_assert_eq!(found, expected, "[{}, {}]", col, row);
            }
        }
    }
}
