//! Tensors whose elements are functions of their position: ranges and unit matrices.

#[cfg(feature = "cuda")]
mod cuda;

use std::ops::Range;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::tiles::{Generated, Mode, Order, evaluate};
use crate::device::Device;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::Result;
use crate::launch::{FullKernel, Operands};
use crate::layout::IntoShape;
use crate::tensor::Tensor;

/// The value of element `i`.
#[derive(Clone, Copy, Debug)]
enum Sequence {
    /// `start + i · step`.
    Range { start: f64, step: f64 },
    /// `count` numbers at equal distances. The last number is `end`.
    Between { start: f64, end: f64, count: usize },
    /// 1 on the diagonal of a matrix with this many columns, 0 elsewhere.
    Eye { column_count: usize },
}

struct Fill {
    name: &'static str,
    sequence: Sequence,
    dtype: DType,
    len: usize,
}

impl FullKernel for Fill {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let bytes = (self.len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Elementwise, flops: 2.0 * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let sequence = self.sequence;
        let value = move |index: usize| match sequence {
            Sequence::Range { start, step } => start + index as f64 * step,
            Sequence::Between { start, count: 1, .. } => start,
            // Each half counts from its own end of the range, so that both ends are exact.
            Sequence::Between { start, end, count } => {
                let step = (end - start) / (count - 1) as f64;
                match index < count / 2 {
                    true => start + index as f64 * step,
                    false => end - (count - 1 - index) as f64 * step,
                }
            }
            Sequence::Eye { column_count } => {
                f64::from(u8::from(index / column_count == index % column_count))
            }
        };
        for_each_dtype!(self.dtype, T => {
            let source = Generated(|index| T::from_f64(value(index)));
            let out = operands.write::<T>(0);
            let order = Order::row_major();
            evaluate::<T, T>(cpu, out, &order, Mode::Overwrite, &[&source], None);
        });
        Ok(())
    }
}

impl Tensor {
    #[track_caller]
    fn sequence(
        name: &'static str,
        device: &Device,
        shape: impl IntoShape,
        dtype: DType,
        sequence: Sequence,
    ) -> Result<Tensor> {
        let y = Tensor::empty(device, shape, dtype)?;
        let kernel = Fill { name, sequence, dtype, len: y.element_count() };
        device.launch(kernel, &[], &[&y])?;
        Ok(y)
    }

    /// The numbers `range.start + i · step` before `range.end`, computed in f64 and converted as
    /// [`Tensor::to_dtype`] does. Empty if the steps lead away from the end.
    ///
    /// # Errors
    /// `OutOfMemory`, also for a step of 0, which gives infinitely many numbers.
    #[track_caller]
    pub fn arange(device: &Device, range: Range<f64>, step: f64, dtype: DType) -> Result<Tensor> {
        // A NaN or a negative count becomes 0, and an infinite count exceeds any memory.
        let len = ((range.end - range.start) / step).ceil() as usize;
        let sequence = Sequence::Range { start: range.start, step };
        Self::sequence("arange", device, [len], dtype, sequence)
    }

    /// `count` numbers at equal distances from `start` to `end`, both included, computed in f64 and
    /// converted as [`Tensor::to_dtype`] does. A `count` of 1 gives `start` alone.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn linspace(
        device: &Device,
        [start, end]: [f64; 2],
        count: usize,
        dtype: DType,
    ) -> Result<Tensor> {
        Self::sequence("linspace", device, [count], dtype, Sequence::Between { start, end, count })
    }

    /// A matrix with 1 on the diagonal and 0 elsewhere.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn eye(
        device: &Device,
        row_count: usize,
        column_count: usize,
        dtype: DType,
    ) -> Result<Tensor> {
        let sequence = Sequence::Eye { column_count };
        Self::sequence("eye", device, [row_count, column_count], dtype, sequence)
    }
}
