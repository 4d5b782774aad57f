//! The configuration of a T5.

use lowtide_tensor::{DType, Device};
use serde_json::Value;

use super::model::T5;
use super::shape::T5Shape;
use crate::config::{Architecture, Entries, ModelConfig, Shape, layer_count};
use crate::decoder::{Activation, Weights};
use crate::error::Result;

/// The configuration of a T5.
pub type T5Config = ModelConfig<T5Shape>;

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
    // Older files have a length that has no effect, and repeat `feed_forward_proj`.
    for name in ["n_positions", "output_past", "dense_act_fn", "is_gated_act", "initializer_range"]
    {
        entries.value(name);
    }
    let (activation, is_gated) = match entries.optional_text("feed_forward_proj")? {
        None | Some("relu") => (Activation::Relu, false),
        Some("gated-gelu") => (Activation::GeluTanh, true),
        Some("gated-silu") => (Activation::Silu, true),
        Some(other) => return Err(entries.unsupported("feed_forward_proj", &Value::from(other))),
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
