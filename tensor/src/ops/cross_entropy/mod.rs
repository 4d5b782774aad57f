//! Cross-entropy of logits with class labels, as a sum and a count: `Σ_n (1 - ε) · w[l] · (lse[n] -
//! x[n, l]) + ε / C · Σ_c w[c] · (lse[n] - x[n, c])`, with l the label of position n, `lse[n] = log
//! Σ_c exp(x[n, c])`, weights w of the classes and label smoothing ε; the count is `Σ_n w[l]`.
//! Smoothing follows Szegedy et al., "Rethinking the Inception architecture for computer vision"
//! (2016), weighted as in PyTorch.
//!
//! x: [N, C, ..], labels: [N, ..] of i64.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod launches;
mod nll;
mod soft;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::lines::Blocks;
use crate::dtype::{DType, Element, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::ops::workspace::Workspace;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;
use launches::Inputs;

/// The results of [`Tensor::cross_entropy`].
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    /// The sum of the losses of the positions that count, without dimensions, in f32 or f64.
    pub sum: Tensor,
    /// The number of positions that count, or the sum of their labels' weights, without dimensions,
    /// in the type of the sum.
    pub count: Tensor,
    /// `log Σ_c exp(x[n, c])` of each position, in the type of the sum. Backward needs nothing else
    /// but the logits.
    pub log_sum_exp: Tensor,
}

/// The interpretation of labels. The default counts every label once and ignores -100, as PyTorch
/// does.
#[derive(Clone, Copy, Debug)]
pub struct Labelling<'a> {
    /// The label of positions that do not count.
    pub ignore_index: i64,
    /// The fraction of each label that is spread evenly over all classes, from 0 to 1.
    pub smoothing: f64,
    /// A weight for each class, of the logits' type.
    pub weight: Option<&'a Tensor>,
}

impl Default for Labelling<'_> {
    fn default() -> Self {
        Labelling { ignore_index: -100, smoothing: 0.0, weight: None }
    }
}

/// The positions of a loss with labels. Kernels read the labels first and the weight last.
#[derive(Clone, Copy)]
struct Positions {
    name: &'static str,
    dtype: DType,
    blocks: Blocks,
    ignore_index: i64,
    smoothing: f64,
    has_weight: bool,
}

impl Positions {
    fn of(
        name: &'static str,
        x: &Tensor,
        labels: &Tensor,
        labelling: &Labelling<'_>,
    ) -> Result<Self> {
        Self::of_shape(name, *x.shape(), x.dtype(), labels, labelling)
    }

    /// The positions of logits with shape `left` and type `dtype`; see [`Positions::of`].
    fn of_shape(
        name: &'static str,
        left: Shape,
        dtype: DType,
        labels: &Tensor,
        labelling: &Labelling<'_>,
    ) -> Result<Self> {
        if !dtype.is_float() {
            return Err(TensorError::DType { op: name, left: dtype, right: DType::F32 });
        }
        let right = *labels.shape();
        if labels.dtype() != DType::I64 {
            return Err(TensorError::DType { op: name, left: labels.dtype(), right: DType::I64 });
        }
        if left.len() < 2 || left.without(1) != right || left[1] == 0 {
            return Err(TensorError::Shape { op: name, left, right });
        }
        if let Some(weight) = labelling.weight {
            if weight.dtype() != dtype {
                return Err(TensorError::DType { op: name, left: dtype, right: weight.dtype() });
            }
            weight.check_shape(name, [left[1]])?;
        }
        let Labelling { ignore_index, smoothing, weight } = *labelling;
        let (blocks, has_weight) = (Blocks::of(&left, 1), weight.is_some());
        Ok(Positions { name, dtype, blocks, ignore_index, smoothing, has_weight })
    }

    fn cost_of(&self, passes: usize) -> Cost {
        let len = self.blocks.element_count();
        let bytes = (passes * len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Reduction, flops: 25.0 * len as f64, bytes }
    }

    fn targets<'a, E: Element>(&self, operands: &Operands<'a>) -> cpu::Targets<'a, E> {
        let last = operands.read_count() - 1;
        cpu::Targets {
            blocks: self.blocks,
            labels: operands.read::<i64>(0).slice(),
            ignore_index: self.ignore_index,
            smoothing: self.smoothing,
            weight: self.has_weight.then(|| operands.read::<E>(last).slice()),
        }
    }

    /// The error of a label that is no class.
    fn bad_label(&self, position: usize, labels: &[i64]) -> TensorError {
        let (op, label, class_count) = (self.name, labels[position], self.blocks.len);
        TensorError::Label { op, position, label, class_count }
    }

    fn workspace(&self, kind: DeviceKind) -> Workspace {
        match kind {
            DeviceKind::Cpu => {
                Workspace::new(DType::F64, [cpu::forward_workspace_len(self.blocks)])
            }
            // The loss and the weight of each position.
            DeviceKind::Cuda => {
                let len = self.blocks.outer * self.blocks.inner;
                Workspace::new(self.dtype.computed(), [len; 2])
            }
        }
    }
}

/// Reads labels, x and perhaps the weight.
struct Forward(Positions);

