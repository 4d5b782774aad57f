//! Residual networks: He, Zhang, Ren and Sun, "Deep residual learning for image recognition"
//! (2016). As in torchvision, the stride of a bottleneck is in its 3x3 convolution.
//!
//! `B` batch, `C` input channels, `H W` image, `L` classes.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Conv2dGeometry, Device, Pool2dGeometry, RandomKey};

use crate::compress::prune::cut::{Group, Prunable, Slice};
use crate::error::Result;
use crate::init::{self, Fan, Nonlinearity};
use crate::layers::batch_norm::BatchNorm2d;
use crate::layers::conv2d::Conv2d;
use crate::layers::linear::Linear;
use crate::layers::pool::{AdaptiveAvgPool2d, MaxPool2d};
use crate::layers::weight_norm::Weighted;
use crate::module::{Module, Parameters, forward_in};
use crate::node::{Field, Visitor, parameters};
use crate::segment::{Segment, forward_blocks};

/// Kinds of blocks of a [`ResNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResNetBlock {
    /// Two convolutions 3x3.
    Basic,
    /// Convolutions 1x1, 3x3 and 1x1; the last multiplies the channels by four.
    Bottleneck,
}

impl ResNetBlock {
    fn expansion(self) -> usize {
        match self {
            ResNetBlock::Basic => 1,
            ResNetBlock::Bottleneck => 4,
        }
    }
}

/// The sizes of a [`ResNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResNetShape {
    /// The kind of the blocks.
    pub block: ResNetBlock,
    /// Number of blocks in each of the four layers.
    pub blocks: [usize; 4],
    /// Number of channels of the first layer. Each further layer doubles the channels.
    pub width: usize,
    /// Number of classes.
    pub classes: usize,
}

impl ResNetShape {
    /// ResNet-18 for ImageNet: 11,689,512 parameters.
    pub const RESNET18: ResNetShape =
        ResNetShape { block: ResNetBlock::Basic, blocks: [2, 2, 2, 2], width: 64, classes: 1000 };
    /// ResNet-34 for ImageNet: 21,797,672 parameters.
    pub const RESNET34: ResNetShape = ResNetShape { blocks: [3, 4, 6, 3], ..ResNetShape::RESNET18 };
    /// ResNet-50 for ImageNet: 25,557,032 parameters.
    pub const RESNET50: ResNetShape =
        ResNetShape { block: ResNetBlock::Bottleneck, ..ResNetShape::RESNET34 };
}

/// A convolution without a bias and its normalisation.
#[derive(Clone, Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl ConvNorm {
    /// A convolution whose padding keeps the size at stride 1. The weights are initialised for ReLU
    /// and preserve the variance of the gradients.
    fn new(
        device: &Device,
        key: RandomKey,
        ends: [usize; 2],
        [kernel, stride]: [usize; 2],
    ) -> Result<Self> {
        let geometry =
            Conv2dGeometry { stride: [stride; 2], padding: [kernel / 2; 2], ..Default::default() };
        let mut conv = Conv2d::without_bias(device, key, ends, [kernel; 2], geometry)?;
        let mut result = Ok(());
        conv.visit(&mut |_, weight| {
            let key = key.op("weight");
            let (value, fan) = (weight.value_mut(), Fan::Out);
            result = init::kaiming_normal_(value, key, fan, Nonlinearity::Relu);
        });
        result?;
        Ok(ConvNorm { conv, norm: BatchNorm2d::new(device, ends[1])? })
    }

    fn forward(&self, [conv, norm]: [&str; 2], pass: &Pass, x: Var) -> Result<Var> {
        forward_in(pass, norm, &self.norm, forward_in(pass, conv, &self.conv, x)?)
    }
}

impl Field<[&str; 2]> for ConvNorm {
    fn show(&mut self, [conv, norm]: [&str; 2], visitor: &mut Visitor<'_>) {
        visitor.field(conv, &mut self.conv);
        visitor.field(norm, &mut self.norm);
    }
}

/// Names of the convolutions and normalisations of a block.
const NAMES: [[&str; 2]; 3] = [["conv1", "bn1"], ["conv2", "bn2"], ["conv3", "bn3"]];
const DOWNSAMPLE: [&str; 2] = ["downsample.0", "downsample.1"];

/// Convolutions with a shortcut. If the shape changes, the shortcut is a convolution.
#[derive(Clone, Debug)]
struct Block {
    convs: Vec<ConvNorm>,
    downsample: Option<ConvNorm>,
}

