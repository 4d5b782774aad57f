//! The GGUF architecture of a model, and its entries. A model that llama.cpp would compute
//! differently is refused. The properties of each architecture come from the sources of llama.cpp,
//! and logits were compared with llama.cpp.

use lowtide_nn::{RotaryEmbedding, RotaryScaling};

use super::file::{Entries, Value};
use super::note::GgufNote;
use crate::decoder::{Activation, DecoderShape, LayerShape, NormKind, Positions, Residual};
use crate::error::Result;
use crate::export::target::Target;

/// The known architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Gemma,
    Gemma2,
    Gemma3,
    Gpt2,
    Neox,
}

impl Architecture {
    /// The architecture of a model, if llama.cpp computes all parts of the model.
    ///
    /// # Errors
    /// `Export`.
    pub(super) fn of(shape: &DecoderShape, target: Target) -> Result<Self> {
        let architecture = match target.architecture {
            "LlamaForCausalLM" | "MistralForCausalLM" => Architecture::Llama,
            "Qwen2ForCausalLM" => Architecture::Qwen2,
            "Qwen3ForCausalLM" => Architecture::Qwen3,
            "GemmaForCausalLM" => Architecture::Gemma,
            "Gemma2ForCausalLM" => Architecture::Gemma2,
            "Gemma3ForCausalLM" => Architecture::Gemma3,
            "GPT2LMHeadModel" => Architecture::Gpt2,
            "GPTNeoXForCausalLM" => Architecture::Neox,
            _ => return Err(target.no_form("this architecture")),
        };
        match architecture.missing(shape) {
            None => Ok(architecture),
            Some(what) => Err(target.no_form(what)),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
            Architecture::Gemma => "gemma",
            Architecture::Gemma2 => "gemma2",
            Architecture::Gemma3 => "gemma3",
            Architecture::Gpt2 => "gpt2",
            Architecture::Neox => "gptneox",
        }
    }

    fn is_gemma(self) -> bool {
        matches!(self, Architecture::Gemma | Architecture::Gemma2 | Architecture::Gemma3)
    }

    /// The period of windows in layers if no entry states a period; `None` for an architecture
    /// whose layers have no windows.
    fn usual_period(self) -> Option<usize> {
        match self {
            Architecture::Gemma2 => Some(2),
            Architecture::Gemma3 => Some(6),
            Architecture::Llama
            | Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Gemma
            | Architecture::Gpt2
            | Architecture::Neox => None,
        }
    }

    /// True if some layers may have windows.
    fn has_windows(self) -> bool {
        self.usual_period().is_some()
    }

    /// True if llama.cpp uses the token embedding as the output layer of a file without one.
    pub(super) fn may_be_tied(self) -> bool {
        match self {
            Architecture::Neox => false,
            Architecture::Llama
            | Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Gemma
            | Architecture::Gemma2
            | Architecture::Gemma3
            | Architecture::Gpt2 => true,
        }
    }

    /// True if the rotated pairs of features are neighbours: llama.cpp's order of the rows of
    /// queries and keys. transformers has the first half of a head before the second half.
    pub(super) fn has_neighbours(self) -> bool {
        self == Architecture::Llama
    }

