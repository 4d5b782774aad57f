//! T5: an encoder and a decoder, whose scores are not scaled but have a learned number for each
//! range of distances; RMS norms, no biases. The plain form has ReLU and scales what the output
//! layer sees, version 1.1 is gated. Raffel et al., "Exploring the limits of transfer learning with
//! a unified text-to-text transformer" (2019).
//!
//! `B` batch, `S` positions of the encoder, `T` of the decoder, `C` features, `V` vocabulary.

use std::ops::ControlFlow;
use std::rc::Rc;

use lowtide_autograd::{Pass, Var};
use lowtide_nn::parallel::{Branch, Shared};
use lowtide_nn::{
    Embedding, Linear, LinearCrossEntropyOptions, Loss, Module, NnResult, Node, Nodes,
    RelativePositionBias, RelativePositionOptions, RelativeSides, RmsNorm, Segment, Visitor,
    linear_cross_entropy, parameters,
};
use lowtide_tensor::{DType, Device, Tensor};
use serde_json::Value;

use super::attention::{Attention, Sizes};
use super::{dropped, run_in};
use crate::config::{Architecture, Entries, ModelConfig, Shape, layer_count};
use crate::decoder::{Activation, Maker, Weights, before, keys_of};
use crate::error::Result;
use crate::generate::{GenerateOptions, Row, go_on};
use crate::weights::Stored;

/// What a T5 is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct T5Shape {
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Features of each position.
    pub width: usize,
    /// Hidden features of a layer.
    pub hidden: usize,
    /// Layers of the encoder and of the decoder.
    pub layers: [usize; 2],
    /// Heads of attention.
    pub heads: usize,
    /// Features of a head.
    pub head_width: usize,
    /// What is between the hidden layers.
    pub activation: Activation,
    /// Whether the hidden features are multiplied by a gate.
    pub is_gated: bool,
    /// Numbers for distances, of each head.
    pub buckets: usize,
    /// From this distance on, all keys share the last number.
    pub distance_max: usize,
    /// Added to mean squares.
    pub eps: f64,
    /// Probability with which features and weights of pairs are dropped in training.
    pub dropout: f64,
    /// Whether the output layer is the table of tokens.
    pub is_tied: bool,
    /// Whether the output layer's input is divided by the root of the width.
    pub is_scaled: bool,
    /// The token that starts a sequence of the decoder.
    pub start: i64,
    /// The token that pads one.
    pub padding: i64,
    /// What the deviations of the initial weights are multiplied by.
    pub factor: f64,
}

/// The configuration of a T5.
pub type T5Config = ModelConfig<T5Shape>;

/// Attention after a norm, added to its input.
#[derive(Clone, Debug)]
struct Attending {
    attention: Attention,
    norm: RmsNorm,
    names: [&'static str; 2],
}

impl Nodes for Attending {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field(self.names[0], &mut self.attention);
        visitor.field(self.names[1], &mut self.norm);
    }
}

const OWN: [&str; 2] = ["layer.0.SelfAttention", "layer.0.layer_norm"];
const CROSS: [&str; 2] = ["layer.1.EncDecAttention", "layer.1.layer_norm"];

/// Hidden layers after a norm, added to their input: plain, or with a gate.
#[derive(Clone, Debug)]
struct Hidden {
    wi: Vec<Linear>,
    wo: Linear,
    norm: RmsNorm,
    activation: Activation,
    names: &'static HiddenNames,
}

impl Nodes for Hidden {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.node("", Node::Shared(&mut |visitor| self.branches(visitor)));
        visitor.field(self.names.wi, &mut self.wi);
        visitor.field(self.names.wo, &mut self.wo);
        visitor.field(self.names.norm, &mut self.norm);
    }
}

impl Hidden {
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        visitor(Shared::Branch(Branch::hidden(&self.wi, &mut self.wo)));
    }
}

