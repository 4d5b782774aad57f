//! One element of each row, by its rank in the sorted row: kthvalue, median, nanmedian, mode.

use super::cpu;
use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{Shape, check_axis};
use crate::ops::workspace::Workspace;
use crate::tensor::Tensor;

/// An element of a sorted row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// The element with this index in sorted order.
    Number(usize),
    /// The middle element, or the lower of two. A row with NaN gives NaN.
    Median,
    /// The middle element of the numbers. A row of NaN only gives NaN.
    MedianOfNumbers,
    /// The most frequent element, with its last position. Of equally frequent elements the smallest
    /// wins. All NaN count as one value.
    Mode,
}

/// Picks an element of each row of x. Writes the values, the positions, and scratch words for
/// sorting.
pub(super) struct Pick {
    pub(super) name: &'static str,
    pub(super) rank: Rank,
    pub(super) dtype: DType,
    pub(super) len: usize,
}

impl FullKernel for Pick {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let flops = if self.rank == Rank::Mode { 40.0 } else { 10.0 };
        let bytes = (self.len * (self.dtype.size_bytes() + 16)) as f64;
        Cost { class: OpClass::Indexing, flops: flops * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.dtype, T => {
            let x = operands.read::<T>(0);
            let values = operands.write::<T>(0).slice();
            let positions = operands.write::<i64>(1).slice();
            let words = operands.write::<i64>(2).slice();
            cpu::pick(cpu, self.rank, x, (values, positions), words);
        });
        Ok(())
    }
}

/// Elements by their rank along a dimension, which the results lack, and their positions as i64.
/// NaN counts as larger than every number. Any element type.
impl Tensor {
    /// The elements at `rank` along `axis`, with their positions. `axis` is moved to the end first.
    #[track_caller]
    fn picked(&self, op: &'static str, axis: usize, rank: Rank) -> Result<(Tensor, Tensor)> {
        if self.shape()[axis] == 0 {
            return Err(TensorError::index(op, 0, 0));
        }
        let x = self.movedim(axis, -1)?;
        let shape = self.shape().without(axis);
        let values = Tensor::empty(self.device(), shape, self.dtype())?;
        let positions = Tensor::empty(self.device(), shape, DType::I64)?;
        let (dtype, len) = (self.dtype(), self.element_count());
        let count = cpu::word_count(dtype, len, self.shape()[axis], usize::MAX);
        let words = Workspace::new(DType::I64, [count]);
        let kernel = Pick { name: op, rank, dtype, len };
        self.device().launch_with(&words, kernel, &[&x], &[&values, &positions])?;
        Ok((values, positions))
    }

    /// [`Tensor::picked`] that keeps `axis` with length 1.
    #[track_caller]
    fn picked_keep(&self, op: &'static str, axis: usize, rank: Rank) -> Result<(Tensor, Tensor)> {
        let (values, positions) = self.picked(op, axis, rank)?;
        Ok((values.unsqueeze(axis)?, positions.unsqueeze(axis)?))
    }

    /// The rank of the `k`-th smallest of `len` elements.
    fn rank_of(op: &'static str, k: usize, len: usize) -> Result<Rank> {
        match k.checked_sub(1).filter(|&before| before < len) {
            Some(before) => Ok(Rank::Number(before)),
            None => Err(TensorError::index(op, k, len + 1)),
        }
    }

    /// The `k`-th smallest values along `axis`, counted from 1, and their positions.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist or is empty, and for a `k` of 0 or beyond its
    /// length; `OutOfMemory`. All methods of this family have these errors.
    #[track_caller]
    pub fn kthvalue(&self, k: usize, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("kthvalue", self.shape(), axis)?;
        self.picked("kthvalue", axis, Self::rank_of("kthvalue", k, self.shape()[axis])?)
    }

    /// [`Tensor::kthvalue`] that keeps `axis` with length 1, and has the same errors.
    #[track_caller]
    pub fn kthvalue_keep(&self, k: usize, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("kthvalue", self.shape(), axis)?;
        self.picked_keep("kthvalue", axis, Self::rank_of("kthvalue", k, self.shape()[axis])?)
    }

    /// The medians along `axis`, and their positions. Of an even number of elements, the lower
    /// middle one. A row with NaN gives NaN. Errors as [`Tensor::kthvalue`].
    #[track_caller]
    pub fn median(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("median", self.shape(), axis)?;
        self.picked("median", axis, Rank::Median)
    }

    /// [`Tensor::median`] that keeps `axis` with length 1; errors as [`Tensor::kthvalue`].
    #[track_caller]
    pub fn median_keep(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("median", self.shape(), axis)?;
        self.picked_keep("median", axis, Rank::Median)
    }

    /// The median of all elements, without dimensions; NaN for no elements. Errors as
    /// [`Tensor::kthvalue`].
    #[track_caller]
    pub fn median_all(&self) -> Result<Tensor> {
        self.picked_of_all("median", Rank::Median)
    }

    /// The medians along `axis` of the elements that are not NaN, and their positions. A row of NaN
    /// only gives NaN. Errors as [`Tensor::kthvalue`].
    #[track_caller]
    pub fn nanmedian(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("nanmedian", self.shape(), axis)?;
        self.picked("nanmedian", axis, Rank::MedianOfNumbers)
    }

    /// [`Tensor::nanmedian`] that keeps `axis` with length 1; errors as [`Tensor::kthvalue`].
    #[track_caller]
    pub fn nanmedian_keep(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("nanmedian", self.shape(), axis)?;
        self.picked_keep("nanmedian", axis, Rank::MedianOfNumbers)
    }

    /// The median of all elements that are not NaN, without dimensions; NaN if there are none.
    /// Errors as [`Tensor::kthvalue`].
    #[track_caller]
    pub fn nanmedian_all(&self) -> Result<Tensor> {
        self.picked_of_all("nanmedian", Rank::MedianOfNumbers)
    }

    /// The most frequent values along `axis`, each with its last position. Of equally frequent
    /// values the smallest wins. All NaN count as one value. Errors as [`Tensor::kthvalue`].
    #[track_caller]
    pub fn mode(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("mode", self.shape(), axis)?;
        self.picked("mode", axis, Rank::Mode)
    }

    /// [`Tensor::mode`] that keeps `axis` with length 1; errors as [`Tensor::kthvalue`].
    #[track_caller]
    pub fn mode_keep(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("mode", self.shape(), axis)?;
        self.picked_keep("mode", axis, Rank::Mode)
    }

    #[track_caller]
    fn picked_of_all(&self, op: &'static str, rank: Rank) -> Result<Tensor> {
        let count = self.element_count();
        if count == 0 {
            return Tensor::full(self.device(), Shape::new(&[]), self.dtype(), f64::NAN);
        }
        Ok(self.reshape([count])?.picked(op, 0, rank)?.0)
    }
}
