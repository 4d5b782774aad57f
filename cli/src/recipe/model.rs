//! Models of a recipe, and the task of each.

use std::path::PathBuf;

use lowtide_autograd::{Pass, Var};
use lowtide_nn::models::{
    DeepCnn, DeepCnnShape, Gpt, GptShape, LstmModel, LstmModelShape, Mlp, ResNet, ResNetBlock,
    ResNetShape, Seq2Seq, Seq2SeqShape, SimpleCnn, SimpleCnnShape, UNet, UNetShape, ViT, ViTShape,
};
use lowtide_nn::prune::{Group, Prunable};
use lowtide_nn::{LoraOptions, Module, NnResult, TransformerOptions, parameters};
use lowtide_tensor::{Device, RandomKey};
use lowtide_trainer::{
    Classification, LanguageModel, Regression, Result, Segmentation, Task, TrainError, Translation,
};
use serde::Deserializer;

use super::data::{Samples, Wants};
use super::kind;
use super::options::{kinds, options};
use super::pretrained::FewBits;
use super::prune::Start;
use super::setting;

kinds! {
    /// The model. A key that its kind does not use is an error. Sizes that the data decides
    /// (images, classes, vocabulary, context) come from the data.
    ModelRecipe {
        /// Convolution 3x3, ReLU, max pool 2x2, linear.
        SimpleCnn(SimpleCnnRecipe) = "simple-cnn",
        /// Three times convolution 3x3, ReLU, max pool 2x2; then linear.
        DeepCnn(DeepCnnRecipe) = "deep-cnn",
        /// Linear layers with ReLU in between.
        Mlp(MlpRecipe) = "mlp",
        /// A residual network for colour images.
        Resnet(ResNetRecipe) = "resnet",
        /// A vision transformer for square colour images.
        Vit(ViTRecipe) = "vit",
        /// A U-Net, which predicts a class for each pixel.
        Unet(UNetRecipe) = "unet",
        /// A GPT, which predicts the next token.
        Gpt(GptRecipe) = "gpt",
        /// An LSTM, which predicts the next token.
        Lstm(LstmRecipe) = "lstm",
        /// A transformer that translates one row of tokens into another.
        Seq2seq(Seq2SeqRecipe) = "seq2seq",
        /// A decoder from Hugging Face files: Llama, Qwen, Mistral, Gemma, GPT-2, NeoX.
        Pretrained(PretrainedRecipe) = "pretrained",
    }
}

options! {
    /// Options of a [`SimpleCnn`].
    SimpleCnnRecipe {
        /// Channels of the convolution.
        channels: usize = 64,
    }
    /// Options of a [`DeepCnn`].
    DeepCnnRecipe {
        /// Channels of the three convolutions.
        channels: [usize; 3] = [32, 64, 128],
    }
    /// Options of an [`Mlp`].
    MlpRecipe {
        /// Features of each hidden layer.
        hidden: Vec<usize> = vec![512, 512],
    }
    /// Options of a [`ResNet`].
    ResNetRecipe {
        /// 18, 34 or 50 layers.
        depth: usize = 18,
        /// Channels of the first layer.
        width: usize = 64,
    }
    /// Options of a [`ViT`].
    ViTRecipe {
        /// Height and width of a patch; image sizes must be multiples of it.
        patch: usize = 16,
        /// Features of each patch; a multiple of the heads.
        width: usize = 768,
        /// Attention heads.
        heads: usize = 12,
        /// Hidden features of a block.
        hidden: usize = 3072,
        /// Number of blocks.
        blocks: usize = 12,
        /// Dropout probability.
        dropout: f64 = 0.0,
    }
    /// Options of a [`UNet`].
    UNetRecipe {
        /// Channels at full size.
        width: usize = 64,
    }
    /// Options of a [`Gpt`].
    GptRecipe {
        /// Features of each position; a multiple of the heads.
        width: usize = 768,
        /// Attention heads.
        heads: usize = 12,
        /// Number of blocks.
        blocks: usize = 12,
        /// Dropout probability.
        dropout: f64 = 0.0,
        /// True if the output layer is the token table, as in GPT-2.
        tied: bool = true,
    }
    /// Options of an [`LstmModel`].
    LstmRecipe {
        /// Features of each token.
        width: usize = 200,
        /// Features of the hidden state.
        hidden: usize = 200,
        /// Number of layers.
        layers: usize = 2,
        /// Dropout probability.
        dropout: f64 = 0.2,
    }
    /// Options of a [`Seq2Seq`].
    Seq2SeqRecipe {
        /// Features of each position; a multiple of the heads.
        width: usize = 512,
        /// Attention heads.
        heads: usize = 8,
        /// Hidden features of a layer.
        hidden: usize = 512,
        /// Layers of the encoder and of the decoder.
        layers: [usize; 2] = [3, 3],
        /// Dropout probability.
        dropout: f64 = 0.1,
    }
    /// Options of a pretrained model.
    PretrainedRecipe {
        /// The folder with `config.json` and safetensors files, or a name in the hub's local cache.
        folder: PathBuf = PathBuf::from("model"),
        /// True if it begins with random weights; the folder then only needs its `config.json`.
        fresh: bool = false,
        /// Few bits for frozen weights: "int8", "nf4", "q8_0", "q4_0"; train.parameters if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        base: Option<FewBits> = None,
        /// Adapters, { rank = 16, alpha = 32.0 }; every parameter is trained if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        lora: Option<LoraOptions> = None,
    }
}

