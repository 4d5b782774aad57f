//! Operands of bf16 products in pairs. Two neighbouring numbers along the depth form a lane of 32
//! bits, and an instruction adds both of their products to a sum (`simd/pairs.rs`).
//!
//! Packed operands are laid out as in `packing.rs`, with pairs in place of numbers. A lane has the
//! type f32 and holds the bits of a pair.

#![allow(unsafe_code, reason = "bits of two numbers become a lane")]

use half::bf16;

use super::gemm::Matrix;
use super::gemm_panel::ROWS_MAX;
use super::math::SimdFloat;
use super::packing::tile_len;
use super::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use super::stored::Stored;
use crate::dtype::{Element, same_type_mut};

/// `pack_rows` for pairs. x is of bf16, `to` of f32; rows and depth count numbers.
pub(super) fn pack_pair_rows<T: SimdFloat, const R: usize>(
    x: Stored<'_, T>,
    [rows, depth]: [usize; 2],
    to: &mut [T],
) {
    let (x, to) = of_pairs(x, to);
    let pairs = depth.div_ceil(2);
    if x.col_stride == 1 {
        for (i, to) in to.chunks_exact_mut(pairs).take(rows).enumerate() {
            copy_pairs(&x.data[i * x.row_stride..][..depth], to);
        }
        return;
    }
    let tile_len = tile_len(R, pairs);
    let mut first = 0;
    if x.row_stride == 1 && rows >= R {
        // Goes along the columns, which are contiguous.
        first = rows - rows % R;
        f32::dispatch(PackColumns::<R> { x, size: [first, depth], to });
    }
    for i in (first..rows).step_by(R) {
        let (size, to) = ([rows - i, depth], &mut to[i / R * tile_len..]);
        f32::dispatch(PackSliver { x: x.rows_from(i), size, width: R, to });
    }
}

/// Packs pairs of x: `to[p * width + r]` becomes the pair of `x[r, 2p]` and `x[r, 2p + 1]`. x is of
/// bf16 and of this `size`, `to` is of f32. Beyond the last row `to` holds arbitrary numbers.
pub(crate) fn turn_pairs<E: Element, T: SimdFloat>(
    x: Matrix<'_, E>,
    size: [usize; 2],
    width: usize,
    to: &mut [T],
) {
    pack_pair_sliver(Stored::new(x), size, width, to);
}

/// `pack_stored_sliver` for pairs. Place `p * width + r` of `to` becomes the pair of `x[r, 2p]` and
/// `x[r, 2p + 1]`. x is of bf16, `to` of f32; `size` counts numbers.
pub(super) fn pack_pair_sliver<T: SimdFloat>(
    x: Stored<'_, T>,
    size: [usize; 2],
    width: usize,
    to: &mut [T],
) {
    let (x, to) = of_pairs(x, to);
    f32::dispatch(PackSliver { x, size, width, to });
}

fn of_pairs<'a, 't, T: SimdFloat>(
    x: Stored<'a, T>,
    to: &'t mut [T],
) -> (Matrix<'a, bf16>, &'t mut [f32]) {
    match (x, same_type_mut(to)) {
        (Stored::Bf16(x), Some(to)) => (x, to),
        _ => unreachable!("pairs are of bf16"),
    }
}

/// Packs the whole slivers of `R` rows of x, whose row stride is 1.
struct PackColumns<'a, const R: usize> {
    x: Matrix<'a, bf16>,
    size: [usize; 2],
    to: &'a mut [f32],
}

impl<const R: usize> SimdKernel<f32> for PackColumns<'_, R> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let PackColumns { x, size: [rows, depth], to } = self;
        let pairs = depth.div_ceil(2);
        let tile_len = tile_len(R, pairs);
        let mut column = [0.0; ROWS_MAX];
        for p in 0..pairs {
            join_columns(x, [rows, depth], p, &mut column[..rows]);
            let (slivers, _) = column[..rows].as_chunks::<R>();
            for (sliver, column) in slivers.iter().enumerate() {
                to[sliver * tile_len + p * R..][..R].copy_from_slice(column);
            }
        }
    }
}

/// Packs a sliver of `width` rows of x. If x has fewer rows, `to` holds arbitrary numbers for the
/// missing rows.
struct PackSliver<'a> {
    x: Matrix<'a, bf16>,
    size: [usize; 2],
    width: usize,
    to: &'a mut [f32],
}

