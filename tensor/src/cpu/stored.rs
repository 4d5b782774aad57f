//! Operands of matrix products in their stored types: the computing type, or a half type. Only
//! functions that read or write memory are compiled for each stored type; the loops that multiply
//! are not.

#![allow(unsafe_code, reason = "tasks share y")]

use half::{bf16, f16};

use super::gemm::{Batch, Destination, Matrix};
use super::math::SimdFloat;
use super::simd::{Simd, SimdKernel};
use crate::dtype::{DType, Element, same_type_mut};
use crate::write_mode::WriteMode;

/// Addresses this far apart share a set of the first-level cache of x86-64 processors.
const CACHE_PERIOD_BYTES: usize = 4096;

/// A matrix of any stored type. Products convert the elements to `T`.
#[derive(Clone, Copy)]
pub(super) enum Stored<'a, T> {
    /// A matrix that is stored in `T`.
    Computed(Matrix<'a, T>),
    F16(Matrix<'a, f16>),
    Bf16(Matrix<'a, bf16>),
}

/// Runs `$body`, in which `$x` is the matrix in a [`Stored`] or [`Results`] for `T`, in whatever
/// type it is stored. With `->` in place of `=>`, the result becomes the same variant. Half types
/// are computed in f32 alone, so with `=>` nothing is compiled for them if `T` is another type.
macro_rules! with_stored {
    ($name:ident, $stored:expr, $x:ident => $body:expr) => {
        match $stored {
            $name::Computed($x) => $body,
            $name::F16($x) if T::DTYPE == DType::F32 => $body,
            $name::Bf16($x) if T::DTYPE == DType::F32 => $body,
            _ => unreachable!("half types are computed in f32"),
        }
    };
    ($name:ident, $stored:expr, $x:ident -> $body:expr) => {
        match $stored {
            $name::Computed($x) => $name::Computed($body),
            $name::F16($x) => $name::F16($body),
            $name::Bf16($x) => $name::Bf16($body),
        }
    };
}
pub(super) use with_stored;

impl<'a, T: Element> Stored<'a, T> {
    pub(super) fn new<E: Element>(x: Matrix<'a, E>) -> Self {
        None.or_else(|| x.cast().map(Stored::Computed))
            .or_else(|| x.cast().map(Stored::F16))
            .or_else(|| x.cast().map(Stored::Bf16))
            .unwrap_or_else(|| unreachable!("{} is not computed in {}", E::DTYPE, T::DTYPE))
    }

    /// Distances between rows and between columns, in elements.
    pub(super) fn strides(self) -> [usize; 2] {
        with_stored!(Stored, self, x => [x.row_stride, x.col_stride])
    }

    /// The matrix itself, if products can read its rows in place. Rows that start in the same set
    /// of the cache cannot be read in place: the rows of a tile would evict each other.
    pub(super) fn in_place(self) -> Option<Matrix<'a, T>> {
        let Stored::Computed(x) = self else { return None };
        let is_apart = !(x.row_stride * size_of::<T>()).is_multiple_of(CACHE_PERIOD_BYTES);
        (x.col_stride == 1 && is_apart).then_some(x)
    }

    /// The submatrix that begins at row `i` and column `j`.
    pub(super) fn from(self, i: usize, j: usize) -> Self {
        with_stored!(Stored, self, x -> x.from(i, j))
    }

    /// The matrix `offset` elements further on.
    pub(super) fn skip(self, offset: usize) -> Self {
        with_stored!(Stored, self, x -> x.skip(offset))
    }

    /// The transpose of this operand.
    pub(super) fn transposed(self) -> Self {
        with_stored!(Stored, self, x -> x.transposed())
    }
}

/// The results of products that are computed in `T`.
pub(super) enum Results<'a, T> {
    /// Results that are stored in `T`.
    Computed(Destination<'a, T>),
    F16(Destination<'a, f16>),
    Bf16(Destination<'a, bf16>),
}

impl<'a, T: Element> Results<'a, T> {
    pub(super) fn new<E: Element>(y: Destination<'a, E>) -> Self {
        None.or_else(|| y.cast().map(Results::Computed))
            .or_else(|| y.cast().map(Results::F16))
            .or_else(|| y.cast().map(Results::Bf16))
            .unwrap_or_else(|| unreachable!("{} is not computed in {}", E::DTYPE, T::DTYPE))
    }

    pub(super) fn strides(&self) -> [usize; 2] {
        with_stored!(Results, self, y => y.strides)
    }

    /// The place of element (i, j) of the product whose first element is at `offset`.
    pub(super) fn at(&self, offset: usize, i: usize, j: usize) -> usize {
        with_stored!(Results, self, y => y.at(offset, i, j))
    }

    /// True if sums are rounded when they are stored.
    pub(super) fn is_rounded(&self) -> bool {
        !matches!(self, Results::Computed(_))
    }

    pub(super) fn has_bias(&self) -> bool {
        with_stored!(Results, self, y => !y.bias.is_empty())
    }

    pub(super) fn fill(&self, batch: &Batch, size: [usize; 2]) {
        with_stored!(Results, self, y => y.fill(batch, size));
    }

    pub(super) fn transposed(self) -> Self {
        with_stored!(Results, self, y -> y.transposed())
    }
}

/// The sums of a part of the results, kept until they are complete.
pub(super) struct KeptSums<'a, T> {
    pub(super) y: &'a Results<'a, T>,
    /// Start of the part in y, and the first of its columns.
    pub(super) at: usize,
    pub(super) first_col: usize,
    /// Rows and columns of the part.
    pub(super) size: [usize; 2],
    /// Row `i` starts at `i * stride`.
    pub(super) sums: &'a mut [T],
    pub(super) stride: usize,
}

/// Sets the sums to their start values: the bias, or the elements of y.
///
/// Meant, like [`RoundSums`], for [`Simd::call`], as a function of its own.
pub(super) struct StartSums<'a, 's, T>(pub(super) &'a mut KeptSums<'s, T>, pub(super) WriteMode);

impl<T: SimdFloat> SimdKernel<T> for StartSums<'_, '_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let StartSums(kept, start) = self;
        let KeptSums { y, at, first_col, size: [rows, cols], ref mut sums, stride } = *kept;
        let sums = sums.chunks_exact_mut(stride).take(rows).enumerate();
        with_stored!(Results, y, y => for (i, sums) in sums {
            let sums = &mut sums[..cols];
            let [row_stride, col_stride] = y.strides;
            let at = at + i * row_stride;
            if start == WriteMode::Overwrite {
                widen(simd, &y.bias[first_col..][..cols], sums);
            } else if col_stride == 1 {
                // SAFETY: the row of the part is inside y, and no other task has it.
                widen(simd, unsafe { y.row(at, cols) }, sums);
            } else {
                for (j, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: the element of the part is inside y, and no other task has it.
                    *sum = unsafe { y.element(at + j * col_stride) }.cast();
                }
            }
        });
    }
}

