//! Cross-entropy of logits with class labels: `Σ_n log Σ_c exp(x[n, c]) - x[n, label n]`.
//!
//! x: [N, C], labels: [N] of i64.

mod cpu;

use crate::cpu::Cpu;
use crate::dtype::for_float;
use crate::{Cost, DType, Kernel, Operands, Result, Tensor, TensorError};

/// What [`Tensor::cross_entropy`] computes.
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    /// The sum of the losses of the rows that count, without dimensions.
    pub sum: Tensor,
    /// How many rows count, without dimensions, in the logits' type.
    pub count: Tensor,
    /// `log Σ_c exp(x[n, c])`, of N rows: all that backward needs beside the logits.
    pub log_sum_exp: Tensor,
}

/// What both kernels know.
#[derive(Clone, Copy)]
struct Rows {
    dtype: DType,
    rows: usize,
    classes: usize,
    ignore_index: i64,
}

impl Rows {
    fn of(op: &'static str, x: &Tensor, labels: &Tensor, ignore_index: i64) -> Result<Self> {
        x.check_float(op)?;
        let (left, right) = (*x.shape(), *labels.shape());
        if labels.dtype() != DType::I64 {
            return Err(TensorError::DType { op, left: labels.dtype(), right: DType::I64 });
        }
        match (&*left, &*right) {
            (&[rows, classes], &[labels]) if rows == labels && classes > 0 => {
                Ok(Rows { dtype: x.dtype(), rows, classes, ignore_index })
            }
            _ => Err(TensorError::Shape { op, left, right }),
        }
    }

    fn cost(&self, passes: usize) -> Cost {
        let len = self.rows * self.classes;
        let bytes = (passes * len * self.dtype.size_bytes()) as f64;
        Cost { flops: 4.0 * len as f64, bytes }
    }
}

struct Forward(Rows);

impl Kernel for Forward {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn cost(&self) -> Cost {
        self.0.cost(1)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let op = self.name();
        let Rows { dtype, classes, ignore_index, .. } = self.0;
        let labels = operands.read::<i64>(1).slice();
        let outcome = for_float!(dtype, T => {
            let x = operands.read::<T>(0).slice();
            let [sum, count, lse, scratch] =
                [0, 1, 2, 3].map(|index| operands.write::<T>(index).slice());
            cpu::forward(cpu.pool(), classes, x, labels, ignore_index, lse, sum, count, scratch)
        }, else unreachable!("checked to be a float"));
        outcome.map_err(|row| TensorError::Index { op, index: labels[row] as usize, len: classes })
    }
}

struct Backward(Rows);

impl Kernel for Backward {
    fn name(&self) -> &'static str {
        "cross_entropy_backward"
    }

    fn cost(&self) -> Cost {
        self.0.cost(2)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let op = self.name();
        let Rows { dtype, classes, ignore_index, .. } = self.0;
        let labels = operands.read::<i64>(1).slice();
        let is_bad = |&&label: &&i64| {
            label != ignore_index && !usize::try_from(label).is_ok_and(|label| label < classes)
        };
        if let Some(&label) = labels.iter().find(is_bad) {
            return Err(TensorError::Index { op, index: label as usize, len: classes });
        }
        for_float!(dtype, T => {
            let [x, lse, dy] = [0, 2, 3].map(|index| operands.read::<T>(index).slice());
            let dx = operands.write::<T>(0).slice();
            cpu::backward(cpu.pool(), classes, x, labels, ignore_index, lse, dy[0], dx);
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

impl Tensor {
    /// The cross-entropy of `self = x` with `labels`, summed over the rows whose label is not
    /// `ignore_index`.
    ///
    /// # Shapes
    /// `x: [N, C], labels: [N] → [], [], [N]`
    ///
    /// # Errors
    /// `Index` for a label that is neither a class nor `ignore_index`, `Shape`, `DType`,
    /// `OutOfMemory`.
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Tensor, ignore_index: i64) -> Result<CrossEntropy> {
        let kernel = Rows::of("cross_entropy", self, labels, ignore_index)?;
        let (device, dtype) = (self.device(), self.dtype());
        let (x, labels) = (self.contiguous()?, labels.contiguous()?);
        let sum = Tensor::empty(device, [], dtype)?;
        let count = Tensor::empty(device, [], dtype)?;
        let log_sum_exp = Tensor::empty(device, [kernel.rows], dtype)?;
        let scratch_len = cpu::forward_workspace_len(kernel.rows, kernel.classes);
        let scratch = Tensor::workspace(device, scratch_len, dtype)?;
        let writes = [&sum, &count, &log_sum_exp, &scratch];
        device.launch(Forward(kernel), &[&x, &labels], &writes)?;
        Ok(CrossEntropy { sum, count, log_sum_exp })
    }

    /// The gradient of the logits through [`Tensor::cross_entropy`]:
    /// `dy · (exp(x[n, c] - log_sum_exp[n]) - [c = label n])`, 0 in rows that do not count, for
    /// `self = dy`, the gradient of the sum.
    ///
    /// # Errors
    /// As [`Tensor::cross_entropy`].
    #[track_caller]
    pub fn cross_entropy_backward(
        &self,
        x: &Tensor,
        labels: &Tensor,
        log_sum_exp: &Tensor,
        ignore_index: i64,
    ) -> Result<Tensor> {
        let op = "cross_entropy_backward";
        let kernel = Rows::of(op, x, labels, ignore_index)?;
        self.check_dtype(op, x)?;
        self.check_shape(op, [])?;
        log_sum_exp.check_shape(op, [kernel.rows])?;
        self.check_dtype(op, log_sum_exp)?;
        let (x, labels) = (x.contiguous()?, labels.contiguous()?);
        let log_sum_exp = log_sum_exp.contiguous()?;
        let dx = Tensor::empty(self.device(), *x.shape(), x.dtype())?;
        self.device().launch(Backward(kernel), &[&x, &labels, &log_sum_exp, self], &[&dx])?;
        Ok(dx)
    }
}
