//! Laying operands of a matrix product out in the order in which they are read.

use super::gemm::Matrix;
use super::gemm_panel::ROWS_MAX;
use super::math::SimdFloat;
use super::simd::{Simd, SimdKernel};
use super::stored::{Stored, widen, with_stored};
use crate::dtype::{DType, Element};

/// Distance from one tile of packed rows to the next, at most, in elements. A gap separates the
/// slivers: without it, some depths would put them a power of two apart, and the packed columns of
/// x would drive each other out of the first-level cache.
pub(super) const fn tile_len(rows: usize, depth: usize) -> usize {
    const GAP: usize = 16;
    rows * depth + GAP
}

/// Strides of packed rows.
#[derive(Clone, Copy)]
pub(super) struct PackedRows {
    /// Distances of rows and of columns in a tile.
    pub(super) strides: [usize; 2],
    /// From one tile to the next.
    pub(super) tile_len: usize,
}

impl PackedRows {
    /// Packed rows of a matrix with these strides: one after the other if they lie so, else in
    /// slivers of `R`, the last as high as the others.
    pub(super) fn of<const R: usize>([_, col_stride]: [usize; 2], depth: usize) -> Self {
        match col_stride {
            1 => PackedRows { strides: [depth, 1], tile_len: R * depth },
            _ => PackedRows { strides: [1, R], tile_len: tile_len(R, depth) },
        }
    }
}

/// [`pack_sliver`], whatever the type of x, as a function of its own.
#[inline(always)]
pub(super) fn pack_stored_sliver<T: SimdFloat, S: Simd<T>>(
    simd: S,
    x: Stored<'_, T>,
    size: [usize; 2],
    width: usize,
    to: &mut [T],
) {
    simd.call(PackSliver { x, size, width, to });
}

struct PackSliver<'a, T> {
    x: Stored<'a, T>,
    size: [usize; 2],
    width: usize,
    to: &'a mut [T],
}

impl<T: SimdFloat> SimdKernel<T> for PackSliver<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let PackSliver { x, size, width, to } = self;
        with_stored!(Stored, x, x => pack_sliver(simd, x, size, width, to));
    }
}

/// A sliver of x, `width` rows of it, column by column: `to[p * width + r]` becomes `x[r, p]`.
///
/// x has `rows` rows from there on, which may be fewer; what stands in `to` for the others is any
/// number. `to` is a vector longer than the sliver, and that much is overwritten too.
#[inline(always)]
fn pack_sliver<T: SimdFloat, S: Simd<T>, E: Element>(
    simd: S,
    x: Matrix<'_, E>,
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
                simd.store(simd.widen(&from[r..]), &mut to[r..]);
                r += lanes;
            }
        }
        done = depth;
    } else if x.col_stride == 1 && rows >= padded && (width <= lanes || width == padded) {
        done = depth - depth % lanes;
        // Along the rows: long runs of a few rows are fetched ahead, not a piece of each of many.
        let mut r = 0;
        while r < width {
            for p in (0..done).step_by(lanes) {
                let from = &x.data[r * x.row_stride + p..];
                simd.transpose(from, x.row_stride, &mut to[p * width + r..], width);
            }
            r += lanes;
        }
    }
    for p in done..depth {
        for (r, to) in to[p * width..][..width.min(rows)].iter_mut().enumerate() {
            *to = x.data[r * x.row_stride + p * x.col_stride].cast();
        }
    }
}

/// Rows of x, one after the other, as a function of its own.
struct CopyRows<'a, T> {
    x: Stored<'a, T>,
    /// Rows and columns; columns have a stride of 1.
    size: [usize; 2],
    to: &'a mut [T],
}

impl<T: SimdFloat> SimdKernel<T> for CopyRows<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let CopyRows { x, size: [rows, depth], to } = self;
        let to = to.chunks_exact_mut(depth).take(rows).enumerate();
        with_stored!(Stored, x, x => for (i, to) in to {
            widen(simd, &x.data[i * x.row_stride..][..depth], to);
        });
    }
}

/// The `rows` rows of x in the type that is computed in, as [`PackedRows`] says.
#[inline(always)]
pub(super) fn pack_rows<T: SimdFloat, S: Simd<T>, const R: usize>(
    simd: S,
    x: Stored<'_, T>,
    [rows, depth]: [usize; 2],
    to: &mut [T],
) {
    let [row_stride, col_stride] = x.strides();
    if col_stride == 1 {
        return simd.call(CopyRows { x, size: [rows, depth], to });
    }
    let tile_len = tile_len(R, depth);
    let mut first = 0;
    if row_stride == 1 && rows >= R {
        // Along the columns, as they lie.
        first = rows - rows % R;
        let mut converted = [T::ZERO; ROWS_MAX];
        for p in 0..depth {
            let column = match x.from(0, p) {
                Stored::Computed(x) => &x.data[..first],
                x => {
                    let to = &mut converted[..first];
                    simd.call(CopyRows { x: x.transposed(), size: [1, first], to });
                    &converted[..first]
                }
            };
            let (slivers, _) = column.as_chunks::<R>();
            for (sliver, column) in slivers.iter().enumerate() {
                to[sliver * tile_len + p * R..][..R].copy_from_slice(column);
            }
        }
    }
    for i in (first..rows).step_by(R) {
        let to = &mut to[i / R * tile_len..];
        pack_stored_sliver(simd, x.from(i, 0), [rows - i, depth], R, to);
    }
}
