//! The innermost loops of matrix products and of attention: a panel, `COLS` vectors wide, of
//! c`[M, W]` = or += a`[M, K]` · b`[K, W]`.
//!
//! Rows of b lie one after the other, so they are loaded as vectors. a is read number by number and
//! may have any strides. Products first pack operands that lie otherwise in memory (`packing.rs`);
//! attention packs nothing.

use super::gemm::Matrix;
use super::math::SimdFloat;
use super::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use crate::write_mode::WriteMode;

/// The largest width of a panel: two vectors of the longest kind.
pub(crate) const PANEL_WIDTH_MAX: usize = 2 * LANE_COUNT_MAX;

/// c = or += a · b. Rows of b are as long as a panel is wide.
///
/// Meant for [`Simd::call`], as a function of its own. Attention is compiled for each stored type,
/// but this product only for each computing type.
pub(crate) struct PanelProduct<'a, T> {
    /// Rows of a and c, and columns of a.
    pub(crate) size: [usize; 2],
    pub(crate) a: Matrix<'a, T>,
    pub(crate) b: &'a [T],
    pub(crate) start: WriteMode,
    /// Row `i` starts at `i * c_stride`.
    pub(crate) c: &'a mut [T],
    pub(crate) c_stride: usize,
}

impl<T: SimdFloat> SimdKernel<T> for PanelProduct<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let PanelProduct { size: [m, k], a, b, start, c, c_stride } = self;
        let whole = m - m % ROWS;
        for i in (0..whole).step_by(ROWS) {
            rows::<T, S, ROWS, COLS>(simd, [i, k], a, b, start, c, c_stride);
        }
        // With one row at a time, every step would wait for the sums of the step before.
        let mut i = whole;
        while i + 4 <= m {
            rows::<T, S, 4, COLS>(simd, [i, k], a, b, start, c, c_stride);
            i += 4;
        }
        if i + 2 <= m {
            rows::<T, S, 2, COLS>(simd, [i, k], a, b, start, c, c_stride);
            i += 2;
        }
        if i < m {
            rows::<T, S, 1, COLS>(simd, [i, k], a, b, start, c, c_stride);
        }
    }
}

/// Computes `ROWS` rows of c from row `i` on.
#[inline(always)]
fn rows<T: SimdFloat, S: Simd<T>, const ROWS: usize, const COLS: usize>(
    simd: S,
    [i, k]: [usize; 2],
    a: Matrix<'_, T>,
    b: &[T],
    start: WriteMode,
    c: &mut [T],
    c_stride: usize,
) {
    let lanes = S::LANE_COUNT;
    let width = COLS * lanes;
    let mut sums = [[simd.splat(T::ZERO); COLS]; ROWS];
    if start == WriteMode::Accumulate {
        for (r, sums) in sums.iter_mut().enumerate() {
            let c = &c[(i + r) * c_stride..][..width];
            for (col, sum) in sums.iter_mut().enumerate() {
                *sum = simd.load(&c[col * lanes..]);
            }
        }
    }
    if k > 0 {
        add_product(simd, k, a.rows_from(i), b, &mut sums);
    }
    for (r, sums) in sums.iter().enumerate() {
        let c = &mut c[(i + r) * c_stride..][..width];
        for (col, &sum) in sums.iter().enumerate() {
            simd.store(sum, &mut c[col * lanes..]);
        }
    }
}

/// sums += a`[ROWS, K]` · b`[K, W]`, for a depth of at least 1; a may have more rows and columns.
#[inline(always)]
pub(super) fn add_product<T: SimdFloat, S: Simd<T>, const ROWS: usize, const COLS: usize>(
    simd: S,
    k: usize,
    a: Matrix<'_, T>,
    b: &[T],
    sums: &mut [[S::Vector; COLS]; ROWS],
) {
    let width = COLS * S::LANE_COUNT;
    let b = &b[..k * width];
    if a.col_stride == 1 {
        let mut a_rows = [a.data; ROWS];
        for (r, row) in a_rows.iter_mut().enumerate() {
            *row = &a.data[r * a.row_stride..][..k];
        }
        // The loop counts to k, not chunks: the compiler then sees that every `p` is inside its
        // row.
        for (p, b) in (0..k).zip(b.chunks_exact(width)) {
            let mut factors = [T::ZERO; ROWS];
            for r in 0..ROWS {
                factors[r] = a_rows[r][p];
            }
            step::<T, S, ROWS, COLS>(simd, &factors, b, sums);
        }
    } else if a.row_stride == 1 && a.col_stride == ROWS {
        let (columns, _) = a.data[..k * ROWS].as_chunks();
        for (factors, b) in columns.iter().zip(b.chunks_exact(width)) {
            step::<T, S, ROWS, COLS>(simd, factors, b, sums);
        }
    } else if a.row_stride == 1 || ROWS == 1 {
        let mut at = 0;
        for b in b.chunks_exact(width) {
            let mut factors = [T::ZERO; ROWS];
            factors.copy_from_slice(&a.data[at..at + ROWS]);
            at += a.col_stride;
            step::<T, S, ROWS, COLS>(simd, &factors, b, sums);
        }
    } else {
        for (p, b) in b.chunks_exact(width).enumerate() {
            let mut factors = [T::ZERO; ROWS];
            for (r, factor) in factors.iter_mut().enumerate() {
                *factor = a.data[r * a.row_stride + p * a.col_stride];
            }
            step::<T, S, ROWS, COLS>(simd, &factors, b, sums);
        }
    }
}

#[inline(always)]
fn step<T: SimdFloat, S: Simd<T>, const ROWS: usize, const COLS: usize>(
    simd: S,
    factors: &[T; ROWS],
    b: &[T],
    sums: &mut [[S::Vector; COLS]; ROWS],
) {
    let mut vectors = [simd.splat(T::ZERO); COLS];
    for (col, vector) in vectors.iter_mut().enumerate() {
        *vector = simd.load(&b[col * S::LANE_COUNT..]);
    }
    for r in 0..ROWS {
        let factor = simd.splat(factors[r]);
        for col in 0..COLS {
            sums[r][col] = simd.mul_add(factor, vectors[col], sums[r][col]);
        }
    }
}
