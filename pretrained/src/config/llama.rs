//! Llama and similar models: gated layers, RMS norms, rotary positions, grouped heads.

use serde_json::Value;

use super::entries::Entries;
use super::rotary::{RotaryDefaults, rotary};
use super::{activation, head_width, layer_count};
use crate::decoder::{
    AttentionShape, DecoderShape, FeedForwardShape, LayerShape, NormKind, NormShape,
};
use crate::error::{EntryProblem, Result};

/// The differences between Llama and its relatives.
pub(super) struct Variant {
    pub(super) is_tied: bool,
    pub(super) has_input_bias: bool,
    pub(super) has_output_bias: bool,
    pub(super) has_head_norms: bool,
    pub(super) has_feed_forward_bias: bool,
    /// The entry of the activation.
    pub(super) activation: &'static str,
    /// The size of a head for configurations without the entry; if absent, the width divided by the
    /// heads.
    pub(super) head_width: Option<usize>,
}

impl Variant {
    pub(super) const PLAIN: Variant = Variant {
        is_tied: false,
        has_input_bias: false,
        has_output_bias: false,
        has_head_norms: false,
        has_feed_forward_bias: false,
        activation: "hidden_act",
        head_width: None,
    };
}

pub(super) fn llama(entries: &Entries) -> Result<DecoderShape> {
    let bias = entries.flag("attention_bias", false)?;
    let variant = Variant {
        has_input_bias: bias,
        has_output_bias: bias,
        has_feed_forward_bias: entries.flag("mlp_bias", false)?,
        ..Variant::PLAIN
    };
    shape(entries, variant, with_windows(|_, _| Ok(None)))
}

pub(super) fn mistral(entries: &Entries) -> Result<DecoderShape> {
    let window = window(entries)?;
    shape(entries, Variant::PLAIN, with_windows(move |_, _| Ok(window)))
}

pub(super) fn qwen2(entries: &Entries) -> Result<DecoderShape> {
    let variant = Variant { has_input_bias: true, ..Variant::PLAIN };
    shape(entries, variant, with_windows(qwen_window))
}

pub(super) fn qwen3(entries: &Entries) -> Result<DecoderShape> {
    let bias = entries.flag("attention_bias", false)?;
    let variant = Variant {
        has_input_bias: bias,
        has_output_bias: bias,
        has_head_norms: true,
        head_width: Some(128),
        ..Variant::PLAIN
    };
    shape(entries, variant, with_windows(qwen_window))
}

/// Layers with equal angles, and with the windows that `window` returns.
fn with_windows(
    window: impl Fn(&Entries, usize) -> Result<Option<usize>>,
) -> impl Fn(&Entries, usize, usize) -> Result<LayerShape> {
    move |entries, index, head_width| {
        let absent = RotaryDefaults { base: 10_000.0, share: 1.0 };
        let rotary = Some(rotary(entries, head_width, absent)?);
        Ok(LayerShape { window: window(entries, index)?, rotary, scale: None })
    }
}

/// The entry `sliding_window`: no window if the entry is null, the default of transformers if the
/// entry is absent.
pub(super) fn window(entries: &Entries) -> Result<Option<usize>> {
    if entries.has("sliding_window") {
        entries.optional_count("sliding_window")
    } else {
        Ok(Some(4096))
    }
}

/// The window of a layer: by the layer's type, or in older files for all layers from some index on.
fn qwen_window(entries: &Entries, index: usize) -> Result<Option<usize>> {
    let has_windows = entries.flag("use_sliding_window", false)?;
    let window = window(entries)?.filter(|_| has_windows);
    // `max_window_layers` of 0 gives all layers a window.
    let first = entries.value("max_window_layers").and_then(Value::as_u64).unwrap_or(28);
    match layer_type(entries, index)? {
        Some(is_sliding) => window_of_type(entries, is_sliding, window),
        None => Ok(window.filter(|_| index as u64 >= first)),
    }
}

/// True if `layer_types` gives a layer a window; `None` if there is no such entry.
pub(super) fn layer_type(entries: &Entries, index: usize) -> Result<Option<bool>> {
    let Some(types) = entries.value("layer_types") else { return Ok(None) };
    match types.get(index).and_then(Value::as_str) {
        Some("full_attention") => Ok(Some(false)),
        Some("sliding_attention") => Ok(Some(true)),
        Some(other) => Err(entries.unsupported("layer_types", &Value::from(other))),
        None => {
            let (expected, found) = ("a type for each layer", format!("without layer {index}"));
            Err(entries.error("layer_types", EntryProblem::Wrong { expected, found }))
        }
    }
}

/// The window of a layer, or `None` if the layer has no window.
pub(super) fn window_of_type(
    entries: &Entries,
    is_sliding: bool,
    window: Option<usize>,
) -> Result<Option<usize>> {
    if is_sliding && window.is_none() {
        return Err(entries.error("sliding_window", EntryProblem::Missing));
    }
    Ok(window.filter(|_| is_sliding))
}

/// A model whose layers come from `layer`, which gets the index of a layer and the width of a head.
pub(super) fn shape(
    entries: &Entries,
    variant: Variant,
    layer: impl Fn(&Entries, usize, usize) -> Result<LayerShape>,
) -> Result<DecoderShape> {
    entries.without(&["rope_interleaved", "use_mrope"])?;
    let (width, heads) = (entries.count("hidden_size")?, entries.count("num_attention_heads")?);
    let head_width = match entries.optional_count("head_dim")?.or(variant.head_width) {
        Some(head_width) => head_width,
        None => head_width(entries, "num_attention_heads", width, heads)?,
    };
    let groups = entries.optional_count("num_key_value_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(groups) {
        let expected = "a divisor of the heads of queries";
        let found = format!("{groups} for {heads} heads of queries");
        let problem = EntryProblem::Wrong { expected, found };
        return Err(entries.error("num_key_value_heads", problem));
    }
    let count = layer_count(entries, "num_hidden_layers")?;
    Ok(DecoderShape {
        vocabulary: entries.count("vocab_size")?,
        width,
        attention: AttentionShape {
            heads,
            groups,
            head_width,
            has_input_bias: variant.has_input_bias,
            has_output_bias: variant.has_output_bias,
            has_head_norms: variant.has_head_norms,
            dropout: entries.probability("attention_dropout", 0.0)?,
            ..AttentionShape::PLAIN
        },
        feed_forward: FeedForwardShape {
            width: entries.count("intermediate_size")?,
            activation: activation(entries, variant.activation)?,
            is_gated: true,
            has_bias: variant.has_feed_forward_bias,
        },
        norm: NormShape {
            kind: NormKind::Rms,
            eps: entries.optional_number("rms_norm_eps")?.unwrap_or(1e-6),
        },
        layers: (0..count).map(|at| layer(entries, at, head_width)).collect::<Result<_>>()?,
        is_tied: entries.flag("tie_word_embeddings", variant.is_tied)?,
        deviation: entries.optional_number("initializer_range")?.unwrap_or(0.02),
        context: entries.optional_count("max_position_embeddings")?.unwrap_or(2048),
        ..DecoderShape::PLAIN
    })
}
