//! Networks of images.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{
    AdaptiveAvgPool2d, AvgPool2d, BatchNorm2d, Conv2d, ConvTranspose2d, Flatten, GELU, LayerNorm,
    LeakyReLU, Linear, MaxPool2d, Module, NnResult as Result, Parameter, ReLU, ReLU6, Sequential,
    Tanh, bce_with_logits, parameters,
};
use lowtide_tensor::{Conv2dGeometry, ConvTranspose2dGeometry, Device, Tensor};

use super::Trained;
use crate::KEY;

/// A convolution of square windows: kernel, stride, padding, groups.
fn conv(
    device: &Device,
    ends: [usize; 2],
    [kernel, stride, padding, groups]: [usize; 4],
    bias: bool,
) -> Result<Conv2d> {
    let (stride, padding) = ([stride; 2], [padding; 2]);
    let geometry = Conv2dGeometry { stride, padding, groups, ..Default::default() };
    if bias {
        Conv2d::new(device, KEY, ends, [kernel; 2], geometry)
    } else {
        Conv2d::without_bias(device, KEY, ends, [kernel; 2], geometry)
    }
}

/// Configuration A of Simonyan and Zisserman, "Very deep convolutional networks for large-scale
/// image recognition" (2015), for images of 32 x 32 and with hidden layers of 512.
pub(super) fn vgg11(device: &Device) -> Result<Sequential> {
    let (mut model, mut inputs) = (Sequential::new(), 3);
    for (outputs, pools) in [
        (64, true),
        (128, true),
        (256, false),
        (256, true),
        (512, false),
        (512, true),
        (512, false),
        (512, true),
    ] {
        model = model.then(conv(device, [inputs, outputs], [3, 1, 1, 1], true)?).then(ReLU);
        if pools {
            model = model.then(MaxPool2d::square(2));
        }
        inputs = outputs;
    }
    let linear = |outputs| Linear::new(device, KEY, 512, outputs);
    model = model.then(Flatten).then(linear(512)?).then(ReLU);
    Ok(model.then(linear(512)?).then(ReLU).then(linear(10)?))
}

/// An inverted residual block of MobileNetV2.
#[derive(Clone)]
struct Inverted {
    layers: Sequential,
    is_residual: bool,
}

parameters!(Inverted { layers as "" });

impl Module for Inverted {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let y = self.layers.forward(pass, x.clone())?;
        Ok(if self.is_residual { y.add(x)? } else { y })
    }
}

/// Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks" (2018), width 1, for
/// 100 classes.
pub(super) struct MobileNetV2 {
    features: Sequential,
    classifier: Linear,
}

impl MobileNetV2 {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let unit = |model: Sequential, ends: [usize; 2], window: [usize; 4]| {
            let model = model.then(conv(device, ends, window, false)?);
            Ok::<_, lowtide_nn::NnError>(model.then(BatchNorm2d::new(device, ends[1])?))
        };
        let mut features = unit(Sequential::new(), [3, 32], [3, 2, 1, 1])?.then(ReLU6);
        let mut inputs = 32;
        // Table 2 of the paper: expansion, channels, blocks, stride of the first block.
        for [expansion, outputs, blocks, stride] in [
            [1, 16, 1, 1],
            [6, 24, 2, 2],
            [6, 32, 3, 2],
            [6, 64, 4, 2],
            [6, 96, 3, 1],
            [6, 160, 3, 2],
            [6, 320, 1, 1],
        ] {
            for block in 0..blocks {
                let stride = if block == 0 { stride } else { 1 };
                let (hidden, mut layers) = (inputs * expansion, Sequential::new());
                if expansion != 1 {
                    layers = unit(layers, [inputs, hidden], [1, 1, 0, 1])?.then(ReLU6);
                }
                layers = unit(layers, [hidden, hidden], [3, stride, 1, hidden])?.then(ReLU6);
                layers = unit(layers, [hidden, outputs], [1, 1, 0, 1])?;
                let is_residual = stride == 1 && inputs == outputs;
                features = features.then(Inverted { layers, is_residual });
                inputs = outputs;
            }
        }
        features = unit(features, [inputs, 1280], [1, 1, 0, 1])?.then(ReLU6);
        features = features.then(AdaptiveAvgPool2d([1, 1])).then(Flatten);
        Ok(MobileNetV2 { features, classifier: Linear::new(device, KEY, 1280, 100)? })
    }
}

parameters!(MobileNetV2 { features, classifier });

