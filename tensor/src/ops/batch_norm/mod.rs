//! Batch normalisation of `x: [N, C, ..]`: each channel over all samples and places, m elements.
//!
//! - forward: y = (x - mean) · rstd · w + b, with rstd = 1 / √(variance + eps). Mean and biased
//!   variance are the batch's, or fixed.
//! - backward with the batch's statistics: dx = rstd · w · (dy - Σ dy / m - x̂ · Σ dy·x̂ / m); with
//!   fixed statistics dx = rstd · w · dy; dw = Σ dy·x̂, db = Σ dy.
//! - running statistics: r ← (1 - momentum) · r + momentum · batch, the variance times m / (m - 1).
//!   The update is an operation of its own, so that a training step can compute everything first
//!   and commit afterwards.
//!
//! Ioffe and Szegedy, "Batch normalization" (2015). Each part of the batch finds its variance in
//! two passes; the parts are merged in f64.

mod apply;
#[cfg(feature = "cuda")]
mod cuda;
mod methods;
mod sums;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::device::Device;
use crate::dtype::{DType, Element, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::ops::norm::moments::rstd;
use crate::ops::norm::operands::{check_parameters, check_statistics, cost, parameters};
use crate::spec::DeviceKind;
use crate::tensor::Tensor;
use apply::Affine;
pub use methods::{BatchNorm, BatchNormBackward};

/// The source of the statistics of a normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistics {
    /// The batch itself, so that gradients flow through the statistics: training.
    Batch,
    /// Statistics that the caller gives: evaluation.
    Fixed,
}

/// Smallest number of elements of a channel in a part on an NVIDIA device.
const PART_LEN: usize = 1 << 12;

/// Largest number of parts of a channel on an NVIDIA device.
const PARTS_MAX: usize = 64;

/// Elements of the largest pack that a thread of an NVIDIA device takes at once.
const PACK_LEN_MAX: usize = 8;

/// A contiguous tensor `[samples, channels, inner]`.
#[derive(Clone, Copy)]
struct Channels {
    name: &'static str,
    dtype: DType,
    samples: usize,
    channels: usize,
    inner: usize,
    statistics: Statistics,
    eps: f64,
}

impl Channels {
    fn of(name: &'static str, x: &Tensor, statistics: Statistics, eps: f64) -> Result<Self> {
        x.check_any_float(name)?;
        let left = *x.shape();
        let &[samples, channels, ref inner @ ..] = &*left else {
            return Err(TensorError::Shape { op: name, left, right: Shape::new(&[0, 0]) });
        };
        let (dtype, inner) = (x.dtype(), inner.iter().product());
        Ok(Channels { name, dtype, samples, channels, inner, statistics, eps })
    }

    fn element_count(&self) -> usize {
        self.samples * self.channels * self.inner
    }

    /// Checks that `statistics` hold one number for each channel, in the type of statistics.
    fn check(&self, statistics: &Tensor) -> Result<()> {
        check_statistics(self.name, self.dtype, statistics, [self.channels].into())
    }

    /// Checks that the parameters hold one number for each channel, in the type of x.
    fn check_parameters<const N: usize>(
        &self,
        x: &Tensor,
        parameters: [Option<&Tensor>; N],
    ) -> Result<()> {
        check_parameters(self.name, x, parameters, [self.channels].into())
    }

    fn cost_of(&self, passes: usize) -> Cost {
        cost(self.dtype, self.element_count(), passes)
    }

    /// Elements of f64 scratch for the sums.
    fn partials_len(&self, device: &Device) -> usize {
        match device.kind() {
            DeviceKind::Cpu => sums::partials_len(self),
            DeviceKind::Cuda => 2 * self.cuda_parts()[1] * self.channels,
        }
    }

    /// Elements of a channel in a part on an NVIDIA device, and the number of parts.
    fn cuda_parts(&self) -> [usize; 2] {
        let len = self.samples * self.inner;
        let part_len = len.div_ceil(len.div_ceil(PART_LEN).clamp(1, PARTS_MAX)).max(1);
        // Rounding up to whole packs adds too few elements to change the number of parts.
        let part_len = part_len.next_multiple_of(PACK_LEN_MAX);
        [part_len, len.div_ceil(part_len)]
    }

    fn rstd<T: Element>(&self, variance: T) -> f64 {
        rstd(variance.to_f64(), self.eps)
    }
}

/// Reads x, weight and bias if given, and fixed statistics; writes y and coefficients, and for the
/// batch's statistics also mean, variance and scratch.
struct Forward {
    shape: Channels,
    has: [bool; 2],
}