/// Rounds the sums and writes them to y.
pub(super) struct RoundSums<'a, T>(pub(super) KeptSums<'a, T>);

impl<T: SimdFloat> SimdKernel<T> for RoundSums<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let RoundSums(KeptSums { y, at, size: [rows, cols], sums, stride, .. }) = self;
        let sums = sums.chunks_exact(stride).take(rows).enumerate();
        with_stored!(Results, y, y => for (i, sums) in sums {
            let sums = &sums[..cols];
            let [row_stride, col_stride] = y.strides;
            let at = at + i * row_stride;
            if col_stride == 1 {
                // SAFETY: the row of the part is inside y, and no other task has it.
                narrow(simd, sums, unsafe { y.row(at, cols) });
            } else {
                for (j, sum) in sums.iter().enumerate() {
                    // SAFETY: the element of the part is inside y, and no other task has it.
                    *unsafe { y.element(at + j * col_stride) } = sum.cast();
                }
            }
        });
    }
}

/// Converts all elements with [`Simd::widen`]. The last vector may overlap the vector before.
#[inline(always)]
pub(super) fn widen<T: SimdFloat, S: Simd<T>, E: Element>(simd: S, from: &[E], to: &mut [T]) {
    assert_eq!(from.len(), to.len());
    let Some(last) = from.len().checked_sub(S::LANE_COUNT) else {
        return to.iter_mut().zip(from).for_each(|(to, from)| *to = from.cast());
    };
    let mut at = 0;
    while at < last {
        simd.store(simd.widen(&from[at..]), &mut to[at..]);
        at += S::LANE_COUNT;
    }
    simd.store(simd.widen(&from[last..]), &mut to[last..]);
}

/// Converts all elements with [`Element::cast`], in vectors; a plain copy if both types are the
/// same.
pub(crate) fn round_slice<E: Element, T: SimdFloat>(from: &[T], to: &mut [E]) {
    match same_type_mut(to) {
        Some(to) => to.copy_from_slice(from),
        None => T::dispatch(RoundSlice { from, to }),
    }
}

/// Converts all elements with [`Element::cast`], in vectors.
pub(crate) fn widen_slice<E: Element>(from: &[E], to: &mut [f32]) {
    f32::dispatch(WidenSlice { from, to });
}

/// The kernel that widens every element with [`Simd::widen`].
struct WidenSlice<'a, E> {
    from: &'a [E],
    to: &'a mut [f32],
}

impl<E: Element> SimdKernel<f32> for WidenSlice<'_, E> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        widen(simd, self.from, self.to);
    }
}

/// The kernel that narrows every element with [`Simd::narrow`].
pub(crate) struct RoundSlice<'a, E, T> {
    pub(crate) from: &'a [T],
    pub(crate) to: &'a mut [E],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for RoundSlice<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        narrow(simd, self.from, self.to);
    }
}

/// Converts all elements with [`Simd::narrow`]. The last vector may overlap the vector before.
#[inline(always)]
pub(crate) fn narrow<T: SimdFloat, S: Simd<T>, E: Element>(simd: S, from: &[T], to: &mut [E]) {
    assert_eq!(from.len(), to.len());
    let Some(last) = from.len().checked_sub(S::LANE_COUNT) else {
        return to.iter_mut().zip(from).for_each(|(to, from)| *to = from.cast());
    };
    let mut at = 0;
    while at < last {
        simd.narrow(simd.load(&from[at..]), &mut to[at..]);
        at += S::LANE_COUNT;
    }
    simd.narrow(simd.load(&from[last..]), &mut to[last..]);
}
