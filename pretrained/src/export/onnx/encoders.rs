//! The graphs of BERT and ViT, node by node.
//!
//! `B` batch, `T` positions, `C` features of a position, `V` vocabulary, `K` classes, `N` images.

use super::graph::{Attribute, INT64, Value};
use super::parts::{OnnxModel, Parts, Seeing};
use crate::error::Result;
use crate::models::{Bert, BertHead, BertShape, ViT, ViTShape};

/// The sizes and names of a layer of attention.
struct Sizes {
    heads: usize,
    width: usize,
    has_input_bias: bool,
    /// The names of the layers of queries, keys, values and outputs.
    names: [&'static str; 4],
}

/// Attention of `x: [B, T, C]` to itself.
fn attention(
    parts: &mut Parts,
    x: &Value,
    path: &str,
    sizes: &Sizes,
    seen: Option<&Value>,
) -> Result<Value> {
    let &Sizes { heads, width, has_input_bias, names } = sizes;
    let (head, names) = (width / heads, names.map(|name| format!("{path}.{name}")));
    let mut inputs = Vec::with_capacity(3);
    for name in &names[..3] {
        let made = parts.linear(x, name, has_input_bias)?;
        inputs.push(parts.by_heads(&made, heads, head));
    }
    let scale = 1.0 / (head as f64).sqrt();
    let seeing = Seeing { sizes: [heads, heads, head], scale, cap: None, seen };
    let y = parts.attended([&inputs[0], &inputs[1], &inputs[2]], &seeing);
    parts.linear(&y, &names[3], true)
}

/// The first position of each row: `[B, T, C] → [B, C]`.
fn first(parts: &mut Parts, x: &Value) -> Value {
    let zero = parts.graph.int(0);
    parts.graph.node("Gather", &[x, &zero], &[Attribute::Int("axis", 1)])
}

impl OnnxModel for Bert {
    /// # Shapes
    /// `input_ids, attention_mask and token_type_ids: [batch, sequence]` of i64
    /// `→ logits: [batch, sequence, V]`, or `[batch, K]`
    fn build(&self, parts: &mut Parts) -> Result<()> {
        let shape = self.shape();
        let sequences = [Err("batch"), Err("sequence")];
        let names = ["input_ids", "attention_mask", "token_type_ids"];
        let inputs = names.map(|name| parts.graph.input(name, INT64, &sequences));
        let sizes = parts.graph.node("Shape", &[&inputs[0]], &[]);
        let x = bert_features(parts, shape, &inputs, &sizes)?;
        let guess = "cls.predictions";
        match shape.head {
            BertHead::Tokens => {
                let hidden = parts.linear(&x, &format!("{guess}.transform.dense"), true)?;
                let hidden = parts.activated(&hidden, shape.activation);
                let norm = format!("{guess}.transform.LayerNorm");
                let hidden = parts.layer_norm(&hidden, &norm, shape.eps)?;
                let bias = parts.weight(&format!("{guess}.bias"))?;
                let table = Value::named("bert.embeddings.word_embeddings.weight");
                let table = (&table, [shape.vocabulary, shape.width]);
                let logits = parts.product_with_table(&hidden, table, Some(&bias), &sizes);
                let vocabulary = Ok(shape.vocabulary as i64);
                let of_logits = [Err("batch"), Err("sequence"), vocabulary];
                parts.graph.output("logits", &logits, &of_logits);
            }
            BertHead::Classes(count) => {
                let first = first(parts, &x);
                let pooled = parts.linear(&first, "bert.pooler.dense", true)?;
                let pooled = parts.graph.node("Tanh", &[&pooled], &[]);
                let logits = parts.linear(&pooled, "classifier", true)?;
                parts.graph.output("logits", &logits, &[Err("batch"), Ok(count as i64)]);
            }
        }
        Ok(())
    }
}

/// The features of a BERT, `[B, T, C]`.
fn bert_features(
    parts: &mut Parts,
    shape: &BertShape,
    [tokens, mask, types]: &[Value; 3],
    sizes: &Value,
) -> Result<Value> {
    let tables = ["word", "token_type", "position"].map(|of| format!("{of}_embeddings.weight"));
    let [words, kinds, places] =
        parts.weights("bert.embeddings", tables.each_ref().map(String::as_str))?;
    let graph = &mut parts.graph;
    let (axis, zero, one) = (graph.int(1), graph.int(0), graph.int(1));
    let len = graph.node("Gather", &[sizes, &axis], &[]);
    let positions = graph.node("Range", &[&zero, &len, &one], &[]);
    let rows = [(&words, tokens), (&kinds, types), (&places, &positions)];
    let [words, kinds, places] =
        rows.map(|(table, rows)| graph.node("Gather", &[table, rows], &[]));
    let x = graph.add(&words, &kinds);
    let x = graph.add(&x, &places);
    // True for the keys that are not padding, for all heads and queries: [B, 1, 1, 1, T].
    let is_padding = graph.node("Equal", &[mask, &zero], &[]);
    let seen = graph.node("Not", &[&is_padding], &[]);
    let axes = graph.ints(&[1, 2, 3]);
    let seen = graph.node("Unsqueeze", &[&seen, &axes], &[]);
    let mut x = parts.layer_norm(&x, "bert.embeddings.LayerNorm", shape.eps)?;
    let sizes = Sizes {
        heads: shape.heads,
        width: shape.width,
        has_input_bias: true,
        names: ["self.query", "self.key", "self.value", "output.dense"],
    };
    for index in 0..shape.layers {
        let within = |name: &str| format!("bert.encoder.layer.{index}.{name}");
        let y = attention(parts, &x, &within("attention"), &sizes, Some(&seen))?;
        let y = parts.graph.add(&y, &x);
        let middle = parts.layer_norm(&y, &within("attention.output.LayerNorm"), shape.eps)?;
        let hidden = parts.linear(&middle, &within("intermediate.dense"), true)?;
        let hidden = parts.activated(&hidden, shape.activation);
        let y = parts.linear(&hidden, &within("output.dense"), true)?;
        let y = parts.graph.add(&y, &middle);
        x = parts.layer_norm(&y, &within("output.LayerNorm"), shape.eps)?;
    }
    Ok(x)
}

impl OnnxModel for ViT {
    /// # Shapes
    /// `pixel_values: [batch, channels, image, image] → logits: [batch, K]`; images have the size
    /// that the model was made for
    fn build(&self, parts: &mut Parts) -> Result<()> {
        let shape = self.shape();
        let (channels, side) = (shape.channels as i64, shape.image as i64);
        let elements = parts.graph.element();
        let sizes = [Err("batch"), Ok(channels), Ok(side), Ok(side)];
        let images = parts.graph.input("pixel_values", elements, &sizes);
        let mut x = vit_patches(parts, shape, &images)?;
        let sizes = Sizes {
            heads: shape.heads,
            width: shape.width,
            has_input_bias: shape.has_input_bias,
            names: ["attention.query", "attention.key", "attention.value", "output.dense"],
        };
        for index in 0..shape.layers {
            let within = |name: &str| format!("vit.encoder.layer.{index}.{name}");
            let normed = parts.layer_norm(&x, &within("layernorm_before"), shape.eps)?;
            let y = attention(parts, &normed, &within("attention"), &sizes, None)?;
            let middle = parts.graph.add(&y, &x);
            let normed = parts.layer_norm(&middle, &within("layernorm_after"), shape.eps)?;
            let hidden = parts.linear(&normed, &within("intermediate.dense"), true)?;
            let hidden = parts.activated(&hidden, shape.activation);
            let y = parts.linear(&hidden, &within("output.dense"), true)?;
            x = parts.graph.add(&y, &middle);
        }
        let first = first(parts, &x);
        let normed = parts.layer_norm(&first, "vit.layernorm", shape.eps)?;
        let logits = parts.linear(&normed, "classifier", true)?;
        parts.graph.output("logits", &logits, &[Err("batch"), Ok(shape.classes as i64)]);
        Ok(())
    }
}

/// The class token of each image, then the patches: `[N, 1 + patches, C]`.
fn vit_patches(parts: &mut Parts, shape: &ViTShape, images: &Value) -> Result<Value> {
    let names = [
        "patch_embeddings.projection.weight",
        "patch_embeddings.projection.bias",
        "cls_token",
        "position_embeddings",
    ];
    let [weight, bias, token, positions] = parts.weights("vit.embeddings", names)?;
    let stride = [shape.patch as i64; 2];
    let graph = &mut parts.graph;
    let strides = [Attribute::Ints("strides", &stride)];
    let patches = graph.node("Conv", &[images, &weight, &bias], &strides);
    let patches = graph.reshape(&patches, &[0, shape.width as i64, -1]);
    let patches = graph.permute(&patches, &[0, 2, 1]);
    // The class token, repeated for every image.
    let sizes = graph.node("Shape", &[images], &[Attribute::Int("end", 1)]);
    let rest = graph.ints(&[1, 1]);
    let sizes = graph.concat(&[&sizes, &rest], 0);
    let token = graph.node("Expand", &[&token, &sizes], &[]);
    let x = graph.concat(&[&token, &patches], 1);
    Ok(graph.add(&x, &positions))
}
