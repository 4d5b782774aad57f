//! GPT-NeoX and Pythia: rotary positions for a part of each head. In most models both branches have
//! the same input.

use super::entries::Entries;
use super::rotary::{RotaryDefaults, rotary};
use super::{activation, head_width, layer_count};
use crate::decoder::{
    AttentionShape, DecoderShape, DropoutShape, Family, FeedForwardShape, LayerShape, NormKind,
    NormShape, Projections, Residual,
};
use crate::error::Result;

pub(super) fn neox(entries: &Entries) -> Result<DecoderShape> {
    let hidden_dropout = entries.probability("hidden_dropout", 0.0)?;
    let (width, heads) = (entries.count("hidden_size")?, entries.count("num_attention_heads")?);
    let head_width = head_width(entries, "num_attention_heads", width, heads)?;
    // The older names of base and share.
    let absent = RotaryDefaults {
        base: entries.optional_number("rotary_emb_base")?.unwrap_or(10_000.0),
        share: entries.optional_number("rotary_pct")?.unwrap_or(0.25),
    };
    let rotary = rotary(entries, head_width, absent)?;
    let bias = entries.flag("attention_bias", true)?;
    let is_parallel = entries.flag("use_parallel_residual", true)?;
    let residual = if is_parallel { Residual::Parallel } else { Residual::PreNorm };
    let layer = LayerShape { window: None, rotary: Some(rotary), scale: None };
    Ok(DecoderShape {
        family: Family::Neox,
        vocabulary: entries.count("vocab_size")?,
        width,
        attention: AttentionShape {
            heads,
            groups: heads,
            head_width,
            projections: Projections::PackedByHead,
            has_input_bias: bias,
            has_output_bias: bias,
            dropout: entries.probability("attention_dropout", 0.0)?,
            ..AttentionShape::PLAIN
        },
        feed_forward: FeedForwardShape {
            width: entries.count("intermediate_size")?,
            activation: activation(entries, "hidden_act")?,
            has_bias: true,
            ..FeedForwardShape::PLAIN
        },
        norm: NormShape {
            kind: NormKind::Layer,
            eps: entries.optional_number("layer_norm_eps")?.unwrap_or(1e-5),
        },
        residual,
        layers: vec![layer; layer_count(entries, "num_hidden_layers")?],
        is_tied: entries.flag("tie_word_embeddings", false)?,
        deviation: entries.optional_number("initializer_range")?.unwrap_or(0.02),
        context: entries.optional_count("max_position_embeddings")?.unwrap_or(2048),
        dropout: DropoutShape { embedding: hidden_dropout, branch: hidden_dropout },
        ..DecoderShape::PLAIN
    })
}
