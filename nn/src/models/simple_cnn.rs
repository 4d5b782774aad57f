//! A small image classifier: convolution 3x3, ReLU, max pool 2x2, linear.
//!
//! `B` batch, `C` input channels, `H W` image, `K` channels of the convolution, `L` classes.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Conv2dGeometry, Device, RandomKey};

use crate::compress::prune::cut::{Group, Prunable};
use crate::error::Result;
use crate::layers::conv2d::Conv2d;
use crate::layers::linear::Linear;
use crate::layers::pool::MaxPool2d;
use crate::models::groups::{channels, flattened};
use crate::module::{Module, forward_in};
use crate::node::parameters;

/// The image shape and the width of a [`SimpleCnn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleCnnShape {
    /// Input channels, height and width of an image.
    pub image: [usize; 3],
    /// Channels of the convolution.
    pub channels: usize,
    /// Number of classes.
    pub classes: usize,
}

/// Convolution 3x3 with padding, ReLU, max pool 2x2, then a linear layer.
#[derive(Clone, Debug)]
pub struct SimpleCnn {
    conv: Conv2d,
    linear: Linear,
}

impl SimpleCnn {
    /// A network for `shape`, initialised from `key`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, shape: SimpleCnnShape) -> Result<Self> {
        let SimpleCnnShape { image: [inputs, height, width], channels, classes } = shape;
        let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
        let conv = Conv2d::new(device, key.op("conv"), [inputs, channels], [3, 3], geometry)?;
        let features = channels * (height / 2) * (width / 2);
        let linear = Linear::new(device, key.op("linear"), features, classes)?;
        Ok(SimpleCnn { conv, linear })
    }
}

parameters!(SimpleCnn { conv, linear });

impl Prunable for SimpleCnn {
    /// The channels of the convolution, as group `conv`.
    fn groups(&self) -> Vec<Group> {
        vec![channels("conv", &self.conv, flattened("linear", &self.linear, &self.conv))]
    }
}

impl Module for SimpleCnn {
    /// # Shapes
    /// `input: [B, C, H, W] → [B, L]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let x = forward_in(pass, "conv", &self.conv, input)?.relu()?; // [B, K, H, W], in one buffer
        let x = MaxPool2d::square(2).forward(pass, x)?; // [B, K, H/2, W/2]
        forward_in(pass, "linear", &self.linear, x.flatten(1..4)?)
    }
}
