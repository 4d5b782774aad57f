//! Two-dimensional transposed convolution; x: [B, I, H, W], W: [I, O / groups, KH, KW],
//! y: [B, O, H', W'].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{ConvTranspose2dGeometry, Device, RandomKey};

use crate::error::Result;
use crate::layers::kernel;
use crate::layers::weight_norm::{Weighted, weighted};
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// A transposed convolution layer, `torch.nn.ConvTranspose2d`.
#[derive(Clone, Debug)]
pub struct ConvTranspose2d {
    weight: Parameter,
    bias: Option<Parameter>,
    geometry: ConvTranspose2dGeometry,
}

impl ConvTranspose2d {
    /// A layer from `inputs` to `outputs` channels with a kernel of (height, width) and a bias
    /// per output channel. As in PyTorch, the bound of the initial values counts the second
    /// dimension of the weight as inputs.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        kernel: [usize; 2],
        geometry: ConvTranspose2dGeometry,
    ) -> Result<Self> {
        let layer = Self::without_bias(device, key, [inputs, outputs], kernel, geometry)?;
        let bias = kernel::bias(device, key, outputs, &layer.weight)?;
        Ok(ConvTranspose2d { bias: Some(bias), ..layer })
    }

    /// [`ConvTranspose2d::new`] without a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn without_bias(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        kernel: [usize; 2],
        geometry: ConvTranspose2dGeometry,
    ) -> Result<Self> {
        let shape = [inputs, outputs / geometry.groups.max(1), kernel[0], kernel[1]];
        let weight = kernel::weight(device, key, shape)?;
        Ok(ConvTranspose2d { weight, bias: None, geometry })
    }
}

parameters!(ConvTranspose2d { weight, bias });

impl Module for ConvTranspose2d {
    /// # Shapes
    /// `input: [B, I, H, W] → [B, O, H', W']`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.forward_with(pass, self.weight.var(pass)?, input)
    }
}

weighted!(ConvTranspose2d, |self, input, weight, bias| Ok(input.conv_transpose2d(
    weight,
    bias,
    self.geometry
)?));
