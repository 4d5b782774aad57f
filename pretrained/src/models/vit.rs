//! ViT with a head for classes. Dosovitskiy et al., "An image is worth 16x16 words: transformers
//! for image recognition at scale" (2020).
//!
//! `N` images, `C` channels, `H` rows, `W` columns, `K` classes.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::parallel::{Branch, Shared};
use lowtide_nn::{
    Conv2d, LayerNorm, Linear, Module, NnResult, Parameter, ResizeMode, Segment, Sizes as To,
    parameters, resize, run_blocks,
};
use lowtide_tensor::{Conv2dGeometry, Corners, DType, Device};

use super::attention::{Attention, Sizes};
use super::functions::{classes, dropped};
use crate::config::{
    Architecture, Entries, ModelConfig, Shape, activation, head_width, layer_count,
};
use crate::decoder::{Activation, Maker, Weights, run_in};
use crate::error::{EntryProblem, Result};
use crate::weights::Stored;

/// The shape of a ViT.
#[derive(Clone, Debug, PartialEq)]
pub struct ViTShape {
    /// Number of channels of an image.
    pub channels: usize,
    /// Rows and columns of the images that the table of positions was made for.
    pub image: usize,
    /// Rows and columns of a patch.
    pub patch: usize,
    /// Number of features of each patch.
    pub width: usize,
    /// Number of hidden features of a layer.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads; divides the width.
    pub heads: usize,
    /// The function between the two hidden layers.
    pub activation: Activation,
    /// True if queries, keys and values have biases.
    pub has_input_bias: bool,
    /// The addend of variances.
    pub eps: f64,
    /// Probability of dropping features in training.
    pub dropout: f64,
    /// Probability of dropping an attention weight in training.
    pub attention_dropout: f64,
    /// Deviation of the initial weights.
    pub deviation: f64,
    /// Number of classes of the head.
    pub classes: usize,
}

/// The configuration of a ViT.
pub type ViTConfig = ModelConfig<ViTShape>;

impl ViTConfig {
    /// This model with a head for `count` classes instead of its own, for use with
    /// [`load_body`](crate::load_body).
    #[must_use]
    pub fn with_classes(self, count: usize) -> Self {
        let architecture = "ViTForImageClassification";
        self.with_head(architecture, count, |shape| ViTShape { classes: count, ..shape })
    }
}

#[derive(Clone, Debug)]
struct Layer {
    before: LayerNorm,
    attention: Attention,
    after: LayerNorm,
    up: Linear,
    down: Linear,
    activation: Activation,
    dropout: f64,
}

parameters!(Layer {
    before as "layernorm_before",
    attention,
    after as "layernorm_after",
    up as "intermediate.dense",
    down as "output.dense",
}, shared by branches);

impl Layer {
    /// The hidden features, which ranks can share.
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        visitor(Shared::Branch(Branch::hidden([&self.up], &mut self.down)));
    }

    fn forward(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        let normed = run_in(pass, "layernorm_before", &self.before, x.clone())?;
        let y = pass.within("attention", || {
            let y = self.attention.forward(pass, normed, None, None, None)?;
            dropped(pass, self.dropout, y)
        })?;
        let x = y.add(x)?;
        let hidden = run_in(pass, "layernorm_after", &self.after, x.clone())?;
        let hidden = self.down.branch_input(hidden)?;
        let hidden = self.activation.of(run_in(pass, "intermediate.dense", &self.up, hidden)?)?;
        let y = pass.within("output.dense", || {
            dropped(pass, self.dropout, self.down.forward(pass, hidden)?)
        })?;
        Ok(y.add(x)?)
    }
}

/// A ViT with a head for classes.
#[derive(Clone, Debug)]
pub struct ViT {
    first: Parameter,
    positions: Parameter,
    patches: Conv2d,
    layers: Vec<Segment<Layer>>,
    norm: LayerNorm,
    classifier: Linear,
    shape: ViTShape,
}

parameters!(ViT {
    first as "vit.embeddings.cls_token",
    positions as "vit.embeddings.position_embeddings",
    patches as "vit.embeddings.patch_embeddings.projection",
    layers as "vit.encoder.layer.",
    norm as "vit.layernorm",
    classifier,
});

impl ViT {
    /// A model of `shape` whose parameters are `weights` of `dtype`.
    ///
    /// # Errors
    /// `DType` unless a float type, `OutOfMemory`.
    pub fn new(
        device: &Device,
        shape: ViTShape,
        weights: impl Into<Weights>,
        dtype: DType,
    ) -> Result<Self> {
        let (weights, deviation) = (weights.into(), shape.deviation);
        let make = Maker { device, dtype, weights, deviation };
        let (width, hidden, heads, patch) = (shape.width, shape.hidden, shape.heads, shape.patch);
        let norm = || make.layer_norm(width, shape.eps);
        let layer = |index: usize| -> Result<Segment<Layer>> {
            let path = format!("vit.encoder.layer.{index}");
            let sizes = Sizes {
                width,
                heads,
                head_width: width / heads,
                biases: [shape.has_input_bias, true],
                names: ["attention.query", "attention.key", "attention.value", "output.dense"],
                scale: None,
                dropout: shape.attention_dropout,
                deviations: [deviation; 4],
            };
            Ok(Segment::new(Layer {
                before: norm()?,
                attention: Attention::new(&make, &format!("{path}.attention"), sizes)?,
                after: norm()?,
                up: make.linear(&format!("{path}.intermediate.dense"), [width, hidden], true)?,
                down: make.linear(&format!("{path}.output.dense"), [hidden, width], true)?,
                activation: shape.activation,
                dropout: shape.dropout,
            }))
        };
        let side_by_side = Conv2dGeometry { stride: [patch; 2], ..Default::default() };
        let (channels, count) = ([shape.channels, width], (shape.image / patch).pow(2));
        let path = |name: &str| format!("vit.embeddings.{name}");
        Ok(ViT {
            first: make.normal(&path("cls_token"), [1, 1, width], deviation)?,
            positions: make.normal(
                &path("position_embeddings"),
                [1, count + 1, width],
                deviation,
            )?,
            patches: make.made(&path("patch_embeddings.projection"), |key| {
                Conv2d::new(device, key, channels, [patch; 2], side_by_side)
            })?,
            layers: (0..shape.layers).map(layer).collect::<Result<_>>()?,
            norm: norm()?,
            classifier: make.linear("classifier", [width, shape.classes], true)?,
            shape,
        })
    }

