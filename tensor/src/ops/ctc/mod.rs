//! Connectionist temporal classification: the negative logarithm of the probability that a sequence
//! of distributions spells a target. The probability is summed over all alignments; an alignment
//! spells its labels after repetitions are merged and then blanks removed (Graves, Fernández, Gomez
//! and Schmidhuber, 2006).
//!
//! x: [T, N, C] logarithms of probabilities, targets: [N, S] of i64, lengths: [N] of i64. Sums are
//! computed as logarithms, in f64. Each of the N samples is a task.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::chunk::{Chunked, for_each_chunk2};
use crate::dtype::{DType, Element, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::ops::workspace::Workspace;
use crate::tensor::Tensor;
use cpu::Batch;

/// The index of x among the operands of both kernels: targets, lengths of x, lengths of the
/// targets, x.
const X: usize = 3;

/// The sizes of the operands, which match.
#[derive(Clone, Copy)]
struct Sizes {
    op: &'static str,
    steps: usize,
    samples: usize,
    classes: usize,
    target_len_max: usize,
    blank: usize,
    dtype: DType,
}

impl Sizes {
    /// States of an alignment: the labels, with a blank before and after each.
    fn states(&self) -> usize {
        2 * self.target_len_max + 1
    }

    fn cost(&self, flops: f64, passes: usize) -> Cost {
        let x_len = self.steps * self.samples * self.classes;
        let states = self.steps * self.samples * self.states();
        let bytes = (passes * x_len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Reduction, flops: flops * states as f64, bytes }
    }

    fn batch<'a, E: Element>(&self, operands: &Operands<'a>) -> Result<Batch<'a, E>> {
        let batch = Batch {
            sizes: *self,
            targets: operands.read::<i64>(0).slice(),
            steps: operands.read::<i64>(1).slice(),
            lens: operands.read::<i64>(2).slice(),
            x: operands.read::<E>(X),
        };
        batch.check()?;
        Ok(batch)
    }
}

/// Writes a loss for each sample; two rows of states are its scratch.
struct Forward(Sizes);

impl FullKernel for Forward {
    fn name(&self) -> &'static str {
        self.0.op
    }

    fn cost(&self) -> Cost {
        self.0.cost(40.0, 1)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let row = self.0.states();
        for_each_float!(self.0.dtype, E as T => {
            let batch = self.0.batch::<E>(operands)?;
            let losses = Chunked::new(operands.write::<T>(0).slice(), 1);
            let alphas = Chunked::new(operands.write::<f64>(1).slice(), 2 * row);
            for_each_chunk2(cpu.pool(), losses, alphas, |sample, loss, alphas| {
                loss[0] = T::from_f64(-batch.log_likelihood(sample, 2, alphas));
            });
        });
        Ok(())
    }
}

/// Reads dy, too; writes dx as `[N, T, C]`. The scratch memory holds one row of states for each
/// step, and two more.
struct Backward(Sizes);

impl FullKernel for Backward {
    fn name(&self) -> &'static str {
        self.0.op
    }

    fn cost(&self) -> Cost {
        self.0.cost(100.0, 2)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let Sizes { steps, samples, classes, .. } = self.0;
        if steps * samples * classes == 0 {
            return Ok(());
        }
        let row = self.0.states();
        for_each_float!(self.0.dtype, E as T => {
            let batch = self.0.batch::<E>(operands)?;
            let dy = operands.read::<T>(X + 1).slice();
            let dx = Chunked::new(operands.write::<E>(0).slice(), steps * classes);
            let scratch = Chunked::new(operands.write::<f64>(1).slice(), (steps + 2) * row);
            for_each_chunk2(cpu.pool(), dx, scratch, |sample, dx, scratch| {
                batch.gradient(sample, dy[sample].to_f64(), scratch, dx);
            });
        });
        Ok(())
    }
}

