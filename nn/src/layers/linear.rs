//! `y = x Wᵀ + b`; x: [N, I], W: [O, I], b: [O], y: [N, O].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, RandomKey};

use crate::error::Result;
use crate::fields::parameters;
use crate::init;
use crate::layers::weight_norm::weighted;
use crate::module::Module;
use crate::parameter::Parameter;

/// A fully connected layer, `torch.nn.Linear`.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Parameter,
    bias: Option<Parameter>,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features with a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, inputs: usize, outputs: usize) -> Result<Self> {
        let bound = init::default_bound(inputs);
        let bias = Parameter::uniform(device, key.op("bias"), [outputs], bound)?;
        Ok(Linear { bias: Some(bias), ..Self::without_bias(device, key, inputs, outputs)? })
    }

    /// A layer from `inputs` to `outputs` features without a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn without_bias(
        device: &Device,
        key: RandomKey,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self> {
        let bound = init::default_bound(inputs);
        let weight = Parameter::uniform(device, key.op("weight"), [outputs, inputs], bound)?;
        Ok(Linear { weight, bias: None })
    }

    /// [`Linear::new`] or [`Linear::without_bias`].
    pub(crate) fn with(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        bias: bool,
    ) -> Result<Self> {
        match bias {
            true => Linear::new(device, key, inputs, outputs),
            false => Linear::without_bias(device, key, inputs, outputs),
        }
    }

    /// The weight, `[O, I]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The bias, `[O]`, if there is one.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }
}

parameters!(Linear { weight, bias });

impl Module for Linear {
    /// # Shapes
    /// `input: [.., I] → [.., O]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let bias = self.bias.as_ref().map(|bias| bias.var(pass)).transpose()?;
        Ok(input.linear(self.weight.var(pass)?, bias)?)
    }
}

weighted!(Linear, |self, input, weight, bias| Ok(input.linear(weight, bias)?));
