//! Segmentation of images: Ronneberger, Fischer and Brox, "U-Net: convolutional networks for
//! biomedical image segmentation" (2015), with padded convolutions and batch normalisation.
//!
//! `B` batch, `C` input channels, `H W` image, `L` classes.

use lowtide_autograd::{Pass, SavedPolicy, Var};
use lowtide_tensor::{Conv2dGeometry, ConvTranspose2dGeometry, Device, PadMode, RandomKey};

use crate::buffer::Buffer;
use crate::error::Result;
use crate::layers::batch_norm::BatchNorm2d;
use crate::layers::conv_transpose2d::ConvTranspose2d;
use crate::layers::conv2d::Conv2d;
use crate::layers::pool::MaxPool2d;
use crate::module::{Module, Parameters, forward_in, visit_buffers_under, visit_under};
use crate::parameter::Parameter;
use crate::segment::{Segment, Segments, visit_block_policies};

/// How large a [`UNet`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UNetShape {
    /// Channels of an image.
    pub channels: usize,
    /// Channels at full size; each halving of the size doubles them.
    pub width: usize,
    /// Classes of a pixel.
    pub classes: usize,
}

impl UNetShape {
    /// 64 channels at full size for colour images and two classes: 31,037,698 parameters.
    pub const USUAL: UNetShape = UNetShape { channels: 3, width: 64, classes: 2 };
}

/// Twice a convolution 3x3, batch normalisation and ReLU.
#[derive(Clone, Debug)]
struct DoubleConv {
    convs: [Conv2d; 2],
    norms: [BatchNorm2d; 2],
}

impl DoubleConv {
    fn new(device: &Device, key: RandomKey, [inputs, outputs]: [usize; 2]) -> Result<Self> {
        let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
        let conv = |name, inputs| {
            Conv2d::without_bias(device, key.op(name), [inputs, outputs], [3, 3], geometry)
        };
        let norm = || BatchNorm2d::new(device, outputs);
        Ok(DoubleConv {
            convs: [conv("double_conv.0", inputs)?, conv("double_conv.3", outputs)?],
            norms: [norm()?, norm()?],
        })
    }
}

/// The names of the convolutions and normalisations of a [`DoubleConv`].
const LAYERS: [[&str; 2]; 2] =
    [["double_conv.0", "double_conv.1"], ["double_conv.3", "double_conv.4"]];

impl Parameters for DoubleConv {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        let [first, second] = &mut self.convs;
        let [first_norm, second_norm] = &mut self.norms;
        visit_under(LAYERS[0][0], first, visitor);
        visit_under(LAYERS[0][1], first_norm, visitor);
        visit_under(LAYERS[1][0], second, visitor);
        visit_under(LAYERS[1][1], second_norm, visitor);
    }

    fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        let [first, second] = &mut self.norms;
        visit_buffers_under(LAYERS[0][1], first, visitor);
        visit_buffers_under(LAYERS[1][1], second, visitor);
    }
}

impl Module for DoubleConv {
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let mut layers = LAYERS.into_iter().zip(self.convs.iter().zip(&self.norms));
        layers.try_fold(input, |x, ([conv_name, norm_name], (conv, norm))| {
            let x = forward_in(pass, conv_name, conv, x)?;
            Ok(forward_in(pass, norm_name, norm, x)?.relu()?)
        })
    }
}

/// Twice the size by a transposed convolution, beside what was there on the way down, through
/// two convolutions.
#[derive(Clone, Debug)]
struct Up {
    up: ConvTranspose2d,
    conv: DoubleConv,
}

impl Up {
    fn new(device: &Device, key: RandomKey, [inputs, outputs]: [usize; 2]) -> Result<Self> {
        let geometry = ConvTranspose2dGeometry { stride: [2, 2], ..Default::default() };
        let ends = [inputs, inputs / 2];
        Ok(Up {
            up: ConvTranspose2d::new(device, key.op("up"), ends, [2, 2], geometry)?,
            conv: DoubleConv::new(device, key.op("conv"), [inputs, outputs])?,
        })
    }

