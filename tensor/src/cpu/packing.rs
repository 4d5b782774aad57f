//! Laying operands of a matrix product out in the order in which they are read.

use super::gemm::Matrix;
use super::math::SimdFloat;
use super::simd::Simd;

/// A sliver of x, `width` rows of it, column by column: `to[p * width + r]` becomes `x[r, p]`.
///
/// x has `rows` rows from there on, which may be fewer; what stands in `to` for the others is any
/// number. `to` is a vector longer than the sliver, and that much is overwritten too.
#[inline(always)]
pub(super) fn pack_sliver<T: SimdFloat, S: Simd<T>>(
    simd: S,
    x: Matrix<'_, T>,
    [rows, depth]: [usize; 2],
    width: usize,
    to: &mut [T],
) {
    let lanes = S::LANE_COUNT;
    let padded = width.next_multiple_of(lanes);
    let mut done = 0;
    if x.row_stride == 1 && (depth - 1) * x.col_stride + padded <= x.data.len() {
        // The last vector of a column may be too long: what it overwrites is written next.
        for p in 0..depth {
            let from = &x.data[p * x.col_stride..][..padded];
            let to = &mut to[p * width..][..padded];
            let mut r = 0;
            while r < width {
                simd.store(simd.load(&from[r..]), &mut to[r..]);
                r += lanes;
            }
        }
        done = depth;
    } else if x.col_stride == 1 && rows >= padded && (width <= lanes || width == padded) {
        done = depth - depth % lanes;
        for p in (0..done).step_by(lanes) {
            let mut r = 0;
            while r < width {
                let from = &x.data[r * x.row_stride + p..];
                simd.transpose(from, x.row_stride, &mut to[p * width + r..], width);
                r += lanes;
            }
        }
    }
    for p in done..depth {
        for (r, to) in to[p * width..][..width.min(rows)].iter_mut().enumerate() {
            *to = x.data[r * x.row_stride + p * x.col_stride];
        }
    }
}

/// All slivers of `R` of the `rows` rows of x, one after the other, the last as high as the others.
#[inline(always)]
pub(super) fn pack_rows<T: SimdFloat, S: Simd<T>, const R: usize>(
    simd: S,
    x: Matrix<'_, T>,
    [rows, depth]: [usize; 2],
    to: &mut [T],
) {
    let mut first = 0;
    if x.row_stride == 1 {
        // Along the columns, as they lie.
        first = rows - rows % R;
        for p in 0..depth {
            let (slivers, _) = x.data[p * x.col_stride..][..first].as_chunks::<R>();
            for (sliver, column) in slivers.iter().enumerate() {
                to[(sliver * depth + p) * R..][..R].copy_from_slice(column);
            }
        }
    }
    for i in (first..rows).step_by(R) {
        pack_sliver(simd, x.from(i, 0), [rows - i, depth], R, &mut to[i * depth..]);
    }
}
