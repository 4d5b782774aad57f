//! Softmax and its logarithm along one dimension:
//! `y[i] = exp(x[i] - max) / Σ_j exp(x[j] - max)` and `y[i] = x[i] - max - ln Σ_j exp(x[j] - max)`.
//!
//! Each row is read from memory once and written once. The gradient needs y only.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::lines::Blocks;
use crate::dtype::for_each_float;
use crate::error::Result;
use crate::launch::{FullKernel, Operands};
use crate::ops::direction::Direction;
use crate::tensor::Tensor;

/// One of the four formulas.
#[derive(Clone, Copy)]
struct Softmax {
    name: &'static str,
    is_log: bool,
    direction: Direction,
}

impl Softmax {
    const fn new(name: &'static str) -> Self {
        Softmax { name, is_log: false, direction: Direction::Forward }
    }

    const fn log(self) -> Self {
        Softmax { is_log: true, ..self }
    }

    const fn backward(self) -> Self {
        Softmax { direction: Direction::Backward, ..self }
    }
}

/// Reads x or dy, unless the destination holds it, and for gradients y.
struct Rows {
    softmax: Softmax,
    blocks: Blocks,
    axis: usize,
    size_bytes: usize,
    dtype: crate::dtype::DType,
}

impl Rows {
    fn of(softmax: Softmax, to: &Tensor, axis: usize) -> Result<Self> {
        to.check_any_float(softmax.name)?;
        let blocks = Blocks::of(to.shape(), axis);
        Ok(Rows { softmax, blocks, axis, size_bytes: to.size_bytes(), dtype: to.dtype() })
    }
}

impl FullKernel for Rows {
    fn name(&self) -> &'static str {
        self.softmax.name
    }

    fn cost(&self) -> Cost {
        let (flops, passes) = match self.softmax.direction {
            Direction::Forward => (25.0, 2),
            Direction::Backward => (8.0, 3),
        };
        let bytes = (passes * self.size_bytes) as f64;
        Cost { class: OpClass::Reduction, flops: flops * self.blocks.element_count() as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        if self.blocks.element_count() == 0 {
            return Ok(());
        }
        let y_count = usize::from(self.softmax.direction == Direction::Backward);
        let source_count = operands.read_count() - y_count;
        for_each_float!(self.dtype, E => {
            let y = (y_count == 1).then(|| operands.read::<E>(source_count));
            let to = operands.write::<E>(0);
            let y_is_contiguous = y.is_none_or(|y| y.layout().is_contiguous());
            if to.layout().is_contiguous() && y_is_contiguous {
                let source = (source_count == 1).then(|| operands.read::<E>(0).slice());
                let y = y.map(|y| y.slice());
                cpu::contiguous(cpu, self.softmax, self.blocks, source, y, to.slice());
            } else {
                cpu::strided(self.softmax, self.axis, y, to);
            }
        });
        Ok(())
    }
}

impl Tensor {
    /// The index of `axis`. A tensor without dimensions is a row of one element, as in PyTorch.
    fn row_axis(&self, op: &'static str, axis: impl Into<Axis>) -> Result<usize> {
        axis.into().index(op, self.shape().len().max(1))
    }

    #[track_caller]
    fn softmax_with(&self, softmax: Softmax, axis: usize) -> Result<Tensor> {
        let kernel = Rows::of(softmax, self, axis)?;
        let x = self.contiguous()?;
        let y = Tensor::empty(self.device(), *self.shape(), self.dtype())?;
        self.device().launch(kernel, &[&x], &[&y])?;
        Ok(y)
    }

    /// The gradient of x through `softmax`, for `self = dy`.
    #[track_caller]
    fn softmax_backward_with(&self, softmax: Softmax, y: &Tensor, axis: usize) -> Result<Tensor> {
        let kernel = Rows::of(softmax, self, axis)?;
        self.check_dtype(softmax.name, y)?;
        y.check_shape(softmax.name, *self.shape())?;
        let (dy, y) = (self.contiguous()?, y.contiguous()?);
        let dx = Tensor::empty(self.device(), *self.shape(), self.dtype())?;
        self.device().launch(kernel, &[&dy, &y], &[&dx])?;
        Ok(dx)
    }