fn sizes(
    op: &'static str,
    x: &Tensor,
    targets: &Tensor,
    lengths: [&Tensor; 2],
    blank: usize,
) -> Result<Sizes> {
    x.check_any_float(op)?;
    let left = *x.shape();
    let [steps, samples, classes] = left[..] else {
        return Err(TensorError::Shape { op, left, right: *targets.shape() });
    };
    for integers in [targets, lengths[0], lengths[1]] {
        if integers.dtype() != DType::I64 {
            return Err(TensorError::DType { op, left: integers.dtype(), right: DType::I64 });
        }
    }
    let target_len_max = match targets.shape()[..] {
        [rows, len] if rows == samples => len,
        _ => return Err(TensorError::Shape { op, left, right: *targets.shape() }),
    };
    lengths[0].check_shape(op, [samples])?;
    lengths[1].check_shape(op, [samples])?;
    if blank >= classes {
        return Err(TensorError::index(op, blank, classes));
    }
    let dtype = x.dtype();
    Ok(Sizes { op, steps, samples, classes, target_len_max, blank, dtype })
}

impl Tensor {
    /// The negative logarithm of the probability of each target under `self = x`, which holds
    /// logarithms of probabilities. The loss is in f32 or f64, and infinite if the target needs
    /// more steps than there are. `lengths` are the numbers of valid steps and labels of each
    /// sample.
    ///
    /// # Shapes
    /// `x: [T, N, C], targets: [N, S], lengths: [N] and [N] → [N]`. x may have any strides and is
    /// not copied.
    ///
    /// # Errors
    /// `Shape`, `DType` unless targets and lengths are i64, `Label` for a label that is no class,
    /// `Index` for a length beyond T or S or a blank that is no class, `OutOfMemory`.
    #[track_caller]
    pub fn ctc_loss(
        &self,
        targets: &Tensor,
        lengths: [&Tensor; 2],
        blank: usize,
    ) -> Result<Tensor> {
        let sizes = sizes("ctc_loss", self, targets, lengths, blank)?;
        let [targets, steps, lens] = [targets, lengths[0], lengths[1]].map(Tensor::contiguous);
        let loss = Tensor::empty(self.device(), [sizes.samples], self.dtype().computed())?;
        let workspace = Workspace::new(DType::F64, [2 * sizes.samples * sizes.states()]);
        let reads = [&targets?, &steps?, &lens?, self];
        self.device().launch_with(&workspace, Forward(sizes), &reads, &[&loss])?;
        Ok(loss)
    }

    /// The gradient of x through [`Tensor::ctc_loss`], for `self = dy`: `-dy` times the probability
    /// that the alignment is at class c at step t. The gradient is 0 where dy is 0, and NaN where
    /// the loss is infinite and dy is not 0. If x is a `log_softmax` of logits, the gradient of the
    /// logits is PyTorch's.
    ///
    /// # Shapes
    /// `dy: [N] → [T, N, C]`, a view of `[N, T, C]`
    ///
    /// # Errors
    /// The errors of [`Tensor::ctc_loss`].
    #[track_caller]
    pub fn ctc_loss_backward(
        &self,
        x: &Tensor,
        targets: &Tensor,
        lengths: [&Tensor; 2],
        blank: usize,
    ) -> Result<Tensor> {
        let op = "ctc_loss_backward";
        let sizes = sizes(op, x, targets, lengths, blank)?;
        self.check_shape(op, [sizes.samples])?;
        let (left, right) = (self.dtype(), x.dtype().computed());
        if left != right {
            return Err(TensorError::DType { op, left, right });
        }
        let [targets, steps, lens] = [targets, lengths[0], lengths[1]].map(Tensor::contiguous);
        let dy = self.contiguous()?;
        let shape = Shape::new(&[sizes.samples, sizes.steps, sizes.classes]);
        let dx = Tensor::empty(x.device(), shape, x.dtype())?;
        let rows = (sizes.steps + 2) * sizes.samples;
        let workspace = Workspace::new(DType::F64, [rows * sizes.states()]);
        let reads = [&targets?, &steps?, &lens?, x, &dy];
        x.device().launch_with(&workspace, Backward(sizes), &reads, &[&dx])?;
        dx.transpose(0, 1)
    }
}