impl FullKernel for Forward {
    fn name(&self) -> &'static str {
        self.shape.name
    }

    fn cost(&self) -> Cost {
        self.shape.cost_of(if self.shape.statistics == Statistics::Batch { 3 } else { 2 })
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let shape = &self.shape;
        let fixed_at = 1 + self.has.map(usize::from).iter().sum::<usize>();
        for_each_float!(shape.dtype, E as T => {
            let x = operands.read::<E>(0).slice();
            let [weight, bias] = parameters::<E>(operands, self.has);
            let y = operands.write::<E>(0).slice();
            let coefficients = operands.write::<T>(1).slice();
            let (mean, variance): (&[T], &[T]) = match shape.statistics {
                Statistics::Fixed => {
                    let of = |index: usize| operands.read::<T>(fixed_at + index).slice();
                    (of(0), of(1))
                }
                Statistics::Batch => {
                    let [mean, variance] = [2, 3].map(|index| operands.write::<T>(index).slice());
                    let partials = operands.write::<f64>(4).slice();
                    if shape.element_count() == 0 {
                        // The moments of a channel without elements.
                        mean.fill(T::NAN);
                        variance.fill(T::NAN);
                    } else {
                        sums::moments(cpu, shape, x, [&mut *mean, &mut *variance], partials);
                    }
                    (mean, variance)
                }
            };
            if shape.element_count() == 0 {
                return Ok(());
            }
            let channels = shape.channels;
            for channel in 0..channels {
                let weight = weight.map_or(1.0, |weight| weight[channel].to_f64());
                let shift = bias.map_or(0.0, |bias| bias[channel].to_f64());
                coefficients[channel] = mean[channel];
                coefficients[channels + channel] =
                    T::from_f64(weight * shape.rstd(variance[channel]));
                coefficients[2 * channels + channel] = T::default();
                coefficients[3 * channels + channel] = T::from_f64(shift);
            }
            apply::apply(cpu, shape, &Affine { coefficients }, None, x, y);
        });
        Ok(())
    }
}

/// Reads dy, x, mean, variance and the weight if given; writes dx, dweight, dbias, coefficients and
/// scratch.
struct Backward {
    shape: Channels,
    has_weight: bool,
}

impl FullKernel for Backward {
    fn name(&self) -> &'static str {
        self.shape.name
    }

    fn cost(&self) -> Cost {
        self.shape.cost_of(5)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let shape = &self.shape;
        let channels = shape.channels;
        let count = (shape.samples * shape.inner) as f64;
        for_each_float!(shape.dtype, E as T => {
            let [dy, x] = [0, 1].map(|index| operands.read::<E>(index).slice());
            let [mean, variance] = [2, 3].map(|index| operands.read::<T>(index).slice());
            let weight = self.has_weight.then(|| operands.read::<E>(4).slice());
            let [dx, dweight, dbias] = [0, 1, 2].map(|index| operands.write::<E>(index).slice());
            let coefficients = operands.write::<T>(3).slice();
            let partials = operands.write::<f64>(4).slice();
            if shape.element_count() == 0 {
                dweight.fill(E::default());
                dbias.fill(E::default());
                return Ok(());
            }
            sums::gradient_sums(cpu, shape, dy, x, mean, partials);
            for channel in 0..channels {
                let rstd = shape.rstd(variance[channel]);
                let scale = rstd * weight.map_or(1.0, |weight| weight[channel].to_f64());
                let [sum, product] = [partials[2 * channel], partials[2 * channel + 1] * rstd];
                dweight[channel] = T::from_f64(product).cast();
                dbias[channel] = T::from_f64(sum).cast();
                let (slope, shift) = match shape.statistics {
                    Statistics::Batch => (-scale * rstd * product / count, -scale * sum / count),
                    Statistics::Fixed => (0.0, 0.0),
                };
                coefficients[channel] = mean[channel];
                for (row, value) in [scale, slope, shift].into_iter().enumerate() {
                    coefficients[(row + 1) * channels + channel] = T::from_f64(value);
                }
            }
            apply::apply(cpu, shape, &Affine { coefficients }, Some(dy), x, dx);
        });
        Ok(())
    }
}

/// Reads a batch's mean and variance; writes the running ones.
struct Update {
    dtype: DType,
    channels: usize,
    momentum: f64,
    /// m / (m - 1).
    correction: f64,
}

impl FullKernel for Update {
    fn name(&self) -> &'static str {
        "update_running"
    }

    fn cost(&self) -> Cost {
        let bytes = (6 * self.channels * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Normalization, flops: 6.0 * self.channels as f64, bytes }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E => {
            for (index, factor) in [1.0, self.correction].into_iter().enumerate() {
                let batch = operands.read::<E>(index).slice();
                for (running, batch) in operands.write::<E>(index).slice().iter_mut().zip(batch) {
                    let (old, new) = (running.to_f64(), batch.to_f64() * factor);
                    *running = E::from_f64((1.0 - self.momentum) * old + self.momentum * new);
                }
            }
        });
        Ok(())
    }
}
