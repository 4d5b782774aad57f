//! Matrix products, single or in batches, of operands with any strides.
//!
//! Half types are computed in f32. Packing converts the operands (`packing.rs`), and the sums of a
//! panel are rounded once, at the end (`stored.rs`). A result has the bits of the f32 product of
//! the same numbers, rounded once. Operands that are both bf16 are multiplied in pairs instead
//! (`pairs.rs`), if the processor adds two products of bf16 as fast as one of f32. Pairs are as
//! accurate, except that subnormal numbers count as 0.
//!
//! Letters: y`[M, N]` = a`[M, K]` · b`[K, N]`, or y += a · b.

#![allow(unsafe_code, reason = "tasks share y")]

use std::marker::PhantomData;

pub(crate) use super::batch::Batch;
use super::gemm_panel::{Grid, run_panels};
use super::math::SimdFloat;
use super::pairs::lying_pairs;
use super::pool::Pool;
use super::simd::{LANE_COUNT_MAX, has_pairs};
use super::stored::{Results, Stored};
use crate::dtype::{Element, same_type};
use crate::write_mode::WriteMode;

/// Number of multiplications from which a product is a task of its own. Smaller products share a
/// task.
const TASK_PRODUCT: usize = 64 * 64 * 64;

/// A matrix inside a slice: element (i, j) stands at `i * row_stride + j * col_stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// The rows from row `first` on.
    pub(crate) fn rows_from(self, first: usize) -> Self {
        Matrix { data: self.data.get(first * self.row_stride..).unwrap_or_default(), ..self }
    }

    /// The submatrix that begins at row `i` and column `j`.
    pub(super) fn from(self, i: usize, j: usize) -> Self {
        Self { data: &self.data[i * self.row_stride + j * self.col_stride..], ..self }
    }

    /// The transpose of this matrix.
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
    /// A row-major matrix of `cols` columns.
    pub(crate) fn row_major(data: &'a mut [T], cols: usize) -> Self {
        Self { data, row_stride: cols, col_stride: 1 }
    }
}

/// y = or += a · b for every product of `batch`, computed in `T`. A bias of N elements, if there
/// is one, is where the sums of every row start that overwrites y.
///
/// # Panics
/// If a matrix does not fit its slice, or elements of y share a place.
#[expect(clippy::too_many_arguments, reason = "the operands of one product")]
pub(crate) fn gemm_batched<T: SimdFloat, A: Element, B: Element, Y: Element>(
    pool: &Pool,
    batch: &Batch,
    [m, k, n]: [usize; 3],
    a: Matrix<'_, A>,
    b: Matrix<'_, B>,
    bias: &[Y],
    start: WriteMode,
    y: MatrixMut<'_, Y>,
) {
    let count = batch.len();
    if m == 0 || n == 0 || count == 0 {
        return;
    }
    assert!(bias.is_empty() || bias.len() == n, "a bias of {} for {n} columns", bias.len());
    let y_strides = [y.row_stride, y.col_stride];
    check_fits("a", [m, k], a.data.len(), batch, 0, [a.row_stride, a.col_stride]);
    check_fits("b", [k, n], b.data.len(), batch, 1, [b.row_stride, b.col_stride]);
    check_fits("y", [m, n], y.data.len(), batch, 2, y_strides);
    assert!(
        batch.is_injective([m, n], y_strides),
        "elements of y overlap: {m}x{n}, strides {y_strides:?} of {batch:?}"
    );
    let y = Destination::new(y, bias);
    if k == 0 {
        if start == WriteMode::Overwrite {
            y.fill(batch, [m, n]);
        }
        return;
    }
    let (a, b, y) = (Stored::<T>::new(a), Stored::new(b), Results::new(y));
    let are_pairs = matches!([a, b], [Stored::Bf16(_), Stored::Bf16(_)]) && has_pairs();
    Products { batch: *batch, size: [m, k, n], are_pairs, a, b, start, y }.run(pool);
}

impl<'a, T: Element> Matrix<'a, T> {
    /// The matrix `offset` elements further on.
    pub(super) fn skip(self, offset: usize) -> Self {
        Self { data: &self.data[offset..], ..self }
    }

    /// This matrix, if its elements are of type `U`.
    pub(crate) fn cast<U: Element>(self) -> Option<Matrix<'a, U>> {
        let Matrix { data, row_stride, col_stride } = self;
        Some(Matrix { data: same_type(data)?, row_stride, col_stride })
    }

    /// A copy in type `U` in the order of memory, row-major or column-major.
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

/// The products of one batch.
pub(super) struct Products<'a, T> {
    pub(super) batch: Batch,
    pub(super) size: [usize; 3],
    /// True if two numbers along the depth are multiplied at once; see `pairs.rs`.
    pub(super) are_pairs: bool,
    pub(super) a: Stored<'a, T>,
    pub(super) b: Stored<'a, T>,
    pub(super) start: WriteMode,
    pub(super) y: Results<'a, T>,
}

