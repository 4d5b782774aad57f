//! Batch normalisation of `x: [N, C, ..]`: each channel over all samples and places, m elements.
//!
//! - forward: y = (x - mean) · rstd · w + b, with rstd = 1 / √(variance + eps), of the batch (the
//!   variance biased) or fixed.
//! - backward of the batch's: dx = rstd · w · (dy - Σ dy / m - x̂ · Σ dy·x̂ / m); of fixed ones
//!   rstd · w · dy; dw = Σ dy·x̂, db = Σ dy.
//! - running statistics: r ← (1 - momentum) · r + momentum · batch, the variance times m / (m - 1).
//!   An operation of its own, so that a training step can be computed without an effect and then
//!   committed.
//!
//! Ioffe and Szegedy, "Batch normalization" (2015). Variances in two passes over each part of the
//! batch, merged in f64.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::device::Device;
use crate::dtype::{DType, Element, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// What [`Tensor::batch_norm`] computes.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// The result, of the input's shape and type.
    pub y: Tensor,
    /// The mean of each channel, in f32 or f64.
    pub mean: Tensor,
    /// The biased variance of each channel, in f32 or f64.
    pub variance: Tensor,
}

/// What the backward of [`Tensor::batch_norm`] computes.
#[derive(Clone, Debug)]
pub struct BatchNormBackward {
    /// The gradient of the input.
    pub dx: Tensor,
    /// The gradient of the weight.
    pub dweight: Tensor,
    /// The gradient of the bias.
    pub dbias: Tensor,
}

/// Where the statistics of a normalisation come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistics {
    /// From the batch itself, so gradients flow through them: training.
    Batch,
    /// From outside: evaluation.
    Fixed,
}

/// Elements of a channel in a part on an NVIDIA device, at least, and the most parts.
const PART_LEN: usize = 1 << 12;
const PARTS_MAX: usize = 64;

/// Elements of the largest pack that a thread of an NVIDIA device takes at once.
const PACK_LEN_MAX: usize = 8;

/// A contiguous `[samples, channels, inner]`.
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

    /// `Ok` if `statistics` are one number for each channel, in the type of statistics.
    fn check(&self, statistics: &Tensor) -> Result<()> {
        let op = self.name;
        statistics.check_shape(op, [self.channels])?;
        let (left, right) = (statistics.dtype(), self.dtype.computed());
        if left == right { Ok(()) } else { Err(TensorError::DType { op, left, right }) }
    }

    /// `Ok` if the parameters are one number for each channel, in the type of x.
    fn check_parameter(&self, x: &Tensor, parameter: Option<&Tensor>) -> Result<()> {
        let Some(parameter) = parameter else { return Ok(()) };
        x.check_dtype(self.name, parameter)?;
        parameter.check_shape(self.name, [self.channels])
    }

    fn cost_of(&self, passes: usize) -> Cost {
        let bytes = (passes * self.element_count() * self.dtype.size_bytes()) as f64;
        Cost {
            class: OpClass::Normalization,
            flops: 4.0 * passes as f64 * self.element_count() as f64,
            bytes,
        }
    }

    /// Numbers of f64 scratch for the sums.
    fn partials_len(&self, device: &Device) -> usize {
        match device.kind() {
            DeviceKind::Cpu => cpu::partials_len(self),
            DeviceKind::Cuda => 2 * self.cuda_parts()[1] * self.channels,
        }
    }

    /// How many elements of a channel an NVIDIA device adds up together, and how many such parts
    /// there are.
    fn cuda_parts(&self) -> [usize; 2] {
        let len = self.samples * self.inner;
        let part_len = len.div_ceil(len.div_ceil(PART_LEN).clamp(1, PARTS_MAX)).max(1);
        // Whole packs of every type; too few elements more to change how many parts there are.
        let part_len = part_len.next_multiple_of(PACK_LEN_MAX);
        [part_len, len.div_ceil(part_len)]
    }

    fn rstd<T: Element>(&self, variance: T) -> f64 {
        1.0 / (variance.to_f64() + self.eps).sqrt()
    }
}