#[derive(Debug)]
struct HiddenNames {
    wi: [&'static str; 2],
    wo: &'static str,
    norm: &'static str,
}

/// The names of hidden layers that come after one branch and after two, plain and with a gate.
const HIDDEN: [[HiddenNames; 2]; 2] = [
    [
        HiddenNames { wi: ["layer.1.DenseReluDense.wi", ""], ..AFTER_ONE },
        HiddenNames {
            wi: ["layer.1.DenseReluDense.wi_0", "layer.1.DenseReluDense.wi_1"],
            ..AFTER_ONE
        },
    ],
    [
        HiddenNames { wi: ["layer.2.DenseReluDense.wi", ""], ..AFTER_TWO },
        HiddenNames {
            wi: ["layer.2.DenseReluDense.wi_0", "layer.2.DenseReluDense.wi_1"],
            ..AFTER_TWO
        },
    ],
];
const AFTER_ONE: HiddenNames =
    HiddenNames { wi: [""; 2], wo: "layer.1.DenseReluDense.wo", norm: "layer.1.layer_norm" };
const AFTER_TWO: HiddenNames =
    HiddenNames { wi: [""; 2], wo: "layer.2.DenseReluDense.wo", norm: "layer.2.layer_norm" };

/// A layer of the encoder, or with `cross` one of the decoder.
#[derive(Clone, Debug)]
struct Layer {
    own: Attending,
    cross: Option<Attending>,
    hidden: Hidden,
    dropout: f64,
}

parameters!(Layer { own as "", cross as "", hidden as "" });

/// Which keys the layers of a stack see, and those of what an encoder made.
struct Seen {
    own: Option<Tensor>,
    memory: Option<Tensor>,
}

impl Layer {
    /// `memory` is what an encoder made, for a layer of a decoder.
    fn forward(
        &self,
        pass: &Pass,
        [x, bias]: [Var; 2],
        memory: Option<Var>,
        seen: &Seen,
    ) -> NnResult<Var> {
        let normed = run_in(pass, OWN[1], &self.own.norm, x.clone())?;
        let y = pass.within(OWN[0], || {
            let mask = seen.own.as_ref();
            let y = self.own.attention.forward(pass, (normed, None), mask, Some(bias))?;
            dropped(pass, self.dropout, y)
        })?;
        let mut x = y.add(x)?;
        if let (Some(cross), Some(memory)) = (&self.cross, memory) {
            let normed = run_in(pass, CROSS[1], &cross.norm, x.clone())?;
            let y = pass.within(CROSS[0], || {
                let mask = seen.memory.as_ref();
                let y = cross.attention.forward(pass, (normed, Some(memory)), mask, None)?;
                dropped(pass, self.dropout, y)
            })?;
            x = y.add(x)?;
        }
        let Hidden { wi, wo, norm, activation, names } = &self.hidden;
        let normed = wo.branch_input(run_in(pass, names.norm, norm, x.clone())?)?;
        let mut hidden = activation.of(run_in(pass, names.wi[0], &wi[0], normed.clone())?)?;
        if let Some(up) = wi.get(1) {
            hidden = hidden.mul(run_in(pass, names.wi[1], up, normed)?)?;
        }
        let y = pass.within(names.wo, || {
            let hidden = wo.within_branch(pass, || dropped(pass, self.dropout, hidden))?;
            let y = wo.forward(pass, hidden)?;
            pass.within("branch", || dropped(pass, self.dropout, y))
        })?;
        Ok(y.add(x)?)
    }
}

#[derive(Clone, Debug)]
struct Stack {
    layers: Vec<Segment<Layer>>,
    bias: RelativePositionBias,
    norm: RmsNorm,
    dropout: f64,
}

parameters!(Stack {
    layers as "block.",
    bias as "block.0.layer.0.SelfAttention.relative_attention_bias",
    norm as "final_layer_norm",
});

impl Stack {
    fn forward(&self, pass: &Pass, x: Var, memory: Option<Var>, seen: Seen) -> NnResult<Var> {
        let len = x.shape()[1];
        let bias = self.bias.bias(pass, [len, len])?;
        let (mut x, seen) = (dropped(pass, self.dropout, x)?, Rc::new(seen));
        for (index, layer) in self.layers.iter().enumerate() {
            let (seen, bias) = (Rc::clone(&seen), bias.clone());
            // What has a gradient is an input, so that the layer can be computed again.
            x = pass.within(&format!("block.{index}"), || match memory.clone() {
                Some(memory) => layer.run(pass, [x, bias, memory], move |layer, pass, inputs| {
                    let [x, bias, memory] = inputs;
                    layer.forward(pass, [x, bias], Some(memory), &seen)
                }),
                None => layer.run(pass, [x, bias], move |layer, pass, inputs| {
                    layer.forward(pass, inputs, None, &seen)
                }),
            })?;
        }
        let x = run_in(pass, "final_layer_norm", &self.norm, x)?;
        pass.within("final_layer_norm", || dropped(pass, self.dropout, x))
    }
}

/// A T5.
#[derive(Clone, Debug)]
pub struct T5 {
    shared: Embedding,
    encoder: Stack,
    decoder: Stack,
    /// Absent where the output layer is the table of tokens.
    head: Option<Linear>,
    shape: T5Shape,
}

parameters!(T5 { shared, encoder, decoder, head as "lm_head" });

impl T5 {
    /// A model of `shape` whose parameters are `weights` of `dtype`.
    ///
    /// # Errors
    /// `DType` unless a float type, `OutOfMemory`.
    pub fn new(
        device: &Device,
        shape: T5Shape,
        weights: impl Into<Weights>,
        dtype: DType,
    ) -> Result<Self> {
        let make = Maker { device, dtype, weights: weights.into(), deviation: shape.factor };
        let (width, vocabulary) = (shape.width, shape.vocabulary);
        let head = match shape.is_tied {
            true => None,
            false => Some(make.linear("lm_head", [width, vocabulary], false)?),
        };
        Ok(T5 {
            shared: make.table("shared", [vocabulary, width])?,
            encoder: Stack::new(&make, &shape, "encoder", RelativeSides::Both)?,
            decoder: Stack::new(&make, &shape, "decoder", RelativeSides::Before)?,
            head,
            shape,
        })
    }

