//! The names of parameters in the files of each family.

use super::shape::Family;

/// Names of a model's parts. The name of a part that a family lacks is empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// The prefix of every name in a file of the whole model. Files of the body alone, without an
    /// output layer, leave the prefix out.
    pub(crate) base: &'static str,
    pub(crate) table: &'static str,
    pub(crate) positions: &'static str,
    /// The prefix of a layer's number.
    pub(crate) layers: &'static str,
    pub(crate) norm: &'static str,
    pub(crate) head: &'static str,
    pub(crate) layer: &'static LayerNames,
    /// Ends of the names of unused tensors in files: masks and angles.
    pub(crate) unused: &'static [&'static str],
}

/// Names in a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerNames {
    pub(crate) attention_norm: &'static str,
    pub(crate) attention: &'static str,
    /// Inside the attention: queries, keys and values, or one layer for all three.
    pub(crate) inputs: [&'static str; 3],
    pub(crate) head_norms: [&'static str; 2],
    pub(crate) output: &'static str,
    pub(crate) after_attention: &'static str,
    pub(crate) feed_forward_norm: &'static str,
    pub(crate) feed_forward: &'static str,
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
    pub(crate) after_feed_forward: &'static str,
}

const LLAMA_LAYER: LayerNames = LayerNames {
    attention_norm: "input_layernorm",
    attention: "self_attn",
    inputs: ["q_proj", "k_proj", "v_proj"],
    head_norms: ["q_norm", "k_norm"],
    output: "o_proj",
    after_attention: "",
    feed_forward_norm: "post_attention_layernorm",
    feed_forward: "mlp",
    gate: "gate_proj",
    up: "up_proj",
    down: "down_proj",
    after_feed_forward: "",
};

const GEMMA2_LAYER: LayerNames = LayerNames {
    after_attention: "post_attention_layernorm",
    feed_forward_norm: "pre_feedforward_layernorm",
    after_feed_forward: "post_feedforward_layernorm",
    ..LLAMA_LAYER
};

const GPT2_LAYER: LayerNames = LayerNames {
    attention_norm: "ln_1",
    attention: "attn",
    inputs: ["c_attn", "", ""],
    output: "c_proj",
    feed_forward_norm: "ln_2",
    gate: "",
    up: "c_fc",
    down: "c_proj",
    ..LLAMA_LAYER
};

const NEOX_LAYER: LayerNames = LayerNames {
    attention: "attention",
    inputs: ["query_key_value", "", ""],
    output: "dense",
    gate: "",
    up: "dense_h_to_4h",
    down: "dense_4h_to_h",
    ..LLAMA_LAYER
};

const LLAMA: Names = Names {
    base: "model.",
    table: "model.embed_tokens",
    positions: "",
    layers: "model.layers.",
    norm: "model.norm",
    head: "lm_head",
    layer: &LLAMA_LAYER,
    unused: &[".rotary_emb.inv_freq"],
};

const GEMMA2: Names = Names { layer: &GEMMA2_LAYER, ..LLAMA };

const GPT2: Names = Names {
    base: "transformer.",
    table: "transformer.wte",
    positions: "transformer.wpe",
    layers: "transformer.h.",
    norm: "transformer.ln_f",
    layer: &GPT2_LAYER,
    unused: &[".attn.bias", ".attn.masked_bias"],
    ..LLAMA
};

const NEOX: Names = Names {
    base: "gpt_neox.",
    table: "gpt_neox.embed_in",
    layers: "gpt_neox.layers.",
    norm: "gpt_neox.final_layer_norm",
    head: "embed_out",
    layer: &NEOX_LAYER,
    unused: &[".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"],
    ..LLAMA
};

impl Family {
    pub(crate) fn names(self) -> &'static Names {
        match self {
            Family::Llama => &LLAMA,
            Family::Gemma2 => &GEMMA2,
            Family::Gpt2 => &GPT2,
            Family::Neox => &NEOX,
        }
    }
}
