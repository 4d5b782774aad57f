//! ResNet with a head for classes. Running statistics are buffers, stored in the file. He et al.,
//! "Deep residual learning for image recognition" (2015).
//!
//! `N` images, `C` channels, `H` rows, `W` columns, `K` classes.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{
    BatchNorm2d, Conv2d, Linear, MaxPool2d, Module, NnResult, Segment, parameters, run_blocks,
};
use lowtide_tensor::{Conv2dGeometry, DType, Device, Pool2dGeometry};
use serde_json::Value;

use super::functions::classes;
use crate::config::{Architecture, Entries, ModelConfig, Shape, activation};
use crate::decoder::{Activation, Maker, Weights, run_in};
use crate::error::{EntryProblem, Result};
use crate::weights::Stored;

/// The shape of a ResNet.
#[derive(Clone, Debug, PartialEq)]
pub struct ResNetShape {
    /// Number of channels of an image.
    pub channels: usize,
    /// Number of output channels of the first layer.
    pub first: usize,
    /// Number of channels and of layers of each stage.
    pub stages: Vec<[usize; 2]>,
    /// True if a layer has three convolutions, with kernels of 1, 3 and 1 pixels; false if it has
    /// two.
    pub is_bottleneck: bool,
    /// True if the first convolution of a bottleneck has the stride, false if the second has it.
    pub is_first_strided: bool,
    /// True if the first stage halves the size.
    pub is_first_stage_halved: bool,
    /// The function after each norm except the last norm of a layer.
    pub activation: Activation,
    /// Number of classes of the head.
    pub classes: usize,
}

/// The configuration of a ResNet.
pub type ResNetConfig = ModelConfig<ResNetShape>;

impl ResNetConfig {
    /// This model with a head for `count` classes instead of its own, for use with
    /// [`load_body`](crate::load_body).
    #[must_use]
    pub fn with_classes(self, count: usize) -> Self {
        let architecture = "ResNetForImageClassification";
        self.with_head(architecture, count, |shape| ResNetShape { classes: count, ..shape })
    }
}

/// A convolution, a norm, and an activation except in the last convolution of a layer.
#[derive(Clone, Debug)]
struct Convolved {
    convolution: Conv2d,
    normalization: BatchNorm2d,
    activation: Option<Activation>,
}

parameters!(Convolved { convolution, normalization });

impl Convolved {
    fn new(
        make: &Maker<'_>,
        path: &str,
        channels: [usize; 2],
        ([kernel, stride], activation): ([usize; 2], Option<Activation>),
    ) -> Result<Self> {
        let geometry =
            Conv2dGeometry { stride: [stride; 2], padding: [kernel / 2; 2], ..Default::default() };
        Ok(Convolved {
            convolution: make.made(&format!("{path}.convolution"), |key| {
                Conv2d::without_bias(make.device, key, channels, [kernel; 2], geometry)
            })?,
            normalization: make.made(path, |_| BatchNorm2d::new(make.device, channels[1]))?,
            activation,
        })
    }
}

impl Module for Convolved {
    fn forward(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        let x = run_in(pass, "convolution", &self.convolution, x)?;
        let x = run_in(pass, "normalization", &self.normalization, x)?;
        match self.activation {
            Some(activation) => activation.of(x),
            None => Ok(x),
        }
    }
}

#[derive(Clone, Debug)]
struct Layer {
    shortcut: Option<Convolved>,
    layer: Vec<Convolved>,
    activation: Activation,
}

parameters!(Layer { shortcut, layer as "layer." });

impl Layer {
    fn forward(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        let mut y = x.clone();
        for (index, part) in self.layer.iter().enumerate() {
            y = run_in(pass, &format!("layer.{index}"), part, y)?;
        }
        let x = match &self.shortcut {
            Some(shortcut) => run_in(pass, "shortcut", shortcut, x)?,
            None => x,
        };
        self.activation.of(y.add(x)?)
    }
}

#[derive(Clone, Debug)]
struct Stage {
    layers: Vec<Segment<Layer>>,
}

parameters!(Stage { layers as "layers." });

