//! A transformer over the patches of an image: Dosovitskiy et al., "An image is worth 16x16 words:
//! transformers for image recognition at scale" (2021), in torchvision's form.
//!
//! `B` batch, `S` side of the image, `D` width, `L` classes.

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Conv2dGeometry, DType, Device, RandomKey, Tensor};

use crate::compress::prune::cut::{Group, Prunable};
use crate::error::Result;
use crate::init;
use crate::layers::attention::{MultiHeadAttention, MultiHeadOptions};
use crate::layers::conv2d::Conv2d;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::layers::norm::LayerNorm;
use crate::models::groups::hidden;
use crate::module::{Module, Parameters, forward_in};
use crate::node::parameters;
use crate::parallel::features::branch::{Branch, Shared};
use crate::parameter::Parameter;
use crate::segment::{Segment, forward_blocks};

/// The sizes of a [`ViT`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ViTShape {
    /// Height and width of an image; a multiple of the patch.
    pub image: usize,
    /// Height and width of a patch.
    pub patch: usize,
    /// Number of features of each patch; a multiple of the heads.
    pub width: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Number of hidden features between the two linear layers of a block.
    pub hidden: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Number of classes.
    pub classes: usize,
    /// Dropout probability, also of attention weights.
    pub dropout: f64,
}

impl ViTShape {
    /// ViT-B/16 for ImageNet: 86,567,656 parameters.
    pub const B16: ViTShape = ViTShape {
        image: 224,
        patch: 16,
        width: 768,
        heads: 12,
        hidden: 3072,
        blocks: 12,
        classes: 1000,
        dropout: 0.0,
    };
}

/// The number that torchvision adds to the variance.
const EPS: f64 = 1e-6;

/// Attention, then two linear layers. Each takes the normalised input, and the input is added.
#[derive(Clone, Debug)]
struct Block {
    ln_1: LayerNorm,
    self_attention: MultiHeadAttention,
    ln_2: LayerNorm,
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

impl Block {
    fn new(device: &Device, key: RandomKey, shape: &ViTShape) -> Result<Self> {
        let &ViTShape { width, heads, hidden, dropout, .. } = shape;
        let norm =
            || Ok::<_, crate::error::NnError>(LayerNorm::new(device, &[width])?.with_eps(EPS));
        let attention = MultiHeadOptions { dropout, ..MultiHeadOptions::new(width, heads) };
        let linear = |name: &str, inputs, outputs| {
            let mut layer = Linear::new(device, key.op(name), inputs, outputs)?;
            fill(&mut layer, |name, value| match name {
                "weight" => init::xavier_uniform_(value, key.op("mlp").op(name), 1.0),
                _ => Ok(value.normal_(key.op("mlp").op(name), 0.0, 1e-6)?),
            })?;
            Ok::<_, crate::error::NnError>(layer)
        };
        Ok(Block {
            ln_1: norm()?,
            self_attention: MultiHeadAttention::new(device, key.op("self_attention"), attention)?,
            ln_2: norm()?,
            up: linear("mlp.0", width, hidden)?,
            down: linear("mlp.3", hidden, width)?,
            dropout: Dropout::new(dropout)?,
        })
    }
}

impl Block {
    /// Shows the hidden features to a visitor.
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        visitor(Shared::Branch(Branch::hidden([&self.up], &mut self.down)));
    }
}

/// Sets each parameter of a layer, by its name.
fn fill(
    layer: &mut impl Parameters,
    mut set: impl FnMut(&str, &mut Tensor) -> Result<()>,
) -> Result<()> {
    let mut result = Ok(());
    layer.visit(&mut |name, parameter| {
        if result.is_ok() {
            result = set(name, parameter.value_mut());
        }
    });
    result
}

parameters!(
    Block { ln_1, self_attention, ln_2, up as "mlp.0", down as "mlp.3" },
    shared by branches
);

impl Module for Block {
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let drop = |name: &str, x| pass.within(name, || self.dropout.forward(pass, x));
        let x = forward_in(pass, "ln_1", &self.ln_1, input.clone())?;
        let x = forward_in(pass, "self_attention", &self.self_attention, x)?;
        // The branch comes first: the sum can reuse its buffer.
        let x = drop("dropout", x)?.add(input)?;
        let y = forward_in(pass, "ln_2", &self.ln_2, x.clone())?;
        let y = forward_in(pass, "mlp.0", &self.up, self.down.branch_input(y)?)?.gelu()?;
        let y = self.down.within_branch(pass, || drop("mlp.2", y))?;
        let y = forward_in(pass, "mlp.3", &self.down, y)?;
        Ok(drop("mlp.4", y)?.add(x)?)
    }
}

