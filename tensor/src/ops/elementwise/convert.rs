//! Filling, copying and conversion: operations that move elements or change their type.

use super::source;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::tiles::{Constant, Mode, evaluate};
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::tensor::Tensor;

/// Converts or copies `len` elements.
pub(super) struct Copy {
    pub(super) from: DType,
    pub(super) to: DType,
    len: usize,
}

impl FullKernel for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn cost(&self) -> Cost {
        let bytes = self.len * (self.from.size_bytes() + self.to.size_bytes());
        Cost { class: OpClass::Copy, flops: 0.0, bytes: bytes as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let order = operands.write_order(0);
        for_each_dtype!(self.to, T => {
            let source = source::<T>(operands, 0, &order);
            let out = operands.write::<T>(0);
            evaluate::<T, T>(cpu, out, &order, Mode::Overwrite, &[&*source], None);
        });
        Ok(())
    }
}

pub(super) struct Fill {
    pub(super) value: f64,
    pub(super) dtype: DType,
    len: usize,
}

impl FullKernel for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn cost(&self) -> Cost {
        Cost {
            class: OpClass::Elementwise,
            flops: 0.0,
            bytes: (self.len * self.dtype.size_bytes()) as f64,
        }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let order = operands.write_order(0);
        for_each_dtype!(self.dtype, T => {
            let value = Constant::new(T::from_f64(self.value));
            let out = operands.write::<T>(0);
            evaluate::<T, T>(cpu, out, &order, Mode::Overwrite, &[&value], None);
        });
        Ok(())
    }
}

impl Tensor {
    /// Sets every element to `value`, converted as [`Tensor::to_dtype`] does. Any element type.
    ///
    /// # Errors
    /// `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn fill_(&mut self, value: f64) -> Result<()> {
        let kernel = Fill { value, dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[], &[self])
    }

    /// Sets every element to 0; errors as [`Tensor::fill_`].
    #[track_caller]
    pub fn zero_(&mut self) -> Result<()> {
        self.fill_(0.0)
    }

    /// Copies the elements of `source`, broadcast to this shape and converted to this type as
    /// [`Tensor::to_dtype`] does.
    ///
    /// # Errors
    /// `Shape`, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn copy_(&mut self, source: &Tensor) -> Result<()> {
        let len = self.element_count();
        let kernel = Copy { from: source.dtype(), to: self.dtype(), len };
        let (left, right) = (*self.shape(), *source.shape());
        if left.broadcast(&right) != Some(left) {
            return Err(TensorError::Shape { op: kernel.name(), left, right });
        }
        self.device().launch(kernel, &[&source.expand(left)?], &[self])
    }

    /// Converts the values to another type; shares the storage if the type is the same.
    ///
    /// As in PyTorch, a float becomes an integer by truncation, an integer wraps into a narrower
    /// type, everything but 0 becomes true (NaN too), and a number that a float type cannot hold is
    /// rounded to nearest, ties to even. PyTorch leaves the following to the machine: NaN becomes
    /// 0, a float out of range of i64 or i32 becomes the nearest end of the range, and a u8 is the
    /// i64 modulo 256 (-1 becomes 255).
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let mut converted = Tensor::empty(self.device(), *self.shape(), dtype)?;
        converted.copy_(self)?;
        Ok(converted)
    }
}
