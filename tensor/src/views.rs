//! Views: other layouts over the same storage. None of them copies, except where it says so.

use std::ops::Range;

use crate::layout::{RANK_MAX, Shape, check_axis, check_index};
use crate::{Result, Tensor, TensorError};

impl Tensor {
    /// The same elements in row-major order under another shape; copies if they are not
    /// contiguous.
    ///
    /// # Errors
    /// `Shape` when the element counts differ, `OutOfMemory` when it copies.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if shape.element_count() != self.element_count() {
            return Err(TensorError::Shape { op: "reshape", left: *self.shape(), right: shape });
        }
        if let Some(layout) = self.layout().reshape(shape) {
            return Ok(self.with_layout(layout));
        }
        self.contiguous()?.reshape(shape)
    }

    /// Dimensions `axes` merged into one, as [`Tensor::reshape`].
    ///
    /// # Errors
    /// `Index` when they are not dimensions of this tensor, `OutOfMemory` when it copies.
    #[track_caller]
    pub fn flatten(&self, axes: Range<usize>) -> Result<Tensor> {
        check_index("flatten", axes.start, axes.end)?;
        check_axis("flatten", self.shape(), axes.end - 1)?;
        let merged = self.shape()[axes.clone()].iter().product();
        let dims = [&self.shape()[..axes.start], &[merged], &self.shape()[axes.end..]].concat();
        self.reshape(&dims[..])
    }

    /// Dimensions `a` and `b` exchanged.
    ///
    /// # Errors
    /// `Index`.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Tensor> {
        check_axis("transpose", self.shape(), a.max(b))?;
        Ok(self.with_layout(self.layout().transpose(a, b)))
    }

    /// The dimensions in the order `axes`, each named once.
    ///
    /// # Errors
    /// `Index` for one that does not exist, `Shape` when one is missing or repeated.
    pub fn permute(&self, axes: &[usize]) -> Result<Tensor> {
        let op = "permute";
        axes.iter().try_for_each(|&axis| check_axis(op, self.shape(), axis).map(drop))?;
        let repeated = (1..axes.len()).any(|at| axes[..at].contains(&axes[at]));
        if repeated || axes.len() != self.shape().len() {
            let right = Shape::from(&axes[..axes.len().min(RANK_MAX)]);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        Ok(self.with_layout(self.layout().permute(axes)))
    }

    /// The `len` positions from `start` along `axis`.
    ///
    /// # Errors
    /// `Index`.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Tensor> {
        let op = "narrow";
        let available = self.shape()[check_axis(op, self.shape(), axis)?];
        if start > available || len > available - start {
            return Err(TensorError::Index {
                op,
                index: start.saturating_add(len),
                len: available,
            });
        }
        Ok(self.with_layout(self.layout().narrow(axis, start, len)))
    }

    /// Position `index` along `axis`, without that dimension.
    ///
    /// # Errors
    /// `Index`.
    pub fn select(&self, axis: usize, index: usize) -> Result<Tensor> {
        let op = "select";
        check_index(op, index, self.shape()[check_axis(op, self.shape(), axis)?])?;
        Ok(self.with_layout(self.layout().select(axis, index)))
    }

    /// A new dimension of length 1 before `axis`.
    ///
    /// # Errors
    /// `Index`, also when there are [`RANK_MAX`] dimensions already.
    pub fn unsqueeze(&self, axis: usize) -> Result<Tensor> {
        let op = "unsqueeze";
        check_index(op, axis, self.shape().len() + 1)?;
        check_index(op, self.shape().len(), RANK_MAX)?;
        Ok(self.with_layout(self.layout().unsqueeze(axis)))
    }

    /// Without dimension `axis`, which must have length 1.
    ///
    /// # Errors
    /// `Index`, `Shape`.
    pub fn squeeze(&self, axis: usize) -> Result<Tensor> {
        let op = "squeeze";
        if self.shape()[check_axis(op, self.shape(), axis)?] != 1 {
            let right = self.shape().with(axis, 1);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        self.select(axis, 0)
    }

    /// Dimensions of length 1 (and missing leading ones) stretched to `shape`. An element then
    /// stands for several, so the result cannot be written in place.
    ///
    /// # Errors
    /// `Shape`.
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let right = shape.into();
        let mismatch = TensorError::Shape { op: "expand", left: *self.shape(), right };
        Ok(self.with_layout(self.layout().expand(right).ok_or(mismatch)?))
    }

    /// This tensor if it is contiguous, else a contiguous copy.
    ///
    /// # Errors
    /// `OutOfMemory` when it copies.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.layout().is_contiguous() {
            return Ok(self.clone());
        }
        self.copied()
    }

    /// A contiguous tensor of its own with the same elements.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn copied(&self) -> Result<Tensor> {
        let mut copy = Tensor::empty(self.device(), *self.shape(), self.dtype())?;
        copy.copy_(self)?;
        Ok(copy)
    }
}
