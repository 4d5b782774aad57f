//! Normalisation of channels over the batch.
//!
//! Ioffe and Szegedy, "Batch normalization: accelerating deep network training by reducing
//! internal covariate shift" (2015).

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, Shape, Tensor, TensorError};

use crate::buffer::Buffer;
use crate::checks::check_option;
use crate::error::Result;
use crate::layers::norm::optional;
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// Batch normalisation for inputs of any rank.
#[derive(Clone, Debug)]
struct BatchNorm {
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    channels: usize,
    running: Option<Running>,
    momentum: Momentum,
    eps: f64,
}

/// Running statistics: the mean and the variance of each channel over all batches so far.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) mean: Buffer,
    pub(super) variance: Buffer,
    /// Number of batches so far.
    batches: Buffer,
}

parameters!(Running {
    mean as "running_mean",
    variance as "running_var",
    batches as "num_batches_tracked",
});

/// The momentum of running statistics: the weight of a new batch.
#[derive(Clone, Copy, Debug)]
enum Momentum {
    /// A fixed weight, in `[0, 1]`.
    Share(f64),
    /// A weight of 1 / (number of batches): the statistics are the means over all batches.
    Mean,
}

impl Running {
    pub(super) fn new(device: &Device, channels: usize) -> Result<Self> {
        let statistic = |value| Buffer::full(device, [channels], DType::F32, value);
        Ok(Running {
            mean: statistic(0.0)?,
            variance: statistic(1.0)?,
            batches: Buffer::full(device, [], DType::I64, 0.0)?,
        })
    }

    /// Moves the running statistics towards the mean and the variance of `batch`, which has `count`
    /// elements for each channel.
    fn update(
        &self,
        pass: &Pass,
        batch: [&Tensor; 2],
        count: usize,
        momentum: Momentum,
    ) -> Result<()> {
        let buffers = [&self.mean, &self.variance, &self.batches];
        let [mean, variance, batches] = buffers.map(|buffer| buffer.current(pass));
        // A recomputed segment updates buffers only in its first run. Every run reads the same
        // buffers in the same order.
        if pass.is_recomputing() {
            return Ok(());
        }
        let batches = batches.add_scalar(1.0)?;
        // A batch without elements is counted, but leaves the mean and the variance.
        if count > 0 {
            let (mut mean, mut variance) = (mean.copied()?, variance.copied()?);
            match momentum {
                Momentum::Share(share) => {
                    mean.update_running_(&mut variance, batch, count, share)?;
                }
                Momentum::Mean => {
                    // Computes the full move first and then scales it: the share is a tensor on the
                    // device.
                    let (mut batch_mean, mut batch_variance) = (mean.copied()?, variance.copied()?);
                    batch_mean.update_running_(&mut batch_variance, batch, count, 1.0)?;
                    let share = batches.to_dtype(mean.dtype())?.reciprocal()?;
                    mean.add_(&batch_mean.sub(&mean)?.mul(&share)?)?;
                    variance.add_(&batch_variance.sub(&variance)?.mul(&share)?)?;
                }
            }
            self.mean.update(pass, mean);
            self.variance.update(pass, variance);
        }
        self.batches.update(pass, batches);
        Ok(())
    }

    /// Moves the running statistics by `share` towards the mean and the variance that `batch`
    /// returns, of `count` elements for each channel. The number of batches stays.
    pub(super) fn follow(
        &self,
        pass: &Pass,
        batch: impl FnOnce() -> Result<[Tensor; 2]>,
        count: usize,
        share: f64,
    ) -> Result<()> {
        let [mean, variance] = [&self.mean, &self.variance].map(|buffer| buffer.current(pass));
        // As in `update`: only the first run of a segment updates buffers.
        if pass.is_recomputing() {
            return Ok(());
        }
        let (mut mean, mut variance) = (mean.copied()?, variance.copied()?);
        let [batch_mean, batch_variance] = batch()?;
        mean.update_running_(&mut variance, [&batch_mean, &batch_variance], count, share)?;
        self.mean.update(pass, mean);
        self.variance.update(pass, variance);
        Ok(())
    }
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
        let (running, momentum) = (Some(Running::new(device, channels)?), Momentum::Share(0.1));
        Ok(BatchNorm { weight: None, bias: None, channels, running, momentum, eps: 1e-5 })
    }

    fn forward(&self, op: &'static str, ranks: &[usize], pass: &Pass, input: Var) -> Result<Var> {
        let (left, right) = (*input.shape(), Shape::new(&[self.channels]));
        if !ranks.contains(&left.len()) {
            return Err(TensorError::Shape { op, left, right }.into());
        }
        check_option("eps", self.eps, "[0, ∞)", |eps| eps >= 0.0)?;
        let [weight, bias] = optional([&self.weight, &self.bias], pass)?;
        if let (false, Some(running)) = (pass.is_training(), &self.running) {
            let statistics = [&running.mean, &running.variance].map(|buffer| buffer.current(pass));
            let [mean, variance] = &statistics;
            return Ok(input.batch_norm_fixed([mean, variance], weight, bias, self.eps)?);
        }
        let count = left.element_count() / left[1].max(1);
        let (y, [mean, variance]) = input.batch_norm(weight, bias, self.eps)?;
        if let Some(running) = &self.running {
            running.update(pass, [&mean, &variance], count, self.momentum)?;
        }
        Ok(y)
    }
}

parameters!(BatchNorm { weight, bias, running as "" });

macro_rules! batch_norms {
    ($($(#[$doc:meta])* $name:ident, $op:literal, $ranks:expr, $shape:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Training normalises with the statistics of the batch and moves the running statistics
        /// towards them. Running statistics are buffers, which [`crate::commit_buffers`] writes.
        /// Evaluation normalises with the running statistics.
        #[derive(Clone, Debug)]
        pub struct $name(BatchNorm);

        impl $name {
            /// A layer of `channels` channels, with a weight of ones and a bias of zeros; eps is
            /// 1e-5, the momentum is 0.1.
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

            /// This layer with another momentum of the running statistics: the weight of a new
            /// batch.
            #[must_use]
            pub fn with_momentum(mut self, momentum: f64) -> Self {
                self.0.momentum = Momentum::Share(momentum);
                self
            }

            /// This layer with running statistics that are the means over all batches so far,
            /// `momentum=None`.
            #[must_use]
            pub fn with_equal_batches(mut self) -> Self {
                self.0.momentum = Momentum::Mean;
                self
            }

            /// This layer without running statistics, `track_running_stats=False`: evaluation also
            /// uses the statistics of the batch.
            #[must_use]
            pub fn without_running_statistics(mut self) -> Self {
                self.0.running = None;
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
