//! Normalisation of the parts of each sample.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::Device;

use crate::error::Result;
use crate::fields::parameters;
use crate::module::Module;
use crate::parameter::Parameter;

/// PyTorch's addend to the variance.
const EPS: f64 = 1e-5;

/// Mean 0 and variance 1 over the last dimensions, `torch.nn.LayerNorm`.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Parameter,
    bias: Option<Parameter>,
    eps: f64,
}

impl LayerNorm {
    /// A layer over the last dimensions, which are `shape`, with a weight of ones and a bias of
    /// zeros; eps is 1e-5.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, shape: &[usize]) -> Result<Self> {
        let bias = Some(Parameter::full(device, shape, 0.0)?);
        Ok(LayerNorm { bias, ..Self::without_bias(device, shape)? })
    }

    /// [`LayerNorm::new`] without a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn without_bias(device: &Device, shape: &[usize]) -> Result<Self> {
        Ok(LayerNorm { weight: Parameter::full(device, shape, 1.0)?, bias: None, eps: EPS })
    }

    /// This layer with another `eps`, which is added to the variance.
    #[must_use]
    pub fn with_eps(self, eps: f64) -> Self {
        LayerNorm { eps, ..self }
    }
}

parameters!(LayerNorm { weight, bias });

impl Module for LayerNorm {
    /// # Shapes
    /// `input: [.., shape..] → [.., shape..]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let bias = self.bias.as_ref().map(|bias| bias.var(pass)).transpose()?;
        let (axis_count, weight) = (self.weight.value().shape().len(), self.weight.var(pass)?);
        Ok(input.layer_norm(axis_count, Some(weight), bias, self.eps)?)
    }
}

/// Root mean square 1 over the last dimensions, `torch.nn.RMSNorm`.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Parameter,
    eps: f64,
}

impl RmsNorm {
    /// A layer over the last dimensions, which are `shape`, with a weight of ones; eps is the
    /// spacing of the f32 at 1.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, shape: &[usize]) -> Result<Self> {
        let weight = Parameter::full(device, shape, 1.0)?;
        Ok(RmsNorm { weight, eps: f64::from(f32::EPSILON) })
    }

    /// This layer with another `eps`, which is added to the mean square.
    #[must_use]
    pub fn with_eps(self, eps: f64) -> Self {
        RmsNorm { eps, ..self }
    }
}

parameters!(RmsNorm { weight });

impl Module for RmsNorm {
    /// # Shapes
    /// `input: [.., shape..] → [.., shape..]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let (axis_count, weight) = (self.weight.value().shape().len(), self.weight.var(pass)?);
        Ok(input.rms_norm(axis_count, Some(weight), self.eps)?)
    }
}

/// Mean 0 and variance 1 over groups of channels, `torch.nn.GroupNorm`.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Parameter,
    bias: Parameter,
    groups: usize,
    eps: f64,
}

impl GroupNorm {
    /// A layer of `groups` groups of `channels` channels, with a weight of ones and a bias of
    /// zeros; eps is 1e-5.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, groups: usize, channels: usize) -> Result<Self> {
        let of = |value| Parameter::full(device, [channels], value);
        Ok(GroupNorm { weight: of(1.0)?, bias: of(0.0)?, groups, eps: EPS })
    }

    /// This layer with another `eps`, which is added to the variance.
    #[must_use]
    pub fn with_eps(self, eps: f64) -> Self {
        GroupNorm { eps, ..self }
    }
}

parameters!(GroupNorm { weight, bias });

impl Module for GroupNorm {
    /// # Shapes
    /// `input: [N, C, ..] → [N, C, ..]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let (weight, bias) = (self.weight.var(pass)?, self.bias.var(pass)?);
        Ok(input.group_norm(self.groups, Some(weight), Some(bias), self.eps)?)
    }
}