impl Default for ModelRecipe {
    fn default() -> Self {
        ModelRecipe::SimpleCnn(SimpleCnnRecipe::default())
    }
}

/// Reads a [`ModelRecipe`] with a default kind.
pub(super) fn or_simple_cnn<'de, D: Deserializer<'de>>(
    d: D,
) -> std::result::Result<ModelRecipe, D::Error> {
    kind::with_default(d, "simple-cnn")
}

/// Sizes of a model that the text decides.
#[derive(Clone, Copy)]
pub(super) struct TokenSizes {
    pub(super) vocabulary: usize,
    /// Tokens of a row.
    pub(super) context: usize,
}

/// Sizes of a model that the images decide.
struct ImageSizes {
    /// Channels, height and width.
    image: [usize; 3],
    classes: usize,
}

impl ModelRecipe {
    /// The integers among the model's options, each with its name and its smallest and largest
    /// value.
    pub(super) fn counts(&self) -> Vec<(&'static str, usize, [usize; 2])> {
        const FEATURES: [usize; 2] = [1, 1 << 20];
        const DEPTH: [usize; 2] = [1, 1 << 12];
        match self {
            ModelRecipe::SimpleCnn(model) => vec![("model.channels", model.channels, FEATURES)],
            ModelRecipe::DeepCnn(model) => {
                model.channels.map(|channels| ("model.channels", channels, FEATURES)).to_vec()
            }
            ModelRecipe::Mlp(model) => {
                model.hidden.iter().map(|&features| ("model.hidden", features, FEATURES)).collect()
            }
            ModelRecipe::Resnet(model) => vec![("model.width", model.width, FEATURES)],
            ModelRecipe::Vit(model) => vec![
                ("model.patch", model.patch, FEATURES),
                ("model.width", model.width, FEATURES),
                ("model.heads", model.heads, FEATURES),
                ("model.hidden", model.hidden, FEATURES),
                ("model.blocks", model.blocks, DEPTH),
            ],
            ModelRecipe::Unet(model) => vec![("model.width", model.width, FEATURES)],
            ModelRecipe::Gpt(model) => vec![
                ("model.width", model.width, FEATURES),
                ("model.heads", model.heads, FEATURES),
                ("model.blocks", model.blocks, DEPTH),
            ],
            ModelRecipe::Lstm(model) => vec![
                ("model.width", model.width, FEATURES),
                ("model.hidden", model.hidden, FEATURES),
                ("model.layers", model.layers, DEPTH),
            ],
            ModelRecipe::Seq2seq(model) => vec![
                ("model.width", model.width, FEATURES),
                ("model.heads", model.heads, FEATURES),
                ("model.hidden", model.hidden, FEATURES),
                ("model.layers", model.layers[0], DEPTH),
                ("model.layers", model.layers[1], DEPTH),
            ],
            ModelRecipe::Pretrained(PretrainedRecipe { lora, .. }) => {
                lora.iter().map(|lora| ("model.lora.rank", lora.rank, FEATURES)).collect()
            }
        }
    }

    /// The dropout probability of the model, and the name of its key; `None` for a model without
    /// dropout.
    pub(super) fn dropout(&self) -> Option<(&'static str, f64)> {
        let dropout = match self {
            ModelRecipe::Vit(model) => model.dropout,
            ModelRecipe::Gpt(model) => model.dropout,
            ModelRecipe::Lstm(model) => model.dropout,
            ModelRecipe::Seq2seq(model) => model.dropout,
            ModelRecipe::Pretrained(PretrainedRecipe { lora: Some(lora), .. }) => {
                return Some(("model.lora.dropout", lora.dropout));
            }
            _ => return None,
        };
        Some(("model.dropout", dropout))
    }

