//! The rows of a task: one by one, or several short rows together.

use std::ops::Range;

use super::Norm;
use super::piece::Wide;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::Simd;

/// A task over rows. Methods must be `#[inline(always)]`.
pub(super) trait RowKernel<T: SimdFloat> {
    /// Computes some rows. Each element of a row has a weight.
    fn rows_of_elements<S: Simd<T>>(&mut self, simd: S, rows: Range<usize>, wide: &mut Wide<T>);

    /// Computes a row where `inner` elements share a weight, in lines of `W` lanes.
    fn row_of_channels<const W: usize>(&mut self, row: usize);
}

/// Computes all rows of a task.
#[inline(always)]
pub(super) fn each_row<T: SimdFloat, S: Simd<T>, K: RowKernel<T>>(
    simd: S,
    norm: &Norm,
    row_count: usize,
    kernel: &mut K,
) {
    if norm.inner > 1 {
        // Not `for_each`: its closure would be compiled for the least instruction set.
        for row in 0..row_count {
            kernel.row_of_channels::<64>(row);
        }
        return;
    }
    let mut wide = Wide::new();
    let together = norm.rows_together();
    for first in (0..row_count).step_by(together) {
        let rows = first..row_count.min(first + together);
        kernel.rows_of_elements(simd, rows, &mut wide);
    }
}