    /// The first part of the model that the architecture lacks.
    fn missing(self, shape: &DecoderShape) -> Option<&'static str> {
        let (attention, feed_forward) = (shape.attention, shape.feed_forward);
        let activations: &[Activation] = match self {
            Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => &[Activation::Silu],
            Architecture::Gemma | Architecture::Gemma2 | Architecture::Gemma3 => {
                &[Activation::GeluTanh]
            }
            Architecture::Gpt2 => &[Activation::GeluTanh],
            // llama.cpp uses the approximation for both.
            Architecture::Neox => &[Activation::GeluTanh, Activation::Gelu],
        };
        let biases = [attention.has_input_bias, attention.has_output_bias, feed_forward.has_bias];
        let has_its_biases = match self {
            Architecture::Llama => true,
            Architecture::Qwen2 => biases == [true, false, false],
            Architecture::Gpt2 | Architecture::Neox => biases == [true; 3],
            Architecture::Qwen3
            | Architecture::Gemma
            | Architecture::Gemma2
            | Architecture::Gemma3 => biases == [false; 3],
        };
        let caps = [attention.score_cap.is_some(), shape.logit_cap.is_some()];
        let has_its_caps = match self {
            Architecture::Gemma2 => caps == [true, true],
            Architecture::Gemma3 => !caps[0],
            Architecture::Llama
            | Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Gemma
            | Architecture::Gpt2
            | Architecture::Neox => caps == [false, false],
        };
        let has_its_branches = match shape.residual {
            Residual::PreNorm => !self.has_windows(),
            Residual::PrePostNorm => self.has_windows(),
            Residual::Parallel => self == Architecture::Neox,
        };
        let checks = [
            (activations.contains(&feed_forward.activation), "this function of hidden features"),
            (has_its_biases, "these biases"),
            (has_its_caps, "these caps of scores and logits"),
            (has_its_branches, "this order of norms and branches"),
            (shape.is_tied || !self.is_gemma(), "an output layer of its own"),
            (!self.has_windows() || period(shape).is_some(), "this order of windows"),
            (self.has_scales(shape), "this scale of the scores"),
            (self.has_angles(shape), "these angles of positions"),
        ];
        checks.into_iter().find(|(is_there, _)| !is_there).map(|(_, what)| what)
    }

    /// True if all layers have the scale of scores that llama.cpp uses.
    fn has_scales(self, shape: &DecoderShape) -> bool {
        let (heads, head_width) = (shape.attention.heads, shape.attention.head_width);
        // llama.cpp recognises the largest Gemmas by their number of layers.
        let is_largest = match self {
            Architecture::Gemma2 => shape.layers.len() == 46,
            Architecture::Gemma3 => shape.layers.len() == 62,
            _ => false,
        };
        let width = if is_largest { shape.width / heads } else { head_width };
        let taken = 1.0 / (width as f64).sqrt();
        let own = 1.0 / (head_width as f64).sqrt();
        let is_taken = |scale: f64| (scale / taken - 1.0).abs() < 1e-6;
        shape.layers.iter().all(|layer| is_taken(layer.scale.unwrap_or(own)))
    }

    /// True if entries can express the angles of all layers.
    fn has_angles(self, shape: &DecoderShape) -> bool {
        // Only in Gemma 3 do layers with a window have their own angles, without scaling.
        let has_own = |layer: &&LayerShape| self == Architecture::Gemma3 && layer.window.is_some();
        let (near, far): (Vec<_>, Vec<_>) = shape.layers.iter().partition(has_own);
        let are_equal =
            |layers: &[&LayerShape]| layers.windows(2).all(|pair| pair[0].rotary == pair[1].rotary);
        let is_plain = |layer: &&LayerShape| layer.rotary.is_none_or(|it| it.scaling.is_none());
        let width = shape.attention.head_width;
        let is_known =
            |layer: &LayerShape| layer.rotary.is_none_or(|it| self.has_rotary(&it, width));
        are_equal(&near)
            && are_equal(&far)
            && near.iter().all(is_plain)
            && shape.layers.iter().all(is_known)
    }

    fn has_rotary(self, angles: &RotaryEmbedding, head_width: usize) -> bool {
        let is_whole = angles.turned.is_none_or(|turned| turned == head_width);
        let is_scaled = match angles.scaling {
            None | Some(RotaryScaling::Linear { .. }) => true,
            Some(RotaryScaling::ByTurns { .. }) => self == Architecture::Llama,
            Some(RotaryScaling::Yarn { factor, attention, .. }) => {
                let usual = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
                let is_known =
                    matches!(self, Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3);
                is_known && (attention / usual - 1.0).abs() < 1e-6
            }
            Some(_) => false,
        };
        (is_whole || self == Architecture::Neox) && is_scaled
    }

    /// The entries of a model, and notes for a reader of the file.
    pub(super) fn entries(self, shape: &DecoderShape) -> (Entries, Vec<GgufNote>) {
        let attention = shape.attention;
        let (context, notes) = self.context(shape);
        let norm = match shape.norm.kind {
            NormKind::Layer => "attention.layer_norm_epsilon",
            NormKind::Rms | NormKind::RmsPlusOne => "attention.layer_norm_rms_epsilon",
        };
        let mut entries = vec![
            ("block_count", count(shape.layers.len())),
            ("context_length", count(context)),
            ("embedding_length", count(shape.width)),
            ("feed_forward_length", count(shape.feed_forward.width)),
            ("attention.head_count", count(attention.heads)),
            ("attention.head_count_kv", count(attention.groups)),
            ("attention.key_length", count(attention.head_width)),
            ("attention.value_length", count(attention.head_width)),
            (norm, Value::Number(shape.norm.eps as f32)),
            ("vocab_size", count(shape.vocabulary)),
        ];
        if let (Positions::Rotary, Some(angles)) = (shape.positions, main_angles(shape)) {
            entries.extend(rotary(&angles, attention.head_width));
        }
        if let Some(cap) = attention.score_cap {
            entries.push(("attn_logit_softcapping", Value::Number(cap as f32)));
        }
        if let Some(cap) = shape.logit_cap {
            entries.push(("final_logit_softcapping", Value::Number(cap as f32)));
        }
        if self.has_windows() {
            entries.extend(self.windows(shape));
        }
        if self == Architecture::Neox {
            let is_parallel = Value::Flag(shape.residual == Residual::Parallel);
            entries.push(("use_parallel_residual", is_parallel));
        }
        let keyed =
            entries.into_iter().map(|(key, value)| (format!("{}.{key}", self.name()), value));
        (keyed.collect(), notes)
    }

    /// Number of positions that a reader may use: at most the smallest window if llama.cpp knows no
    /// windows of the architecture.
    fn context(self, shape: &DecoderShape) -> (usize, Vec<GgufNote>) {
        let windows = shape.layers.iter().filter_map(|layer| layer.window);
        match windows.min().filter(|&window| !self.has_windows() && window < shape.context) {
            None => (shape.context, Vec::new()),
            Some(window) => (window, vec![GgufNote::Window { window, context: shape.context }]),
        }
    }

    fn windows(self, shape: &DecoderShape) -> Vec<(&'static str, Value)> {
        let near = shape.layers.iter().find(|layer| layer.window.is_some());
        let period = period(shape).unwrap_or(1);
        let mut entries = Vec::new();
        if let Some(window) = near.and_then(|layer| layer.window) {
            entries.push(("attention.sliding_window", count(window)));
        }
        if let (Architecture::Gemma3, Some(angles)) = (self, near.and_then(|layer| layer.rotary)) {
            entries.push(("rope.freq_base_swa", Value::Number(angles.base as f32)));
        }
        // Older readers know only the usual period.
        if self.usual_period().is_some_and(|usual| period != usual && !fits(shape, usual)) {
            entries.push(("attention.sliding_window_pattern", count(period)));
        }
        entries
    }
}

