//! Convolution and pooling layers of volumes, `[B, C, D, H, W]`.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{AvgPool, Device, RandomKey};

use crate::error::Result;
use crate::functional::volumes::{
    Conv3dGeometry, MaxPool3dOptions, Pool3dGeometry, adaptive_avg_pool3d, adaptive_max_pool3d,
    avg_pool3d, conv3d, max_pool3d,
};
use crate::layers::kernel;
use crate::layers::weight_norm::{Weighted, weighted};
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// A convolution layer of volumes, `torch.nn.Conv3d`.
#[derive(Clone, Debug)]
pub struct Conv3d {
    weight: Parameter,
    bias: Option<Parameter>,
    geometry: Conv3dGeometry,
}

impl Conv3d {
    /// A layer from `inputs` to `outputs` channels with a kernel of (depth, height, width) and a
    /// bias per output channel.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(
        device: &Device,
        key: RandomKey,
        channels: [usize; 2],
        kernel: [usize; 3],
        geometry: Conv3dGeometry,
    ) -> Result<Self> {
        let layer = Self::without_bias(device, key, channels, kernel, geometry)?;
        let bias = kernel::bias(device, key, channels[1], &layer.weight)?;
        Ok(Conv3d { bias: Some(bias), ..layer })
    }

    /// [`Conv3d::new`] without a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn without_bias(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        [depth, height, width]: [usize; 3],
        geometry: Conv3dGeometry,
    ) -> Result<Self> {
        let shape = [outputs, inputs / geometry.groups.max(1), depth, height, width];
        let weight = kernel::weight(device, key, shape)?;
        Ok(Conv3d { weight, bias: None, geometry })
    }
}

parameters!(Conv3d { weight, bias });

impl Module for Conv3d {
    /// # Shapes
    /// `input: [B, I, D, H, W] → [B, O, D', H', W']`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.forward_with(pass, self.weight.var(pass)?, input)
    }
}

weighted!(Conv3d, |self, input, weight, bias| conv3d(input, weight, bias, self.geometry));

/// The largest value in each window, `torch.nn.MaxPool3d`.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool3d(pub Pool3dGeometry);

parameters!(MaxPool3d {});

impl Module for MaxPool3d {
    /// # Shapes
    /// `input: [B, C, D, H, W] → [B, C, D', H', W']`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        max_pool3d(input, self.0, MaxPool3dOptions::default())
    }
}

/// The mean of each window, `torch.nn.AvgPool3d`.
#[derive(Clone, Copy, Debug)]
pub struct AvgPool3d {
    /// Size and stride of the windows.
    pub window: Pool3dGeometry,
    /// How the edges are padded and counted; the default is PyTorch's.
    pub options: AvgPool,
}

parameters!(AvgPool3d {});

impl Module for AvgPool3d {
    /// # Shapes
    /// `input: [B, C, D, H, W] → [B, C, D', H', W']`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        avg_pool3d(input, self.window, self.options)
    }
}

/// The means of this many (planes, rows, columns) of windows that cover the volume,
/// `torch.nn.AdaptiveAvgPool3d`.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveAvgPool3d(pub [usize; 3]);

parameters!(AdaptiveAvgPool3d {});

impl Module for AdaptiveAvgPool3d {
    /// # Shapes
    /// `input: [B, C, D, H, W] → [B, C, planes, rows, columns]`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        adaptive_avg_pool3d(input, self.0)
    }
}

/// The largest values of this many (planes, rows, columns) of windows that cover the volume,
/// `torch.nn.AdaptiveMaxPool3d`.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveMaxPool3d(pub [usize; 3]);

parameters!(AdaptiveMaxPool3d {});

impl Module for AdaptiveMaxPool3d {
    /// # Shapes
    /// `input: [B, C, D, H, W] → [B, C, planes, rows, columns]`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        adaptive_max_pool3d(input, self.0)
    }
}
