//! Reductions: many elements to one, in an order that depends on the shape alone.

mod cpu;

use crate::cpu::Cpu;
use crate::dtype::for_float;
use crate::layout::{Layout, check_axis};
use crate::{Cost, DType, Kernel, Operands, Result, Shape, Tensor, TensorError};

/// Sums over the trailing dimensions of `x`, viewed as `[kept.., reduced..]`.
struct Sum {
    kept_rank: usize,
    dtype: DType,
    len: usize,
}

impl Kernel for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn cost(&self) -> Cost {
        Cost { flops: self.len as f64, bytes: (self.len * self.dtype.size_bytes()) as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_float!(self.dtype, T => {
            let (y, partials) = (operands.write::<T>(0).slice(), operands.write::<f64>(1).slice());
            cpu::sum(cpu, operands.read::<T>(0), self.kept_rank, y, partials);
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

/// The position of the largest element of each row.
struct ArgMax {
    dtype: DType,
    len: usize,
}

impl Kernel for ArgMax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn cost(&self) -> Cost {
        Cost { flops: self.len as f64, bytes: (self.len * self.dtype.size_bytes()) as f64 }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_float!(self.dtype, T => {
            let x = operands.read::<T>(0);
            let row_len = *x.layout().shape().last().expect("at least one dimension");
            cpu::argmax(x.slice(), row_len, operands.write::<i64>(0).slice());
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

impl Tensor {
    /// The sums over `axes`, which the result no longer has. Accumulated in f64.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist, `DType` unless float, `OutOfMemory`.
    #[track_caller]
    pub fn sum(&self, axes: &[usize]) -> Result<Tensor> {
        let op = "sum";
        self.check_float(op)?;
        axes.iter().try_for_each(|&axis| check_axis(op, self.shape(), axis).map(drop))?;
        let rank = self.shape().len();
        let kept: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
        let reduced: Vec<usize> = (0..rank).filter(|axis| axes.contains(axis)).collect();
        let x = self.permute(&[&kept[..], &reduced].concat())?;
        let y_shape = Shape::new(&x.shape()[..kept.len()]);
        let y = Tensor::empty(self.device(), y_shape, self.dtype())?;
        let partial_count = cpu::partial_count(x.shape(), kept.len());
        let partials = Tensor::workspace(self.device(), partial_count, DType::F64)?;
        let kernel = Sum { kept_rank: kept.len(), dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[&x], &[&y, &partials])?;
        Ok(y)
    }

    /// The sum of all elements, without dimensions; errors as [`Tensor::sum`].
    #[track_caller]
    pub fn sum_all(&self) -> Result<Tensor> {
        self.sum(&(0..self.shape().len()).collect::<Vec<_>>())
    }

    /// The mean over `axes`; errors as [`Tensor::sum`].
    #[track_caller]
    pub fn mean(&self, axes: &[usize]) -> Result<Tensor> {
        self.check_float("mean")?;
        let mut sum = self.sum(axes)?;
        let count = self.element_count() as f64 / sum.element_count().max(1) as f64;
        sum.mul_scalar_(1.0 / count)?;
        Ok(sum)
    }

    /// Undoes a broadcast from `shape`: sums over the dimensions that it stretched. Returns this
    /// tensor itself when nothing was stretched.
    ///
    /// # Errors
    /// `Shape` when `shape` does not broadcast to this one, and those of [`Tensor::sum`].
    #[track_caller]
    pub fn sum_to(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let (from, to) = (*self.shape(), shape.into());
        if from == to {
            return Ok(self.clone());
        }
        if Layout::contiguous(to).expand(from).is_none() {
            return Err(TensorError::Shape { op: "sum_to", left: from, right: to });
        }
        let added = from.len() - to.len();
        let stretched = |&axis: &usize| axis < added || (to[axis - added] == 1 && from[axis] != 1);
        let axes: Vec<usize> = (0..from.len()).filter(stretched).collect();
        self.sum(&axes)?.reshape(to)
    }

    /// The position of the largest element along the last dimension, as i64; the first one of
    /// equals. NaN counts as largest.
    ///
    /// # Errors
    /// `Index` without dimensions or with an empty last one, `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn argmax(&self) -> Result<Tensor> {
        let op = "argmax";
        self.check_float(op)?;
        let rank = self.shape().len();
        let last = check_axis(op, self.shape(), rank.wrapping_sub(1))?;
        if self.shape()[last] == 0 {
            return Err(TensorError::Index { op, index: 0, len: 0 });
        }
        let x = self.contiguous()?;
        let y = Tensor::empty(self.device(), self.shape().without(last), DType::I64)?;
        let kernel = ArgMax { dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[&x], &[&y])?;
        Ok(y)
    }
}
