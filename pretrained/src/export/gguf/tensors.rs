//! The tensors of a model under GGUF's names and in its layouts.

use std::collections::BTreeMap;

use lowtide_nn::{RotaryEmbedding, RotaryScaling};
use lowtide_tensor::{Device, Tensor};

use super::architecture::Architecture;
use super::file::{GgufType, Stored};
use super::note::GgufNote;
use crate::decoder::{DecoderShape, LayerNames, Names, NormKind};
use crate::error::Result;
use crate::export::target::Target;

/// The architecture, the type of matrices and the target for the tensors of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kinds {
    pub(super) architecture: Architecture,
    /// The type of matrices; all other tensors are f32.
    pub(super) matrices: GgufType,
    /// The model and the format, as errors name them.
    pub(super) target: Target,
}

/// The tensors of a model whose parameters are `sources`.
///
/// # Errors
/// `Export` for a parameter without a name in the format; `OutOfMemory` for the few numbers of
/// Llama 3's angles.
pub(super) fn stored(
    Kinds { architecture, matrices, target }: Kinds,
    shape: &DecoderShape,
    sources: Vec<(String, Tensor)>,
) -> Result<(Vec<Stored>, Vec<GgufNote>)> {
    let names = Translation::of(shape.family.names());
    let (mut stored, mut unfit_count) = (Vec::with_capacity(sources.len() + 1), 0);
    for (name, value) in sources {
        let (part, name) = names.translated(&name).ok_or_else(|| target.no_place(&name))?;
        let is_norm = part.ends_with("_norm");
        let columns = value.shape().last().copied().unwrap_or(1);
        let is_f32 = value.shape().len() < 2 || is_norm || part == "position_embd";
        let kind = if is_f32 {
            GgufType::F32
        } else if matrices.fits(columns) {
            matrices
        } else {
            unfit_count += 1;
            GgufType::F16
        };
        let addend = match shape.norm.kind {
            NormKind::RmsPlusOne if is_norm => 1.0,
            NormKind::RmsPlusOne | NormKind::Rms | NormKind::Layer => 0.0,
        };
        let of_file = value.shape().to_vec();
        let parts = parts(architecture, shape, part, &value)?;
        stored.push(Stored { name, shape: of_file, kind, parts, addend });
    }
    let is_tied_apart = shape.is_tied && !architecture.may_be_tied();
    if let (true, Some(table)) = (is_tied_apart, stored.first()) {
        let (name, shape, parts) =
            ("output.weight".to_owned(), table.shape.clone(), table.parts.clone());
        stored.push(Stored { name, shape, parts, ..*table });
    }
    let device = stored.first().map(|table| table.parts[0].device().clone());
    let factors = device.map(|device| factors(shape, &device)).transpose()?;
    if let Some(factors) = factors.flatten() {
        let (name, shape) = ("rope_freqs.weight".to_owned(), factors.shape().to_vec());
        stored.push(Stored { name, shape, kind: GgufType::F32, parts: vec![factors], addend: 0.0 });
    }
    let notes = (unfit_count > 0).then_some(GgufNote::NoBlocks { count: unfit_count });
    Ok((stored, notes.into_iter().collect()))
}

/// The map from names of parameters to GGUF's names.
struct Translation {
    /// The prefix of a layer's number.
    layers: &'static str,
    of_model: BTreeMap<String, &'static str>,
    of_layer: BTreeMap<String, &'static str>,
}

impl Translation {
    fn of(names: &'static Names) -> Self {
        let LayerNames { attention, feed_forward, inputs, head_norms, .. } = *names.layer;
        let one = names.layer;
        let attention = |name: &str| inside(attention, name);
        let feed_forward = |name: &str| inside(feed_forward, name);
        let is_packed = inputs[1].is_empty();
        let of_layer = [
            (one.attention_norm.to_owned(), "attn_norm"),
            (attention(inputs[0]), if is_packed { "attn_qkv" } else { "attn_q" }),
            (attention(inputs[1]), "attn_k"),
            (attention(inputs[2]), "attn_v"),
            (attention(head_norms[0]), "attn_q_norm"),
            (attention(head_norms[1]), "attn_k_norm"),
            (attention(one.output), "attn_output"),
            (one.after_attention.to_owned(), "post_attention_norm"),
            (one.feed_forward_norm.to_owned(), "ffn_norm"),
            (feed_forward(one.gate), "ffn_gate"),
            (feed_forward(one.up), "ffn_up"),
            (feed_forward(one.down), "ffn_down"),
            (one.after_feed_forward.to_owned(), "post_ffw_norm"),
        ];
        let of_model = [
            (names.table.to_owned(), "token_embd"),
            (names.positions.to_owned(), "position_embd"),
            (names.norm.to_owned(), "output_norm"),
            (names.head.to_owned(), "output"),
        ];
        Translation { layers: names.layers, of_model: of_model.into(), of_layer: of_layer.into() }
    }

    /// The part of the model that a parameter belongs to, and its name in the file.
    fn translated(&self, name: &str) -> Option<(&'static str, String)> {
        let (path, kind) = name.rsplit_once('.')?;
        if let Some(part) = self.of_model.get(path) {
            return Some((part, format!("{part}.{kind}")));
        }
        let (index, path) = path.strip_prefix(self.layers)?.split_once('.')?;
        let part = self.of_layer.get(path)?;
        Some((part, format!("blk.{index}.{part}.{kind}")))
    }
}

/// The path of a name; empty if the family lacks the part, because no parameter has an empty name.
fn inside(place: &str, name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("{place}.{name}") }
}

/// The rows of a parameter in the order of the file.
fn parts(
    architecture: Architecture,
    shape: &DecoderShape,
    part: &str,
    value: &Tensor,
) -> Result<Vec<Tensor>> {
    let (attention, columns) = (shape.attention, &value.shape()[1..]);
    let width = attention.head_width;
    let by = |counts: &[usize]| value.reshape(&*[counts, columns].concat());
    Ok(match (architecture, part) {
        (_, "attn_q" | "attn_k") if architecture.has_neighbours() => {
            let heads = if part == "attn_q" { attention.heads } else { attention.groups };
            vec![by(&[heads, 2, width / 2])?.transpose(1, 2)?]
        }
        // The file has the queries of all heads, then keys, then values.
        (Architecture::Neox, "attn_qkv") => {
            let heads = by(&[attention.heads, 3, width])?;
            let of_kind = |kind| Ok(heads.narrow(1, kind, 1)?);
            (0..3).map(of_kind).collect::<Result<_>>()?
        }
        _ => vec![value.clone()],
    })
}

/// The divisors of the rotation rates of Llama 3.
fn factors(shape: &DecoderShape, device: &Device) -> Result<Option<Tensor>> {
    let rotary = shape.layers.first().and_then(|layer| layer.rotary);
    let Some(rotary) = rotary else { return Ok(None) };
    let Some(RotaryScaling::ByTurns { .. }) = rotary.scaling else { return Ok(None) };
    let width = shape.attention.head_width;
    let plain = RotaryEmbedding { scaling: None, ..rotary };
    let factors = plain.rates(device, width)?.div(&rotary.rates(device, width)?)?;
    let count = factors.element_count();
    Ok(Some(factors.reshape([count])?))
}