impl Module for MobileNetV2 {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let x = pass.within("features", || self.features.forward(pass, x))?;
        pass.within("classifier", || self.classifier.forward(pass, x))
    }
}

/// Layer normalisation over the channels of images.
#[derive(Clone)]
struct ChannelNorm(LayerNorm);

impl ChannelNorm {
    fn new(device: &Device, channels: usize) -> Result<Self> {
        Ok(ChannelNorm(LayerNorm::new(device, &[channels])?.with_eps(1e-6)))
    }
}

parameters!(ChannelNorm { 0 as "" });

impl Module for ChannelNorm {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let x = self.0.forward(pass, x.permute(&[0, 2, 3, 1])?)?;
        Ok(x.permute(&[0, 3, 1, 2])?)
    }
}

/// Depthwise 7x7, normalisation, a hidden layer of four times the channels, and a learned scale.
#[derive(Clone)]
struct ConvNeXtBlock {
    depthwise: Conv2d,
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    scale: Parameter,
}

parameters!(ConvNeXtBlock { depthwise, norm, up, down, scale });

impl ConvNeXtBlock {
    fn new(device: &Device, channels: usize) -> Result<Self> {
        Ok(ConvNeXtBlock {
            depthwise: conv(device, [channels; 2], [7, 1, 3, channels], true)?,
            norm: LayerNorm::new(device, &[channels])?.with_eps(1e-6),
            up: Linear::new(device, KEY, channels, 4 * channels)?,
            down: Linear::new(device, KEY, 4 * channels, channels)?,
            scale: Parameter::full(device, [channels], 1.0)?,
        })
    }
}

impl Module for ConvNeXtBlock {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let y = self.depthwise.forward(pass, x.clone())?.permute(&[0, 2, 3, 1])?;
        let y = self.up.forward(pass, self.norm.forward(pass, y)?)?;
        let y = self.down.forward(pass, GELU.forward(pass, y)?)?;
        let y = y.mul(self.scale.var(pass)?)?.permute(&[0, 3, 1, 2])?;
        Ok(y.add(x)?)
    }
}

/// Liu et al., "A ConvNet for the 2020s" (2022), with 2, 2, 6 and 2 blocks of 40, 80, 160 and 320
/// channels, for 100 classes.
pub(super) struct ConvNeXt {
    features: Sequential,
    norm: LayerNorm,
    head: Linear,
}

impl ConvNeXt {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let (mut features, mut inputs) = (Sequential::new(), 3);
        for (channels, blocks) in [(40, 2), (80, 2), (160, 6), (320, 2)] {
            if inputs == 3 {
                features = features.then(conv(device, [3, channels], [4, 4, 0, 1], true)?);
                features = features.then(ChannelNorm::new(device, channels)?);
            } else {
                features = features.then(ChannelNorm::new(device, inputs)?);
                features = features.then(conv(device, [inputs, channels], [2, 2, 0, 1], true)?);
            }
            for _ in 0..blocks {
                features = features.then(ConvNeXtBlock::new(device, channels)?);
            }
            inputs = channels;
        }
        let norm = LayerNorm::new(device, &[inputs])?.with_eps(1e-6);
        Ok(ConvNeXt { features, norm, head: Linear::new(device, KEY, inputs, 100)? })
    }
}

parameters!(ConvNeXt { features, norm, head });

impl Module for ConvNeXt {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let x = pass.within("features", || self.features.forward(pass, x))?.mean(&[2, 3])?;
        self.head.forward(pass, self.norm.forward(pass, x)?)
    }
}

/// Layers whose output is concatenated to their input along the channels.
#[derive(Clone)]
struct Dense {
    layers: Sequential,
}

parameters!(Dense { layers as "" });

impl Module for Dense {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let y = self.layers.forward(pass, x.clone())?;
        Ok(Var::cat(vec![x, y], 1)?)
    }
}

/// DenseNet-BC of Huang et al., "Densely connected convolutional networks" (2017): three blocks of
/// 6 layers that add 12 channels, for 10 classes.
pub(super) struct DenseNet {
    features: Sequential,
    classifier: Linear,
}