impl SimdKernel<f32> for PackSliver<'_> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let PackSliver { x, size: [rows, depth], width, to } = self;
        let (lanes, pairs, whole) = (S::LANE_COUNT, depth.div_ceil(2), width.min(rows));
        let mut done = 0;
        if x.row_stride == 1 {
            for p in 0..pairs {
                join_columns(x, [whole, depth], p, &mut to[p * width..][..whole]);
            }
            done = pairs;
        } else if x.col_stride == 1 && width.is_multiple_of(lanes) {
            done = depth / 2 / lanes * lanes;
            // Squares of pairs are transposed like squares of numbers, in place or from a copy.
            let lying = lying_pairs(x);
            let mut square = [0.0; LANE_COUNT_MAX * LANE_COUNT_MAX];
            for r in (0..width).step_by(lanes) {
                for p in (0..done).step_by(lanes) {
                    let height = lanes.min(whole.saturating_sub(r));
                    if let (Some(x), true) = (&lying, height == lanes) {
                        let (from, to) = (x.from(r, p), &mut to[p * width + r..]);
                        simd.transpose(from.data, from.row_stride, to, width);
                        continue;
                    }
                    for (i, square) in square.chunks_exact_mut(lanes).take(height).enumerate() {
                        let from = &x.data[(r + i) * x.row_stride + 2 * p..][..2 * lanes];
                        copy_pairs(from, square);
                    }
                    simd.transpose(&square, lanes, &mut to[p * width + r..], width);
                }
            }
        }
        for p in done..pairs {
            for (r, to) in to[p * width..][..whole].iter_mut().enumerate() {
                let at = r * x.row_stride + 2 * p * x.col_stride;
                let high = if 2 * p + 1 < depth { x.data[at + x.col_stride] } else { bf16::ZERO };
                *to = pair(x.data[at], high);
            }
        }
    }
}

/// The rows of x, which are contiguous, as rows of pairs in place; `None` if a row may start in the
/// middle of a pair.
#[inline(always)]
pub(super) fn lying_pairs(x: Matrix<'_, bf16>) -> Option<Matrix<'_, f32>> {
    let data = &x.data[..x.data.len() / 2 * 2];
    let data = bytemuck::try_cast_slice(data).ok()?;
    let is_even = x.row_stride.is_multiple_of(2) && cfg!(target_endian = "little");
    is_even.then_some(Matrix { data, row_stride: x.row_stride / 2, col_stride: 1 })
}

/// Joins a pair to a lane, with the first number in the lower half.
#[inline(always)]
fn pair(low: bf16, high: bf16) -> f32 {
    f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16)
}

/// Joins pair `p` of each row of x, whose columns are contiguous. Beyond the last column there are
/// zeros.
#[inline(always)]
fn join_columns(x: Matrix<'_, bf16>, [rows, depth]: [usize; 2], p: usize, to: &mut [f32]) {
    let low = &x.data[2 * p * x.col_stride..][..rows];
    if 2 * p + 1 == depth {
        return to.iter_mut().zip(low).for_each(|(to, &low)| *to = pair(low, bf16::ZERO));
    }
    let high = &x.data[(2 * p + 1) * x.col_stride..][..rows];
    for ((to, &low), &high) in to.iter_mut().zip(low).zip(high) {
        *to = pair(low, high);
    }
}

/// Copies the numbers of a row as pairs. A zero follows an odd last number.
#[inline(always)]
fn copy_pairs(from: &[bf16], to: &mut [f32]) {
    let (pairs, last) = from.as_chunks::<2>();
    assert_eq!(to.len(), pairs.len() + last.len());
    if let &[last] = last {
        to[pairs.len()] = pair(last, bf16::ZERO);
    }
    if cfg!(target_endian = "little") {
        let (from, to) = (pairs.as_ptr().cast::<u8>(), to.as_mut_ptr().cast());
        // SAFETY: the bytes of all pairs are inside both, by the assertion; any bits are an f32.
        unsafe { from.copy_to_nonoverlapping(to, size_of_val(pairs)) };
    } else {
        to.iter_mut().zip(pairs).for_each(|(to, pair_of)| *to = pair(pair_of[0], pair_of[1]));
    }
}
