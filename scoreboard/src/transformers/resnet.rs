//! ResNet with a head for classes; running statistics are buffers of the file.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{BatchNorm2d, Conv2d, Linear, MaxPool2d, Module, parameters};
use lowtide_tensor::{Device, Pool2dGeometry};

use super::config::{Batch, Config, missing};
use super::parts::{Activation, classes, convolution, linear};
use super::{Net, Step};
use crate::call::Result;

/// A convolution, a norm, and an activation unless it is the last.
struct Convolved {
    convolution: Conv2d,
    normalization: BatchNorm2d,
    activation: Option<Activation>,
}

parameters!(Convolved { convolution, normalization });

impl Convolved {
    fn new(
        device: &Device,
        channels: [usize; 2],
        [kernel, stride]: [usize; 2],
        activation: Option<Activation>,
    ) -> Result<Self> {
        Ok(Convolved {
            convolution: convolution(device, channels, kernel, stride)?,
            normalization: BatchNorm2d::new(device, channels[1])?,
            activation,
        })
    }

    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let x = self.normalization.forward(pass, self.convolution.forward(pass, x)?)?;
        self.activation.map_or(Ok(x.clone()), |activation| activation.of(x))
    }
}

struct Layer {
    shortcut: Option<Convolved>,
    layer: Vec<Convolved>,
    activation: Activation,
}

parameters!(Layer { shortcut, layer as "layer." });

impl Layer {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let run = |x, part: &Convolved| part.forward(pass, x);
        let y = self.layer.iter().try_fold(x.clone(), run)?;
        let x = match &self.shortcut {
            Some(shortcut) => shortcut.forward(pass, x)?,
            None => x,
        };
        self.activation.of(y.add(x)?)
    }
}

struct Stage {
    layers: Vec<Layer>,
}

parameters!(Stage { layers as "layers." });

struct ResNet {
    embedder: Convolved,
    stages: Vec<Stage>,
    classifier: Linear,
}

parameters!(ResNet {
    embedder as "resnet.embedder.embedder",
    stages as "resnet.encoder.stages.",
    classifier as "classifier.1",
});

/// What all layers of a model have in common.
struct Form {
    activation: Activation,
    is_bottleneck: bool,
    /// Whether the first convolution of a bottleneck takes its stride, instead of the second.
    is_first_strided: bool,
}

impl Form {
    fn layer(&self, device: &Device, channels: [usize; 2], stride: usize) -> Result<Layer> {
        let ([inputs, outputs], shown) = (channels, Some(self.activation));
        let part =
            |channels, window, activation| Convolved::new(device, channels, window, activation);
        let layer = if self.is_bottleneck {
            let inner = outputs / 4;
            let strides = if self.is_first_strided { [stride, 1] } else { [1, stride] };
            vec![
                part([inputs, inner], [1, strides[0]], shown)?,
                part([inner, inner], [3, strides[1]], shown)?,
                part([inner, outputs], [1, 1], None)?,
            ]
        } else {
            vec![
                part([inputs, outputs], [3, stride], shown)?,
                part([outputs, outputs], [3, 1], None)?,
            ]
        };
        let changes = inputs != outputs || stride != 1;
        let shortcut = changes.then(|| part(channels, [1, stride], None)).transpose()?;
        Ok(Layer { shortcut, layer, activation: self.activation })
    }
}

pub(super) fn classifier(device: &Device, config: &Config) -> Result<Box<dyn Net>> {
    let activation = Activation::named(config.text("hidden_act")?)?;
    let form = Form {
        activation,
        is_bottleneck: match config.text("layer_type")? {
            "bottleneck" => true,
            "basic" => false,
            other => return Err(missing(&format!("layers of the type {other}"))),
        },
        is_first_strided: config.flag("downsample_in_bottleneck"),
    };
    let (first, sizes) = (config.count("embedding_size")?, config.counts("hidden_sizes")?);
    let strides_first = 1 + usize::from(config.flag("downsample_in_first_stage"));
    let mut stages = Vec::new();
    let mut inputs = first;
    for (at, (&outputs, &depth)) in sizes.iter().zip(&config.counts("depths")?).enumerate() {
        let stride = if at == 0 { strides_first } else { 2 };
        let layer = |place: usize| match place {
            0 => form.layer(device, [inputs, outputs], stride),
            _ => form.layer(device, [outputs, outputs], 1),
        };
        stages.push(Stage { layers: (0..depth).map(layer).collect::<Result<_>>()? });
        inputs = outputs;
    }
    let channels = [config.count("num_channels")?, first];
    // The number of classes is that of their names.
    let names = config.value("id2label").and_then(|names| names.as_object());
    Ok(Box::new(ResNet {
        embedder: Convolved::new(device, channels, [7, 2], Some(activation))?,
        stages,
        classifier: linear(device, [inputs, names.map_or(2, serde_json::Map::len)], true)?,
    }))
}

impl Net for ResNet {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        let pixels = batch.tensor("pixel_values")?;
        let x = self.embedder.forward(pass, pass.constant(pixels.clone()))?;
        let window = Pool2dGeometry { kernel: [3; 2], stride: [2; 2], padding: [1; 2] };
        let mut x = MaxPool2d(window).forward(pass, x)?;
        for layer in self.stages.iter().flat_map(|stage| &stage.layers) {
            x = layer.forward(pass, x)?;
        }
        let pooled = x.adaptive_avg_pool2d([1, 1])?.flatten(1..4)?;
        classes(self.classifier.forward(pass, pooled)?, batch.tensor("labels")?)
    }
}
