//! Normalisation of channels over the batch.
//!
//! Ioffe and Szegedy, "Batch normalization: accelerating deep network training by reducing
//! internal covariate shift" (2015).

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, Shape, TensorError};

use crate::buffer::Buffer;
use crate::error::Result;
use crate::fields::parameters;
use crate::layers::norm::optional;
use crate::module::Module;
use crate::optim::check_option;
use crate::parameter::Parameter;

/// Batch normalisation for inputs of any rank.
#[derive(Clone, Debug)]
struct BatchNorm {
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    channels: usize,
    running_mean: Buffer,
    running_var: Buffer,
    num_batches_tracked: Buffer,
    momentum: f64,
    eps: f64,
}

impl BatchNorm {
    fn new(device: &Device, channels: usize) -> Result<Self> {
        let bias = Some(Parameter::full(device, [channels], 0.0)?);
        Ok(BatchNorm { bias, ..Self::without_bias(device, channels)? })
    }

    fn without_bias(device: &Device, channels: usize) -> Result<Self> {
        let weight = Some(Parameter::full(device, [channels], 1.0)?);
        Ok(BatchNorm { weight, ..Self::without_parameters(device, channels)? })
    }

    fn without_parameters(device: &Device, channels: usize) -> Result<Self> {
        let statistic = |value| Buffer::full(device, [channels], DType::F32, value);
        Ok(BatchNorm {
            weight: None,
            bias: None,
            channels,
            running_mean: statistic(0.0)?,
            running_var: statistic(1.0)?,
            num_batches_tracked: Buffer::full(device, [], DType::I64, 0.0)?,
            momentum: 0.1,
            eps: 1e-5,
        })
    }

    fn forward(&self, op: &'static str, ranks: &[usize], pass: &Pass, input: Var) -> Result<Var> {
        let (left, right) = (*input.shape(), Shape::new(&[self.channels]));
        if !ranks.contains(&left.len()) {
            return Err(TensorError::Shape { op, left, right }.into());
        }
        check_option("eps", self.eps, "[0, ∞)", |eps| eps >= 0.0)?;
        let [weight, bias] = optional([&self.weight, &self.bias], pass)?;
        let [mut mean, mut variance] =
            [&self.running_mean, &self.running_var].map(|buffer| buffer.current(pass));
        if !pass.is_training() {
            return Ok(input.batch_norm_fixed([&mean, &variance], weight, bias, self.eps)?);
        }
        let batches = self.num_batches_tracked.current(pass);
        let count = left.element_count() / left[1].max(1);
        let (y, [batch_mean, batch_variance]) = input.batch_norm(weight, bias, self.eps)?;
        // A recomputed segment updates the buffers only in its first run.
        if !pass.is_recomputing() {
            // A batch without elements has no statistics to move towards, and counts.
            if count > 0 {
                (mean, variance) = (mean.copied()?, variance.copied()?);
                let batch = [&batch_mean, &batch_variance];
                mean.update_running_(&mut variance, batch, count, self.momentum)?;
                self.running_mean.update(pass, mean);
                self.running_var.update(pass, variance);
            }
            self.num_batches_tracked.update(pass, batches.add_scalar(1.0)?);
        }
        Ok(y)
    }
}

parameters!(BatchNorm { weight, bias, running_mean, running_var, num_batches_tracked });

macro_rules! batch_norms {
    ($($(#[$doc:meta])* $name:ident, $op:literal, $ranks:expr, $shape:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// In training the statistics are the batch's, and the running ones (buffers, which
        /// [`crate::commit_buffers`] writes) move towards them; in evaluation those are used.
        #[derive(Clone, Debug)]
        pub struct $name(BatchNorm);

        impl $name {
            /// A layer of `channels` channels, with a weight of ones and a bias of zeros; eps is
            /// 1e-5, the momentum of the running statistics 0.1.
            ///
            /// # Errors
            /// `OutOfMemory`.
            pub fn new(device: &Device, channels: usize) -> Result<Self> {
                Ok($name(BatchNorm::new(device, channels)?))
            }

            /// A layer of `channels` channels without a bias.
            ///
            /// # Errors
            /// `OutOfMemory`.
            pub fn without_bias(device: &Device, channels: usize) -> Result<Self> {
                Ok($name(BatchNorm::without_bias(device, channels)?))
            }

            /// A layer of `channels` channels without a weight and a bias, `affine=False`.
            ///
            /// # Errors
            /// `OutOfMemory`.
            pub fn without_parameters(device: &Device, channels: usize) -> Result<Self> {
                Ok($name(BatchNorm::without_parameters(device, channels)?))
            }

            /// This layer with another `eps`, which is added to the variance.
            #[must_use]
            pub fn with_eps(mut self, eps: f64) -> Self {
                self.0.eps = eps;
                self
            }

            /// This layer with another momentum of the running statistics: the share of the batch.
            #[must_use]
            pub fn with_momentum(mut self, momentum: f64) -> Self {
                self.0.momentum = momentum;
                self
            }
        }

        parameters!($name { 0 as "" });

        impl Module for $name {
            /// # Shapes
            #[doc = $shape]
            fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
                self.0.forward($op, $ranks, pass, input)
            }
        }
    )*};
}

batch_norms! {
    /// Mean 0 and variance 1 of each channel over the batch, `torch.nn.BatchNorm1d`.
    BatchNorm1d, "batch_norm1d", &[2, 3], "`input: [N, C]` or `[N, C, L]`, and so the output";
    /// Mean 0 and variance 1 of each channel over the batch and the image, `torch.nn.BatchNorm2d`.
    BatchNorm2d, "batch_norm2d", &[4], "`input: [N, C, H, W] → [N, C, H, W]`";
    /// Mean 0 and variance 1 of each channel over the batch and the volume, `torch.nn.BatchNorm3d`.
    BatchNorm3d, "batch_norm3d", &[5], "`input: [N, C, D, H, W] → [N, C, D, H, W]`";
}
