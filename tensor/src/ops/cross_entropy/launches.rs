//! Launches of the losses of logits, for labels and for probabilities.

use super::CrossEntropy;
use crate::error::{Result, TensorError};
use crate::launch::Kernel;
use crate::ops::workspace::Workspace;
use crate::tensor::Tensor;

/// The operands of a loss of logits.
pub(super) struct Inputs<'a> {
    /// The logits, `[N, C, ..]`.
    pub(super) x: &'a Tensor,
    /// Labels or probabilities.
    pub(super) target: &'a Tensor,
    /// A weight for each class.
    pub(super) weight: Option<&'a Tensor>,
}

impl Inputs<'_> {
    /// Runs a kernel that reads target, x and perhaps the weight, and writes a [`CrossEntropy`] and
    /// the workspace.
    #[track_caller]
    pub(super) fn forward(
        &self,
        kernel: impl Kernel,
        workspace: &Workspace,
    ) -> Result<CrossEntropy> {
        let (device, dtype) = (self.x.device(), self.x.dtype().computed());
        let (x, target) = (self.x.contiguous()?, self.target.contiguous()?);
        let weight = self.weight.map(Tensor::contiguous).transpose()?;
        let sum = Tensor::empty(device, [], dtype)?;
        let count = Tensor::empty(device, [], dtype)?;
        let log_sum_exp = Tensor::empty(device, x.shape().without(1), dtype)?;
        let reads: Vec<&Tensor> = [&target, &x].into_iter().chain(&weight).collect();
        device.launch_with(workspace, kernel, &reads, &[&sum, &count, &log_sum_exp])?;
        Ok(CrossEntropy { sum, count, log_sum_exp })
    }

    /// Runs a kernel that reads target, log-sum-exp, dy, x and perhaps the weight, and writes dx.
    #[track_caller]
    pub(super) fn backward(
        &self,
        kernel: impl Kernel,
        log_sum_exp: &Tensor,
        dy: &Tensor,
    ) -> Result<Tensor> {
        dy.check_gradient_of(kernel.name(), log_sum_exp, self.x)?;
        let (x, target) = (self.x.contiguous()?, self.target.contiguous()?);
        let log_sum_exp = log_sum_exp.contiguous()?;
        let weight = self.weight.map(Tensor::contiguous).transpose()?;
        let dx = Tensor::empty(dy.device(), *x.shape(), x.dtype())?;
        let reads: Vec<&Tensor> =
            [&target, &log_sum_exp, dy, &x].into_iter().chain(&weight).collect();
        dy.device().launch(kernel, &reads, &[&dx])?;
        Ok(dx)
    }
}

impl Tensor {
    /// [`Inputs::backward`] over the logits, for `self = x`: the kernel does not read x.
    ///
    /// # Errors
    /// `Strided` unless all operands are contiguous, because nothing may be allocated.
    #[track_caller]
    pub(super) fn overwrite_logits(
        &mut self,
        kernel: impl Kernel,
        target: &Tensor,
        log_sum_exp: &Tensor,
        dy: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<()> {
        let op = kernel.name();
        dy.check_gradient_of(op, log_sum_exp, self)?;
        let reads: Vec<&Tensor> = [target, log_sum_exp, dy].into_iter().chain(weight).collect();
        if reads.iter().chain(&[&*self]).any(|tensor| !tensor.layout().is_contiguous()) {
            return Err(TensorError::Strided { op });
        }
        self.device().launch(kernel, &reads, &[self])
    }

    /// Checks that `self` is a gradient of the sum, and that `log_sum_exp` fits the result of
    /// forward for x.
    fn check_gradient_of(&self, op: &'static str, log_sum_exp: &Tensor, x: &Tensor) -> Result<()> {
        let right = x.dtype().computed();
        self.check_shape(op, [])?;
        log_sum_exp.check_shape(op, x.shape().without(1))?;
        for tensor in [self, log_sum_exp] {
            if tensor.dtype() != right {
                return Err(TensorError::DType { op, left: tensor.dtype(), right });
            }
        }
        Ok(())
    }
}
