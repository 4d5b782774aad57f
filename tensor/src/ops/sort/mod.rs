//! Sorting along a dimension, and the first elements of the sorted order.

mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod key;
pub(crate) mod quantile;
mod ranked;

use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::check_axis;
use crate::tensor::Tensor;

/// The order of a sort. NaN counts as larger than every number; 0 and -0 are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SortOrder {
    /// The smallest element first, NaN last.
    Ascending,
    /// The largest element first, NaN before all others.
    Descending,
}

/// Sorts each row of x, up to the first `kept_len` elements. Writes positions, words for sorting,
/// and the values if wanted.
struct Sort {
    name: &'static str,
    order: SortOrder,
    kept_len: usize,
    dtype: DType,
    len: usize,
    has_values: bool,
}

impl FullKernel for Sort {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        // Comparisons and moves for rows of usual length.
        let bytes = (self.len * (self.dtype.size_bytes() + 16)) as f64;
        Cost { class: OpClass::Indexing, flops: 40.0 * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.dtype, T => {
            let x = operands.read::<T>(0);
            let positions = operands.write::<i64>(0).slice();
            let words = operands.write::<i64>(1).slice();
            let values = if self.has_values { Some(operands.write::<T>(2).slice()) } else { None };
            cpu::sort(cpu, (self.order, self.kept_len), x, positions, words, values);
        });
        Ok(())
    }
}

/// Sorting; equal elements keep their order. The sorted dimension is the innermost one of the
/// results in memory. Any element type.
impl Tensor {
    /// The elements along `axis` in this order, and their positions before sorting, as i64.
    ///
    /// # Errors
    /// `Index`, `OutOfMemory`.
    #[track_caller]
    pub fn sort(&self, axis: impl Into<Axis>, order: SortOrder) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("sort", self.shape(), axis)?;
        let len = self.shape()[axis];
        self.sorted("sort", axis, len, order)
    }

    /// The positions before sorting of the elements along `axis` in this order, as i64; errors as
    /// [`Tensor::sort`].
    #[track_caller]
    pub fn argsort(&self, axis: impl Into<Axis>, order: SortOrder) -> Result<Tensor> {
        let axis = check_axis("argsort", self.shape(), axis)?;
        let op = "argsort";
        let len = self.shape()[axis];
        let x = self.transpose(axis, self.shape().len() - 1)?;
        let positions = Tensor::empty(self.device(), *x.shape(), DType::I64)?;
        sort_rows(op, &x, (order, len), &positions, None)?;
        positions.transpose(axis, self.shape().len() - 1)
    }

    /// The first `k` results of [`Tensor::sort`]: the largest elements for `Descending`, the
    /// smallest for `Ascending`, and their positions. Of equal elements the first win.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist or has fewer than `k` elements, `OutOfMemory`.
    #[track_caller]
    pub fn topk(
        &self,
        k: usize,
        axis: impl Into<Axis>,
        order: SortOrder,
    ) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("topk", self.shape(), axis)?;
        let op = "topk";
        let len = self.shape()[axis];
        if k > len {
            return Err(TensorError::index(op, k, len));
        }
        self.sorted(op, axis, k, order)
    }

    #[track_caller]
    fn sorted(
        &self,
        op: &'static str,
        axis: usize,
        kept_len: usize,
        order: SortOrder,
    ) -> Result<(Tensor, Tensor)> {
        let last = self.shape().len() - 1;
        let x = self.transpose(axis, last)?;
        let shape = x.shape().with(last, kept_len);
        let values = Tensor::empty(self.device(), shape, self.dtype())?;
        let positions = Tensor::empty(self.device(), shape, DType::I64)?;
        sort_rows(op, &x, (order, kept_len), &positions, Some(&values))?;
        Ok((values.transpose(axis, last)?, positions.transpose(axis, last)?))
    }
}

#[track_caller]
fn sort_rows(
    name: &'static str,
    x: &Tensor,
    (order, kept_len): (SortOrder, usize),
    positions: &Tensor,
    values: Option<&Tensor>,
) -> Result<()> {
    let (device, dtype, len) = (x.device(), x.dtype(), x.element_count());
    let row_len = x.shape().last().copied().unwrap_or(1);
    let word_count = cpu::word_count(dtype, len, row_len, kept_len);
    let words = Tensor::workspace(device, word_count, DType::I64)?;
    let kernel = Sort { name, order, kept_len, dtype, len, has_values: values.is_some() };
    let mut writes = vec![positions, &words];
    writes.extend(values);
    device.launch(kernel, &[x], &writes)
}
