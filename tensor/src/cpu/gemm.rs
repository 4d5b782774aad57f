//! Matrix products over the `gemm` crate, cut in fixed panels so that the memory which the library
//! takes is small and known.
//!
//! Letters: y`[M, N]` = alpha · a`[M, K]` · b`[K, N]` + beta · y. The library packs the panels of a
//! call in memory of its own and keeps, for each thread that ever ran one, a slab as large as its
//! second-level cache; `packing.rs` bounds both, for the ledger.

#![allow(unsafe_code, reason = "the library works on pointers and strides")]

use std::marker::PhantomData;

use gemm::Parallelism;

pub use super::packing::CacheSizes;
pub(crate) use super::packing::packing_bytes_bound;
use super::pool::Pool;
use super::simd::SimdFloat;

/// Panels of one library call. K is cut where the library would cut it itself.
pub(super) const PANEL_M: usize = 128;
pub(super) const PANEL_N: usize = 128;
pub(super) const PANEL_K: usize = 512;

/// Products of at most this many multiplications stay out of the library, which would keep a slab
/// as large as the second-level cache on every thread for as long as it lives. A loop of ours is
/// slower there but takes no memory. The threshold was chosen for memory, not measured for speed.
const SMALL_PRODUCT: usize = 64 * 64 * 64;

/// A float that the library multiplies; it panics for other types.
pub(crate) trait Gemm: SimdFloat {}
impl Gemm for f32 {}
impl Gemm for f64 {}

/// A matrix inside a slice: element (i, j) stands at `i * row_stride + j * col_stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
}

#[cfg(test)]
impl<'a, T> Matrix<'a, T> {
    /// Rows one after the other.
    pub(crate) fn row_major(data: &'a [T], cols: usize) -> Self {
        Self { data, row_stride: cols, col_stride: 1 }
    }

    /// The same elements with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self { row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// A [`Matrix`] to write to; no two elements may share a place.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a, T> {
    pub(crate) data: &'a mut [T],
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
}

impl<'a, T> MatrixMut<'a, T> {
    /// Rows one after the other.
    pub(crate) fn row_major(data: &'a mut [T], cols: usize) -> Self {
        Self { data, row_stride: cols, col_stride: 1 }
    }
}

/// Whether `[m, k] × [k, n]` never reaches the library.
pub(super) fn is_small(m: usize, k: usize, n: usize) -> bool {
    m.saturating_mul(n).saturating_mul(k) <= SMALL_PRODUCT
}

/// Panels of the M and N axes: as equal as multiples of 8 allow.
pub(super) fn panel_len(len: usize, panel_max: usize) -> usize {
    len.div_ceil(len.div_ceil(panel_max).max(1)).next_multiple_of(8).max(8)
}

