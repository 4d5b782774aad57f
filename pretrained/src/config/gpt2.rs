//! GPT-2: learned positions, layer norms, one product for queries, keys and values.

use super::entries::Entries;
use super::{activation, head_width, layer_count};
use crate::decoder::{
    AttentionShape, DecoderShape, DropoutShape, Family, FeedForwardShape, LayerShape, NormKind,
    NormShape, Positions, Projections,
};
use crate::error::Result;

pub(super) fn gpt2(entries: &Entries) -> Result<DecoderShape> {
    // Computing scores in f32 in a model of another type changes nothing in f32.
    entries.without(&["add_cross_attention", "reorder_and_upcast_attn"])?;
    entries.only("tie_word_embeddings", true)?;
    let (width, heads) = (entries.count("n_embd")?, entries.count("n_head")?);
    let head_width = head_width(entries, "n_head", width, heads)?;
    let by_layer = entries.flag("scale_attn_by_inverse_layer_idx", false)?;
    let is_scaled = entries.flag("scale_attn_weights", true)?;
    let scale = if is_scaled { 1.0 / (head_width as f64).sqrt() } else { 1.0 };
    let layer = |index: usize| {
        let scale = if by_layer { scale / (index + 1) as f64 } else { scale };
        LayerShape { window: None, rotary: None, scale: Some(scale) }
    };
    let context = match entries.optional_count("n_positions")? {
        Some(context) => context,
        None => entries.count("n_ctx")?,
    };
    entries.value("n_ctx");
    Ok(DecoderShape {
        family: Family::Gpt2,
        vocabulary: entries.count("vocab_size")?,
        width,
        positions: Positions::Learned,
        attention: AttentionShape {
            heads,
            groups: heads,
            head_width,
            projections: Projections::Packed,
            has_input_bias: true,
            has_output_bias: true,
            dropout: entries.probability("attn_pdrop", 0.1)?,
            ..AttentionShape::PLAIN
        },
        feed_forward: FeedForwardShape {
            width: entries.optional_count("n_inner")?.unwrap_or(4 * width),
            activation: activation(entries, "activation_function")?,
            has_bias: true,
            ..FeedForwardShape::PLAIN
        },
        norm: NormShape {
            kind: NormKind::Layer,
            eps: entries.optional_number("layer_norm_epsilon")?.unwrap_or(1e-5),
        },
        layers: (0..layer_count(entries, "n_layer")?).map(layer).collect(),
        is_tied: true,
        deviation: entries.optional_number("initializer_range")?.unwrap_or(0.02),
        context,
        dropout: DropoutShape {
            embedding: entries.probability("embd_pdrop", 0.1)?,
            branch: entries.probability("resid_pdrop", 0.1)?,
        },
        ..DecoderShape::PLAIN
    })
}