    /// What the model is made of.
    pub fn shape(&self) -> &T5Shape {
        &self.shape
    }

    /// What the decoder reads while it learns to write `labels`: each one position later, after the
    /// token that starts a sequence.
    ///
    /// # Shapes
    /// `labels: [B, T]` of i64 `→ [B, T]`
    ///
    /// # Errors
    /// `Shape`, `OutOfMemory`.
    pub fn shifted(&self, labels: &Tensor) -> NnResult<Tensor> {
        let (batch, len) = (labels.shape()[0], labels.shape()[1]);
        let (device, start) = (labels.device(), self.shape.start as f64);
        let start = Tensor::full(device, [batch, 1], DType::I64, start)?;
        let ids = Tensor::cat(&[&start, &labels.narrow(1, 0, len.saturating_sub(1))?], 1)?;
        let is_ignored = ids.eq_scalar(-100.0)?;
        Ok(ids.masked_fill(&is_ignored, self.shape.padding as f64)?)
    }

    /// The input of the output layer.
    fn features(
        &self,
        pass: &Pass,
        [tokens, targets]: [&Tensor; 2],
        mask: Option<&Tensor>,
    ) -> NnResult<Var> {
        let keys = mask.map(keys_of).transpose()?;
        let memory = self.encoded(pass, tokens, keys.clone())?;
        self.decoded(pass, targets, memory, keys)
    }

    fn embedded(&self, pass: &Pass, ids: &Tensor) -> NnResult<Var> {
        run_in(pass, "shared", &self.shared, pass.constant(ids.clone()))
    }

    /// What the encoder makes of `tokens`, of which `keys` are seen: `[B, S, C]`.
    fn encoded(&self, pass: &Pass, tokens: &Tensor, keys: Option<Tensor>) -> NnResult<Var> {
        let (x, seen) = (self.embedded(pass, tokens)?, Seen { own: keys, memory: None });
        pass.within("encoder", || self.encoder.forward(pass, x, None, seen))
    }

    /// The input of the output layer, `[B, T, C]`, from what the encoder made.
    fn decoded(
        &self,
        pass: &Pass,
        targets: &Tensor,
        memory: Var,
        keys: Option<Tensor>,
    ) -> NnResult<Var> {
        let len = targets.shape().last().copied().unwrap_or_default();
        let seen = Seen { own: Some(before(targets.device(), len)?), memory: keys };
        let y = self.embedded(pass, targets)?;
        let y = pass.within("decoder", || self.decoder.forward(pass, y, Some(memory), seen))?;
        match self.shape.is_scaled {
            true => Ok(y.mul_scalar(1.0 / (self.shape.width as f64).sqrt())?),
            false => Ok(y),
        }
    }

    fn head_weight(&self, pass: &Pass) -> NnResult<Var> {
        match &self.head {
            Some(head) => head.adapted_weight(pass),
            None => self.shared.table(pass),
        }
    }

    /// What the decoder says of the token after each of `targets`, having read `tokens`. Positions
    /// of these where `mask` is 0 are padding.
    ///
    /// # Shapes
    /// `tokens: [B, S]` and `targets: [B, T]` of i64, `mask: [B, S]` of any type `→ [B, T, V]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `Index` for a token outside the vocabulary, `OutOfMemory`.
    pub fn logits(
        &self,
        pass: &Pass,
        tokens: &Tensor,
        targets: &Tensor,
        mask: Option<&Tensor>,
    ) -> NnResult<Var> {
        let x = self.features(pass, [tokens, targets], mask)?;
        Ok(x.linear(self.head_weight(pass)?, None)?)
    }

