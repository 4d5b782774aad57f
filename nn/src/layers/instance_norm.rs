//! Each channel of each sample on its own; x, y: [N, C, ..].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, Shape, TensorError};

use crate::error::Result;
use crate::fields::parameters;
use crate::layers::norm::optional;
use crate::module::Module;
use crate::parameter::Parameter;

/// PyTorch's default for all layers.
const EPS: f64 = 1e-5;

/// What all layers do.
#[derive(Clone, Debug)]
struct InstanceNorm {
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    channels: usize,
    eps: f64,
}

impl InstanceNorm {
    fn new(channels: usize) -> Self {
        InstanceNorm { weight: None, bias: None, channels, eps: EPS }
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
        Ok(input.group_norm(self.channels, weight, bias, self.eps)?)
    }
}

parameters!(InstanceNorm { weight, bias });

macro_rules! instance_norms {
    ($($(#[$doc:meta])* $name:ident, $op:literal, $rank:literal, $shape:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// There are no running statistics: evaluation does as training.
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