impl DenseNet {
    pub(super) fn new(device: &Device) -> Result<Self> {
        const GROWTH: usize = 12;
        let unit = |model: Sequential, ends: [usize; 2], window: [usize; 4]| {
            let model = model.then(BatchNorm2d::new(device, ends[0])?).then(ReLU);
            Ok::<_, lowtide_nn::NnError>(model.then(conv(device, ends, window, false)?))
        };
        let mut channels = 2 * GROWTH;
        let first = conv(device, [3, channels], [3, 1, 1, 1], false)?;
        let mut features = Sequential::new().then(first);
        for block in 0..3 {
            for _ in 0..6 {
                let layers = unit(Sequential::new(), [channels, 4 * GROWTH], [1, 1, 0, 1])?;
                let layers = unit(layers, [4 * GROWTH, GROWTH], [3, 1, 1, 1])?;
                features = features.then(Dense { layers });
                channels += GROWTH;
            }
            if block < 2 {
                features = unit(features, [channels, channels / 2], [1, 1, 0, 1])?;
                features = features.then(AvgPool2d::square(2));
                channels /= 2;
            }
        }
        features = features.then(BatchNorm2d::new(device, channels)?).then(ReLU);
        features = features.then(AdaptiveAvgPool2d([1, 1])).then(Flatten);
        Ok(DenseNet { features, classifier: Linear::new(device, KEY, channels, 10)? })
    }
}

parameters!(DenseNet { features, classifier });

impl Module for DenseNet {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let x = pass.within("features", || self.features.forward(pass, x))?;
        pass.within("classifier", || self.classifier.forward(pass, x))
    }
}

/// Radford, Metz and Chintala, "Unsupervised representation learning with deep convolutional
/// generative adversarial networks" (2016), 32 channels at the largest size. One loss trains both
/// networks: generated images have the label real, and real images have the label generated.
pub(super) struct Dcgan {
    generator: Sequential,
    discriminator: Sequential,
    real: Tensor,
    noise: Tensor,
    is_real: [Tensor; 2],
}

impl Dcgan {
    pub(super) fn new(device: &Device, real: Tensor, noise: Tensor) -> Result<Self> {
        const WIDTH: usize = 32;
        let up = |ends, [kernel, stride, padding]: [usize; 3]| {
            let (stride, padding) = ([stride; 2], [padding; 2]);
            let geometry = ConvTranspose2dGeometry { stride, padding, ..Default::default() };
            ConvTranspose2d::without_bias(device, KEY, ends, [kernel; 2], geometry)
        };
        let norm = |channels| BatchNorm2d::new(device, channels);
        let (mut generator, mut inputs) = (Sequential::new(), 100);
        for (outputs, window) in [
            (8 * WIDTH, [4, 1, 0]),
            (4 * WIDTH, [4, 2, 1]),
            (2 * WIDTH, [4, 2, 1]),
            (WIDTH, [4, 2, 1]),
        ] {
            generator = generator.then(up([inputs, outputs], window)?);
            generator = generator.then(norm(outputs)?).then(ReLU);
            inputs = outputs;
        }
        generator = generator.then(up([WIDTH, 3], [4, 2, 1])?).then(Tanh);
        let down = |ends, stride, padding| conv(device, ends, [4, stride, padding, 1], false);
        let mut discriminator =
            Sequential::new().then(down([3, WIDTH], 2, 1)?).then(LeakyReLU(0.2));
        for inputs in [WIDTH, 2 * WIDTH, 4 * WIDTH] {
            discriminator = discriminator.then(down([inputs, 2 * inputs], 2, 1)?);
            discriminator = discriminator.then(norm(2 * inputs)?).then(LeakyReLU(0.2));
        }
        discriminator = discriminator.then(down([8 * WIDTH, 1], 1, 0)?).then(Flatten);
        let (rows, dtype) = (noise.shape()[0], noise.dtype());
        let is_real = [0.0, 1.0].map(|value| Tensor::full(device, [rows, 1], dtype, value));
        let [made, truly] = is_real;
        Ok(Dcgan { generator, discriminator, real, noise, is_real: [made?, truly?] })
    }
}

parameters!(Dcgan { generator, discriminator });

impl Trained for Dcgan {
    fn loss(&self, pass: &Pass) -> Result<Var> {
        let noise = pass.constant(self.noise.clone());
        let made = pass.within("generator", || self.generator.forward(pass, noise))?;
        let judged = |x| pass.within("discriminator", || self.discriminator.forward(pass, x));
        let [zeros, ones] = &self.is_real;
        let first = bce_with_logits(judged(made)?, ones, None)?.mean()?;
        let real = pass.constant(self.real.clone());
        let second = bce_with_logits(judged(real)?, zeros, None)?.mean()?;
        Ok(first.add(second)?)
    }
}