    /// What the decoder writes, having read each row of `tokens`, without the token that starts it.
    /// Positions where `mask` is 0 are padding. Nothing is recorded, and the encoder runs once; the
    /// decoder reads all that it has written for each token.
    ///
    /// # Shapes
    /// `tokens: [B, S]` of i64, `mask: [B, S]` of any type
    ///
    /// # Errors
    /// `Option` for options out of their ranges, `ValueUnavailable` on a simulated device; those of
    /// [`T5::logits`].
    pub fn generate(
        &self,
        tokens: &Tensor,
        mask: Option<&Tensor>,
        options: &GenerateOptions,
    ) -> Result<Vec<Vec<i64>>> {
        options.check()?;
        let (pass, start) = (Pass::eval(), [self.shape.start]);
        let keys = mask.map(keys_of).transpose()?;
        let memory = self.encoded(&pass, tokens, keys.clone())?;
        let count = tokens.shape()[0];
        let row = |index: usize| Row { index, prompt: &start, added: Vec::new() };
        let mut rows: Vec<Row<'_>> = (0..count).map(row).collect();
        let mut written = vec![Vec::new(); count];
        let mut untold = |_: usize, _: i64| ControlFlow::Continue(());
        let _ = go_on(&mut rows, options, &mut untold, |next| {
            written.iter_mut().zip(next).for_each(|(written, &token)| written.push(token));
            let (len, device) = (written[0].len(), tokens.device());
            let targets = Tensor::from_slice(device, [count, len], &written.concat())?;
            let x = self.decoded(&pass, &targets, memory.clone(), keys.clone())?;
            let last = x.narrow(1, len - 1, 1)?.linear(self.head_weight(&pass)?, None)?;
            Ok(last.into_value().reshape([count, self.shape.vocabulary])?)
        })?;
        Ok(rows.into_iter().map(|row| row.added).collect())
    }

    /// The cross-entropy of writing `labels` after reading `tokens`, in chunks: the logits are
    /// never there as a whole. A label of -100 does not count.
    ///
    /// # Shapes
    /// `tokens: [B, S]` and `labels: [B, T]` of i64, `mask: [B, S]` of any type
    ///
    /// # Errors
    /// Those of [`T5::logits`], and `Label` for a label outside the vocabulary.
    pub fn loss(
        &self,
        pass: &Pass,
        tokens: &Tensor,
        labels: &Tensor,
        mask: Option<&Tensor>,
        options: LinearCrossEntropyOptions,
    ) -> NnResult<Loss> {
        let x = self.features(pass, [tokens, &self.shifted(labels)?], mask)?;
        linear_cross_entropy(x, self.head_weight(pass)?, None, labels, options)
    }
}

impl Stack {
    fn new(make: &Maker<'_>, shape: &T5Shape, path: &str, sides: RelativeSides) -> Result<Self> {
        let (width, heads, head_width) = (shape.width, shape.heads, shape.head_width);
        let root = |count: usize| shape.factor / (count as f64).sqrt();
        let norm = || make.rms_norm(width, shape.eps);
        let attending = |path: &str, names: [&'static str; 2]| -> Result<Attending> {
            let sizes = Sizes {
                width,
                heads,
                head_width,
                biases: [false; 2],
                names: ["q", "k", "v", "o"],
                scale: Some(1.0),
                dropout: shape.dropout,
                deviations: [
                    root(width.saturating_mul(head_width)),
                    root(width),
                    root(width),
                    root(heads.saturating_mul(head_width)),
                ],
            };
            let path = format!("{path}.{}", names[0]);
            let attention = Attention::new(make, &path, sizes)?;
            Ok(Attending { attention, norm: norm()?, names })
        };
        let is_decoder = sides == RelativeSides::Before;
        let layer = |index: usize| -> Result<Segment<Layer>> {
            let path = format!("{path}.block.{index}");
            let cross = match is_decoder {
                true => Some(attending(&path, CROSS)?),
                false => None,
            };
            let wi = |at: usize| {
                let name = format!("{path}.wi_{at}");
                make.linear_with(&name, [width, shape.hidden], false, root(width))
            };
            let wo = [shape.hidden, width];
            let hidden = Hidden {
                wi: (0..1 + usize::from(shape.is_gated)).map(wi).collect::<Result<_>>()?,
                wo: make.linear_with(&format!("{path}.wo"), wo, false, root(shape.hidden))?,
                norm: norm()?,
                activation: shape.activation,
                names: &HIDDEN[usize::from(is_decoder)][usize::from(shape.is_gated)],
            };
            let own = attending(&path, OWN)?;
            Ok(Segment::new(Layer { own, cross, hidden, dropout: shape.dropout }))
        };
        let (buckets, distance_max) = (shape.buckets, shape.distance_max);
        let options = RelativePositionOptions { heads, buckets, distance_max, sides };
        let count = shape.layers[usize::from(is_decoder)];
        Ok(Stack {
            layers: (0..count).map(layer).collect::<Result<_>>()?,
            bias: make.made(&format!("{path}.bias"), |key| {
                RelativePositionBias::new(make.device, key, options)
            })?,
            norm: norm()?,
            dropout: shape.dropout,
        })
    }
}

impl Stored for T5 {
    fn is_unused(&self, name: &str) -> bool {
        let cross_bias = ".EncDecAttention.relative_attention_bias.weight";
        name.ends_with(".embed_tokens.weight")
            || name.ends_with(cross_bias)
            || (self.shape.is_tied && name == "lm_head.weight")
    }
}

impl Shape for T5Shape {
    type Model = T5;