impl FullKernel for Forward {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn cost(&self) -> Cost {
        self.0.cost_of(1)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.0.dtype, E as T => {
            let targets = self.0.targets::<E>(operands);
            let x = operands.read::<E>(1).slice();
            let [sum, count, lse] = [0, 1, 2].map(|index| operands.write::<T>(index).slice());
            let workspace = operands.write::<f64>(3).slice();
            let found = cpu::forward(cpu.pool(), &targets, x, lse, workspace)
                .map_err(|position| self.0.bad_label(position, targets.labels))?;
            [sum[0], count[0]] = found.map(T::from_f64);
        });
        Ok(())
    }
}

/// Reads labels, lse, dy, x if dx does not hold it, and perhaps the weight.
struct Backward(Positions);

impl FullKernel for Backward {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn cost(&self) -> Cost {
        self.0.cost_of(2)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let has_x = operands.read_count() - usize::from(self.0.has_weight) == 4;
        for_each_float!(self.0.dtype, E as T => {
            let targets = self.0.targets::<E>(operands);
            targets.check().map_err(|position| self.0.bad_label(position, targets.labels))?;
            let [lse, dy] = [1, 2].map(|index| operands.read::<T>(index).slice());
            let x = has_x.then(|| operands.read::<E>(3).slice());
            let dx = operands.write::<E>(0).slice();
            cpu::backward(cpu.pool(), &targets, x, lse, dy[0], dx);
        });
        Ok(())
    }
}

impl Tensor {
    /// The cross-entropy of `self = x` with `labels`, summed over the positions whose label is not
    /// `ignore_index`. Any float type; the half types are computed in f32.
    ///
    /// # Shapes
    /// `x: [N, C, ..], labels: [N, ..] → [], [], [N, ..]`
    ///
    /// # Errors
    /// `Label` for a label that is neither a class nor `ignore_index`, `Shape`, `DType`,
    /// `OutOfMemory`.
    ///
    /// # Streams
    /// Does not wait for an NVIDIA device, which reads the labels while it computes. A bad label
    /// makes the loss NaN. The next read of any value of the device reports the first bad label,
    /// once.
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Tensor, ignore_index: i64) -> Result<CrossEntropy> {
        self.cross_entropy_with(labels, &Labelling { ignore_index, ..Default::default() })
    }

    /// [`Tensor::cross_entropy`] with label smoothing and weights of the classes, of shape `[C]`.
    ///
    /// # Errors
    /// The errors of [`Tensor::cross_entropy`].
    #[track_caller]
    pub fn cross_entropy_with(
        &self,
        labels: &Tensor,
        labelling: &Labelling<'_>,
    ) -> Result<CrossEntropy> {
        let kernel = Positions::of("cross_entropy", self, labels, labelling)?;
        let workspace = kernel.workspace(self.device().kind());
        let inputs = Inputs { x: self, target: labels, weight: labelling.weight };
        inputs.forward(Forward(kernel), &workspace)
    }

    /// The gradient of the logits through [`Tensor::cross_entropy`], for `self = dy`, the gradient
    /// of the sum: `dy · (exp(x[n, c] - log_sum_exp[n]) - [c = label n])`, and 0 in rows that do
    /// not count.
    ///
    /// # Errors
    /// As [`Tensor::cross_entropy`].
    ///
    /// # Streams
    /// Does not wait for an NVIDIA device. Rows are NaN if their label is neither a class nor
    /// `ignore_index`; forward refuses such labels.
    #[track_caller]
    pub fn cross_entropy_backward(
        &self,
        x: &Tensor,
        labels: &Tensor,
        log_sum_exp: &Tensor,
        ignore_index: i64,
    ) -> Result<Tensor> {
        let labelling = Labelling { ignore_index, ..Default::default() };
        self.cross_entropy_with_backward(x, labels, log_sum_exp, &labelling)
    }

    /// The gradient of the logits through [`Tensor::cross_entropy_with`], for `self = dy`, the
    /// gradient of the sum.
    ///
    /// # Errors
    /// As [`Tensor::cross_entropy`].
    #[track_caller]
    pub fn cross_entropy_with_backward(
        &self,
        x: &Tensor,
        labels: &Tensor,
        log_sum_exp: &Tensor,
        labelling: &Labelling<'_>,
    ) -> Result<Tensor> {
        let kernel = Positions::of("cross_entropy_backward", x, labels, labelling)?;
        let inputs = Inputs { x, target: labels, weight: labelling.weight };
        inputs.backward(Backward(kernel), log_sum_exp, self)
    }

    /// [`Tensor::cross_entropy_with_backward`] written over the logits, for `self = x`. Use this
    /// method if nothing else needs the logits, to save a second tensor of their size. All operands
    /// must be contiguous, because nothing may be allocated.
    ///
    /// # Errors
    /// The errors of [`Tensor::cross_entropy`], `Strided`, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn cross_entropy_backward_(
        &mut self,
        labels: &Tensor,
        log_sum_exp: &Tensor,
        dy: &Tensor,
        labelling: &Labelling<'_>,
    ) -> Result<()> {
        let kernel = Positions::of("cross_entropy_backward", self, labels, labelling)?;
        self.overwrite_logits(Backward(kernel), labels, log_sum_exp, dy, labelling.weight)
    }
}
