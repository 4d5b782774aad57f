//! Reductions that combine other reductions: both extremes, sums without NaN, norms of matrices.

use crate::axis::Axis;
use crate::error::{Result, TensorError};
use crate::layout::{Shape, check_axis};
use crate::ops::elementwise::closeness::Replacements;
use crate::tensor::Tensor;

/// A matrix norm that needs no decomposition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MatrixNorm {
    /// The Frobenius norm `√Σ x²`; PyTorch's "fro".
    #[default]
    Frobenius,
    /// The largest column sum of magnitudes; PyTorch's 1.
    LargestColumn,
    /// The smallest column sum of magnitudes; PyTorch's -1.
    SmallestColumn,
    /// The largest row sum of magnitudes; PyTorch's ∞.
    LargestRow,
    /// The smallest row sum of magnitudes; PyTorch's -∞.
    SmallestRow,
}

/// Replaces NaN by zero. Infinities remain.
const NUMBERS: Replacements = Replacements {
    nan: 0.0,
    infinity: Some(f64::INFINITY),
    negative_infinity: Some(f64::NEG_INFINITY),
};

impl Tensor {
    /// [`Tensor::amin`] and [`Tensor::amax`] over `axes`, with the same errors.
    #[track_caller]
    pub fn aminmax(&self, axes: &[impl Into<Axis> + Copy]) -> Result<(Tensor, Tensor)> {
        Ok((self.amin(axes)?, self.amax(axes)?))
    }

    /// [`Tensor::aminmax`] that keeps the dimensions `axes` with length 1, and has the same errors.
    #[track_caller]
    pub fn aminmax_keep(&self, axes: &[impl Into<Axis> + Copy]) -> Result<(Tensor, Tensor)> {
        Ok((self.amin_keep(axes)?, self.amax_keep(axes)?))
    }

    /// The sums over `axes` of the elements that are not NaN: [`Tensor::sum`] of a copy with zeros
    /// for NaN. Errors as [`Tensor::sum`].
    #[track_caller]
    pub fn nansum(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return self.sum(axes);
        }
        self.nan_to_num(NUMBERS)?.sum(axes)
    }

    /// [`Tensor::nansum`] that keeps the dimensions `axes` with length 1; errors as
    /// [`Tensor::sum`].
    #[track_caller]
    pub fn nansum_keep(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return self.sum_keep(axes);
        }
        self.nan_to_num(NUMBERS)?.sum_keep(axes)
    }

    /// The means over `axes` of the elements that are not NaN. The mean of no elements is NaN.
    /// Floats only; errors as [`Tensor::sum`].
    #[track_caller]
    pub fn nanmean(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Tensor> {
        let count = self.is_nan()?.logical_not()?.sum(axes)?;
        self.nansum(axes)?.div(&count.to_dtype(self.dtype())?)
    }

    /// [`Tensor::nanmean`] that keeps the dimensions `axes` with length 1; errors as
    /// [`Tensor::sum`].
    #[track_caller]
    pub fn nanmean_keep(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Tensor> {
        let count = self.is_nan()?.logical_not()?.sum_keep(axes)?;
        self.nansum_keep(axes)?.div(&count.to_dtype(self.dtype())?)
    }

    /// The norms of the matrices along two dimensions, rows and columns. The result lacks both.
    /// Floats only.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist, or that is empty if the norm is an extreme;
    /// `Shape` if both are the same dimension; `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn matrix_norm(
        &self,
        norm: MatrixNorm,
        [row, column]: [impl Into<Axis> + Copy; 2],
    ) -> Result<Tensor> {
        let y = self.matrix_norm_keep(norm, [row, column])?;
        let op = "matrix_norm";
        let axes = [check_axis(op, self.shape(), row)?, check_axis(op, self.shape(), column)?];
        y.squeeze(axes[0].max(axes[1]))?.squeeze(axes[0].min(axes[1]))
    }

    /// [`Tensor::matrix_norm`] that keeps both dimensions with length 1, and has the same errors.
    #[track_caller]
    pub fn matrix_norm_keep(
        &self,
        norm: MatrixNorm,
        [row, column]: [impl Into<Axis> + Copy; 2],
    ) -> Result<Tensor> {
        let op = "matrix_norm";
        let row = check_axis(op, self.shape(), row)?;
        let column = check_axis(op, self.shape(), column)?;
        if row == column {
            let right = Shape::from([row, column]);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        match norm {
            MatrixNorm::Frobenius => self.norm_keep(&[row, column], 2.0),
            MatrixNorm::LargestColumn => self.norm_keep(&[row], 1.0)?.amax_keep(&[column]),
            MatrixNorm::SmallestColumn => self.norm_keep(&[row], 1.0)?.amin_keep(&[column]),
            MatrixNorm::LargestRow => self.norm_keep(&[column], 1.0)?.amax_keep(&[row]),
            MatrixNorm::SmallestRow => self.norm_keep(&[column], 1.0)?.amin_keep(&[row]),
        }
    }
}