    fn architectures() -> &'static [Architecture<Self>] {
        &[("T5ForConditionalGeneration", "t5", shape), ("T5WithLMHeadModel", "t5", shape)]
    }

    fn model(&self, device: &Device, weights: Weights, dtype: DType) -> Result<T5> {
        T5::new(device, self.clone(), weights, dtype)
    }

    fn count(&self) -> u128 {
        let [width, hidden] = [self.width, self.hidden].map(|n| n as u128);
        let [encoder, decoder] = self.layers.map(|n| n as u128);
        let attending = 4 * width * self.heads as u128 * self.head_width as u128 + width;
        let gates = if self.is_gated { 3 } else { 2 };
        let feed_forward = gates * width * hidden + width;
        let tables = if self.is_tied { 1 } else { 2 };
        tables * self.vocabulary as u128 * width
            + encoder * (attending + feed_forward)
            + decoder * (2 * attending + feed_forward)
            + 2 * (self.buckets as u128 * self.heads as u128 + width)
    }
}

fn shape(entries: &Entries) -> Result<T5Shape> {
    entries.without(&["is_decoder"])?;
    // Older files have a length that nothing depends on, and what `feed_forward_proj` says.
    for name in ["n_positions", "output_past", "dense_act_fn", "is_gated_act", "initializer_range"]
    {
        entries.value(name);
    }
    let (activation, is_gated) = match entries.optional_text("feed_forward_proj")? {
        None | Some("relu") => (Activation::Relu, false),
        Some("gated-gelu") => (Activation::GeluTanh, true),
        Some("gated-silu") => (Activation::Silu, true),
        Some(other) => return Err(entries.not_built("feed_forward_proj", &Value::from(other))),
    };
    let encoder = layer_count(entries, "num_layers")?;
    let decoder = match entries.value("num_decoder_layers") {
        Some(_) => layer_count(entries, "num_decoder_layers")?,
        None => encoder,
    };
    let is_tied = entries.flag("tie_word_embeddings", true)?;
    let token = |name| -> Result<i64> { Ok(entries.optional_token(name)?.unwrap_or(0)) };
    Ok(T5Shape {
        vocabulary: entries.count("vocab_size")?,
        width: entries.count("d_model")?,
        hidden: entries.count("d_ff")?,
        layers: [encoder, decoder],
        heads: entries.count("num_heads")?,
        head_width: entries.count("d_kv")?,
        activation,
        is_gated,
        buckets: entries.optional_count("relative_attention_num_buckets")?.unwrap_or(32),
        distance_max: entries.optional_count("relative_attention_max_distance")?.unwrap_or(128),
        eps: entries.optional_number("layer_norm_epsilon")?.unwrap_or(1e-6),
        dropout: entries.probability("dropout_rate", 0.1)?,
        is_tied,
        is_scaled: entries.flag("scale_decoder_outputs", is_tied)?,
        start: token("decoder_start_token_id")?,
        padding: token("pad_token_id")?,
        factor: entries.optional_number("initializer_factor")?.unwrap_or(1.0),
    })
}
