//! Two-dimensional cross-correlation; x: [B, I, H, W], W: [O, I / groups, KH, KW],
//! y: [B, O, H', W'].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Conv2dGeometry, Device, PadMode, RandomKey};

use crate::checks::check_option;
use crate::error::Result;
use crate::layers::border::Border;
use crate::layers::kernel;
use crate::layers::weight_norm::{Weighted, weighted};
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// A convolution layer, `torch.nn.Conv2d`.
#[derive(Clone, Debug)]
pub struct Conv2d {
    weight: Parameter,
    bias: Option<Parameter>,
    geometry: Conv2dGeometry,
    border: Option<Border<2>>,
}

impl Conv2d {
    /// A layer from `inputs` to `outputs` channels with a kernel of (height, width) and a bias
    /// per output channel.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        kernel: [usize; 2],
        geometry: Conv2dGeometry,
    ) -> Result<Self> {
        let layer = Self::without_bias(device, key, [inputs, outputs], kernel, geometry)?;
        let bias = kernel::bias(device, key, outputs, &layer.weight)?;
        Ok(Conv2d { bias: Some(bias), ..layer })
    }

    /// [`Conv2d::new`] without a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn without_bias(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        kernel: [usize; 2],
        geometry: Conv2dGeometry,
    ) -> Result<Self> {
        let [height, width] = kernel;
        let shape = [outputs, inputs / geometry.groups.max(1), height, width];
        let weight = kernel::weight(device, key, shape)?;
        Ok(Conv2d { weight, bias: None, geometry, border: None })
    }

    /// This layer with padding in `mode` instead of zeros, PyTorch's `padding_mode`. The input is
    /// copied into a padded tensor.
    #[must_use]
    pub fn with_padding_mode(mut self, mode: PadMode) -> Self {
        let padding = &mut self.geometry.padding;
        self.border = Some(Border::in_mode(self.border, padding, mode));
        self
    }

    /// This layer, padded so that the output has the size of the input, PyTorch's `padding="same"`.
    ///
    /// # Errors
    /// `Option` for a stride other than 1.
    pub fn with_same_padding(mut self) -> Result<Self> {
        let strides = self.geometry.stride;
        for stride in strides {
            check_option("stride", stride as f64, "{1}", |stride| stride == 1.0)?;
        }
        let kernel = [2, 3].map(|axis| self.weight.value().shape()[axis]);
        let dilation = self.geometry.dilation;
        self.border = Border::same(kernel, dilation, &mut self.geometry.padding);
        Ok(self)
    }
}

parameters!(Conv2d { weight, bias });

impl Module for Conv2d {
    /// # Shapes
    /// `input: [B, I, H, W] → [B, O, H', W']`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.forward_with(pass, self.weight.var(pass)?, input)
    }
}

weighted!(Conv2d, |self, input, weight, bias| {
    let input = match &self.border {
        Some(border) => border.around(input)?,
        None => input,
    };
    Ok(input.conv2d(weight, bias, self.geometry)?)
});