fn count(count: usize) -> Value {
    // Configurations with larger counts are refused when they are read.
    Value::Count(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The angles of the layers that see all positions, or of the first layer if all have windows.
fn main_angles(shape: &DecoderShape) -> Option<RotaryEmbedding> {
    let seeing = shape.layers.iter().find(|layer| layer.window.is_none());
    seeing.or(shape.layers.first()).and_then(|layer| layer.rotary)
}

/// True if every layer but each `period`-th has the same window.
fn fits(shape: &DecoderShape, period: usize) -> bool {
    let window = shape.layers.iter().find_map(|layer| layer.window);
    shape.layers.iter().enumerate().all(|(index, layer)| {
        let is_near = index % period < period - 1;
        layer.window == window.filter(|_| is_near)
    })
}

/// The period of layers that see all positions, if all other layers have one window.
fn period(shape: &DecoderShape) -> Option<usize> {
    (1..=shape.layers.len() + 1).find(|&period| fits(shape, period))
}

fn rotary(angles: &RotaryEmbedding, head_width: usize) -> Vec<(&'static str, Value)> {
    let number = |x: f64| Value::Number(x as f32);
    let mut entries = vec![
        ("rope.dimension_count", count(angles.turned.unwrap_or(head_width))),
        ("rope.freq_base", number(angles.base)),
    ];
    match angles.scaling {
        Some(RotaryScaling::Linear { factor }) => entries.extend([
            ("rope.scaling.type", Value::Text("linear".to_owned())),
            ("rope.scaling.factor", number(factor)),
        ]),
        Some(RotaryScaling::Yarn { factor, context, turns: [slow, fast], .. }) => entries.extend([
            ("rope.scaling.type", Value::Text("yarn".to_owned())),
            ("rope.scaling.factor", number(factor)),
            ("rope.scaling.original_context_length", count(context)),
            ("rope.scaling.yarn_beta_slow", number(slow)),
            ("rope.scaling.yarn_beta_fast", number(fast)),
        ]),
        // The factors of Llama 3 are a tensor.
        Some(RotaryScaling::ByTurns { .. }) | None => {}
        // Refused by `Architecture::has_rotary`.
        Some(_) => unreachable!("a scaling that llama.cpp does not have"),
    }
    entries
}
