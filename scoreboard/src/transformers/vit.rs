//! ViT with a head for classes.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{
    Conv2d, LayerNorm, Linear, Module, Parameter, ResizeMode, Sizes, parameters, resize,
};
use lowtide_tensor::{Conv2dGeometry, Corners, Device};

use super::config::{Batch, Config};
use super::parts::{Activation, Attention, AttentionShape, KEY, Seen, classes, linear};
use super::{Net, Step};
use crate::call::Result;

struct Block {
    before: LayerNorm,
    attention: Attention,
    after: LayerNorm,
    up: Linear,
    down: Linear,
    activation: Activation,
}

parameters!(Block {
    before as "layernorm_before",
    attention,
    after as "layernorm_after",
    up as "intermediate.dense",
    down as "output.dense",
});

impl Block {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let normed = self.before.forward(pass, x.clone())?;
        let x = self.attention.forward(pass, normed, &Seen::default())?.add(x)?;
        let hidden = self.up.forward(pass, self.after.forward(pass, x.clone())?)?;
        Ok(self.down.forward(pass, self.activation.of(hidden)?)?.add(x)?)
    }
}

struct ViT {
    cls_token: Parameter,
    positions: Parameter,
    patches: Conv2d,
    blocks: Vec<Block>,
    norm: LayerNorm,
    classifier: Linear,
    image: usize,
    patch: usize,
}

parameters!(ViT {
    cls_token as "vit.embeddings.cls_token",
    positions as "vit.embeddings.position_embeddings",
    patches as "vit.embeddings.patch_embeddings.projection",
    blocks as "vit.encoder.layer.",
    norm as "vit.layernorm",
    classifier,
});

pub(super) fn classifier(device: &Device, config: &Config) -> Result<Box<dyn Net>> {
    config.no_dropout(&["hidden_dropout_prob", "attention_probs_dropout_prob"])?;
    let (width, hidden) = (config.count("hidden_size")?, config.count("intermediate_size")?);
    let (heads, eps) = (config.count("num_attention_heads")?, config.number("layer_norm_eps")?);
    let (image, patch) = (config.count("image_size")?, config.count("patch_size")?);
    let activation = Activation::named(config.text("hidden_act")?)?;
    let norm = || -> Result<LayerNorm> { Ok(LayerNorm::new(device, &[width])?.with_eps(eps)) };
    let block = |_| -> Result<Block> {
        let shape = AttentionShape {
            width,
            heads,
            groups: heads,
            head_width: width / heads,
            biases: [config.flag("qkv_bias"), true],
            names: ["attention.query", "attention.key", "attention.value", "output.dense"],
            norm_eps: None,
        };
        Ok(Block {
            before: norm()?,
            attention: Attention::new(device, shape)?,
            after: norm()?,
            up: linear(device, [width, hidden], true)?,
            down: linear(device, [hidden, width], true)?,
            activation,
        })
    };
    let side_by_side = Conv2dGeometry { stride: [patch; 2], ..Default::default() };
    let channels = [config.count("num_channels")?, width];
    let count = (image / patch) * (image / patch);
    // The number of classes is that of their names.
    let names = config.value("id2label").and_then(|names| names.as_object());
    let classes = names.map_or(2, serde_json::Map::len);
    Ok(Box::new(ViT {
        cls_token: Parameter::full(device, [1, 1, width], 0.0)?,
        positions: Parameter::full(device, [1, count + 1, width], 0.0)?,
        patches: Conv2d::new(device, KEY, channels, [patch; 2], side_by_side)?,
        blocks: (0..config.count("num_hidden_layers")?).map(block).collect::<Result<_>>()?,
        norm: norm()?,
        classifier: linear(device, [width, classes], true)?,
        image,
        patch,
    }))
}

impl ViT {
    /// The table for images of this size: between its numbers, where they are of another than it.
    fn positions(&self, pass: &Pass, size: [usize; 2]) -> Result<Var> {
        let table = self.positions.var(pass)?;
        if size == [self.image; 2] {
            return Ok(table);
        }
        let (side, width) = (self.image / self.patch, table.shape()[2]);
        let [rows, columns] = size.map(|len| len / self.patch);
        let first = table.clone().narrow(1, 0, 1)?;
        let rest = table.narrow(1, 1, side * side)?.reshape([1, side, side, width])?;
        let rest = resize(
            rest.permute(&[0, 3, 1, 2])?,
            &Sizes::To(vec![rows, columns]),
            ResizeMode::Cubic(Corners::Centers),
        )?;
        let rest = rest.permute(&[0, 2, 3, 1])?.reshape([1, rows * columns, width])?;
        Ok(Var::cat(vec![first, rest], 1)?)
    }
}

impl Net for ViT {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        let pixels = batch.tensor("pixel_values")?;
        let patches = self.patches.forward(pass, pass.constant(pixels.clone()))?;
        let patches = patches.flatten(2..4)?.transpose(1, 2)?;
        let (batch_len, width) = (patches.shape()[0], patches.shape()[2]);
        let first = self.cls_token.var(pass)?.expand([batch_len, 1, width])?;
        let size = [pixels.shape()[2], pixels.shape()[3]];
        let mut x = Var::cat(vec![first, patches], 1)?.add(self.positions(pass, size)?)?;
        for block in &self.blocks {
            x = block.forward(pass, x)?;
        }
        let first = self.norm.forward(pass, x)?.select(1, 0)?;
        classes(self.classifier.forward(pass, first)?, batch.tensor("labels")?)
    }
}
