//! Matrix products over the `gemm` crate, cut in fixed panels so that the memory which the library
//! takes is small and known.
//!
//! Operands in another type than the one that is computed in (f16 and bf16, in f32) are converted
//! panel by panel on the stack of the thread that multiplies them.
//!
//! Letters: y`[M, N]` = alpha · a`[M, K]` · b`[K, N]` + beta · y. The library packs the panels of a
//! call in memory of its own and keeps, for each thread that ever ran one, a slab as large as its
//! second-level cache; `packing.rs` bounds both, for the ledger.

#![allow(unsafe_code, reason = "the library works on pointers and strides")]

use std::any::TypeId;
use std::marker::PhantomData;
use std::ops::Range;

use gemm::Parallelism;

pub(crate) use super::batch::Batch;
pub use super::packing::CacheSizes;
pub(crate) use super::packing::packing_bytes_bound;
use super::panel::{PANEL_WIDTH_MAX, Start, panel_product};
use super::pool::Pool;
use super::simd::{Simd, SimdFloat, SimdKernel};
use crate::Element;

/// Panels of one library call, at most: each packs its operands again, so larger ones are faster.
/// K is cut where the library would cut it itself.
pub(super) const PANEL_M: usize = 192;
pub(super) const PANEL_N: usize = 192;
pub(super) const PANEL_K: usize = 512;

/// Panels that a product is cut into if they need not be lower or narrower than this for it. It
/// is the same for any number of threads.
const PANELS_WANTED: usize = 4;
const PANEL_MIN: usize = 48;

/// Products of at most this many multiplications stay out of the library, which would keep a slab
/// as large as the second-level cache on every thread for as long as it lives. A loop of ours takes
/// no memory there. The threshold was chosen for memory, not measured for speed.
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

impl<'a, T> Matrix<'a, T> {
    /// Rows from number `first` on.
    pub(crate) fn rows_from(self, first: usize) -> Self {
        Matrix { data: self.data.get(first * self.row_stride..).unwrap_or_default(), ..self }
    }

    /// Rows one after the other.
    #[cfg(test)]
    pub(crate) fn row_major(data: &'a [T], cols: usize) -> Self {
        Self { data, row_stride: cols, col_stride: 1 }
    }

