//! The negative log-likelihood of labels under log-probabilities: `Σ_n -w[l] · x[n, l]`, where l is
//! the label of position n, and the count `Σ_n w[l]`.
//!
//! x: [N, C, ..], labels: [N, ..] of i64.

use super::cpu::Targets;
use super::{Labelling, Positions};
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::lines::each_strided_row;
use crate::cpu::math::SimdFloat;
use crate::dtype::{DType, Element, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::operand_view::View;
use crate::tensor::Tensor;

/// Reads labels, x and perhaps the weight.
pub(super) struct Forward(pub(super) Positions);

impl FullKernel for Forward {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn cost(&self) -> Cost {
        // Each position reads a label and one logarithm.
        let positions = (self.0.blocks.outer * self.0.blocks.inner) as f64;
        Cost {
            class: OpClass::Reduction,
            flops: 2.0 * positions,
            bytes: positions * (8 + self.0.dtype.size_bytes()) as f64,
        }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.0.dtype, E as T => {
            let targets = self.0.targets::<E>(operands);
            targets.check().map_err(|position| self.0.bad_label(position, targets.labels))?;
            let found = likelihood(&targets, operands.read::<E>(1));
            for (index, value) in found.into_iter().enumerate() {
                operands.write::<T>(index).slice()[0] = T::from_f64(value);
            }
        });
        Ok(())
    }
}

/// The sum and the count. One element of each position is so little work that one thread suffices.
fn likelihood<E: Element<Compute: SimdFloat>>(
    targets: &Targets<'_, E>,
    x: View<'_, E>,
) -> [f64; 2] {
    let (mut sum, mut count, mut position) = (0.0, 0.0, 0);
    let step = x.layout().strides()[1];
    each_strided_row([x.layout()], 1, |[start]| {
        if let Ok(Some(label)) = targets.label(position) {
            let weight = targets.weight_of(label).to_f64();
            sum -= weight * x.data()[start + label * step].to_f64();
            count += weight;
        }
        position += 1;
    });
    [sum, count]
}

/// Reads labels, dy and perhaps the weight; writes dx.
pub(super) struct Backward(pub(super) Positions);

impl FullKernel for Backward {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn cost(&self) -> Cost {
        let bytes = (self.0.blocks.element_count() * self.0.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Reduction, flops: 0.0, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.0.dtype, E as T => {
            let targets = self.0.targets::<E>(operands);
            targets.check().map_err(|position| self.0.bad_label(position, targets.labels))?;
            let dy = operands.read::<T>(1).slice()[0];
            let (blocks, dx) = (self.0.blocks, operands.write::<E>(0).slice());
            let outer = blocks.outer_per_task();
            cpu.for_each_chunk(dx, outer * blocks.len * blocks.inner, |index, dx| {
                let positions = dx.len() / blocks.len;
                scatter(&targets.part(index * outer, positions), dy, dx);
            });
        });
        Ok(())
    }
}

/// Writes `dx[n, l] = -dy · w[l]`, and 0 elsewhere.
fn scatter<E: Element<Compute: SimdFloat>>(targets: &Targets<'_, E>, dy: E::Compute, dx: &mut [E]) {
    dx.fill(E::default());
    let inner = targets.blocks.inner;
    for position in 0..targets.labels.len() {
        if let Ok(Some(label)) = targets.label(position) {
            let row = position / inner * targets.class_count() + label;
            let value = E::Compute::ZERO - dy * targets.weight_of(label);
            dx[row * inner + position % inner] = value.cast();
        }
    }
}

impl Tensor {
    /// `Σ -w[label] · x[n, label]` over the positions whose label is not `ignore_index`, and the
    /// count, `Σ w[label]`. `self = x` holds logarithms of probabilities. Both results are in f32
    /// or f64. For logits, [`Tensor::cross_entropy`] takes one pass.
    ///
    /// # Shapes
    /// `x: [N, C, ..], labels: [N, ..], weight: [C] → [], []`. x may have any strides and is not
    /// copied.
    ///
    /// # Errors
    /// The errors of [`Tensor::cross_entropy`].
    ///
    /// # Streams
    /// As [`Tensor::cross_entropy`].
    #[track_caller]
    pub fn nll_loss(
        &self,
        labels: &Tensor,
        ignore_index: i64,
        weight: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let labelling = Labelling { ignore_index, smoothing: 0.0, weight };
        let kernel = Positions::of("nll_loss", self, labels, &labelling)?;
        let (device, dtype) = (self.device(), self.dtype().computed());
        let labels = labels.contiguous()?;
        let weight = weight.map(Tensor::contiguous).transpose()?;
        let sum = Tensor::empty(device, [], dtype)?;
        let count = Tensor::empty(device, [], dtype)?;
        let reads: Vec<&Tensor> = [&labels, self].into_iter().chain(&weight).collect();
        device.launch(Forward(kernel), &reads, &[&sum, &count])?;
        Ok((sum, count))
    }

    /// The gradient of x through [`Tensor::nll_loss`], for `self = dy`, the gradient of the sum:
    /// `-dy · w[label]` at the labels, 0 elsewhere. Its shape is `x_shape`, its type `x_dtype`.
    ///
    /// # Errors
    /// The errors of [`Tensor::cross_entropy`].
    ///
    /// # Streams
    /// As [`Tensor::cross_entropy_backward`].
    #[track_caller]
    pub fn nll_loss_backward(
        &self,
        x_shape: Shape,
        x_dtype: DType,
        labels: &Tensor,
        ignore_index: i64,
        weight: Option<&Tensor>,
    ) -> Result<Tensor> {
        let op = "nll_loss_backward";
        let labelling = Labelling { ignore_index, smoothing: 0.0, weight };
        let kernel = Positions::of_shape(op, x_shape, x_dtype, labels, &labelling)?;
        self.check_shape(op, [])?;
        let right = x_dtype.computed();
        if self.dtype() != right {
            return Err(TensorError::DType { op, left: self.dtype(), right });
        }
        let labels = labels.contiguous()?;
        let weight = weight.map(Tensor::contiguous).transpose()?;
        let dx = Tensor::empty(self.device(), x_shape, x_dtype)?;
        let reads: Vec<&Tensor> = [&labels, self].into_iter().chain(&weight).collect();
        self.device().launch(Backward(kernel), &reads, &[&dx])?;
        Ok(dx)
    }
}
