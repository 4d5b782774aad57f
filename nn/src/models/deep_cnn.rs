//! An image classifier of three blocks (convolution 3x3, ReLU, max pool 2x2) and a linear layer.
//!
//! `B` batch, `C` input channels, `H W` image, `L` classes.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Conv2dGeometry, Device, RandomKey};

use crate::compress::prune::cut::{Group, Prunable, Slice};
use crate::error::Result;
use crate::layers::conv2d::Conv2d;
use crate::layers::linear::Linear;
use crate::layers::pool::MaxPool2d;
use crate::models::groups::{channels, flattened};
use crate::module::{Module, forward_in};
use crate::node::parameters;

/// The image shape and the sizes of a [`DeepCnn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepCnnShape {
    /// Input channels, height and width of an image; height and width are halved three times.
    pub image: [usize; 3],
    /// Channels of the three convolutions.
    pub channels: [usize; 3],
    /// Number of classes.
    pub classes: usize,
}

impl DeepCnnShape {
    /// 32, 64 and 128 channels for colour images of 64 x 64 and ten classes: 175,178 parameters.
    pub const USUAL: DeepCnnShape =
        DeepCnnShape { image: [3, 64, 64], channels: [32, 64, 128], classes: 10 };
}

/// Three blocks of convolution 3x3 with padding, ReLU and max pool 2x2, then a linear layer, as a
/// `torch.nn.Sequential`. The layers with parameters are `0`, `3`, `6` and `10`.
#[derive(Clone, Debug)]
pub struct DeepCnn {
    convs: Vec<Conv2d>,
    linear: Linear,
}

impl DeepCnn {
    /// A network for `shape`, initialised from `key`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, shape: DeepCnnShape) -> Result<Self> {
        let DeepCnnShape { image: [inputs, height, width], channels: [a, b, c], classes } = shape;
        let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
        let conv = |name, ends| Conv2d::new(device, key.op(name), ends, [3, 3], geometry);
        let convs = vec![conv("0", [inputs, a])?, conv("3", [a, b])?, conv("6", [b, c])?];
        let features = c * (height / 2 / 2 / 2) * (width / 2 / 2 / 2);
        Ok(DeepCnn { convs, linear: Linear::new(device, key.op("10"), features, classes)? })
    }
}

/// Names of the convolutions and of the linear layer.
const CONVS: [&str; 3] = ["0", "3", "6"];
const LINEAR: &str = "10";

parameters!(DeepCnn { convs as CONVS, linear as LINEAR });

impl Prunable for DeepCnn {
    /// The channels of each convolution, as groups `0`, `3` and `6`.
    fn groups(&self) -> Vec<Group> {
        let group = |index: usize| {
            let next = match CONVS.get(index + 1) {
                Some(next) => Slice::new(format!("{next}.weight"), 1),
                None => flattened(LINEAR, &self.linear, &self.convs[index]),
            };
            channels(CONVS[index], &self.convs[index], next)
        };
        (0..self.convs.len()).map(group).collect()
    }
}

impl Module for DeepCnn {
    /// # Shapes
    /// `input: [B, C, H, W] → [B, L]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let x = CONVS.into_iter().zip(&self.convs).try_fold(input, |x, (name, conv)| {
            MaxPool2d::square(2).forward(pass, forward_in(pass, name, conv, x)?.relu()?)
        })?;
        forward_in(pass, LINEAR, &self.linear, x.flatten(1..4)?)
    }
}
