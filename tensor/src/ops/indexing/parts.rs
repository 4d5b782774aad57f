//! Copies of a tensor with a changed part, and gathers with broadcast indices.

use std::ops::Range;

use crate::axis::Axis;
use crate::error::{Result, TensorError};
use crate::layout::check_axis;
use crate::tensor::Tensor;

impl Tensor {
    /// A copy of this tensor in which the view `part` has the values of `source`.
    #[track_caller]
    fn with_part(
        &self,
        op: &'static str,
        source: &Tensor,
        part: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.check_dtype(op, source)?;
        source.check_shape(op, *part(self)?.shape())?;
        let y = self.copied()?;
        part(&y)?.copy_(source)?;
        Ok(y)
    }

    /// A copy of this tensor with `source` in place of the view of [`Tensor::select`].
    ///
    /// # Errors
    /// `Index`; `Shape` if `source` does not have the shape of the part; `DType`, `Device`,
    /// `OutOfMemory`.
    #[track_caller]
    pub fn select_scatter(
        &self,
        source: &Tensor,
        axis: impl Into<Axis>,
        index: usize,
    ) -> Result<Tensor> {
        let axis = check_axis("select_scatter", self.shape(), axis)?;
        self.with_part("select_scatter", source, |x| x.select(axis, index))
    }

    /// A copy of this tensor with `source` in place of the view of [`Tensor::slice`]; errors as
    /// [`Tensor::select_scatter`].
    #[track_caller]
    pub fn slice_scatter(
        &self,
        source: &Tensor,
        axis: impl Into<Axis>,
        positions: Range<usize>,
        step: usize,
    ) -> Result<Tensor> {
        let axis = check_axis("slice_scatter", self.shape(), axis)?;
        self.with_part("slice_scatter", source, |x| x.slice(axis, positions.clone(), step))
    }

    /// A copy of this tensor with `source` in place of the view of [`Tensor::diagonal`]; errors as
    /// [`Tensor::select_scatter`].
    #[track_caller]
    pub fn diagonal_scatter(
        &self,
        source: &Tensor,
        offset: isize,
        a: impl Into<Axis>,
        b: impl Into<Axis>,
    ) -> Result<Tensor> {
        let a = check_axis("diagonal_scatter", self.shape(), a)?;
        let b = check_axis("diagonal_scatter", self.shape(), b)?;
        self.with_part("diagonal_scatter", source, |x| x.diagonal(offset, a, b))
    }

    /// [`Tensor::gather`] after `self` and the indices are broadcast to each other along all
    /// dimensions except `axis`, as NumPy's `take_along_axis`.
    ///
    /// # Errors
    /// As for [`Tensor::gather`].
    #[track_caller]
    pub fn take_along_dim(&self, index: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        let op = "take_along_dim";
        let axis = check_axis(op, self.shape(), axis)?;
        let (left, right) = (*self.shape(), *index.shape());
        let mismatch = TensorError::Shape { op, left, right };
        if left.len() != right.len() {
            return Err(mismatch);
        }
        let around = left.with(axis, 1).broadcast(&right.with(axis, 1)).ok_or(mismatch)?;
        let x = self.expand(around.with(axis, left[axis]))?;
        x.gather(axis, &index.expand(around.with(axis, right[axis]))?)
    }
}