    /// The form of samples that the model needs.
    pub(super) fn wants(&self) -> Wants {
        Wants {
            colour: matches!(self, ModelRecipe::Resnet(_) | ModelRecipe::Vit(_)),
            pixel_labels: matches!(self, ModelRecipe::Unet(_)),
            pairs: matches!(self, ModelRecipe::Seq2seq(_)),
        }
    }

    /// The task of training the model on these samples, with its initial values.
    ///
    /// # Errors
    /// `Setting` if the model cannot use the samples; `OutOfMemory`.
    pub(super) fn task(
        &self,
        device: &Device,
        key: RandomKey,
        samples: Samples,
        start: Start<'_>,
    ) -> Result<Box<dyn Task>> {
        match (self, samples) {
            (ModelRecipe::Pretrained(model), Samples::Tokens { vocabulary, context }) => {
                start.check_whole()?;
                model.task(device, key, TokenSizes { vocabulary, context }, start.stored)
            }
            (
                ModelRecipe::Gpt(_) | ModelRecipe::Lstm(_) | ModelRecipe::Seq2seq(_),
                Samples::Tokens { vocabulary, context },
            ) => self.task_of_tokens(device, key, TokenSizes { vocabulary, context }, start),
            (
                ModelRecipe::SimpleCnn(_)
                | ModelRecipe::DeepCnn(_)
                | ModelRecipe::Mlp(_)
                | ModelRecipe::Resnet(_)
                | ModelRecipe::Vit(_)
                | ModelRecipe::Unet(_),
                Samples::Images { shape, classes },
            ) => self.task_of_images(device, key, ImageSizes { image: shape, classes }, start),
            (ModelRecipe::Mlp(model), Samples::Features { count, classes }) => {
                let ends = [vec![count], model.hidden.clone(), vec![classes.unwrap_or(1)]];
                let mlp = start.of(Mlp::new(device, key, &ends.concat())?)?;
                Ok(match classes {
                    Some(_) => Box::new(Classification::new(mlp).with_input("inputs")),
                    None => Box::new(Regression::new(mlp, "")),
                })
            }
            (_, Samples::Features { .. }) => {
                Err(self.unfit("is not for tables, which an mlp takes"))
            }
            (_, Samples::Images { .. }) => Err(self.unfit("is for tokens, and the data is images")),
            (_, Samples::Preferences { .. }) => {
                Err(self.unfit("does not learn preferences, which a pretrained model does"))
            }
            (_, Samples::Tokens { .. }) => Err(self.unfit("is for images, and the data is tokens")),
        }
    }