impl Block {
    fn new(
        device: &Device,
        key: RandomKey,
        kind: ResNetBlock,
        [inputs, width]: [usize; 2],
        stride: usize,
    ) -> Result<Self> {
        let outputs = width * kind.expansion();
        let conv = |index: usize, ends, window| {
            ConvNorm::new(device, key.op(NAMES[index][0]), ends, window)
        };
        let convs = match kind {
            ResNetBlock::Basic => {
                vec![conv(0, [inputs, width], [3, stride])?, conv(1, [width, width], [3, 1])?]
            }
            ResNetBlock::Bottleneck => vec![
                conv(0, [inputs, width], [1, 1])?,
                conv(1, [width, width], [3, stride])?,
                conv(2, [width, outputs], [1, 1])?,
            ],
        };
        let downsample = (stride != 1 || inputs != outputs)
            .then(|| ConvNorm::new(device, key.op(DOWNSAMPLE[0]), [inputs, outputs], [1, stride]))
            .transpose()?;
        Ok(Block { convs, downsample })
    }
}

parameters!(Block { convs as NAMES, downsample as DOWNSAMPLE });

impl Block {
    /// The groups of channels between consecutive convolutions.
    fn groups(&self) -> impl Iterator<Item = Group> {
        let between = self.convs.iter().zip(NAMES.windows(2));
        between.take(self.convs.len() - 1).map(|(conv, names)| {
            let ([name, norm], [next, _]) = (names[0], names[1]);
            let len = conv.conv.weight().value().shape()[0];
            let made_by = [Slice::new(format!("{name}.weight"), 0)];
            let statistics = ["weight", "bias", "running_mean", "running_var"];
            let statistics = statistics.map(|own| Slice::new(format!("{norm}.{own}"), 0));
            let next = Slice::new(format!("{next}.weight"), 1);
            Group::new(name, len, made_by).with(statistics).with([next])
        })
    }
}

impl Module for Block {
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let mut x = input.clone();
        for (index, conv) in self.convs.iter().enumerate() {
            x = conv.forward(NAMES[index], pass, if index > 0 { x.relu()? } else { x })?;
        }
        let past = match &self.downsample {
            Some(downsample) => downsample.forward(DOWNSAMPLE, pass, input)?,
            None => input,
        };
        // The branch comes first: the sum can reuse its buffer.
        Ok(x.add(past)?.relu()?)
    }
}

/// An image classifier, `torchvision.models.resnet18` and similar models.
#[derive(Clone, Debug)]
pub struct ResNet {
    stem: ConvNorm,
    layers: Vec<Vec<Segment<Block>>>,
    fc: Linear,
}

const LAYERS: [&str; 4] = ["layer1.", "layer2.", "layer3.", "layer4."];

impl ResNet {
    /// A network of `shape` for colour images, initialised from `key` as in torchvision.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, shape: ResNetShape) -> Result<Self> {
        let ResNetShape { block, blocks, width, classes } = shape;
        let stem = ConvNorm::new(device, key.op("conv1"), [3, width], [7, 2])?;
        let mut inputs = width;
        let layer = |index: usize| {
            let width = width << index;
            let block = |at: usize| {
                let stride = if index > 0 && at == 0 { 2 } else { 1 };
                let key = key.op(&format!("{}{at}", LAYERS[index]));
                let made = Block::new(device, key, block, [inputs, width], stride)?;
                inputs = width * block.expansion();
                Ok(Segment::new(made))
            };
            (0..blocks[index]).map(block).collect::<Result<Vec<_>>>()
        };
        let layers = (0..LAYERS.len()).map(layer).collect::<Result<_>>()?;
        Ok(ResNet { stem, layers, fc: Linear::new(device, key.op("fc"), inputs, classes)? })
    }
}

parameters!(ResNet { stem as NAMES[0], layers as LAYERS, fc });

impl Prunable for ResNet {
    /// The channels within each block, such as `layer1.0.conv1`. The channels of the sums of blocks
    /// and shortcuts are in no group.
    fn groups(&self) -> Vec<Group> {
        let mut groups = Vec::new();
        for (layer, blocks) in LAYERS.into_iter().zip(&self.layers) {
            for (index, segment) in blocks.iter().enumerate() {
                let within = |group: Group| group.within(&format!("{layer}{index}"));
                groups.extend(segment.block().groups().map(within));
            }
        }
        groups
    }
}

impl Module for ResNet {
    /// # Shapes
    /// `input: [B, 3, H, W] → [B, L]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let x = self.stem.forward(NAMES[0], pass, input)?.relu()?; // [B, W, H/2, W/2]
        let window = Pool2dGeometry { kernel: [3, 3], stride: [2, 2], padding: [1, 1] };
        let x = MaxPool2d(window).forward(pass, x)?;
        let x = LAYERS
            .into_iter()
            .zip(&self.layers)
            .try_fold(x, |x, (name, layer)| forward_blocks(name, layer, pass, x))?;
        let x = AdaptiveAvgPool2d([1, 1]).forward(pass, x)?;
        forward_in(pass, "fc", &self.fc, x.flatten(1..4)?)
    }
}
