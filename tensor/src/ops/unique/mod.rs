//! The unique rows of a tensor: unique, unique_consecutive.
//!
//! The results are views of tensors of the largest possible length, as in `compaction`, so that a
//! simulated device makes the same allocations as the real device.

#[cfg(feature = "cuda")]
mod cuda;

use std::cmp::Ordering;

use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::Result;
use crate::launch::{FullKernel, Operands};
use crate::layout::check_axis;
use crate::ops::compaction::tile_counts;
use crate::ops::sort::SortOrder;
use crate::tensor::Tensor;

/// Rows that a block of an NVIDIA device compares.
const TILE_LEN: usize = 1024;

/// Options of [`Tensor::unique`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UniqueOptions {
    /// The dimension along which slices are compared; if absent, all elements are compared.
    pub along: Option<Axis>,
    /// Number of unique values that a simulated device assumes. Its list of assumptions names the
    /// number with the caller's place.
    pub assumed_count: Option<usize>,
}

/// The unique elements or slices of a tensor.
#[derive(Clone, Debug)]
pub struct Unique {
    /// Each value once.
    pub values: Tensor,
    /// For each element, or each position of the dimension, the index of its value; as i64.
    pub inverse: Tensor,
    /// The number of occurrences of each value, as i64.
    pub counts: Tensor,
}

/// The places of equal rows in x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// Anywhere: rows are sorted first.
    Anywhere,
    /// Next to each other: rows are compared with their neighbours only.
    SideBySide,
}

/// Sorts the positions of the rows of x, `[N, R]`, by the rows.
struct SortRows {
    dtype: DType,
    rows: usize,
    row_len: usize,
}

impl FullKernel for SortRows {
    fn name(&self) -> &'static str {
        "unique"
    }

    fn cost(&self) -> Cost {
        let len = self.rows * self.row_len;
        let bytes = (len * self.dtype.size_bytes() + 8 * self.rows) as f64;
        Cost { class: OpClass::Indexing, flops: 40.0 * len as f64, bytes }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let positions = operands.write::<i64>(0).slice();
        (0..).zip(positions.iter_mut()).for_each(|(at, position)| *position = at);
        for_each_dtype!(self.dtype, T => {
            let x = operands.read::<T>(0).slice();
            let row = |at: i64| &x[at as usize * self.row_len..][..self.row_len];
            positions.sort_unstable_by(|&a, &b| order(row(a), row(b)).then(a.cmp(&b)));
        });
        Ok(())
    }
}

/// The order of rows by their first elements that differ; NaN is larger than every number.
fn order<T: Element>(a: &[T], b: &[T]) -> Ordering {
    let is_nan = |x: &T| x.partial_cmp(x).is_none();
    let each = |(a, b): (&T, &T)| a.partial_cmp(b).unwrap_or(is_nan(a).cmp(&is_nan(b)));
    a.iter().zip(b).map(each).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Finds the unique rows of x, `[N, R]`, in the order of the positions if given. Writes values,
/// inverse and counts.
struct Runs<'a> {
    name: &'static str,
    dtype: DType,
    rows: usize,
    row_len: usize,
    count: &'a mut usize,
}

impl FullKernel for Runs<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let bytes = 2 * self.rows * self.row_len * self.dtype.size_bytes() + 24 * self.rows;
        Cost { class: OpClass::Indexing, flops: 0.0, bytes: bytes as f64 }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let positions = (operands.read_count() > 1).then(|| operands.read::<i64>(1).slice());
        let inverse = operands.write::<i64>(1).slice();
        let counts = operands.write::<i64>(2).slice();
        let row_len = self.row_len;
        for_each_dtype!(self.dtype, T => {
            let x = operands.read::<T>(0).slice();
            let values = operands.write::<T>(0).slice();
            let mut count = 0;
            for number in 0..self.rows {
                let at = positions.map_or(number, |positions| positions[number] as usize);
                let row = &x[at * row_len..][..row_len];
                // NaN is not equal to NaN.
                let is_new = count == 0 || values[(count - 1) * row_len..][..row_len] != *row;
                if is_new {
                    values[count * row_len..][..row_len].copy_from_slice(row);
                    counts[count] = 0;
                    count += 1;
                }
                counts[count - 1] += 1;
                inverse[at] = count as i64 - 1;
            }
            *self.count = count;
        });
        Ok(())
    }
}

