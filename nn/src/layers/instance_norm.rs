//! Normalisation of each channel of each sample on its own; x, y: [N, C, ..].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, Shape, Tensor, TensorError};

use crate::error::Result;
use crate::layers::batch_norm::Running;
use crate::layers::norm::optional;
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// PyTorch's default for all layers.
const EPS: f64 = 1e-5;

/// PyTorch's default for all layers.
const MOMENTUM: f64 = 0.1;

/// Instance normalisation for inputs of any rank.
#[derive(Clone, Debug)]
struct InstanceNorm {
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    channels: usize,
    running: Option<Running>,
    momentum: f64,
    eps: f64,
}

impl InstanceNorm {
    fn new(channels: usize) -> Self {
        InstanceNorm {
            weight: None,
            bias: None,
            channels,
            running: None,
            momentum: MOMENTUM,
            eps: EPS,
        }
    }

    fn affine(device: &Device, channels: usize) -> Result<Self> {
        let of = |value| Parameter::full(device, [channels], value).map(Some);
        Ok(InstanceNorm { weight: of(1.0)?, bias: of(0.0)?, ..InstanceNorm::new(channels) })
    }

    fn forward(&self, op: &'static str, rank: usize, pass: &Pass, input: Var) -> Result<Var> {
        let left = *input.shape();
        if left.len() != rank || left[1] != self.channels {
            let mut right = [1; 5];
            right[1] = self.channels;
            return Err(TensorError::Shape { op, left, right: Shape::new(&right[..rank]) }.into());
        }
        let [weight, bias] = optional([&self.weight, &self.bias], pass)?;
        let Some(running) = &self.running else {
            return Ok(input.group_norm(self.channels, weight, bias, self.eps)?);
        };
        if !pass.is_training() {
            let statistics = [&running.mean, &running.variance].map(|buffer| buffer.current(pass));
            let [mean, variance] = &statistics;
            return Ok(input.batch_norm_fixed([mean, variance], weight, bias, self.eps)?);
        }
        let count = left.element_count() / (left[0] * left[1]).max(1);
        // A batch without elements leaves the running statistics.
        if left.element_count() > 0 {
            let batch = || mean_statistics(input.value());
            running.follow(pass, batch, count, self.momentum)?;
        }
        Ok(input.group_norm(self.channels, weight, bias, self.eps)?)
    }
}

/// The mean and the variance of each channel of each sample, averaged over the samples. A half type
/// is copied to f32 first.
fn mean_statistics(x: &Tensor) -> Result<[Tensor; 2]> {
    let x = x.to_dtype(x.dtype().computed())?;
    let places: Vec<usize> = (2..x.shape().len()).collect();
    let mean = x.mean(&places)?.mean(&[0])?;
    let variance = x.var(&places, 0.0)?.mean(&[0])?;
    Ok([mean, variance])
}

parameters!(InstanceNorm { weight, bias, running as "" });

macro_rules! instance_norms {
    ($($(#[$doc:meta])* $name:ident, $op:literal, $rank:literal, $shape:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Evaluation computes as training does, unless the layer has [running
        /// statistics](Self::with_running_statistics).
        #[derive(Clone, Debug)]
        pub struct $name(InstanceNorm);

        impl $name {
            /// A layer of `channels` channels without parameters, PyTorch's default; eps is 1e-5.
            pub fn new(channels: usize) -> Self {
                $name(InstanceNorm::new(channels))
            }

            /// A layer with a weight of ones and a bias of zeros.
            ///
            /// # Errors
            /// `OutOfMemory`.
            pub fn affine(device: &Device, channels: usize) -> Result<Self> {
                Ok($name(InstanceNorm::affine(device, channels)?))
            }

            /// A layer with a weight of ones and without a bias.
            ///
            /// # Errors
            /// `OutOfMemory`.
            pub fn without_bias(device: &Device, channels: usize) -> Result<Self> {
                Ok($name(InstanceNorm { bias: None, ..InstanceNorm::affine(device, channels)? }))
            }

            /// This layer with another `eps`, which is added to the variance.
            #[must_use]
            pub fn with_eps(self, eps: f64) -> Self {
                $name(InstanceNorm { eps, ..self.0 })
            }

            /// This layer with running statistics, `track_running_stats=True`: buffers, which
            /// [`crate::commit_buffers`] writes and which evaluation normalises with. Training
            /// moves them towards the means and the unbiased variances of the channels, averaged
            /// over the samples. The buffer that counts batches stays 0, as in PyTorch.
            ///
            /// # Errors
            /// `OutOfMemory`.
            pub fn with_running_statistics(self, device: &Device) -> Result<Self> {
                let running = Some(Running::new(device, self.0.channels)?);
                Ok($name(InstanceNorm { running, ..self.0 }))
            }

            /// This layer with another momentum of the running statistics, 0.1 by default: the
            /// weight of a new batch.
            #[must_use]
            pub fn with_momentum(self, momentum: f64) -> Self {
                $name(InstanceNorm { momentum, ..self.0 })
            }
        }

        parameters!($name { 0 as "" });

        impl Module for $name {
            /// # Shapes
            #[doc = $shape]
            fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
                self.0.forward($op, $rank, pass, input)
            }
        }
    )*};
}

instance_norms! {
    /// Mean 0 and variance 1 over the positions of each channel of each sample,
    /// `torch.nn.InstanceNorm1d` (Ulyanov, Vedaldi and Lempitsky, "Instance normalization", 2016).
    InstanceNorm1d, "instance_norm1d", 3, "`input: [N, C, L] → [N, C, L]`";
    /// Mean 0 and variance 1 over the places of each channel of each sample,
    /// `torch.nn.InstanceNorm2d`.
    InstanceNorm2d, "instance_norm2d", 4, "`input: [N, C, H, W] → [N, C, H, W]`";
    /// Mean 0 and variance 1 over the places of each channel of each sample,
    /// `torch.nn.InstanceNorm3d`.
    InstanceNorm3d, "instance_norm3d", 5, "`input: [N, C, D, H, W] → [N, C, D, H, W]`";
}