/// y = alpha · a · b + beta · y, where a beta of 0 overwrites whatever y held.
///
/// `size` is (M, K, N).
///
/// # Panics
/// If a matrix does not fit its slice, or y has a zero stride along an axis longer than 1.
pub(crate) fn gemm<T: Gemm>(
    pool: &Pool,
    [m, k, n]: [usize; 3],
    alpha: T,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    beta: T,
    y: MatrixMut<'_, T>,
) {
    if m == 0 || n == 0 {
        return;
    }
    check_fits("a", m, k, a.data.len(), [a.row_stride, a.col_stride]);
    check_fits("b", k, n, b.data.len(), [b.row_stride, b.col_stride]);
    check_fits("y", m, n, y.data.len(), [y.row_stride, y.col_stride]);
    assert!(
        is_injective([m, n], [y.row_stride, y.col_stride]),
        "elements of y overlap: {m}x{n}, strides {} and {}",
        y.row_stride,
        y.col_stride
    );
    if is_small(m, k, n) {
        small_product([m, k, n], alpha, a, b, beta, y);
        return;
    }
    let (rows, cols) = (panel_len(m, PANEL_M), panel_len(n, PANEL_N));
    let (row_panels, col_panels) = (m.div_ceil(rows), n.div_ceil(cols));
    let (row_stride, col_stride) = (y.row_stride, y.col_stride);
    let y = Panels { start: y.data.as_mut_ptr(), y: PhantomData };
    pool.run(row_panels * col_panels, &|index| {
        let (i, j) = (index / col_panels * rows, index % col_panels * cols);
        let (m, n) = (rows.min(m - i), cols.min(n - j));
        for p in (0..k).step_by(PANEL_K) {
            let k = PANEL_K.min(k - p);
            let beta = if p == 0 { beta } else { T::ONE };
            let a_data = &a.data[i * a.row_stride + p * a.col_stride..];
            let b_data = &b.data[p * b.row_stride + j * b.col_stride..];
            // SAFETY: the panel's first element is an element of y, which `check_fits` found
            // inside the slice.
            let y = unsafe { y.start().add(i * row_stride + j * col_stride) };
            // SAFETY: 1. the panels of a and b start inside their slices and end at the latest
            // where the matrices do, which `check_fits` checked; 2. the same holds for y; 3. no
            // other task touches this panel of y: elements have distinct places (`is_injective`)
            // and the panels cut the index space in disjoint rectangles; 4. strides fit `isize`
            // since they address elements of slices, or belong to axes of length 1.
            unsafe {
                gemm::gemm(
                    m,
                    n,
                    k,
                    y,
                    col_stride as isize,
                    row_stride as isize,
                    beta != T::ZERO,
                    a_data.as_ptr(),
                    a.col_stride as isize,
                    a.row_stride as isize,
                    b_data.as_ptr(),
                    b.col_stride as isize,
                    b.row_stride as isize,
                    beta,
                    alpha,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
    });
}

/// The start of y, shared by the tasks that write its panels.
struct Panels<'a, T> {
    start: *mut T,
    y: PhantomData<&'a mut [T]>,
}

impl<T> Panels<'_, T> {
    fn start(&self) -> *mut T {
        self.start
    }
}

// SAFETY: the pointer is only used to write disjoint panels, one task each, which is the same as
// sending each task a `&mut` of its elements: allowed for `T: Send`.
unsafe impl<T: Send> Sync for Panels<'_, T> {}

fn check_fits(name: &str, rows: usize, cols: usize, len: usize, strides: [usize; 2]) {
    if rows > 0 && cols > 0 {
        let last = (rows - 1)
            .checked_mul(strides[0])
            .zip((cols - 1).checked_mul(strides[1]))
            .and_then(|(row, col)| row.checked_add(col));
        assert!(
            last.is_some_and(|last| last < len),
            "{name} is {rows}x{cols} with strides {strides:?} in {len} elements"
        );
    }
}

/// Whether the elements of a matrix have places of their own; sufficient, and true for each view
/// of a contiguous tensor.
fn is_injective(sizes: [usize; 2], strides: [usize; 2]) -> bool {
    let mut axes = [(strides[0], sizes[0]), (strides[1], sizes[1])];
    axes.sort_unstable();
    let [(inner, inner_len), (outer, outer_len)] = axes;
    (inner_len <= 1 || inner > 0) && (outer_len <= 1 || outer > (inner_len - 1) * inner)
}

/// The product as one loop nest without memory, on the caller.
fn small_product<T: Gemm>(
    [m, k, n]: [usize; 3],
    alpha: T,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    beta: T,
    y: MatrixMut<'_, T>,
) {
    let at = |row: usize, col: usize| row * y.row_stride + col * y.col_stride;
    for i in 0..m {
        for j in 0..n {
            let y = &mut y.data[at(i, j)];
            *y = if beta == T::ZERO { T::ZERO } else { beta * *y };
        }
        if y.col_stride == 1 && b.col_stride == 1 {
            let row = &mut y.data[i * y.row_stride..][..n];
            for p in 0..k {
                let a = alpha * a.data[i * a.row_stride + p * a.col_stride];
                let b = &b.data[p * b.row_stride..][..n];
                row.iter_mut().zip(b).for_each(|(y, &b)| *y += a * b);
            }
            continue;
        }
        for j in 0..n {
            let mut sum = T::ZERO;
            for p in 0..k {
                let a = a.data[i * a.row_stride + p * a.col_stride];
                sum += a * b.data[p * b.row_stride + j * b.col_stride];
            }
            y.data[at(i, j)] += alpha * sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Small integers, so that every order of summation gives the same bits.
    fn values<T: Gemm>(len: usize, seed: usize) -> Vec<T> {
        (0..len).map(|i| T::from_f64(((i * 5 + seed + i / 7) % 11) as f64 - 5.0)).collect()
    }

    /// Strides of an `[rows, cols]` matrix: row-major or column-major, `gap` elements apart.
    fn strides(rows: usize, cols: usize, column_major: bool, gap: usize) -> [usize; 2] {
        if column_major { [1 + gap, rows * (1 + gap)] } else { [cols * (1 + gap), 1 + gap] }
    }

    fn check_product<T: Gemm>(
        pool: &Pool,
        [m, k, n]: [usize; 3],
        [a_turned, b_turned, y_turned]: [bool; 3],
        gap: usize,
        beta: f64,
    ) {
        let (alpha, beta) = (T::from_f64(2.0), T::from_f64(beta));
        let [a_row, a_col] = strides(m, k, a_turned, gap);
        let [b_row, b_col] = strides(k, n, b_turned, 0);
        let [y_row, y_col] = strides(m, n, y_turned, gap);
        let a = values::<T>(m * k * (1 + gap), 1);
        let b = values::<T>(k * n, 2);
        let mut y = values::<T>(m * n * (1 + gap), 3);
        if beta == T::ZERO {
            // Overwriting must not read: 0 · NaN would show.
            y.fill(T::from_f64(f64::NAN));
        }
        let before = y.clone();
        gemm(
            pool,
            [m, k, n],
            alpha,
            Matrix { data: &a, row_stride: a_row, col_stride: a_col },
            Matrix { data: &b, row_stride: b_row, col_stride: b_col },
            beta,
            MatrixMut { data: &mut y, row_stride: y_row, col_stride: y_col },
        );
        let mut written = vec![false; y.len()];
        for i in 0..m {
            for j in 0..n {
                let at = i * y_row + j * y_col;
                let mut expected = if beta == T::ZERO { T::ZERO } else { beta * before[at] };
                for p in 0..k {
                    expected += alpha * a[i * a_row + p * a_col] * b[p * b_row + j * b_col];
                }
                assert_eq!(y[at], expected, "({i}, {j}) of {m}x{k}x{n}");
                written[at] = true;
            }
        }
        for (at, written) in written.iter().enumerate() {
            let same = y[at].to_f64().to_bits() == before[at].to_f64().to_bits();
            assert!(*written || same, "element {at} is not y's");
        }
    }

    fn len() -> impl Strategy<Value = usize> {
        prop_oneof![0..=5usize, 6..=40usize, 120..=140usize]
    }

    proptest! {
        #[test]
        fn product_agrees_with_the_definition(
            size in [len(), len(), len()],
            turned in [any::<bool>(), any::<bool>(), any::<bool>()],
            gap in 0..=1usize,
            beta in 0..=2u8,
        ) {
            let pool = Pool::new(2);
            check_product::<f32>(&pool, size, turned, gap, f64::from(beta));
            check_product::<f64>(&pool, size, turned, gap, f64::from(beta));
        }
    }

    #[test]
    fn long_sums_agree_with_the_definition() {
        let pool = Pool::new(2);
        for turned in [[false; 3], [true, false, false], [false, true, false]] {
            check_product::<f32>(&pool, [9, 1300, 17], turned, 0, 0.0);
            check_product::<f32>(&pool, [9, 1300, 17], turned, 0, 1.0);
        }
    }

    #[test]
    fn thread_count_does_not_change_a_bit() {
        let size @ [m, k, n] = [200, 700, 300];
        let noise = |len: usize, seed: u32| -> Vec<f32> {
            (0..len as u32).map(|i| ((i ^ seed).wrapping_mul(2_654_435_761) >> 9) as f32).collect()
        };
        let (a, b) = (noise(m * k, 1), noise(k * n, 2));
        let results = [1, 2, 3].map(|threads| {
            let mut y = vec![0.0; m * n];
            gemm(
                &Pool::new(threads),
                size,
                1.0,
                Matrix::row_major(&a, k),
                Matrix::row_major(&b, n),
                0.0,
                MatrixMut::row_major(&mut y, n),
            );
            y
        });
        assert_eq!(results[0], results[1]);
        assert_eq!(results[0], results[2]);
    }

    #[test]
    #[should_panic(expected = "a is 2x3")]
    fn a_matrix_outside_its_slice_is_refused() {
        let (a, b, mut y) = ([0.0f32; 5], [0.0; 6], [0.0; 4]);
        let b = Matrix::row_major(&b, 2);
        let y = MatrixMut::row_major(&mut y, 2);
        gemm(&Pool::new(1), [2, 3, 2], 1.0, Matrix::row_major(&a, 3), b, 0.0, y);
    }

    #[test]
    #[should_panic(expected = "elements of y overlap")]
    fn an_overlapping_destination_is_refused() {
        let (a, b, mut y) = ([0.0f32; 4], [0.0; 4], [0.0; 4]);
        let y = MatrixMut { data: &mut y, row_stride: 0, col_stride: 1 };
        let (a, b) = (Matrix::row_major(&a, 2), Matrix::row_major(&b, 2).transposed());
        gemm(&Pool::new(1), [2, 2, 2], 1.0, a, b, 0.0, y);
    }
}
