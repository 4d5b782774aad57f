//! Scans row by row, where each row along the axis follows from the previous row: running extremes
//! and running sums of exponentials. One thread for each position of the dimensions before the
//! axis.

use super::cpu::Extent;
use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::chunk::{Chunked, for_each_chunk2};
use crate::dtype::{DType, Element, for_each_dtype, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{Nest, check_axis};
use crate::ops::workspace::Workspace;
use crate::tensor::Tensor;

/// The extreme to search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Largest,
    Smallest,
}

/// The extremes up to each position, and their positions.
pub(super) struct Extremes {
    name: &'static str,
    pub(super) end: End,
    pub(super) extent: Extent,
    pub(super) dtype: DType,
}

impl FullKernel for Extremes {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let len = self.extent.element_count();
        let bytes = (len * (2 * self.dtype.size_bytes() + 8)) as f64;
        Cost { class: OpClass::Reduction, flops: len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let Extent { along, after, .. } = self.extent;
        let positions = operands.write::<i64>(1).slice();
        for_each_dtype!(self.dtype, T => {
            let x = operands.read::<T>(0);
            let nest = Nest::new(x.layout().shape(), [x.layout().strides()]);
            let [step] = nest.inner_strides();
            let is_largest = self.end == End::Largest;
            // The last of equal elements wins. NaN stays until the next NaN.
            let wins = |new: T, old: T| {
                let is_beyond = if is_largest { new >= old } else { new <= old };
                let is_nan = |x: T| x.partial_cmp(&x).is_none();
                is_nan(new) || !is_nan(old) && is_beyond
            };
            let y = Chunked::new(operands.write::<T>(0).slice(), along * after);
            let positions = Chunked::new(positions, along * after);
            for_each_chunk2(cpu.pool(), y, positions, |block, y, positions| {
                let from = block * along * after;
                let mut at = 0_usize;
                nest.rows(from, from + y.len(), |row| {
                    for i in 0..row.len {
                        let new = x.data()[row.starts[0] + i * step];
                        let before = at.checked_sub(after);
                        let stays = before.filter(|&before| !wins(new, y[before]));
                        (y[at], positions[at]) = match stays {
                            Some(before) => (y[before], positions[before]),
                            None => (new, (at / after) as i64),
                        };
                        at += 1;
                    }
                });
            });
        });
        Ok(())
    }
}

/// `y[t] = ln Σ e^x[..=t]`. Writes y and, for each place beside the axis, the largest x so far and
/// `Σ e^(x - largest)`. A running logarithm instead would round once for each element, at its own
/// magnitude.
pub(super) struct LogCumSumExp {
    pub(super) extent: Extent,
    pub(super) dtype: DType,
}

impl FullKernel for LogCumSumExp {
    fn name(&self) -> &'static str {
        "logcumsumexp"
    }

    fn cost(&self) -> Cost {
        let len = self.extent.element_count();
        let bytes = (2 * len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Reduction, flops: 40.0 * len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let Extent { along, after, .. } = self.extent;
        let states = operands.write::<f64>(1).slice();
        for_each_float!(self.dtype, T => {
            let x = operands.read::<T>(0);
            let nest = Nest::new(x.layout().shape(), [x.layout().strides()]);
            let [step] = nest.inner_strides();
            let y = Chunked::new(operands.write::<T>(0).slice(), along * after);
            for_each_chunk2(cpu.pool(), y, Chunked::new(states, 2 * after), |block, y, states| {
                let (largest, sums) = states.split_at_mut(after);
                largest.fill(f64::NEG_INFINITY);
                sums.fill(0.0);
                let from = block * along * after;
                let mut at = 0_usize;
                nest.rows(from, from + y.len(), |row| {
                    for i in 0..row.len {
                        let (high, sum) = (&mut largest[at % after], &mut sums[at % after]);
                        let new = x.data()[row.starts[0] + i * step].to_f64();
                        if new > *high {
                            *sum *= (*high - new).exp();
                            *high = new;
                        }
                        // `new` and `high` may be the same infinity.
                        *sum += if new == *high { 1.0 } else { (new - *high).exp() };
                        y[at] = T::from_f64(*high + sum.ln());
                        at += 1;
                    }
                });
            });
        });
        Ok(())
    }
}

/// The gradient of a [`LogCumSumExp`], from contiguous dy, x and y. Writes dx and, for each place
/// beside the axis, the sum carried backwards and the y at its position.
pub(super) struct Backward {
    pub(super) extent: Extent,
    pub(super) dtype: DType,
}

