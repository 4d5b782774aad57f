//! Cross-correlation of sequences; x: [B, I, L], W: [O, I / groups, K], y: [B, O, L'].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Conv1dGeometry, Device, PadMode, RandomKey};

use crate::checks::check_option;
use crate::error::Result;
use crate::layers::border::Border;
use crate::layers::kernel;
use crate::layers::weight_norm::{Weighted, weighted};
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// A convolution layer, `torch.nn.Conv1d`.
#[derive(Clone, Debug)]
pub struct Conv1d {
    weight: Parameter,
    bias: Option<Parameter>,
    geometry: Conv1dGeometry,
    border: Option<Border<1>>,
}

impl Conv1d {
    /// A layer from `inputs` to `outputs` channels with a kernel of this length and a bias
    /// per output channel.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        geometry: Conv1dGeometry,
    ) -> Result<Self> {
        let layer = Self::without_bias(device, key, [inputs, outputs], kernel, geometry)?;
        let bias = kernel::bias(device, key, outputs, &layer.weight)?;
        Ok(Conv1d { bias: Some(bias), ..layer })
    }

    /// [`Conv1d::new`] without a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn without_bias(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        geometry: Conv1dGeometry,
    ) -> Result<Self> {
        let shape = [outputs, inputs / geometry.groups.max(1), kernel];
        let weight = kernel::weight(device, key, shape)?;
        Ok(Conv1d { weight, bias: None, geometry, border: None })
    }

    /// This layer with padding in `mode` instead of zeros, PyTorch's `padding_mode`. The input is
    /// copied into a padded tensor.
    #[must_use]
    pub fn with_padding_mode(mut self, mode: PadMode) -> Self {
        let mut padding = [self.geometry.padding];
        self.border = Some(Border::in_mode(self.border, &mut padding, mode));
        [self.geometry.padding] = padding;
        self
    }

    /// This layer, padded so that the output has the size of the input, PyTorch's `padding="same"`.
    ///
    /// # Errors
    /// `Option` for a stride other than 1.
    pub fn with_same_padding(mut self) -> Result<Self> {
        let strides = [self.geometry.stride];
        for stride in strides {
            check_option("stride", stride as f64, "{1}", |stride| stride == 1.0)?;
        }
        let kernel = [self.weight.value().shape()[2]];
        let mut padding = [0];
        self.border = Border::same(kernel, [self.geometry.dilation], &mut padding);
        [self.geometry.padding] = padding;
        Ok(self)
    }
}

parameters!(Conv1d { weight, bias });

impl Module for Conv1d {
    /// # Shapes
    /// `input: [B, I, L] → [B, O, L']`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.forward_with(pass, self.weight.var(pass)?, input)
    }
}

weighted!(Conv1d, |self, input, weight, bias| {
    let input = match &self.border {
        Some(border) => border.around(input)?,
        None => input,
    };
    Ok(input.conv1d(weight, bias, self.geometry)?)
});