/// A ResNet with a head for classes.
#[derive(Clone, Debug)]
pub struct ResNet {
    embedder: Convolved,
    stages: Vec<Stage>,
    classifier: Linear,
    shape: ResNetShape,
}

parameters!(ResNet {
    embedder as "resnet.embedder.embedder",
    stages as "resnet.encoder.stages.",
    classifier as "classifier.1",
});

impl ResNetShape {
    /// Channels, kernel and stride of each convolution of a layer.
    pub(crate) fn convolutions(
        &self,
        [inputs, outputs]: [usize; 2],
        stride: usize,
    ) -> Vec<[usize; 4]> {
        let inner = outputs / 4;
        let [first, second] = if self.is_first_strided { [stride, 1] } else { [1, stride] };
        if self.is_bottleneck {
            vec![[inputs, inner, 1, first], [inner, inner, 3, second], [inner, outputs, 1, 1]]
        } else {
            vec![[inputs, outputs, 3, stride], [outputs, outputs, 3, 1]]
        }
    }

    /// Channels and stride of the layers, stage by stage.
    pub(crate) fn layers(&self) -> Vec<Vec<([usize; 2], usize)>> {
        let mut inputs = self.first;
        let mut stages = Vec::with_capacity(self.stages.len());
        for (at, &[outputs, depth]) in self.stages.iter().enumerate() {
            let stride = if at > 0 || self.is_first_stage_halved { 2 } else { 1 };
            let layer = |place: usize| match place {
                0 => ([inputs, outputs], stride),
                _ => ([outputs, outputs], 1),
            };
            stages.push((0..depth).map(layer).collect());
            inputs = outputs;
        }
        stages
    }
}

/// True if a layer projects its input before the residual addition.
pub(crate) fn has_shortcut([inputs, outputs]: [usize; 2], stride: usize) -> bool {
    inputs != outputs || stride != 1
}

impl ResNet {
    /// A model of `shape` whose parameters are `weights` of `dtype`.
    ///
    /// # Errors
    /// `DType` unless a float type, `OutOfMemory`.
    pub fn new(
        device: &Device,
        shape: ResNetShape,
        weights: impl Into<Weights>,
        dtype: DType,
    ) -> Result<Self> {
        let make = Maker { device, dtype, weights: weights.into(), deviation: 0.02 };
        let shown = Some(shape.activation);
        let layer = |path: &str, channels: [usize; 2], stride: usize| -> Result<Layer> {
            let parts = shape.convolutions(channels, stride);
            let last = parts.len() - 1;
            let part = |(at, &[inputs, outputs, kernel, stride]): (usize, &[usize; 4])| {
                let activation = if at < last { shown } else { None };
                let window = ([kernel, stride], activation);
                Convolved::new(&make, &format!("{path}.layer.{at}"), [inputs, outputs], window)
            };
            let shortcut = if has_shortcut(channels, stride) {
                let window = ([1, stride], None);
                Some(Convolved::new(&make, &format!("{path}.shortcut"), channels, window)?)
            } else {
                None
            };
            let layer = parts.iter().enumerate().map(part).collect::<Result<_>>()?;
            Ok(Layer { shortcut, layer, activation: shape.activation })
        };
        let mut stages = Vec::new();
        for (at, layers) in shape.layers().into_iter().enumerate() {
            let made = layers.into_iter().enumerate().map(|(index, (channels, stride))| {
                let path = format!("resnet.encoder.stages.{at}.layers.{index}");
                Ok(Segment::new(layer(&path, channels, stride)?))
            });
            stages.push(Stage { layers: made.collect::<Result<_>>()? });
        }
        let (name, channels) = ("resnet.embedder.embedder", [shape.channels, shape.first]);
        let width = shape.stages.last().map_or(shape.first, |stage| stage[0]);
        Ok(ResNet {
            embedder: Convolved::new(&make, name, channels, ([7, 2], shown))?,
            stages,
            classifier: make.linear("classifier.1", [width, shape.classes], true)?,
            shape,
        })
    }

    /// The shape of the model.
    pub fn shape(&self) -> &ResNetShape {
        &self.shape
    }
}

