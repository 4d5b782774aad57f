//! Llama and Qwen3: gated layers, RMS norms, rotary positions, and heads that share keys and
//! values. Qwen3 normalises queries and keys, and may see a window of positions only.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{
    Embedding, Linear, Module, RmsNorm, RotaryEmbedding, RotaryPairs, RotaryScaling, parameters,
};
use lowtide_tensor::{AttentionOptions, Causal, Device};
use serde_json::Value;

use super::config::{Batch, Config, missing};
use super::parts::{
    Activation, Attention, AttentionShape, KEY, Seen, keys_of, linear, next_token, window,
};
use super::{Net, Step};
use crate::call::Result;

struct Block {
    input_norm: RmsNorm,
    attention: Attention,
    hidden_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
    window: Option<usize>,
}

parameters!(Block {
    input_norm as "input_layernorm",
    attention as "self_attn",
    hidden_norm as "post_attention_layernorm",
    gate as "mlp.gate_proj",
    up as "mlp.up_proj",
    down as "mlp.down_proj",
});

impl Block {
    fn forward(&self, pass: &Pass, x: Var, seen: &Seen) -> Result<Var> {
        let normed = self.input_norm.forward(pass, x.clone())?;
        let x = self.attention.forward(pass, normed, seen)?.add(x)?;
        let normed = self.hidden_norm.forward(pass, x.clone())?;
        let gate = self.activation.of(self.gate.forward(pass, normed.clone())?)?;
        let hidden = gate.mul(self.up.forward(pass, normed)?)?;
        Ok(self.down.forward(pass, hidden)?.add(x)?)
    }
}

struct Llama {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    /// Absent where the output layer is the table of tokens.
    lm_head: Option<Linear>,
    rotary: RotaryEmbedding,
    head_width: usize,
}

parameters!(Llama {
    embed_tokens as "model.embed_tokens",
    layers as "model.layers.",
    norm as "model.norm",
    lm_head,
});

pub(super) fn llama(device: &Device, config: &Config) -> Result<Box<dyn Net>> {
    let biases = config.flag("mlp_bias");
    build(device, config, biases, None)
}

pub(super) fn qwen3(device: &Device, config: &Config) -> Result<Box<dyn Net>> {
    build(device, config, false, Some(config.number("rms_norm_eps")?))
}

/// A model whose gated layers may have biases, and whose queries and keys may be normalised, with
/// `norm_eps` added to the mean square.
fn build(
    device: &Device,
    config: &Config,
    mlp_bias: bool,
    norm_eps: Option<f64>,
) -> Result<Box<dyn Net>> {
    config.no_dropout(&["attention_dropout"])?;
    let (width, hidden) = (config.count("hidden_size")?, config.count("intermediate_size")?);
    let heads = config.count("num_attention_heads")?;
    let head_width = config.optional_count("head_dim").unwrap_or(width / heads);
    let eps = config.number("rms_norm_eps")?;
    let activation = Activation::named(config.text("hidden_act")?)?;
    // Only a limit of the tables that positions are looked up in.
    config.count("max_position_embeddings")?;
    let windows = windows(config)?;
    let norm = || -> Result<RmsNorm> { Ok(RmsNorm::new(device, &[width])?.with_eps(eps)) };
    let block = |index: usize| -> Result<Block> {
        let bias = config.flag("attention_bias");
        let shape = AttentionShape {
            width,
            heads,
            groups: config.count("num_key_value_heads")?,
            head_width,
            biases: [bias; 2],
            names: ["q_proj", "k_proj", "v_proj", "o_proj"],
            norm_eps,
        };
        Ok(Block {
            input_norm: norm()?,
            attention: Attention::new(device, shape)?,
            hidden_norm: norm()?,
            gate: linear(device, [width, hidden], mlp_bias)?,
            up: linear(device, [width, hidden], mlp_bias)?,
            down: linear(device, [hidden, width], mlp_bias)?,
            activation,
            window: windows.get(index).copied().flatten(),
        })
    };
    let vocabulary = config.count("vocab_size")?;
    let is_tied = config.flag("tie_word_embeddings");
    let head = || linear(device, [width, vocabulary], false);
    Ok(Box::new(Llama {
        embed_tokens: Embedding::new(device, KEY, vocabulary, width)?,
        layers: (0..config.count("num_hidden_layers")?).map(block).collect::<Result<_>>()?,
        norm: norm()?,
        lm_head: if is_tied { None } else { Some(head()?) },
        rotary: rotary(config)?,
        head_width,
    }))
}

/// How many positions each layer sees at most, where that is not all of them.
fn windows(config: &Config) -> Result<Vec<Option<usize>>> {
    let window = config.optional_count("sliding_window");
    let Some(types) = config.value("layer_types").and_then(Value::as_array) else {
        return Ok(Vec::new());
    };
    let of_type = |kind: &Value| match (kind.as_str(), window) {
        (Some("full_attention"), _) => Ok(None),
        (Some("sliding_attention"), Some(window)) => Ok(Some(window)),
        _ => Err(missing(&format!("layers of the type {kind}"))),
    };
    types.iter().map(of_type).collect()
}

/// The angles of `rope_parameters`.
fn rotary(config: &Config) -> Result<RotaryEmbedding> {
    let parameters = config.value("rope_parameters").and_then(Value::as_object);
    let parameters = Config::new(parameters.cloned().unwrap_or_default());
    let plain = RotaryEmbedding::new(RotaryPairs::HalfSplit);
    let plain = RotaryEmbedding { base: parameters.number("rope_theta")?, ..plain };
    let scaling = match parameters.text("rope_type")? {
        "default" => None,
        "linear" => Some(RotaryScaling::Linear { factor: parameters.number("factor")? }),
        "llama3" => Some(RotaryScaling::ByTurns {
            factor: parameters.number("factor")?,
            context: parameters.count("original_max_position_embeddings")?,
            turns: [parameters.number("low_freq_factor")?, parameters.number("high_freq_factor")?],
        }),
        other => return Err(missing(&format!("rotary positions of the type {other}"))),
    };
    parameters.check_all_read()?;
    Ok(RotaryEmbedding { scaling, ..plain })
}

impl Net for Llama {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        let ids = batch.tensor("input_ids")?;
        let mut x = self.embed_tokens.forward(pass, pass.constant(ids.clone()))?;
        let (device, dtype, len) = (ids.device(), x.value().dtype(), ids.shape()[1]);
        let mask = keys_of(batch.tensor("attention_mask")?)?;
        let options = AttentionOptions { causal: Causal::UpperLeft, ..Default::default() };
        let tables = self.rotary.tables(device, [len, self.head_width], dtype)?;
        let all = Seen { mask: Some(mask.clone()), options, rotary: Some(tables), bias: None };
        for block in &self.layers {
            let near = match block.window {
                Some(count) => Some(window(device, len, count)?.logical_and(&mask)?),
                None => None,
            };
            let seen = match near {
                Some(near) => Seen { mask: Some(near), ..all.clone() },
                None => all.clone(),
            };
            x = block.forward(pass, x, &seen)?;
        }
        let x = self.norm.forward(pass, x)?;
        let logits = match &self.lm_head {
            Some(head) => head.forward(pass, x)?,
            None => x.linear(self.embed_tokens.table(pass)?, None)?,
        };
        next_token(logits, batch.tensor("labels")?)
    }
}