    /// The shape of the model.
    pub fn shape(&self) -> &ViTShape {
        &self.shape
    }

    /// The table of positions for images of this size, interpolated if the size differs from the
    /// model's.
    fn positions(&self, pass: &Pass, size: [usize; 2]) -> NnResult<Var> {
        let table = self.positions.var(pass)?;
        let (image, patch) = (self.shape.image, self.shape.patch);
        if size == [image; 2] {
            return Ok(table);
        }
        let (side, width) = (image / patch, table.shape()[2]);
        let [rows, columns] = size.map(|len| len / patch);
        let first = table.clone().narrow(1, 0, 1)?;
        let rest = table.narrow(1, 1, side * side)?.reshape([1, side, side, width])?;
        let rest = resize(
            rest.permute(&[0, 3, 1, 2])?,
            &To::To(vec![rows, columns]),
            ResizeMode::Cubic(Corners::Centers),
        )?;
        let rest = rest.permute(&[0, 2, 3, 1])?.reshape([1, rows * columns, width])?;
        Ok(Var::cat(vec![first, rest], 1)?)
    }
}

impl Module for ViT {
    /// # Shapes
    /// `input: [N, C, H, W] → [N, K]`; images of another size than the model's have interpolated
    /// positions
    fn forward(&self, pass: &Pass, input: Var) -> NnResult<Var> {
        let shape = *input.shape();
        let size = [2, 3].map(|axis| shape.get(axis).copied().unwrap_or_default());
        let name = "vit.embeddings.patch_embeddings.projection";
        let patches = run_in(pass, name, &self.patches, input)?;
        let patches = patches.flatten(2..4)?.transpose(1, 2)?;
        let (count, width) = (patches.shape()[0], patches.shape()[2]);
        let first = self.first.var(pass)?.expand([count, 1, width])?;
        let x = Var::cat(vec![first, patches], 1)?.add(self.positions(pass, size)?)?;
        let x = pass.within("vit.embeddings", || dropped(pass, self.shape.dropout, x))?;
        let x = run_blocks("vit.encoder.layer.", &self.layers, pass, x, |layer, pass, x| {
            layer.forward(pass, x)
        })?;
        // Only the first position is read, so only it is normalised.
        let first = run_in(pass, "vit.layernorm", &self.norm, x.select(1, 0)?)?;
        run_in(pass, "classifier", &self.classifier, first)
    }
}

impl Stored for ViT {
    fn is_unused(&self, name: &str) -> bool {
        name.starts_with("vit.pooler.")
    }

    fn is_of_head(&self, name: &str) -> bool {
        name.starts_with("classifier.")
    }
}

impl Shape for ViTShape {
    type Model = ViT;

    fn architectures() -> &'static [Architecture<Self>] {
        &[("ViTForImageClassification", "vit", shape)]
    }

    fn model(&self, device: &Device, weights: Weights, dtype: DType) -> Result<ViT> {
        ViT::new(device, self.clone(), weights, dtype)
    }

    fn count(&self) -> u128 {
        let [width, hidden, layers] = [self.width, self.hidden, self.layers].map(|n| n as u128);
        let (patch, image) = (self.patch as u128, self.image as u128);
        let patches = (self.channels as u128 * patch * patch + 1) * width;
        let biases = if self.has_input_bias { 4 } else { 1 };
        let layer = (4 * width + biases) * width + 2 * width * hidden + hidden + 5 * width;
        let positions = (image / patch).pow(2) + 2;
        patches + (positions + 2) * width + layers * layer + (width + 1) * self.classes as u128
    }
}

fn shape(entries: &Entries) -> Result<ViTShape> {
    // Entries of text-image models, and of models that reconstruct images.
    for name in ["encoder_stride", "pooler_act", "pooler_output_size"] {
        entries.value(name);
    }
    let (width, heads) = (entries.count("hidden_size")?, entries.count("num_attention_heads")?);
    head_width(entries, "num_attention_heads", width, heads)?;
    let (image, patch) = (entries.count("image_size")?, entries.count("patch_size")?);
    if patch > image {
        let (expected, found) = ("at most the size of an image", patch.to_string());
        return Err(entries.error("patch_size", EntryProblem::Wrong { expected, found }));
    }
    Ok(ViTShape {
        channels: entries.optional_count("num_channels")?.unwrap_or(3),
        image,
        patch,
        width,
        hidden: entries.count("intermediate_size")?,
        layers: layer_count(entries, "num_hidden_layers")?,
        heads,
        activation: activation(entries, "hidden_act")?,
        has_input_bias: entries.flag("qkv_bias", true)?,
        eps: entries.optional_number("layer_norm_eps")?.unwrap_or(1e-12),
        dropout: entries.probability("hidden_dropout_prob", 0.0)?,
        attention_dropout: entries.probability("attention_probs_dropout_prob", 0.0)?,
        deviation: entries.optional_number("initializer_range")?.unwrap_or(0.02),
        classes: classes(entries)?,
    })
}
