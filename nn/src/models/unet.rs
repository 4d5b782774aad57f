//! Segmentation of images: Ronneberger, Fischer and Brox, "U-Net: convolutional networks for
//! biomedical image segmentation" (2015), with padded convolutions and batch normalisation.
//!
//! `B` batch, `C` input channels, `H W` image, `L` classes.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Conv2dGeometry, ConvTranspose2dGeometry, Device, PadMode, RandomKey};

use crate::error::Result;
use crate::layers::batch_norm::BatchNorm2d;
use crate::layers::conv_transpose2d::ConvTranspose2d;
use crate::layers::conv2d::Conv2d;
use crate::layers::pool::MaxPool2d;
use crate::module::{Module, forward_in};
use crate::node::parameters;
use crate::segment::Segment;

/// The sizes of a [`UNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UNetShape {
    /// Number of channels of an image.
    pub channels: usize,
    /// Number of channels at full size. Each halving of the size doubles the channels.
    pub width: usize,
    /// Number of classes of a pixel.
    pub classes: usize,
}

impl UNetShape {
    /// 64 channels at full size for colour images and two classes: 31,037,698 parameters.
    pub const USUAL: UNetShape = UNetShape { channels: 3, width: 64, classes: 2 };
}

/// Convolution 3x3, batch normalisation and ReLU, twice.
#[derive(Clone, Debug)]
struct DoubleConv {
    conv1: Conv2d,
    norm1: BatchNorm2d,
    conv2: Conv2d,
    norm2: BatchNorm2d,
}

impl DoubleConv {
    fn new(device: &Device, key: RandomKey, [inputs, outputs]: [usize; 2]) -> Result<Self> {
        let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
        let conv = |name, inputs| {
            Conv2d::without_bias(device, key.op(name), [inputs, outputs], [3, 3], geometry)
        };
        let norm = || BatchNorm2d::new(device, outputs);
        Ok(DoubleConv {
            conv1: conv("double_conv.0", inputs)?,
            norm1: norm()?,
            conv2: conv("double_conv.3", outputs)?,
            norm2: norm()?,
        })
    }
}

parameters!(DoubleConv {
    conv1 as "double_conv.0",
    norm1 as "double_conv.1",
    conv2 as "double_conv.3",
    norm2 as "double_conv.4",
});

impl Module for DoubleConv {
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let x = forward_in(pass, "double_conv.0", &self.conv1, input)?;
        let x = forward_in(pass, "double_conv.1", &self.norm1, x)?.relu()?;
        let x = forward_in(pass, "double_conv.3", &self.conv2, x)?;
        Ok(forward_in(pass, "double_conv.4", &self.norm2, x)?.relu()?)
    }
}

/// A transposed convolution to twice the size, a concatenation with the features of that size from
/// the down path, and two convolutions.
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

    /// Joins `x` from the level below with `beside` from the down path. `beside` is twice as large
    /// as `x`, or one pixel more.
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

parameters!(Up { up, conv });

/// A network that halves the size of an image four times and doubles it four times. Names are those
/// of `milesial/Pytorch-UNet` on PyTorch Hub (`unet_carvana`).
#[derive(Clone, Debug)]
pub struct UNet {
    inc: Segment<DoubleConv>,
    downs: Vec<Segment<DoubleConv>>,
    ups: Vec<Segment<Up>>,
    outc: Conv2d,
}

/// Number of halvings of the size.
const HALVINGS: usize = 4;

/// Names of the blocks in the down path and in the up path.
const DOWNS: [&str; HALVINGS] = [
    "down1.maxpool_conv.1",
    "down2.maxpool_conv.1",
    "down3.maxpool_conv.1",
    "down4.maxpool_conv.1",
];
const UPS: [&str; HALVINGS] = ["up1", "up2", "up3", "up4"];

impl UNet {
    /// A network of `shape`, initialised from `key`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, shape: UNetShape) -> Result<Self> {
        let UNetShape { channels, width, classes } = shape;
        let down = |index: usize| {
            let key = key.op(DOWNS[index]);
            let ends = [width << index, width << (index + 1)];
            Ok(Segment::new(DoubleConv::new(device, key, ends)?))
        };
        let up = |index: usize| {
            let key = key.op(UPS[index]);
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

parameters!(UNet { inc, downs as DOWNS, ups as UPS, outc as "outc.conv" });

impl Module for UNet {
    /// # Shapes
    /// `input: [B, C, H, W] → [B, L, H, W]`, H and W at least 16
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let mut x = pass.within("inc", || self.inc.forward(pass, input))?;
        let mut beside = Vec::with_capacity(HALVINGS);
        for (name, down) in DOWNS.into_iter().zip(&self.downs) {
            beside.push(x.clone());
            x = pass.within(name, || {
                down.run(pass, [x], |convs, pass, [x]| {
                    convs.forward(pass, MaxPool2d::square(2).forward(pass, x)?)
                })
            })?;
        }
        for (name, up) in UPS.into_iter().zip(&self.ups) {
            let other = beside.pop().expect("as many ways up as down");
            x = pass.within(name, || {
                up.run(pass, [x, other], |up, pass, [x, other]| up.forward(pass, x, other))
            })?;
        }
        forward_in(pass, "outc.conv", &self.outc, x)
    }
}
