//! Concatenation of tensors along one dimension.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{RANK_MAX, Shape, check_axis, check_index};
use crate::tensor::Tensor;
use cpu::Part;

struct Cat {
    name: &'static str,
    dtype: DType,
    axis: usize,
    len: usize,
}

impl FullKernel for Cat {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        Cost {
            class: OpClass::Copy,
            flops: 0.0,
            bytes: 2.0 * (self.len * self.dtype.size_bytes()) as f64,
        }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.dtype, T => {
            let views = (0..operands.read_count()).map(|index| operands.read::<T>(index));
            let parts: Vec<Part<'_, T>> =
                views.map(|view| Part::new(view, self.axis)).filter(|p| p.row_len() > 0).collect();
            cpu::cat(cpu, &parts, operands.write::<T>(0).slice());
        });
        Ok(())
    }
}

impl Tensor {
    /// Concatenates tensors along `axis`. They have one type, and their shapes differ along `axis`
    /// only.
    ///
    /// # Errors
    /// `Index` for no tensors at all or a dimension that does not exist, `Shape`, `DType`,
    /// `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn cat(tensors: &[&Tensor], axis: impl Into<Axis>) -> Result<Tensor> {
        check_index("cat", 0, tensors.len())?;
        let axis = check_axis("cat", tensors[0].shape(), axis)?;
        Self::joined("cat", tensors, axis)
    }

    /// Stacks tensors along a new dimension, which becomes dimension `axis`. The tensors have one
    /// type and shape.
    ///
    /// # Shapes
    /// `n × [A, B] → [A, n, B]` for axis 1.
    ///
    /// # Errors
    /// `Index` for no tensors at all, for a dimension that does not exist, or if there are
    /// [`RANK_MAX`] dimensions already; `Shape`, `DType`, `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: impl Into<Axis>) -> Result<Tensor> {
        let op = "stack";
        check_index(op, 0, tensors.len())?;
        let shape = *tensors[0].shape();
        let axis = axis.into().index(op, shape.len() + 1)?;
        check_index(op, shape.len(), RANK_MAX)?;
        tensors.iter().try_for_each(|tensor| tensor.check_shape(op, shape))?;
        let slices: Vec<Tensor> =
            tensors.iter().map(|tensor| tensor.unsqueeze(axis)).collect::<Result<_>>()?;
        Self::joined(op, &slices.iter().collect::<Vec<_>>(), axis)
    }

    #[track_caller]
    fn joined(op: &'static str, tensors: &[&Tensor], axis: usize) -> Result<Tensor> {
        let first = tensors[0];
        let mut axis_len = 0usize;
        for tensor in tensors {
            first.check_dtype(op, tensor)?;
            let (left, right) = (*first.shape(), *tensor.shape());
            if left.len() != right.len() || left.with(axis, 0) != right.with(axis, 0) {
                return Err(TensorError::Shape { op, left, right });
            }
            axis_len = axis_len.saturating_add(right[axis]);
        }
        let (device, dtype) = (first.device(), first.dtype());
        let Some(shape) = Shape::checked(&first.shape().with(axis, axis_len)) else {
            // The result is larger than any memory: the allocator returns the error.
            return Tensor::empty(device, [usize::MAX], dtype);
        };
        let y = Tensor::empty(device, shape, dtype)?;
        device.launch(Cat { name: op, dtype, axis, len: shape.element_count() }, tensors, &[&y])?;
        Ok(y)
    }
}