    fn task_of_images(
        &self,
        device: &Device,
        key: RandomKey,
        ImageSizes { image, classes }: ImageSizes,
        start: Start<'_>,
    ) -> Result<Box<dyn Task>> {
        let [channels, height, width] = image;
        let side_min = |min: usize| {
            let fits = height >= min && width >= min;
            let problem = format!("needs images of {min}x{min} or more: data.shape says how large");
            if fits { Ok(()) } else { Err(self.unfit(&problem)) }
        };
        let colour = || {
            let problem = "is for images of three channels: data.shape says how many";
            if channels == 3 { Ok(()) } else { Err(self.unfit(problem)) }
        };
        Ok(match self {
            ModelRecipe::SimpleCnn(model) => {
                side_min(4)?;
                let shape = SimpleCnnShape { image, channels: model.channels, classes };
                Box::new(Classification::new(start.of(SimpleCnn::new(device, key, shape)?)?))
            }
            ModelRecipe::DeepCnn(model) => {
                side_min(8)?;
                let shape = DeepCnnShape { image, channels: model.channels, classes };
                Box::new(Classification::new(start.of(DeepCnn::new(device, key, shape)?)?))
            }
            ModelRecipe::Mlp(model) => {
                let ends = [vec![image.iter().product()], model.hidden.clone(), vec![classes]];
                let mlp = Mlp::new(device, key, &ends.concat())?;
                Box::new(Classification::new(start.of(OfPixels { mlp })?))
            }
            ModelRecipe::Resnet(model) => {
                colour()?;
                let of_depth = match model.depth {
                    18 => ResNetShape::RESNET18,
                    34 => ResNetShape::RESNET34,
                    50 => ResNetShape { block: ResNetBlock::Bottleneck, ..ResNetShape::RESNET50 },
                    _ => return Err(setting("model.depth", "must be 18, 34 or 50")),
                };
                let shape = ResNetShape { width: model.width, classes, ..of_depth };
                Box::new(Classification::new(start.of(ResNet::new(device, key, shape)?)?))
            }
            ModelRecipe::Vit(model) => {
                colour()?;
                let &ViTRecipe { patch, width: features, heads, hidden, blocks, dropout } = model;
                if height != width || !height.is_multiple_of(patch) {
                    return Err(self.unfit("needs square images whose sides its patch divides"));
                }
                self.check_heads(features, heads)?;
                let shape = ViTShape {
                    image: height,
                    patch,
                    width: features,
                    heads,
                    hidden,
                    blocks,
                    classes,
                    dropout,
                };
                Box::new(Classification::new(start.of(ViT::new(device, key, shape)?)?))
            }
            ModelRecipe::Unet(model) => {
                // The U-Net halves the sides four times.
                if !height.is_multiple_of(16) || !width.is_multiple_of(16) {
                    return Err(self.unfit("needs images whose sides 16 divides: see data.shape"));
                }
                let shape = UNetShape { channels, width: model.width, classes };
                Box::new(Segmentation::new(start.of_whole(UNet::new(device, key, shape)?)?))
            }
            ModelRecipe::Gpt(_)
            | ModelRecipe::Lstm(_)
            | ModelRecipe::Seq2seq(_)
            | ModelRecipe::Pretrained(_) => unreachable!("models of tokens"),
        })
    }

    fn task_of_tokens(
        &self,
        device: &Device,
        key: RandomKey,
        TokenSizes { vocabulary, context }: TokenSizes,
        start: Start<'_>,
    ) -> Result<Box<dyn Task>> {
        Ok(match *self {
            ModelRecipe::Gpt(GptRecipe { width, heads, blocks, dropout, tied }) => {
                self.check_heads(width, heads)?;
                let shape = GptShape { vocabulary, context, width, heads, blocks };
                let gpt = if tied {
                    Gpt::gpt2(device, key, shape)?
                } else {
                    Gpt::new(device, key, shape)?
                };
                Box::new(LanguageModel::new(start.of(gpt.with_dropout(dropout)?)?))
            }
            ModelRecipe::Lstm(LstmRecipe { width, hidden, layers, dropout }) => {
                let shape = LstmModelShape { vocabulary, width, hidden, layers, dropout };
                Box::new(LanguageModel::new(start.of_whole(LstmModel::new(device, key, shape)?)?))
            }
            ModelRecipe::Seq2seq(Seq2SeqRecipe { width, heads, hidden, layers, dropout }) => {
                self.check_heads(width, heads)?;
                let options =
                    TransformerOptions { hidden, dropout, ..TransformerOptions::new(width, heads) };
                let (source_vocabulary, target_vocabulary) = (vocabulary, vocabulary);
                let shape =
                    Seq2SeqShape { source_vocabulary, target_vocabulary, context, layers, options };
                Box::new(Translation::new(start.of_whole(Seq2Seq::new(device, key, shape)?)?, None))
            }
            _ => unreachable!("models of images"),
        })
    }

    fn check_heads(&self, width: usize, heads: usize) -> Result<()> {
        if width.is_multiple_of(heads) {
            return Ok(());
        }
        Err(setting("model.heads", &format!("{heads} does not divide the width of {width}")))
    }

    fn unfit(&self, problem: &str) -> TrainError {
        setting("model.kind", &format!("{} {problem}", self.name()))
    }
}

/// A perceptron over the pixels of an image as one row.
#[derive(Clone, Debug)]
struct OfPixels {
    mlp: Mlp,
}

parameters!(OfPixels { mlp as "" });

impl Prunable for OfPixels {
    fn groups(&self) -> Vec<Group> {
        self.mlp.groups()
    }

    fn resized(&mut self, group: &str, len: usize) {
        self.mlp.resized(group, len);
    }
}

impl Module for OfPixels {
    fn forward(&self, pass: &Pass, input: Var) -> NnResult<Var> {
        let shape = *input.shape();
        let (samples, pixels) = (shape[0], shape[1..].iter().product());
        self.mlp.forward(pass, input.reshape([samples, pixels])?)
    }
}
