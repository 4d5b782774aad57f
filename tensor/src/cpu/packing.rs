//! Packing: copies operands of a matrix product into the order in which the product reads them.

use super::gemm::Matrix;
use super::gemm_panel::ROWS_MAX;
use super::math::SimdFloat;
use super::simd::{Simd, SimdKernel};
use super::stored::{Stored, widen, with_stored};
use crate::dtype::{DType, Element};

/// Largest distance from one tile of packed rows to the next, in elements. A gap separates the
/// slivers: without it, some depths would put them a power of two apart, and the packed columns of
/// x would drive each other out of the first-level cache.
pub(super) const fn tile_len(rows: usize, depth: usize) -> usize {
    const GAP: usize = 16;
    rows * depth + GAP
}

/// Strides of packed rows.
#[derive(Clone, Copy)]
pub(super) struct PackedRows {
    /// Distances between rows and between columns in a tile, in elements.
    pub(super) strides: [usize; 2],
    /// Distance from one tile to the next, in elements.
    pub(super) tile_len: usize,
}

impl PackedRows {
    /// The layout of packed rows of a matrix with these strides: row-major if rows are contiguous,
    /// else slivers of `R` rows. The last sliver is as high as the others.
    pub(super) fn of<const R: usize>([_, col_stride]: [usize; 2], depth: usize) -> Self {
        match col_stride {
            1 => PackedRows { strides: [depth, 1], tile_len: R * depth },
            _ => PackedRows { strides: [1, R], tile_len: tile_len(R, depth) },
        }
    }
}

/// [`pack_sliver`] for x of any stored type, as a function of its own.
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

/// Packs a sliver of x, `width` rows, column by column: `to[p * width + r]` becomes `x[r, p]`.
///
/// If x has fewer rows, `rows`, then `to` holds arbitrary numbers for the missing rows. `to` is a
/// vector longer than the sliver; this vector is overwritten too.
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
        // The last vector of a column may be too long; the next column overwrites the excess.
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
        // Goes along the rows: the processor fetches long runs of a few rows ahead, but not a piece
        // of each of many rows.
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

/// Copies rows of x, one after the other.
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

/// Packs `rows` rows of x in the computing type, in the layout of [`PackedRows`].
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
        // Goes along the columns, which are contiguous.
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
