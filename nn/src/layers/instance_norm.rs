//! Each channel of each sample on its own; x, y: [N, C, ..].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, Shape, TensorError};

use crate::error::Result;
use crate::fields::parameters;
use crate::layers::norm::optional;
use crate::module::Module;
use crate::parameter::Parameter;

/// PyTorch's default for both layers.
const EPS: f64 = 1e-5;

/// What both layers do.
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
            let mut right = [1; 4];
            right[1] = self.channels;
            return Err(TensorError::Shape { op, left, right: Shape::new(&right[..rank]) }.into());
        }
        let [weight, bias] = optional([&self.weight, &self.bias], pass)?;
        Ok(input.group_norm(self.channels, weight, bias, self.eps)?)
    }
}

parameters!(InstanceNorm { weight, bias });

/// Mean 0 and variance 1 over the positions of each channel of each sample,
/// `torch.nn.InstanceNorm1d` (Ulyanov, Vedaldi and Lempitsky, "Instance normalization", 2016).
/// There are no running statistics: evaluation does as training.
#[derive(Clone, Debug)]
pub struct InstanceNorm1d(InstanceNorm);

/// Mean 0 and variance 1 over the places of each channel of each sample,
/// `torch.nn.InstanceNorm2d`; else as [`InstanceNorm1d`].
#[derive(Clone, Debug)]
pub struct InstanceNorm2d(InstanceNorm);

impl InstanceNorm1d {
    /// A layer of `channels` channels without parameters, PyTorch's default; eps is 1e-5.
    pub fn new(channels: usize) -> Self {
        InstanceNorm1d(InstanceNorm::new(channels))
    }

    /// A layer with a weight of ones and a bias of zeros.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn affine(device: &Device, channels: usize) -> Result<Self> {
        Ok(InstanceNorm1d(InstanceNorm::affine(device, channels)?))
    }

    /// This layer with another `eps`, which is added to the variance.
    #[must_use]
    pub fn with_eps(self, eps: f64) -> Self {
        InstanceNorm1d(InstanceNorm { eps, ..self.0 })
    }
}

impl InstanceNorm2d {
    /// A layer of `channels` channels without parameters, PyTorch's default; eps is 1e-5.
    pub fn new(channels: usize) -> Self {
        InstanceNorm2d(InstanceNorm::new(channels))
    }

    /// A layer with a weight of ones and a bias of zeros.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn affine(device: &Device, channels: usize) -> Result<Self> {
        Ok(InstanceNorm2d(InstanceNorm::affine(device, channels)?))
    }

    /// This layer with another `eps`, which is added to the variance.
    #[must_use]
    pub fn with_eps(self, eps: f64) -> Self {
        InstanceNorm2d(InstanceNorm { eps, ..self.0 })
    }
}

parameters!(InstanceNorm1d { 0 as "" });
parameters!(InstanceNorm2d { 0 as "" });

impl Module for InstanceNorm1d {
    /// # Shapes
    /// `input: [N, C, L] → [N, C, L]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.0.forward("instance_norm1d", 3, pass, input)
    }
}

impl Module for InstanceNorm2d {
    /// # Shapes
    /// `input: [N, C, H, W] → [N, C, H, W]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.0.forward("instance_norm2d", 4, pass, input)
    }
}