/// An image classifier, `torchvision.models.vit_b_16` and similar models.
#[derive(Clone, Debug)]
pub struct ViT {
    class_token: Parameter,
    conv_proj: Conv2d,
    pos_embedding: Parameter,
    blocks: Vec<Segment<Block>>,
    ln: LayerNorm,
    head: Linear,
    dropout: Dropout,
}

const BLOCKS: &str = "encoder.layers.encoder_layer_";

impl ViT {
    /// A model of `shape` for colour images, initialised from `key` as in torchvision: the last
    /// layer and the class token are zeros.
    ///
    /// # Errors
    /// `Option` unless the heads divide the width and the dropout is in `[0, 1)`; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, shape: ViTShape) -> Result<Self> {
        let ViTShape { image, patch, width, blocks, classes, dropout, .. } = shape;
        let geometry = Conv2dGeometry { stride: [patch; 2], ..Default::default() };
        let conv_key = key.op("conv_proj");
        let mut conv_proj = Conv2d::new(device, conv_key, [3, width], [patch; 2], geometry)?;
        fill(&mut conv_proj, |name, value| {
            if name == "bias" {
                return Ok(value.fill_(0.0)?);
            }
            let deviation = init::default_bound(3 * patch * patch);
            init::truncated_normal_(value, conv_key.op(name), [0.0, deviation], [-2.0, 2.0])
        })?;
        let positions = (image / patch.max(1)).pow(2) + 1;
        let shape_of = [1, positions, width];
        let mut position = Tensor::empty_in(device, Category::Parameter, shape_of, DType::F32)?;
        position.normal_(key.op("encoder.pos_embedding"), 0.0, 0.02)?;
        let block = |index: usize| {
            let key = key.op(&format!("{BLOCKS}{index}"));
            Ok(Segment::new(Block::new(device, key, &shape)?))
        };
        let mut head = Linear::new(device, key.op("heads.head"), width, classes)?;
        fill(&mut head, |_, value| Ok(value.fill_(0.0)?))?;
        Ok(ViT {
            class_token: Parameter::full(device, [1, 1, width], 0.0)?,
            conv_proj,
            pos_embedding: Parameter::new(position),
            blocks: (0..blocks).map(block).collect::<Result<_>>()?,
            ln: LayerNorm::new(device, &[width])?.with_eps(EPS),
            head,
            dropout: Dropout::new(dropout)?,
        })
    }
}

parameters!(ViT {
    class_token,
    conv_proj,
    pos_embedding as "encoder.pos_embedding",
    blocks as BLOCKS,
    ln as "encoder.ln",
    head as "heads.head",
});

impl Prunable for ViT {
    /// The hidden features of each block, as groups `encoder.layers.encoder_layer_0.mlp.0` and so
    /// on.
    fn groups(&self) -> Vec<Group> {
        let group = |(index, segment): (usize, &Segment<Block>)| {
            let group = hidden("mlp.0", &segment.block().up, ["mlp.0", "mlp.3"]);
            group.within(&format!("{BLOCKS}{index}"))
        };
        self.blocks.iter().enumerate().map(group).collect()
    }
}

impl Module for ViT {
    /// # Shapes
    /// `input: [B, 3, S, S] → [B, L]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let batch = input.shape().first().copied().unwrap_or_default();
        let patches = forward_in(pass, "conv_proj", &self.conv_proj, input)?;
        let patches = patches.flatten(2..4)?.transpose(1, 2)?;
        let width = patches.shape()[2];
        let token = self.class_token.var(pass)?.expand([batch, 1, width])?;
        let x = Var::cat(vec![token, patches], 1)?.add(self.pos_embedding.var(pass)?)?;
        let x = pass.within("encoder.dropout", || self.dropout.forward(pass, x))?;
        let x = forward_blocks(BLOCKS, &self.blocks, pass, x)?;
        let x = forward_in(pass, "encoder.ln", &self.ln, x)?.select(1, 0)?;
        forward_in(pass, "heads.head", &self.head, x)
    }
}