    #[track_caller]
    fn softmax_backward_in_place(
        &mut self,
        softmax: Softmax,
        y: &Tensor,
        axis: usize,
    ) -> Result<()> {
        let kernel = Rows::of(softmax, self, axis)?;
        self.check_dtype(softmax.name, y)?;
        y.check_shape(softmax.name, *self.shape())?;
        self.device().launch(kernel, &[y], &[self])
    }

    /// `exp(x) / Σ exp(x)` along `axis`, for `self = x` of any float type; the half types are
    /// computed in f32. A row with ∞ or NaN, or of -∞ only, becomes NaN, as in PyTorch. A tensor
    /// without dimensions has a single axis 0.
    ///
    /// # Shapes
    /// `x: [.., L, ..] → [.., L, ..]`
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist, `DType` unless float, `OutOfMemory`. All
    /// methods of this family have these errors.
    #[track_caller]
    pub fn softmax(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = self.row_axis("softmax", axis)?;
        self.softmax_with(Softmax::new("softmax"), axis)
    }

    /// [`Tensor::softmax`] in place. One thread computes a tensor that is not contiguous.
    ///
    /// # Errors
    /// `Index`, `DType`, `Frozen`, `Overlap` (on an expanded view). All in-place methods of this
    /// family have these errors.
    #[track_caller]
    pub fn softmax_(&mut self, axis: impl Into<Axis>) -> Result<()> {
        let axis = self.row_axis("softmax", axis)?;
        let kernel = Rows::of(Softmax::new("softmax"), self, axis)?;
        self.device().launch(kernel, &[], &[self])
    }

    /// `x - ln Σ exp(x)` along `axis`, for `self = x`; see [`Tensor::softmax`].
    ///
    /// # Errors
    /// The errors of [`Tensor::softmax`].
    #[track_caller]
    pub fn log_softmax(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = self.row_axis("log_softmax", axis)?;
        self.softmax_with(Softmax::new("log_softmax").log(), axis)
    }

    /// [`Tensor::log_softmax`] in place.
    ///
    /// # Errors
    /// The errors of [`Tensor::softmax_`].
    #[track_caller]
    pub fn log_softmax_(&mut self, axis: impl Into<Axis>) -> Result<()> {
        let axis = self.row_axis("log_softmax", axis)?;
        let kernel = Rows::of(Softmax::new("log_softmax").log(), self, axis)?;
        self.device().launch(kernel, &[], &[self])
    }

    /// The gradient of x through `y = x.softmax(axis)`, for `self = dy`:
    /// `dx[i] = y[i] · (dy[i] - Σ_j dy[j] · y[j])`. The formula is corrected for rows of y whose
    /// sum is not exactly 1.
    ///
    /// # Errors
    /// `Shape` unless y has the shape of dy, and the errors of [`Tensor::softmax`].
    #[track_caller]
    pub fn softmax_backward(&self, y: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = self.row_axis("softmax_backward", axis)?;
        self.softmax_backward_with(Softmax::new("softmax_backward").backward(), y, axis)
    }

    /// [`Tensor::softmax_backward`] that overwrites dy.
    ///
    /// # Errors
    /// `Shape`, and the errors of [`Tensor::softmax_`].
    #[track_caller]
    pub fn softmax_backward_(&mut self, y: &Tensor, axis: impl Into<Axis>) -> Result<()> {
        let axis = self.row_axis("softmax_backward", axis)?;
        self.softmax_backward_in_place(Softmax::new("softmax_backward").backward(), y, axis)
    }

    /// The gradient of x through `y = x.log_softmax(axis)`, for `self = dy`:
    /// `dx[i] = dy[i] - exp(y[i]) · Σ_j dy[j]`.
    ///
    /// # Errors
    /// The errors of [`Tensor::softmax_backward`].
    #[track_caller]
    pub fn log_softmax_backward(&self, y: &Tensor, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = self.row_axis("log_softmax_backward", axis)?;
        self.softmax_backward_with(Softmax::new("log_softmax_backward").log().backward(), y, axis)
    }

    /// [`Tensor::log_softmax_backward`] that overwrites dy.
    ///
    /// # Errors
    /// The errors of [`Tensor::softmax_backward_`].
    #[track_caller]
    pub fn log_softmax_backward_(&mut self, y: &Tensor, axis: impl Into<Axis>) -> Result<()> {
        let axis = self.row_axis("log_softmax_backward", axis)?;
        let softmax = Softmax::new("log_softmax_backward").log().backward();
        self.softmax_backward_in_place(softmax, y, axis)
    }
}