    /// The part from row `i` and column `j` on.
    fn from(self, i: usize, j: usize) -> Self {
        Self { data: &self.data[i * self.row_stride + j * self.col_stride..], ..self }
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

/// Panels of the M and N axes: as equal as multiples of 48 allow, which is a whole number of the
/// library's blocks along either axis.
pub(super) fn panel_len(len: usize, panel_max: usize) -> usize {
    len.div_ceil(len.div_ceil(panel_max).max(1)).next_multiple_of(PANEL_MIN).max(PANEL_MIN)
}

/// Panels of a product whose operands have to be converted: they lie on the stack.
const CONVERTED_ROWS: usize = 64;
const CONVERTED_COLS: usize = 64;
const CONVERTED_DEPTH: usize = 128;

/// Rows of b that a small product lays out at once, on the stack.
const SMALL_DEPTH: usize = 64;

/// y = alpha · a · b + beta · y, where a beta of 0 overwrites whatever y held.
///
/// `size` is (M, K, N).
///
/// # Panics
/// If a matrix does not fit its slice, or y has a zero stride along an axis longer than 1.
#[cfg(test)]
pub(crate) fn gemm<T: Gemm>(
    pool: &Pool,
    size: [usize; 3],
    alpha: T,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    beta: T,
    y: MatrixMut<'_, T>,
) {
    gemm_batched(pool, &Batch::single(), size, alpha, a, b, beta, y);
}

/// y = alpha · a · b + beta · y for every product of `batch`, computed in `T`; a beta of 0
/// overwrites whatever y held.
///
/// # Panics
/// If a matrix does not fit its slice, or elements of y share a place.
#[expect(clippy::too_many_arguments, reason = "the operands and factors of one product")]
pub(crate) fn gemm_batched<T: Gemm, A: Element, B: Element, Y: Element>(
    pool: &Pool,
    batch: &Batch,
    [m, k, n]: [usize; 3],
    alpha: T,
    a: Matrix<'_, A>,
    b: Matrix<'_, B>,
    beta: T,
    y: MatrixMut<'_, Y>,
) {
    let count = batch.len();
    if m == 0 || n == 0 || count == 0 {
        return;
    }
    let y_strides = [y.row_stride, y.col_stride];
    check_fits("a", [m, k], a.data.len(), batch, 0, [a.row_stride, a.col_stride]);
    check_fits("b", [k, n], b.data.len(), batch, 1, [b.row_stride, b.col_stride]);
    check_fits("y", [m, n], y.data.len(), batch, 2, y_strides);
    assert!(
        batch.is_injective([m, n], y_strides),
        "elements of y overlap: {m}x{n}, strides {y_strides:?} of {batch:?}"
    );
    let start = y.data.as_mut_ptr();
    let y = Destination { start, strides: y_strides, y: PhantomData };
    if let (Some(a), Some(b), Some(y)) = (a.cast::<T>(), b.cast::<T>(), y.cast::<T>()) {
        let products = Products { batch, size: [m, k, n], alpha, a, b, beta, y };
        products.run(pool, count);
        return;
    }
    let (row_panels, col_panels) = (m.div_ceil(CONVERTED_ROWS), n.div_ceil(CONVERTED_COLS));
    pool.run(count * row_panels * col_panels, &|index| {
        let [a_at, b_at, y_at] = batch.offsets(index / (row_panels * col_panels));
        let panel = index % (row_panels * col_panels);
        let [i, j] = [panel / col_panels * CONVERTED_ROWS, panel % col_panels * CONVERTED_COLS];
        let size = [CONVERTED_ROWS.min(m - i), k, CONVERTED_COLS.min(n - j)];
        // With no depth there is nothing to start from.
        let a = if k > 0 { a.skip(a_at).from(i, 0) } else { a };
        let b = if k > 0 { b.skip(b_at).from(0, j) } else { b };
        converted_panel(size, is_small(m, k, n), alpha, a, b, beta, &y, y.at(y_at, i, j));
    });
}

/// One panel of y by way of converted copies.
#[expect(clippy::too_many_arguments, reason = "the operands and factors of one product")]
fn converted_panel<T: Gemm, A: Element, B: Element, Y: Element>(
    [m, k, n]: [usize; 3],
    is_small: bool,
    alpha: T,
    a: Matrix<'_, A>,
    b: Matrix<'_, B>,
    beta: T,
    y: &Destination<'_, Y>,
    y_at: usize,
) {
    let mut a_panel = [T::ZERO; CONVERTED_ROWS * CONVERTED_DEPTH];
    let mut b_panel = [T::ZERO; CONVERTED_DEPTH * CONVERTED_COLS];
    let mut sums = [T::ZERO; CONVERTED_ROWS * CONVERTED_COLS];
    for p in (0..k).step_by(CONVERTED_DEPTH) {
        let k = CONVERTED_DEPTH.min(k - p);
        let a = a.from(0, p).converted([m, k], &mut a_panel);
        let b = b.from(p, 0).converted([k, n], &mut b_panel);
        let y = MatrixMut::row_major(&mut sums, CONVERTED_COLS);
        let strides = [y.row_stride, y.col_stride];
        let y = Destination { start: y.data.as_mut_ptr(), strides, y: PhantomData };
        let single = &Batch::single();
        let beta = if p == 0 { T::ZERO } else { T::ONE };
        let products = Products { batch: single, size: [m, k, n], alpha, a, b, beta, y };
        match is_small {
            true => T::dispatch(Small { products: &products, range: 0..1 }),
            false => products.library_panel([0, 0, 0], [0, 0], [m, n]),
        }
    }
    for i in 0..m {
        for j in 0..n {
            // SAFETY: the element is one of this task's panel of y, which the caller checked.
            let to = unsafe { y.element(y_at + i * y.strides[0] + j * y.strides[1]) };
            let sum = sums[i * CONVERTED_COLS + j];
            *to = if beta == T::ZERO { sum } else { sum + beta * to.cast() }.cast();
        }
    }
}

impl<'a, T: Element> Matrix<'a, T> {
    fn skip(self, offset: usize) -> Self {
        Self { data: &self.data[offset..], ..self }
    }

    /// This matrix, if its elements are of type `U`.
    pub(crate) fn cast<U: Element>(self) -> Option<Matrix<'a, U>> {
        let Matrix { data, row_stride, col_stride } = self;
        let is_same = TypeId::of::<T>() == TypeId::of::<U>();
        is_same.then(|| Matrix { data: bytemuck::cast_slice(data), row_stride, col_stride })
    }

    /// A copy in `U`, in the order of memory: rows or columns one after the other.
    pub(crate) fn converted<U: Element>(
        self,
        [rows, cols]: [usize; 2],
        to: &mut [U],
    ) -> Matrix<'_, U> {
        let Matrix { data, row_stride, col_stride } = self;
        if row_stride < col_stride {
            let turned = Matrix { data, row_stride: col_stride, col_stride: row_stride };
            return turned.converted([cols, rows], to).transposed();
        }
        for (i, to) in to.chunks_exact_mut(cols).take(rows).enumerate() {
            let from = &data[i * row_stride..];
            match col_stride {
                1 => T::cast_slice(&from[..cols], to),
                0 => to.fill(from[0].cast()),
                _ => to.iter_mut().zip(from.iter().step_by(col_stride)).for_each(|(to, x)| {
                    *to = x.cast();
                }),
            }
        }
        Matrix { data: to, row_stride: cols, col_stride: 1 }
    }
}

