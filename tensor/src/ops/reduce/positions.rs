//! Positions of the largest and the smallest elements.

use super::extreme::{End, Extreme};
use super::{Arranged, Reduced, accumulator};
use crate::axis::Axis;
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::check_axis;
use crate::tensor::Tensor;

/// Positions of the largest and the smallest elements, for any element type. The first of equal
/// elements wins. NaN counts both as the largest and as the smallest element.
impl Tensor {
    /// The position of the largest element along the last dimension, as i64.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist or is empty; `OutOfMemory`.
    #[track_caller]
    pub fn argmax(&self) -> Result<Tensor> {
        self.argmax_axis(-1)
    }

    /// The position of the smallest element along the last dimension; errors as
    /// [`Tensor::argmax`].
    #[track_caller]
    pub fn argmin(&self) -> Result<Tensor> {
        self.argmin_axis(-1)
    }

    /// The position of the largest element along `axis`, as i64; errors as [`Tensor::argmax`].
    #[track_caller]
    pub fn argmax_axis(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = check_axis("argmax", self.shape(), axis)?;
        self.position("argmax", End::Largest, &[axis], Reduced::Dropped)
    }

    /// [`Tensor::argmax_axis`] that keeps `axis` with length 1; errors as [`Tensor::argmax`].
    #[track_caller]
    pub fn argmax_keep(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = check_axis("argmax", self.shape(), axis)?;
        self.position("argmax", End::Largest, &[axis], Reduced::Kept)
    }

    /// The position of the smallest element along `axis`, as i64; errors as [`Tensor::argmax`].
    #[track_caller]
    pub fn argmin_axis(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = check_axis("argmin", self.shape(), axis)?;
        self.position("argmin", End::Smallest, &[axis], Reduced::Dropped)
    }

    /// [`Tensor::argmin_axis`] that keeps `axis` with length 1; errors as [`Tensor::argmax`].
    #[track_caller]
    pub fn argmin_keep(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = check_axis("argmin", self.shape(), axis)?;
        self.position("argmin", End::Smallest, &[axis], Reduced::Kept)
    }

    /// The position of the largest of all elements in row-major order, as i64 without dimensions;
    /// errors as [`Tensor::argmax`].
    #[track_caller]
    pub fn argmax_all(&self) -> Result<Tensor> {
        let axes: Vec<usize> = (0..self.shape().len()).collect();
        self.position("argmax", End::Largest, &axes, Reduced::Dropped)
    }

    /// The position of the smallest of all elements in row-major order, as i64 without dimensions;
    /// errors as [`Tensor::argmax`].
    #[track_caller]
    pub fn argmin_all(&self) -> Result<Tensor> {
        let axes: Vec<usize> = (0..self.shape().len()).collect();
        self.position("argmin", End::Smallest, &axes, Reduced::Dropped)
    }

    /// The largest values along `axis`, and their positions as i64; errors as [`Tensor::argmax`].
    #[track_caller]
    pub fn max(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("max", self.shape(), axis)?;
        self.value_and_position("max", End::Largest, axis, Reduced::Dropped)
    }

    /// [`Tensor::max`] that keeps `axis` with length 1; errors as [`Tensor::argmax`].
    #[track_caller]
    pub fn max_keep(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("max", self.shape(), axis)?;
        self.value_and_position("max", End::Largest, axis, Reduced::Kept)
    }

    /// The smallest values along `axis`, and their positions as i64; errors as
    /// [`Tensor::argmax`].
    #[track_caller]
    pub fn min(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("min", self.shape(), axis)?;
        self.value_and_position("min", End::Smallest, axis, Reduced::Dropped)
    }

    /// [`Tensor::min`] that keeps `axis` with length 1; errors as [`Tensor::argmax`].
    #[track_caller]
    pub fn min_keep(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("min", self.shape(), axis)?;
        self.value_and_position("min", End::Smallest, axis, Reduced::Kept)
    }

    #[track_caller]
    fn position(
        &self,
        op: &'static str,
        end: End,
        axes: &[usize],
        reduced: Reduced,
    ) -> Result<Tensor> {
        let arranged = Arranged::new(self, axes, reduced)?;
        arranged.check_choice(op)?;
        let positions = Tensor::empty(self.device(), arranged.shape, DType::I64)?;
        arranged.find(op, end, &positions, None)?;
        Ok(positions)
    }

    #[track_caller]
    fn value_and_position(
        &self,
        op: &'static str,
        end: End,
        axis: usize,
        reduced: Reduced,
    ) -> Result<(Tensor, Tensor)> {
        let arranged = Arranged::new(self, &[axis], reduced)?;
        arranged.check_choice(op)?;
        let values = Tensor::empty(self.device(), arranged.shape, self.dtype())?;
        let positions = Tensor::empty(self.device(), arranged.shape, DType::I64)?;
        arranged.find(op, end, &positions, Some(&values))?;
        Ok((values, positions))
    }
}

impl Arranged {
    #[track_caller]
    fn find(
        &self,
        name: &'static str,
        end: End,
        positions: &Tensor,
        values: Option<&Tensor>,
    ) -> Result<()> {
        let (device, dtype) = (self.x.device(), self.x.dtype());
        let count = self.plan().partial_count();
        let best = Tensor::workspace(device, count, accumulator(dtype))?;
        let places = Tensor::workspace(device, count, DType::I64)?;
        let (kept_rank, len) = (self.kept_rank, self.x.element_count());
        let has_values = values.is_some();
        let kernel = Extreme { name, end, kept_rank, dtype, len, has_values };
        let mut writes = vec![positions, &best, &places];
        writes.extend(values);
        device.launch(kernel, &[&self.x], &writes)
    }
}