    /// `x` from below, `beside` from the way down, of twice the size or one pixel more.
    fn forward(&self, pass: &Pass, x: Var, beside: Var) -> Result<Var> {
        let mut x = forward_in(pass, "up", &self.up, x)?;
        let missing = |axis: usize| beside.shape()[axis].saturating_sub(x.shape()[axis]);
        let around = |missing: usize| [missing / 2, missing - missing / 2];
        let padding = [around(missing(2)), around(missing(3))];
        if padding != [[0; 2]; 2] {
            x = x.pad(&padding, PadMode::Constant(0.0))?;
        }
        forward_in(pass, "conv", &self.conv, Var::cat(vec![beside, x], 1)?)
    }
}

impl Parameters for Up {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        visit_under("up", &mut self.up, visitor);
        visit_under("conv", &mut self.conv, visitor);
    }

    fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        visit_buffers_under("conv", &mut self.conv, visitor);
    }
}

/// A network that halves the size of an image four times and doubles it as often, under the names
/// of the widespread implementation `milesial/Pytorch-UNet` on PyTorch Hub (`unet_carvana`).
#[derive(Clone, Debug)]
pub struct UNet {
    inc: Segment<DoubleConv>,
    downs: Vec<Segment<DoubleConv>>,
    ups: Vec<Segment<Up>>,
    outc: Conv2d,
}

/// How often the size is halved.
const HALVINGS: usize = 4;

impl UNet {
    /// A network of `shape`, initialised from `key`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, shape: UNetShape) -> Result<Self> {
        let UNetShape { channels, width, classes } = shape;
        let down = |index: usize| {
            let key = key.op(&format!("down{}.maxpool_conv.1", index + 1));
            let ends = [width << index, width << (index + 1)];
            Ok(Segment::new(DoubleConv::new(device, key, ends)?))
        };
        let up = |index: usize| {
            let key = key.op(&format!("up{}", index + 1));
            let level = HALVINGS - index;
            let ends = [width << level, width << (level - 1)];
            Ok(Segment::new(Up::new(device, key, ends)?))
        };
        let out_key = key.op("outc.conv");
        let plain = Conv2dGeometry::default();
        Ok(UNet {
            inc: Segment::new(DoubleConv::new(device, key.op("inc"), [channels, width])?),
            downs: (0..HALVINGS).map(down).collect::<Result<_>>()?,
            ups: (0..HALVINGS).map(up).collect::<Result<_>>()?,
            outc: Conv2d::new(device, out_key, [width, classes], [1, 1], plain)?,
        })
    }
}

impl Parameters for UNet {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        visit_under("inc", self.inc.block_mut(), visitor);
        for (index, down) in self.downs.iter_mut().enumerate() {
            visit_under(&format!("down{}.maxpool_conv.1", index + 1), down.block_mut(), visitor);
        }
        for (index, up) in self.ups.iter_mut().enumerate() {
            visit_under(&format!("up{}", index + 1), up.block_mut(), visitor);
        }
        visit_under("outc.conv", &mut self.outc, visitor);
    }

    fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        visit_buffers_under("inc", self.inc.block_mut(), visitor);
        for (index, down) in self.downs.iter_mut().enumerate() {
            let name = format!("down{}.maxpool_conv.1", index + 1);
            visit_buffers_under(&name, down.block_mut(), visitor);
        }
        for (index, up) in self.ups.iter_mut().enumerate() {
            visit_buffers_under(&format!("up{}", index + 1), up.block_mut(), visitor);
        }
    }
}

impl Segments for UNet {
    fn visit_policies(&mut self, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>)) {
        visitor(self.inc.policy_mut());
        visit_block_policies(&mut self.downs, visitor);
        visit_block_policies(&mut self.ups, visitor);
    }
}

impl Module for UNet {
    /// # Shapes
    /// `input: [B, C, H, W] → [B, L, H, W]`, H and W at least 16
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let mut x = pass.within("inc", || self.inc.forward(pass, input))?;
        let mut beside = Vec::with_capacity(HALVINGS);
        for (index, down) in self.downs.iter().enumerate() {
            beside.push(x.clone());
            x = pass.within(&format!("down{}.maxpool_conv.1", index + 1), || {
                down.run(pass, [x], |convs, pass, [x]| {
                    convs.forward(pass, MaxPool2d::square(2).forward(pass, x)?)
                })
            })?;
        }
        for (index, up) in self.ups.iter().enumerate() {
            let other = beside.pop().expect("as many ways up as down");
            x = pass.within(&format!("up{}", index + 1), || {
                up.run(pass, [x, other], |up, pass, [x, other]| up.forward(pass, x, other))
            })?;
        }
        forward_in(pass, "outc.conv", &self.outc, x)
    }
}
