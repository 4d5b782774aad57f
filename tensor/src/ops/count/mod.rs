//! Counts: the occurrences of whole numbers, and the numbers that fall into bins.

#[cfg(feature = "cuda")]
mod cuda;

use std::ops::Range;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, Element, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{Nest, Shape};
use crate::ops::workspace::Workspace;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// Counts the elements of each bin. The destinations are the result and the i64 counts.
struct Histogram {
    range: Range<f64>,
    dtype: DType,
    len: usize,
}

impl FullKernel for Histogram {
    fn name(&self) -> &'static str {
        "histc"
    }

    fn cost(&self) -> Cost {
        let bytes = (self.len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Reduction, flops: 6.0 * self.len as f64, bytes }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let counts = operands.write::<i64>(1).slice();
        for_each_float!(self.dtype, T => {
            let x = operands.read::<T>(0);
            let nest = Nest::new(x.layout().shape(), [x.layout().strides()]);
            let [step] = nest.inner_strides();
            let each = |visit: &mut dyn FnMut(f64)| {
                nest.rows(0, self.len, |row| {
                    let data = &x.data()[row.starts[0]..];
                    (0..row.len).for_each(|i| visit(data[i * step].to_f64()));
                });
            };
            let Range { start: mut low, end: mut high } = self.range;
            if low == high && self.len > 0 {
                (low, high) = (f64::INFINITY, f64::NEG_INFINITY);
                each(&mut |x| (low, high) = (low.min(x), high.max(x)));
            }
            if low == high {
                (low, high) = (low - 1.0, high + 1.0);
            }
            counts.fill(0);
            let bins = counts.len();
            each(&mut |x| {
                if (low..=high).contains(&x) {
                    // Rounded as in PyTorch: rounding decides between neighbouring bins.
                    let place = (x - low) * bins as f64 / (high - low);
                    // The upper end belongs to the last bin.
                    counts[(place as usize).min(bins - 1)] += 1;
                }
            });
            let y = operands.write::<T>(0).slice();
            y.iter_mut().zip(counts).for_each(|(y, count)| *y = T::from_i64(*count));
        });
        Ok(())
    }
}

impl Tensor {
    /// Number of occurrences of each whole number from 0 on, as i64. With weights, the sum of the
    /// weights of the occurrences, in order and in the weights' type. The result ends with the
    /// largest number that occurs, and has at least `count_min` elements.
    ///
    /// # Shapes
    /// `[N]` → `[max + 1]`.
    ///
    /// # Errors
    /// `Shape`, `DType` unless the elements are i64 and weights are numbers, `Index` for a negative
    /// element, `Device`, `OutOfMemory`; `ValueUnavailable` on a simulated device, see
    /// [`Tensor::bincount_assuming`].
    #[track_caller]
    pub fn bincount(&self, weights: Option<&Tensor>, count_min: usize) -> Result<Tensor> {
        self.check_values("bincount")?;
        self.bincount_assuming(weights, count_min, 0)
    }

    /// [`Tensor::bincount`]. A simulated device takes `assumed_max` as the largest number; its list
    /// of assumptions then names the caller's place.
    ///
    /// # Errors
    /// The errors of [`Tensor::bincount`], without `ValueUnavailable`.
    #[track_caller]
    pub fn bincount_assuming(
        &self,
        weights: Option<&Tensor>,
        count_min: usize,
        assumed_max: i64,
    ) -> Result<Tensor> {
        let op = "bincount";
        let &[len] = &self.shape()[..] else {
            let right = Shape::new(&[self.element_count()]);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        };
        if self.dtype() != DType::I64 {
            return Err(TensorError::DType { op, left: self.dtype(), right: DType::I64 });
        }
        let one = match weights {
            Some(weights) => {
                weights.check_shape(op, [len])?;
                weights.clone()
            }
            None => Tensor::ones(self.device(), [], DType::I64)?.expand([len])?,
        };
        let largest = if len == 0 { -1 } else { self.amax(&[0])?.item_assuming(assumed_max)? };
        let count = usize::try_from(largest.saturating_add(1)).unwrap_or(0).max(count_min);
        Tensor::zeros(self.device(), [count], one.dtype())?.index_add(0, self, &one)
    }

    /// Number of elements in each of `bin_count` bins of equal width, in the elements' type. The
    /// upper end of the range belongs to the last bin. NaN and elements outside the range are not
    /// counted. An empty range stands for the range from the smallest to the largest element.
    /// Floats only. One thread.
    ///
    /// # Shapes
    /// `[..] → [bin_count]`.
    ///
    /// # Errors
    /// `DType`, `Index` if there are no bins or the range ends before it starts, `OutOfMemory`.
    #[track_caller]
    pub fn histc(&self, bin_count: usize, range: Range<f64>) -> Result<Tensor> {
        let (op, dtype) = ("histc", self.dtype());
        if !dtype.is_float() {
            return Err(TensorError::DType { op, left: dtype, right: DType::F32 });
        }
        let is_range = range.start <= range.end;
        if bin_count == 0 || !is_range {
            return Err(TensorError::index(op, 0, 0));
        }
        let y = Tensor::empty(self.device(), [bin_count], dtype)?;
        // For an empty range, an NVIDIA device writes the ends of the data after the counts.
        let ends = if self.device().kind() == DeviceKind::Cuda { 2 } else { 0 };
        let counts = Workspace::new(DType::I64, [bin_count.saturating_add(ends)]);
        let kernel = Histogram { range, dtype, len: self.element_count() };
        self.device().launch_with(&counts, kernel, &[self], &[&y])?;
        Ok(y)
    }
}