impl Tensor {
    #[track_caller]
    fn different(&self, op: &'static str, rows: Rows, options: UniqueOptions) -> Result<Unique> {
        let assumed = match options.assumed_count {
            Some(count) => count,
            None => {
                self.check_values(op)?;
                0
            }
        };
        let axis = options.along.map(|axis| check_axis(op, self.shape(), axis)).transpose()?;
        let (turned, count) = match axis {
            Some(axis) => (self.movedim(axis, 0)?.contiguous()?, self.shape()[axis]),
            None => (self.contiguous()?, self.element_count()),
        };
        let (device, dtype) = (self.device(), self.dtype());
        let row_len = if axis.is_some() { turned.shape()[1..].iter().product() } else { 1 };
        let x = turned.reshape([count, row_len])?;
        let positions = match rows {
            Rows::SideBySide => None,
            Rows::Anywhere if row_len == 1 => {
                Some(x.reshape([count])?.argsort(0, SortOrder::Ascending)?)
            }
            Rows::Anywhere => {
                let positions = Tensor::workspace(device, count, DType::I64)?;
                let kernel = SortRows { dtype, rows: count, row_len };
                device.launch(kernel, &[&x], &[&positions])?;
                Some(positions)
            }
        };
        let values = Tensor::empty(device, [count, row_len], dtype)?;
        let inverse = Tensor::empty(device, [count], DType::I64)?;
        let counts = Tensor::empty(device, [count], DType::I64)?;
        let mut found = 0;
        let kernel = Runs { name: op, dtype, rows: count, row_len, count: &mut found };
        let reads: Vec<&Tensor> = [&x].into_iter().chain(&positions).collect();
        let firsts = tile_counts(device, count.div_ceil(TILE_LEN));
        let writes = [&values, &inverse, &counts];
        let _firsts = device.launch_with(&firsts, kernel, &reads, &writes)?;
        let values = values.shortened(op, found, assumed)?;
        let kept = values.shape()[0];
        let counts = counts.narrow(0, 0, kept)?;
        let (values, inverse) = match axis {
            Some(axis) => {
                let shape = turned.shape().with(0, kept);
                (values.reshape(shape)?.movedim(0, axis)?, inverse)
            }
            None => (values.reshape([kept])?, inverse.reshape(*self.shape())?),
        };
        Ok(Unique { values, inverse, counts })
    }

    /// The unique elements in ascending order, or the unique slices along a dimension, in the order
    /// of their first elements that differ. Every NaN is a value of its own, after all numbers. Any
    /// element type. One thread compares. Values and counts are views of memory for all elements:
    /// to keep them for long, copy them.
    ///
    /// # Shapes
    /// All elements: `[..]` → values and counts `[n]`, inverse `[..]`. Along axis 1:
    /// `[A, N, C]` → values `[A, n, C]`, inverse `[N]`, counts `[n]`.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist, and for more assumed values than elements;
    /// `OutOfMemory`; `ValueUnavailable` on a simulated device without an assumption.
    #[track_caller]
    pub fn unique(&self, options: UniqueOptions) -> Result<Unique> {
        self.different("unique", Rows::Anywhere, options)
    }

    /// [`Tensor::unique`] without sorting: removes elements that equal their predecessor.
    ///
    /// # Errors
    /// The errors of [`Tensor::unique`].
    #[track_caller]
    pub fn unique_consecutive(&self, options: UniqueOptions) -> Result<Unique> {
        self.different("unique_consecutive", Rows::SideBySide, options)
    }
}
