//! Transposed convolution of sequences; x: [B, I, L], W: [I, O / groups, K], y: [B, O, L'].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{ConvTranspose1dGeometry, Device, RandomKey};

use crate::error::Result;
use crate::layers::kernel;
use crate::layers::weight_norm::{Weighted, weighted};
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// A transposed convolution layer, `torch.nn.ConvTranspose1d`.
#[derive(Clone, Debug)]
pub struct ConvTranspose1d {
    weight: Parameter,
    bias: Option<Parameter>,
    geometry: ConvTranspose1dGeometry,
}

impl ConvTranspose1d {
    /// A layer from `inputs` to `outputs` channels with a kernel of this length and a bias per
    /// output channel; initial values as in [`crate::ConvTranspose2d::new`].
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        geometry: ConvTranspose1dGeometry,
    ) -> Result<Self> {
        let layer = Self::without_bias(device, key, [inputs, outputs], kernel, geometry)?;
        let bias = kernel::bias(device, key, outputs, &layer.weight)?;
        Ok(ConvTranspose1d { bias: Some(bias), ..layer })
    }

    /// [`ConvTranspose1d::new`] without a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn without_bias(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        geometry: ConvTranspose1dGeometry,
    ) -> Result<Self> {
        let shape = [inputs, outputs / geometry.groups.max(1), kernel];
        let weight = kernel::weight(device, key, shape)?;
        Ok(ConvTranspose1d { weight, bias: None, geometry })
    }
}

parameters!(ConvTranspose1d { weight, bias });

impl Module for ConvTranspose1d {
    /// # Shapes
    /// `input: [B, I, L] → [B, O, L']`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.forward_with(pass, self.weight.var(pass)?, input)
    }
}

weighted!(ConvTranspose1d, |self, input, weight, bias| Ok(input.conv_transpose1d(
    weight,
    bias,
    self.geometry
)?));