impl FullKernel for Backward {
    fn name(&self) -> &'static str {
        "logcumsumexp_backward"
    }

    fn cost(&self) -> Cost {
        let len = self.extent.element_count();
        let bytes = (4 * len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Reduction, flops: 40.0 * len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let Extent { along, after, .. } = self.extent;
        let states = operands.write::<f64>(1).slice();
        for_each_float!(self.dtype, T => {
            let [dy, x, y] = [0, 1, 2].map(|index| operands.read::<T>(index).slice());
            let dx = Chunked::new(operands.write::<T>(0).slice(), along * after);
            for_each_chunk2(cpu.pool(), dx, Chunked::new(states, 2 * after), |block, dx, states| {
                let from = block * along * after;
                let (sums, nexts) = states.split_at_mut(after);
                sums.fill(0.0);
                nexts.fill(f64::NEG_INFINITY);
                for t in (0..along).rev() {
                    for b in 0..after {
                        let at = t * after + b;
                        let [dy, x, y] = [dy, x, y].map(|of| of[from + at].to_f64());
                        // y never decreases, so both shares are at most 1.
                        (sums[b], nexts[b]) = (dy + sums[b] * share(y, nexts[b]), y);
                        dx[at] = T::from_f64(sums[b] * share(x, y));
                    }
                }
            });
        });
        Ok(())
    }
}

/// The quotient `e^part / e^whole`; 0 if `e^whole` is 0.
fn share(part: f64, whole: f64) -> f64 {
    if whole == f64::NEG_INFINITY { 0.0 } else { (part - whole).exp() }
}

impl Tensor {
    /// The extent of a scan by rows, which has one part.
    fn rows_along(&self, axis: usize) -> Extent {
        Extent::new(self.shape(), axis, super::cpu::Running::Product)
    }

    #[track_caller]
    fn running(&self, name: &'static str, axis: usize, end: End) -> Result<(Tensor, Tensor)> {
        let (device, extent) = (self.device(), self.rows_along(axis));
        let y = Tensor::empty(device, *self.shape(), self.dtype())?;
        let positions = Tensor::empty(device, *self.shape(), DType::I64)?;
        let kernel = Extremes { name, end, extent, dtype: self.dtype() };
        device.launch(kernel, &[self], &[&y, &positions])?;
        Ok((y, positions))
    }

    /// Running maxima along `axis`, and their positions as i64. The last of equal elements wins.
    /// From the first NaN on, results are NaN. Any element type.
    ///
    /// # Errors
    /// `Index`, `OutOfMemory`.
    #[track_caller]
    pub fn cummax(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("cummax", self.shape(), axis)?;
        self.running("cummax", axis, End::Largest)
    }

    /// Running minima along `axis`; otherwise as [`Tensor::cummax`].
    #[track_caller]
    pub fn cummin(&self, axis: impl Into<Axis>) -> Result<(Tensor, Tensor)> {
        let axis = check_axis("cummin", self.shape(), axis)?;
        self.running("cummin", axis, End::Smallest)
    }

    fn check_float(&self, op: &'static str) -> Result<()> {
        if self.dtype().is_float() {
            return Ok(());
        }
        Err(TensorError::DType { op, left: self.dtype(), right: DType::F32 })
    }

    /// `ln Σ e^x` over the elements up to and including each element along `axis`, summed in f64 so
    /// that nothing overflows. Floats only.
    ///
    /// # Errors
    /// `Index`, `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn logcumsumexp(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let op = "logcumsumexp";
        let axis = check_axis(op, self.shape(), axis)?;
        self.check_float(op)?;
        let (device, extent) = (self.device(), self.rows_along(axis));
        let y = Tensor::empty(device, *self.shape(), self.dtype())?;
        let states = Workspace::new(DType::F64, [2 * extent.sum_count(device.kind())]);
        let kernel = LogCumSumExp { extent, dtype: self.dtype() };
        device.launch_with(&states, kernel, &[self], &[&y])?;
        Ok(y)
    }

    /// The gradient through [`Tensor::logcumsumexp`] along `axis` for `dy = self`:
    /// `dx[i] = Σ dy[t] · e^(x[i] - y[t])` over `t ≥ i`.
    ///
    /// # Errors
    /// `Index`, `Shape` unless all three shapes are the same, `DType`, `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn logcumsumexp_backward(
        &self,
        x: &Tensor,
        y: &Tensor,
        axis: impl Into<Axis>,
    ) -> Result<Tensor> {
        let op = "logcumsumexp_backward";
        let axis = check_axis(op, self.shape(), axis)?;
        self.check_float(op)?;
        for other in [x, y] {
            self.check_dtype(op, other)?;
            other.check_shape(op, *self.shape())?;
        }
        let (device, extent) = (self.device(), self.rows_along(axis));
        let (dy, x, y) = (self.contiguous()?, x.contiguous()?, y.contiguous()?);
        let dx = Tensor::empty(device, *self.shape(), self.dtype())?;
        let states = Workspace::new(DType::F64, [2 * extent.sum_count(device.kind())]);
        let kernel = Backward { extent, dtype: self.dtype() };
        device.launch_with(&states, kernel, &[&dy, &x, &y], &[&dx])?;
        Ok(dx)
    }
}