impl Module for ResNet {
    /// # Shapes
    /// `input: [N, C, H, W] → [N, K]`
    fn forward(&self, pass: &Pass, input: Var) -> NnResult<Var> {
        let x = run_in(pass, "resnet.embedder.embedder", &self.embedder, input)?;
        let window = Pool2dGeometry { kernel: [3; 2], stride: [2; 2], padding: [1; 2] };
        let mut x = run_in(pass, "resnet.embedder.pooler", &MaxPool2d(window), x)?;
        for (at, stage) in self.stages.iter().enumerate() {
            let prefix = format!("resnet.encoder.stages.{at}.layers.");
            x = run_blocks(&prefix, &stage.layers, pass, x, |layer, pass, x| {
                layer.forward(pass, x)
            })?;
        }
        let pooled = x.adaptive_avg_pool2d([1, 1])?.flatten(1..4)?;
        run_in(pass, "classifier.1", &self.classifier, pooled)
    }
}

impl Stored for ResNet {
    fn is_of_head(&self, name: &str) -> bool {
        name.starts_with("classifier.")
    }
}

impl Shape for ResNetShape {
    type Model = ResNet;

    fn architectures() -> &'static [Architecture<Self>] {
        &[("ResNetForImageClassification", "resnet", shape)]
    }

    fn model(&self, device: &Device, weights: Weights, dtype: DType) -> Result<ResNet> {
        ResNet::new(device, self.clone(), weights, dtype)
    }

    fn count(&self) -> u128 {
        let convolved = |inputs: usize, outputs: usize, kernel: usize| {
            (inputs as u128 * (kernel * kernel) as u128 + 2) * outputs as u128
        };
        let layer = |&(channels, stride): &([usize; 2], usize)| -> u128 {
            let parts = self.convolutions(channels, stride);
            let parts = parts
                .iter()
                .map(|&[inputs, outputs, kernel, _]| convolved(inputs, outputs, kernel));
            let [inputs, outputs] = channels;
            let shortcut =
                if has_shortcut(channels, stride) { convolved(inputs, outputs, 1) } else { 0 };
            parts.sum::<u128>() + shortcut
        };
        let width = self.stages.last().map_or(self.first, |stage| stage[0]) as u128;
        let layers: u128 = self.layers().iter().flatten().map(layer).sum();
        convolved(self.channels, self.first, 7) + layers + (width + 1) * self.classes as u128
    }
}

fn shape(entries: &Entries) -> Result<ResNetShape> {
    // Entries of models that return the outputs of their stages.
    for name in ["out_features", "out_indices", "stage_names"] {
        entries.value(name);
    }
    let is_bottleneck = match entries.optional_text("layer_type")? {
        None | Some("bottleneck") => true,
        Some("basic") => false,
        Some(other) => return Err(entries.unsupported("layer_type", &Value::from(other))),
    };
    let (sizes, depths) = (entries.counts("hidden_sizes")?, entries.counts("depths")?);
    let most = depths.iter().try_fold(0_usize, |sum, depth| sum.checked_add(*depth));
    if sizes.len() != depths.len() || most.is_none_or(|layers| layers > 4096) {
        let (expected, found) = ("a depth for each size, 4096 layers at most", depths.len());
        let found = format!("{found} depths of {} sizes", sizes.len());
        return Err(entries.error("depths", EntryProblem::Wrong { expected, found }));
    }
    if is_bottleneck && let Some(size) = sizes.iter().find(|size| !size.is_multiple_of(4)) {
        let (expected, found) = ("a multiple of 4", size.to_string());
        return Err(entries.error("hidden_sizes", EntryProblem::Wrong { expected, found }));
    }
    Ok(ResNetShape {
        channels: entries.optional_count("num_channels")?.unwrap_or(3),
        first: entries.count("embedding_size")?,
        stages: sizes.into_iter().zip(depths).map(|(size, depth)| [size, depth]).collect(),
        is_bottleneck,
        is_first_strided: entries.flag("downsample_in_bottleneck", false)?,
        is_first_stage_halved: entries.flag("downsample_in_first_stage", false)?,
        activation: activation(entries, "hidden_act")?,
        classes: classes(entries)?,
    })
}
