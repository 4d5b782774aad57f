//! Normalisation of parts of each sample.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::Device;

use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// The number that PyTorch adds to the variance.
const EPS: f64 = 1e-5;

/// The parameters in a pass, each `None` if it is absent.
pub(super) fn optional<const N: usize>(
    parameters: [&Option<Parameter>; N],
    pass: &Pass,
) -> Result<[Option<Var>; N]> {
    let mut vars = [const { None }; N];
    for (var, parameter) in vars.iter_mut().zip(parameters) {
        *var = parameter.as_ref().map(|parameter| parameter.var(pass)).transpose()?;
    }
    Ok(vars)
}

/// Mean 0 and variance 1 over the last dimensions, `torch.nn.LayerNorm`.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    axis_count: usize,
    eps: f64,
}

impl LayerNorm {
    /// A layer over the last dimensions, whose sizes are `shape`, with a weight of ones and a bias
    /// of zeros; eps is 1e-5.
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
        let weight = Some(Parameter::full(device, shape, 1.0)?);
        Ok(LayerNorm { weight, ..Self::without_parameters(shape.len()) })
    }

    /// A layer over the last `axis_count` dimensions, without a weight and a bias.
    pub fn without_parameters(axis_count: usize) -> Self {
        LayerNorm { weight: None, bias: None, axis_count, eps: EPS }
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
        let [weight, bias] = optional([&self.weight, &self.bias], pass)?;
        Ok(input.layer_norm(self.axis_count, weight, bias, self.eps)?)
    }
}

/// Scales to root mean square 1 over the last dimensions, `torch.nn.RMSNorm`.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Option<Parameter>,
    axis_count: usize,
    eps: f64,
}

impl RmsNorm {
    /// A layer over the last dimensions, whose sizes are `shape`, with a weight of ones; eps is the
    /// distance from 1 to the next f32.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, shape: &[usize]) -> Result<Self> {
        let weight = Some(Parameter::full(device, shape, 1.0)?);
        Ok(RmsNorm { weight, ..Self::without_parameters(shape.len()) })
    }

    /// A layer over the last `axis_count` dimensions, without a weight.
    pub fn without_parameters(axis_count: usize) -> Self {
        RmsNorm { weight: None, axis_count, eps: f64::from(f32::EPSILON) }
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
        let [weight] = optional([&self.weight], pass)?;
        Ok(input.rms_norm(self.axis_count, weight, self.eps)?)
    }
}

/// Mean 0 and variance 1 over groups of channels, `torch.nn.GroupNorm`.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Option<Parameter>,
    bias: Option<Parameter>,
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
        let bias = Some(Parameter::full(device, [channels], 0.0)?);
        Ok(GroupNorm { bias, ..Self::without_bias(device, groups, channels)? })
    }

    /// [`GroupNorm::new`] without a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn without_bias(device: &Device, groups: usize, channels: usize) -> Result<Self> {
        let weight = Some(Parameter::full(device, [channels], 1.0)?);
        Ok(GroupNorm { weight, ..Self::without_parameters(groups) })
    }

    /// A layer of `groups` groups, without a weight and a bias.
    pub fn without_parameters(groups: usize) -> Self {
        GroupNorm { weight: None, bias: None, groups, eps: EPS }
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
        let [weight, bias] = optional([&self.weight, &self.bias], pass)?;
        Ok(input.group_norm(self.groups, weight, bias, self.eps)?)
    }
}