/// The products of one batch in the type that they are computed in.
struct Products<'a, T> {
    batch: &'a Batch,
    size: [usize; 3],
    alpha: T,
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    beta: T,
    y: Destination<'a, T>,
}

impl<T: Gemm> Products<'_, T> {
    fn run(&self, pool: &Pool, count: usize) {
        let [m, k, n] = self.size;
        if is_small(m, k, n) {
            let group = (SMALL_PRODUCT / (m * k * n).max(1)).clamp(1, count);
            pool.run(count.div_ceil(group), &|index| {
                let range = index * group..count.min((index + 1) * group);
                T::dispatch(Small { products: self, range });
            });
            return;
        }
        let [rows, cols] = self.panel();
        let (row_panels, col_panels) = (m.div_ceil(rows), n.div_ceil(cols));
        pool.run(count * row_panels * col_panels, &|index| {
            let offsets = self.batch.offsets(index / (row_panels * col_panels));
            let panel = index % (row_panels * col_panels);
            let [i, j] = [panel / col_panels * rows, panel % col_panels * cols];
            self.library_panel(offsets, [i, j], [rows.min(m - i), cols.min(n - j)]);
        });
    }

    /// Rows and columns of a panel. The library packs a b that does not lie row by row, once for
    /// each panel of rows, and an a that does not, once for each panel of columns: the other axis
    /// is cut further where there are few panels.
    fn panel(&self) -> [usize; 2] {
        let [m, _, n] = self.size;
        let mut panel = [panel_len(m, PANEL_M), panel_len(n, PANEL_N)];
        let (axis, len) = if self.b.col_stride == 1 { (0, m) } else { (1, n) };
        let products = self.batch.len();
        let count = |panel: [usize; 2]| products * m.div_ceil(panel[0]) * n.div_ceil(panel[1]);
        while count(panel) < PANELS_WANTED && panel[axis] > PANEL_MIN {
            panel[axis] = panel_len(len, panel[axis] - PANEL_MIN);
        }
        panel
    }

    /// The `[m, n]` elements from `[i, j]` on of the product that starts at `offsets`. They are
    /// inside y, and no other task has them.
    fn library_panel(&self, offsets: [usize; 3], [i, j]: [usize; 2], [m, n]: [usize; 2]) {
        let depth = self.size[1];
        for p in (0..depth).step_by(PANEL_K) {
            let beta = if p == 0 { self.beta } else { T::ONE };
            let a = self.a.skip(offsets[0]).from(i, p);
            let b = self.b.skip(offsets[1]).from(p, j);
            // SAFETY: the panel's first element is an element of y, which `check_fits` found
            // inside the slice.
            let y = unsafe { self.y.start.add(self.y.at(offsets[2], i, j)) };
            // SAFETY: 1. the panels of a and b start inside their slices and end at the latest
            // where the matrices do, which `check_fits` checked; 2. the same holds for y; 3. no
            // other task touches this panel of y: elements have distinct places (`is_injective`)
            // and the panels cut the index space in disjoint rectangles; 4. strides fit `isize`
            // since they address elements of slices, or belong to axes of length 1.
            unsafe {
                gemm::gemm(
                    m,
                    n,
                    PANEL_K.min(depth - p),
                    y,
                    self.y.strides[1] as isize,
                    self.y.strides[0] as isize,
                    beta != T::ZERO,
                    a.data.as_ptr(),
                    a.col_stride as isize,
                    a.row_stride as isize,
                    b.data.as_ptr(),
                    b.col_stride as isize,
                    b.row_stride as isize,
                    beta,
                    self.alpha,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
    }
}

/// Products that stay out of the library, on the caller. They are inside y, and no other task has
/// them.
struct Small<'a, T> {
    products: &'a Products<'a, T>,
    range: Range<usize>,
}

impl<T: Gemm> SimdKernel<T> for Small<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let mut b_panel = [T::ZERO; SMALL_DEPTH * PANEL_WIDTH_MAX];
        let mut sums = [T::ZERO; 8 * PANEL_WIDTH_MAX];
        let width = COLS * S::LANE_COUNT;
        let Products { batch, size: [m, k, n], alpha, a, b, beta, ref y } = *self.products;
        for index in self.range {
            let [a_at, b_at, y_at] = batch.offsets(index);
            // With no depth there is nothing to start from.
            let [a_at, b_at] = if k > 0 { [a_at, b_at] } else { [0, 0] };
            // A column alone would use one lane of many.
            let (size, [a, b], strides) = if n < m {
                (
                    [n, k, m],
                    [b.skip(b_at).transposed(), a.skip(a_at).transposed()],
                    [y.strides[1], y.strides[0]],
                )
            } else {
                ([m, k, n], [a.skip(a_at), b.skip(b_at)], y.strides)
            };
            let [m, k, n] = size;
            for j in (0..n).step_by(width) {
                let cols = width.min(n - j);
                for p in (0..k.max(1)).step_by(SMALL_DEPTH) {
                    let depth = SMALL_DEPTH.min(k - p);
                    fill_panel(b, [p, j], [depth, cols], width, &mut b_panel);
                    let beta = if p == 0 { beta } else { T::ONE };
                    for i in (0..m).step_by(ROWS) {
                        let rows = ROWS.min(m - i);
                        let a = if depth > 0 { a.from(i, p) } else { a };
                        let size = [rows, depth];
                        let start = Start::Overwrite;
                        panel_product::<T, S, ROWS, COLS>(
                            simd, size, a, &b_panel, start, &mut sums, width,
                        );
                        for (r, sums) in sums.chunks_exact(width).take(rows).enumerate() {
                            for (c, &sum) in sums[..cols].iter().enumerate() {
                                let at = y_at + (i + r) * strides[0] + (j + c) * strides[1];
                                // SAFETY: `check_fits` found the element inside y, and no other
                                // task has its product.
                                let to = unsafe { y.element(at) };
                                let kept = if beta == T::ZERO { T::ZERO } else { beta * *to };
                                *to = alpha * sum + kept;
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The `[rows, cols]` elements of b from `[p, j]` on, as rows of `width`, the rest of each 0.
#[inline(always)]
fn fill_panel<T: Gemm>(
    b: Matrix<'_, T>,
    [p, j]: [usize; 2],
    [rows, cols]: [usize; 2],
    width: usize,
    to: &mut [T],
) {
    for (row, to) in to.chunks_exact_mut(width).take(rows).enumerate() {
        let from = &b.data[(p + row) * b.row_stride + j * b.col_stride..];
        if b.col_stride == 1 {
            to[..cols].copy_from_slice(&from[..cols]);
        } else {
            for (c, to) in to[..cols].iter_mut().enumerate() {
                *to = from[c * b.col_stride];
            }
        }
        to[cols..].fill(T::ZERO);
    }
}

/// y, shared by the tasks that write its panels.
struct Destination<'a, T> {
    start: *mut T,
    strides: [usize; 2],
    y: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> Destination<'a, T> {
    fn at(&self, offset: usize, i: usize, j: usize) -> usize {
        offset + i * self.strides[0] + j * self.strides[1]
    }

    /// # Safety
    /// Place `at` is inside y, and no other task and no living result has it.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "tasks share y and write elements of their own")]
    unsafe fn element(&self, at: usize) -> &mut T {
        // SAFETY: the caller promises that the place is inside y.
        let place = unsafe { self.start.add(at) };
        // SAFETY: the element is initialised, and the caller's alone as it promises.
        unsafe { &mut *place }
    }

    /// The same place, if its elements are of type `U`.
    fn cast<U: Element>(&self) -> Option<Destination<'a, U>> {
        let is_same = TypeId::of::<T>() == TypeId::of::<U>();
        is_same.then(|| Destination {
            start: self.start.cast(),
            strides: self.strides,
            y: PhantomData,
        })
    }
}

// SAFETY: the pointer is only used to write disjoint panels, one task each, which is the same as
// sending each task a `&mut` of its elements: allowed for `T: Send`.
unsafe impl<T: Send> Sync for Destination<'_, T> {}

fn check_fits(
    name: &str,
    sizes: [usize; 2],
    len: usize,
    batch: &Batch,
    k: usize,
    strides: [usize; 2],
) {
    if sizes[0] > 0 && sizes[1] > 0 {
        assert!(
            batch.span(k, sizes, strides).is_some_and(|span| span <= len),
            "{name} is {}x{} with strides {strides:?} of {batch:?} in {len} elements",
            sizes[0],
            sizes[1]
        );
    }
}

#[cfg(test)]
#[path = "gemm_tests.rs"]
mod tests;