impl<T: SimdFloat> Products<'_, T> {
    /// Number of elements along the depth that are multiplied at once.
    pub(super) fn step_len(&self) -> usize {
        if self.are_pairs { 2 } else { 1 }
    }

    /// Number of steps along the depth. The last pair of an odd depth has a zero.
    pub(super) fn steps(&self) -> usize {
        self.size[1].div_ceil(self.step_len())
    }

    /// All rows of a, in steps along the depth, if the product can read them in place.
    pub(super) fn rows_in_place(&self) -> Option<Matrix<'_, T>> {
        match self.a {
            Stored::Bf16(a) if self.are_pairs => {
                let are_even = self.size[1].is_multiple_of(2) && self.batch.is_even(0);
                let pairs = lying_pairs(a).filter(|_| are_even && a.col_stride == 1)?;
                Stored::Computed(pairs.cast()?).in_place()
            }
            a => a.in_place(),
        }
    }

    fn run(self, pool: &Pool) {
        let [m, _, n] = self.size;
        let [row_stride, col_stride] = self.y.strides();
        // Vectors lie along the rows of y. A column alone would use one lane of many.
        let are_columns = row_stride == 1 && col_stride != 1;
        let products =
            if are_columns || (n < m && n < LANE_COUNT_MAX / 2) { self.turned() } else { self };
        let count = products.batch.len();
        let grid = Grid::new(&products, pool.threads());
        let panels = count * grid.panel_count();
        let product =
            products.size.iter().fold(1, |product: usize, &len| product.saturating_mul(len));
        let group = if grid.panel_count() == 1 { (TASK_PRODUCT / product).max(1) } else { 1 };
        pool.run(panels.div_ceil(group), &|task| {
            let range = task * group..panels.min((task + 1) * group);
            run_panels(&products, &grid, range);
        });
    }

    /// The transposed products. A bias is written to y first.
    fn turned(self) -> Self {
        let Products { batch, size: [m, k, n], are_pairs, a, b, mut start, y } = self;
        if start == WriteMode::Overwrite && y.has_bias() {
            y.fill(&batch, [m, n]);
            start = WriteMode::Accumulate;
        }
        let (a, b) = (b.transposed(), a.transposed());
        let y = y.transposed();
        Products { batch: batch.turned(), size: [n, k, m], are_pairs, a, b, start, y }
    }
}

/// y, shared by the tasks that write its panels.
pub(super) struct Destination<'a, T> {
    start: *mut T,
    pub(super) strides: [usize; 2],
    /// The bias: the N elements that every overwritten row starts from. Empty without a bias.
    pub(super) bias: &'a [T],
    y: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> Destination<'a, T> {
    /// The destination y. Sums of a row that is overwritten start from `bias`, which has one
    /// element per column, or none.
    pub(super) fn new(y: MatrixMut<'a, T>, bias: &'a [T]) -> Self {
        let strides = [y.row_stride, y.col_stride];
        Destination { start: y.data.as_mut_ptr(), strides, bias, y: PhantomData }
    }

    /// A row-major matrix of `cols` columns.
    pub(super) fn row_major(data: &'a mut [T], cols: usize) -> Self {
        Self::new(MatrixMut::row_major(data, cols), &[])
    }

    pub(super) fn at(&self, offset: usize, i: usize, j: usize) -> usize {
        offset + i * self.strides[0] + j * self.strides[1]
    }

    /// # Safety
    /// Place `at` is inside y, and no other task and no living result has it.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "tasks share y and write elements of their own")]
    pub(super) unsafe fn element(&self, at: usize) -> &mut T {
        // SAFETY: the caller promises that the place is inside y.
        let place = unsafe { self.start.add(at) };
        // SAFETY: the element is initialised, and the caller promises to be its only user.
        unsafe { &mut *place }
    }

    /// # Safety
    /// Places `at` and the `len - 1` after it are inside y, and no other task and no living result
    /// has them.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "tasks share y and write elements of their own")]
    pub(super) unsafe fn row(&self, at: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller promises that the place is inside y.
        let first = unsafe { self.start.add(at) };
        // SAFETY: the elements are initialised, and the caller promises to be their only user.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    /// Sets every row to the bias, or to 0 without a bias: the result of a product whose depth is
    /// 0.
    pub(super) fn fill(&self, batch: &Batch, [m, n]: [usize; 2]) {
        for offset in (0..batch.len()).map(|index| batch.offsets(index)[2]) {
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                // SAFETY: `check_fits` found the element inside y, and no task runs.
                let y = unsafe { self.element(self.at(offset, i, j)) };
                *y = self.bias.get(j).copied().unwrap_or(T::ZERO);
            }
        }
    }

    /// The transposed destination, without a bias.
    pub(super) fn transposed(self) -> Self {
        let [row_stride, col_stride] = self.strides;
        Destination { strides: [col_stride, row_stride], bias: &[], ..self }
    }

    /// This destination, if its elements are of type `U`.
    pub(super) fn cast<U: Element>(&self) -> Option<Destination<'a, U>> {
        let (start, strides, bias) = (self.start.cast(), self.strides, same_type(self.bias)?);
        Some(Destination { start, strides, bias, y: PhantomData })
    }
}

// SAFETY: the pointer is only used to write disjoint panels, one task each, which is the same as
// sending each task a `&mut` of its elements: allowed for `T: Send`. The bias is only read.
unsafe impl<T: Send + Sync> Sync for Destination<'_, T> {}

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
