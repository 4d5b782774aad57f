//! Gemma and Gemma 3: norms with weights `1 + w`, a scaled table of tokens, GeGLU. Gemma 3 adds
//! norms around each branch, and windows with their own angles.

use lowtide_nn::{RotaryEmbedding, RotaryScaling};

use super::activation;
use super::entries::Entries;
use super::llama::{Variant, layer_type, shape, window};
use super::rotary::{RotaryDefaults, of_parameters, rotary};
use crate::decoder::{
    Activation, AttentionShape, DecoderShape, Family, FeedForwardShape, LayerShape, NormKind,
    NormShape, Residual,
};
use crate::error::Result;

const LOCAL_BASE: f64 = 10_000.0;
const GLOBAL_BASE: f64 = 1_000_000.0;

fn variant(entries: &Entries) -> Result<Variant> {
    let bias = entries.flag("attention_bias", false)?;
    Ok(Variant {
        is_tied: true,
        has_input_bias: bias,
        has_output_bias: bias,
        head_width: Some(256),
        ..Variant::PLAIN
    })
}

/// The norms and the scaled table of all Gemmas.
fn scaled(shape: DecoderShape) -> DecoderShape {
    let norm = NormShape { kind: NormKind::RmsPlusOne, ..shape.norm };
    DecoderShape { table_scale: (shape.width as f64).sqrt(), norm, ..shape }
}

pub(super) fn gemma(entries: &Entries) -> Result<DecoderShape> {
    entries.without(&["use_bidirectional_attention"])?;
    let shape = shape(entries, variant(entries)?, |entries, _, head_width| {
        let absent = RotaryDefaults { base: LOCAL_BASE, share: 1.0 };
        let rotary = Some(rotary(entries, head_width, absent)?);
        Ok(LayerShape { window: None, rotary, scale: None })
    })?;
    // "gelu" in a file means the approximation, and some files name the function in another entry.
    let activation = match entries.value("hidden_activation") {
        Some(_) => activation(entries, "hidden_activation")?,
        None if shape.feed_forward.activation == Activation::Gelu => Activation::GeluTanh,
        None => shape.feed_forward.activation,
    };
    let feed_forward = FeedForwardShape { activation, ..shape.feed_forward };
    Ok(scaled(DecoderShape { feed_forward, ..shape }))
}

pub(super) fn gemma3(entries: &Entries) -> Result<DecoderShape> {
    let shape = shape_after(entries, true, 6, |entries, is_sliding, head_width| {
        angles(entries, is_sliding, head_width)
    })?;
    capped(entries, shape, [None, None])
}

pub(super) fn gemma2(entries: &Entries) -> Result<DecoderShape> {
    let shape = shape_after(entries, false, 2, |entries, _, head_width| {
        rotary(entries, head_width, RotaryDefaults { base: LOCAL_BASE, share: 1.0 })
    })?;
    capped(entries, shape, [Some(50.0), Some(30.0)])
}

/// The caps of scores and of logits. An absent entry has the default of transformers.
fn capped(
    entries: &Entries,
    shape: DecoderShape,
    [score_cap, logit_cap]: [Option<f64>; 2],
) -> Result<DecoderShape> {
    let cap = |name, absent| {
        if !entries.has(name) {
            return Ok(absent);
        }
        entries.value(name).map(|_| entries.positive(name)).transpose()
    };
    let score_cap = cap("attn_logit_softcapping", score_cap)?;
    let logit_cap = cap("final_logit_softcapping", logit_cap)?;
    let attention = AttentionShape { score_cap, ..shape.attention };
    Ok(DecoderShape { attention, logit_cap, ..shape })
}

/// A model with norms around each branch. One layer in `pattern` sees all positions; the others
/// have a window.
fn shape_after(
    entries: &Entries,
    has_head_norms: bool,
    pattern: usize,
    angles: impl Fn(&Entries, bool, usize) -> Result<RotaryEmbedding>,
) -> Result<DecoderShape> {
    entries.without(&["use_bidirectional_attention"])?;
    let activation = "hidden_activation";
    // An older name of the entry, which transformers does not read.
    entries.value("hidden_act");
    let variant = Variant { has_head_norms, activation, ..variant(entries)? };
    let scale = if entries.has("query_pre_attn_scalar") {
        entries.positive("query_pre_attn_scalar")?
    } else {
        256.0
    };
    let scale = Some(1.0 / scale.sqrt());
    let shape = shape(entries, variant, |entries, index, head_width| {
        // One layer of each period sees all positions.
        let own = entries.optional_count("sliding_window_pattern")?;
        let own = own.or(entries.optional_count("_sliding_window_pattern")?).unwrap_or(pattern);
        let is_sliding = match layer_type(entries, index)? {
            Some(is_sliding) => is_sliding,
            None => !(index + 1).is_multiple_of(own),
        };
        let window = if is_sliding { window(entries)? } else { None };
        let rotary = Some(angles(entries, is_sliding, head_width)?);
        Ok(LayerShape { window, rotary, scale })
    })?;
    let shape = DecoderShape { family: Family::Gemma2, ..shape };
    Ok(scaled(DecoderShape { residual: Residual::PrePostNorm, ..shape }))
}

/// The angles of layers with a window and of layers without. Newer files state angles for each type
/// of layer. In older files, windows have their own base and no scaling.
fn angles(entries: &Entries, is_sliding: bool, head_width: usize) -> Result<RotaryEmbedding> {
    let local = entries.optional_number("rope_local_base_freq")?.unwrap_or(LOCAL_BASE);
    let absent = RotaryDefaults { base: if is_sliding { local } else { GLOBAL_BASE }, share: 1.0 };
    let kind = if is_sliding { "sliding_attention" } else { "full_attention" };
    if let Some(by_type) = entries.inside("rope_parameters")?
        && let Some(own) = by_type.inside(kind)?
    {
        by_type.check_all_read(&["sliding_attention", "full_attention"])?;
        return of_parameters(&own, entries, head_width, absent);
    }
    let global = rotary(entries, head_width, RotaryDefaults { base: GLOBAL_BASE, share: 1.0 })?;
    let none: Option<RotaryScaling> = None;
    Ok(if is_sliding { RotaryEmbedding { base: local, scaling: none, ..global } } else { global })
}
