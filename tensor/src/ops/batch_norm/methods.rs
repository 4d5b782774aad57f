//! The methods of batch normalisation.

use super::{Backward, Channels, Forward, Statistics, Update};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::ops::norm::operands::contiguous;
use crate::ops::workspace::Workspace;
use crate::tensor::Tensor;

/// The results of [`Tensor::batch_norm`].
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// The result, of the input's shape and type.
    pub y: Tensor,
    /// The mean of each channel, in f32 or f64.
    pub mean: Tensor,
    /// The biased variance of each channel, in f32 or f64.
    pub variance: Tensor,
}

/// The gradients through [`Tensor::batch_norm`].
#[derive(Clone, Debug)]
pub struct BatchNormBackward {
    /// The gradient of the input.
    pub dx: Tensor,
    /// The gradient of the weight.
    pub dweight: Tensor,
    /// The gradient of the bias.
    pub dbias: Tensor,
}

impl Tensor {
    /// Normalises each channel to mean 0 and variance 1 (biased, plus `eps`) over the batch, then
    /// scales and shifts it. `self` is x, of any float type; the half types are computed in f32.
    /// Running statistics stay unchanged: see [`Tensor::update_running_`].
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
        shape.check_parameters(self, [weight, bias])?;
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

    /// [`Tensor::batch_norm`] with given statistics, as in evaluation. The statistics have shape
    /// `[C]`, in f64 for an input of f64, else in f32.
    ///
    /// # Errors
    /// The errors of [`Tensor::batch_norm`].
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
        shape.check_parameters(self, [weight, bias])?;
        let (x, weight, bias) = (self.contiguous()?, contiguous(weight)?, contiguous(bias)?);
        let (mean, variance) = (mean.contiguous()?, variance.contiguous()?);
        let device = self.device();
        let y = Tensor::empty(device, *self.shape(), self.dtype())?;
        let coefficients = Workspace::new(self.dtype().computed(), [4 * shape.channels]);
        let has = [weight.is_some(), bias.is_some()];
        let reads: Vec<&Tensor> =
            [&x].into_iter().chain(&weight).chain(&bias).chain([&mean, &variance]).collect();
        device.launch_with(&coefficients, Forward { shape, has }, &reads, &[&y])?;
        Ok(y)
    }

    /// The gradients through [`Tensor::batch_norm`] (`Statistics::Batch`) or
    /// [`Tensor::batch_norm_fixed`], for `self = dy` and the mean and variance of the forward pass.
    ///
    /// # Errors
    /// The errors of [`Tensor::batch_norm`].
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
        shape.check_parameters(x, [weight])?;
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

    /// Moves the running statistics towards the statistics of a batch with `count` elements for
    /// each channel. `self` is the running mean, `variance` the running variance. An error leaves
    /// both unchanged.
    ///
    /// # Errors
    /// `Index` unless `count` is at least 2 (below 2 the variance is undefined), `Shape` also
    /// unless all are contiguous, `DType` unless all have one float type, `Frozen`, `Overlap`.
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
