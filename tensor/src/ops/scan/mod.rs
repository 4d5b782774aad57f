//! Scans: each element is replaced by a value of all elements up to and including it.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod rows;

use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::arithmetic::Arithmetic;
use crate::cpu::tiles::{Order, Source};
use crate::dtype::{DType, for_each_dtype};
use crate::error::Result;
use crate::launch::{FullKernel, Operands};
use crate::layout::check_axis;
use crate::ops::elementwise::source;
use crate::ops::workspace::Workspace;
use crate::tensor::Tensor;
use cpu::{Extent, Running, ScanOrder};

/// A scan along a dimension, such as `y[t] = Σ x[..=t]`. Writes y and the running values.
struct Scan {
    name: &'static str,
    running: Running,
    direction: ScanOrder,
    extent: Extent,
    dtype: DType,
    result: DType,
}

impl FullKernel for Scan {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let len = self.extent.element_count();
        let bytes = self.dtype.size_bytes() + self.result.size_bytes();
        Cost { class: OpClass::Reduction, flops: 2.0 * len as f64, bytes: (len * bytes) as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        if self.dtype.is_float() {
            self.run::<f64>(cpu, operands);
        } else {
            self.run::<i64>(cpu, operands);
        }
        Ok(())
    }
}

impl Scan {
    fn run<A: Arithmetic>(&self, cpu: &Cpu, operands: &mut Operands<'_>) {
        let x: Box<dyn Source<A> + '_> = source(operands, 0, &Order::row_major());
        let sums = operands.write::<A>(1).slice();
        for_each_dtype!(self.result, O => {
            let y = operands.write::<O>(0).slice();
            cpu::scan::<A, O>(cpu, self, &*x, y, sums);
        });
    }
}

impl Tensor {
    /// Running sums along `axis`: each element becomes the sum of all elements up to and including
    /// it. Floats are accumulated in f64; integers and truth values become i64, which wraps.
    ///
    /// # Errors
    /// `Index`, `OutOfMemory`.
    #[track_caller]
    pub fn cumsum(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = check_axis("cumsum", self.shape(), axis)?;
        self.scan("cumsum", axis, Running::Sum, ScanOrder::Forwards)
    }

    /// The gradient through [`Tensor::cumsum`] along `axis` for `dy = self`: each element becomes
    /// the sum of all elements from it to the end. Errors as [`Tensor::cumsum`].
    #[track_caller]
    pub fn cumsum_backward(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = check_axis("cumsum_backward", self.shape(), axis)?;
        self.scan("cumsum_backward", axis, Running::Sum, ScanOrder::Backwards)
    }

    /// Running products along `axis`, otherwise as [`Tensor::cumsum`]. One thread for each position
    /// of the dimensions before `axis`.
    #[track_caller]
    pub fn cumprod(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = check_axis("cumprod", self.shape(), axis)?;
        self.scan("cumprod", axis, Running::Product, ScanOrder::Forwards)
    }

    #[track_caller]
    fn scan(
        &self,
        name: &'static str,
        axis: usize,
        running: Running,
        direction: ScanOrder,
    ) -> Result<Tensor> {
        let (device, dtype) = (self.device(), self.dtype());
        let extent = Extent::new(self.shape(), axis, running);
        let (result, wide) =
            if dtype.is_float() { (dtype, DType::F64) } else { (DType::I64, DType::I64) };
        let y = Tensor::empty(device, *self.shape(), result)?;
        let sums = Workspace::new(wide, [extent.sum_count(device.kind())]);
        let kernel = Scan { name, running, direction, extent, dtype, result };
        device.launch_with(&sums, kernel, &[self], &[&y])?;
        Ok(y)
    }
}