/// Reads x, weight and bias if given, and fixed statistics; writes y, coefficients, and for
/// statistics of the batch those and scratch.
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
        let [has_weight, has_bias] = self.has;
        let bias_at = 1 + usize::from(has_weight);
        let fixed_at = bias_at + usize::from(has_bias);
        for_each_float!(shape.dtype, E as T => {
            let x = operands.read::<E>(0).slice();
            let weight = has_weight.then(|| operands.read::<E>(1).slice());
            let bias = has_bias.then(|| operands.read::<E>(bias_at).slice());
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
                        // The moments of nothing.
                        mean.fill(T::NAN);
                        variance.fill(T::NAN);
                    } else {
                        cpu::moments(cpu, shape, x, [&mut *mean, &mut *variance], partials);
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
            cpu::apply(cpu, shape, &cpu::Affine { coefficients }, None, x, y);
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
            cpu::gradient_sums(cpu, shape, dy, x, mean, partials);
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
            cpu::apply(cpu, shape, &cpu::Affine { coefficients }, Some(dy), x, dx);
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

/// `x`, contiguous, if there is one.
fn contiguous(x: Option<&Tensor>) -> Result<Option<Tensor>> {
    x.map(Tensor::contiguous).transpose()
}

impl Tensor {
    /// Normalises each channel to mean 0 and variance 1 (biased, plus `eps`) over the batch, then
    /// scales and shifts it. `self` is x, of any float type; the half types are computed in f32.
    /// Running statistics are not touched: see [`Tensor::update_running_`].
    ///
    /// # Shapes
    /// `x: [N, C, ..], weight, bias: [C] → y: [N, C, ..], mean, variance: [C]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn batch_norm(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<BatchNorm> {
        let shape = Channels::of("batch_norm", self, Statistics::Batch, eps)?;
        shape.check_parameter(self, weight)?;
        shape.check_parameter(self, bias)?;
        let (x, weight, bias) = (self.contiguous()?, contiguous(weight)?, contiguous(bias)?);
        let (device, dtype) = (self.device(), self.dtype().computed());
        let y = Tensor::empty(device, *self.shape(), self.dtype())?;
        let mean = Tensor::empty(device, [shape.channels], dtype)?;
        let variance = Tensor::empty(device, [shape.channels], dtype)?;
        let coefficients = Tensor::workspace(device, 4 * shape.channels, dtype)?;
        let partials = Tensor::workspace(device, shape.partials_len(device), DType::F64)?;
        let has = [weight.is_some(), bias.is_some()];
        let reads: Vec<&Tensor> = [&x].into_iter().chain(&weight).chain(&bias).collect();
        let writes = [&y, &coefficients, &mean, &variance, &partials];
        device.launch(Forward { shape, has }, &reads, &writes)?;
        Ok(BatchNorm { y, mean, variance })
    }

    /// [`Tensor::batch_norm`] by statistics from outside, as in evaluation: of shape `[C]`, in f64
    /// for an input of f64, else in f32.
    ///
    /// # Errors
    /// Those of [`Tensor::batch_norm`].
    #[track_caller]
    pub fn batch_norm_fixed(
        &self,
        mean: &Tensor,
        variance: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let shape = Channels::of("batch_norm_fixed", self, Statistics::Fixed, eps)?;
        shape.check(mean)?;
        shape.check(variance)?;
        shape.check_parameter(self, weight)?;
        shape.check_parameter(self, bias)?;
        let (x, weight, bias) = (self.contiguous()?, contiguous(weight)?, contiguous(bias)?);
        let (mean, variance) = (mean.contiguous()?, variance.contiguous()?);
        let device = self.device();
        let y = Tensor::empty(device, *self.shape(), self.dtype())?;
        let coefficients = Tensor::workspace(device, 4 * shape.channels, self.dtype().computed())?;
        let has = [weight.is_some(), bias.is_some()];
        let reads: Vec<&Tensor> =
            [&x].into_iter().chain(&weight).chain(&bias).chain([&mean, &variance]).collect();
        device.launch(Forward { shape, has }, &reads, &[&y, &coefficients])?;
        Ok(y)
    }

    /// The gradients through [`Tensor::batch_norm`] (`Statistics::Batch`) or
    /// [`Tensor::batch_norm_fixed`], for `self = dy`, by the mean and the variance that were used.
    ///
    /// # Errors
    /// Those of [`Tensor::batch_norm`].
    #[track_caller]
    pub fn batch_norm_backward(
        &self,
        x: &Tensor,
        mean: &Tensor,
        variance: &Tensor,
        weight: Option<&Tensor>,
        statistics: Statistics,
        eps: f64,
    ) -> Result<BatchNormBackward> {
        let shape = Channels::of("batch_norm_backward", x, statistics, eps)?;
        x.check_dtype(shape.name, self)?;
        self.check_shape(shape.name, *x.shape())?;
        shape.check(mean)?;
        shape.check(variance)?;
        shape.check_parameter(x, weight)?;
        let (dy, x, weight) = (self.contiguous()?, x.contiguous()?, contiguous(weight)?);
        let (mean, variance) = (mean.contiguous()?, variance.contiguous()?);
        let (device, dtype, channels) = (self.device(), self.dtype(), shape.channels);
        let dx = Tensor::empty(device, *x.shape(), dtype)?;
        let dweight = Tensor::empty(device, [channels], dtype)?;
        let dbias = Tensor::empty(device, [channels], dtype)?;
        let coefficients = Tensor::workspace(device, 4 * channels, dtype.computed())?;
        let partials_len = shape.partials_len(device).max(2 * channels);
        let partials = Tensor::workspace(device, partials_len, DType::F64)?;
        let reads: Vec<&Tensor> = [&dy, &x, &mean, &variance].into_iter().chain(&weight).collect();
        let writes = [&dx, &dweight, &dbias, &coefficients, &partials];
        let kernel = Backward { shape, has_weight: weight.is_some() };
        device.launch(kernel, &reads, &writes)?;
        Ok(BatchNormBackward { dx, dweight, dbias })
    }

    /// Moves running statistics towards those of a batch of `count` elements for each channel:
    /// `self`, the running mean, and `variance`. Both or neither are written.
    ///
    /// # Errors
    /// `Index` unless `count` is at least 2 (the variance of fewer is not defined), `Shape` also
    /// unless all are contiguous, `DType` unless all are of one float type, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn update_running_(
        &mut self,
        variance: &mut Tensor,
        batch: [&Tensor; 2],
        count: usize,
        momentum: f64,
    ) -> Result<()> {
        let op = "update_running";
        self.check_any_float(op)?;
        if count < 2 {
            return Err(TensorError::Index { op, index: 2, len: count });
        }
        for tensor in [&*variance, batch[0], batch[1], &*self] {
            self.check_dtype(op, tensor)?;
            tensor.check_shape(op, *self.shape())?;
            if !tensor.layout().is_contiguous() {
                return Err(TensorError::Shape { op, left: *self.shape(), right: *tensor.shape() });
            }
        }
        let correction = count as f64 / (count - 1) as f64;
        let (dtype, channels) = (self.dtype(), self.element_count());
        let kernel = Update { dtype, channels, momentum, correction };
        self.device().launch(kernel, &batch, &[self, variance])
    }
}
