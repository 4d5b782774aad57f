//! GPT-2 with a language model's head, which is the table of tokens.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{Embedding, LayerNorm, Module, Parameter, parameters};
use lowtide_tensor::{AttentionOptions, Causal, Device};

use super::config::{Batch, Config};
use super::parts::{Activation, KEY, keys_of, next_token};
use super::{Net, Step};
use crate::call::Result;

/// `y = x W + b` with the weight as `[inputs, outputs]`: a `Conv1D` of the files.
struct Conv1D {
    weight: Parameter,
    bias: Parameter,
}

parameters!(Conv1D { weight, bias });

impl Conv1D {
    fn new(device: &Device, shape: [usize; 2]) -> Result<Self> {
        let bias = Parameter::full(device, [shape[1]], 0.0)?;
        Ok(Conv1D { weight: Parameter::full(device, shape, 0.0)?, bias })
    }

    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        Ok(x.linear(self.weight.var(pass)?.t()?, Some(self.bias.var(pass)?))?)
    }
}

struct Block {
    ln_1: LayerNorm,
    c_attn: Conv1D,
    c_proj: Conv1D,
    ln_2: LayerNorm,
    up: Conv1D,
    down: Conv1D,
    heads: usize,
    scale: f64,
    activation: Activation,
}

parameters!(Block {
    ln_1,
    c_attn as "attn.c_attn",
    c_proj as "attn.c_proj",
    ln_2,
    up as "mlp.c_fc",
    down as "mlp.c_proj",
});

impl Block {
    fn forward(&self, pass: &Pass, x: Var, mask: &lowtide_tensor::Tensor) -> Result<Var> {
        let options = AttentionOptions {
            causal: Causal::UpperLeft,
            scale: Some(self.scale),
            ..Default::default()
        };
        let packed = self.c_attn.forward(pass, self.ln_1.forward(pass, x.clone())?)?;
        let seen = packed.self_attention([self.heads; 2], Some(mask), options)?;
        let x = self.c_proj.forward(pass, seen)?.add(x)?;
        let hidden = self.up.forward(pass, self.ln_2.forward(pass, x.clone())?)?;
        Ok(self.down.forward(pass, self.activation.of(hidden)?)?.add(x)?)
    }
}

struct Gpt2 {
    wte: Embedding,
    wpe: Embedding,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

parameters!(Gpt2 {
    wte as "transformer.wte",
    wpe as "transformer.wpe",
    h as "transformer.h.",
    ln_f as "transformer.ln_f",
});

pub(super) fn lm(device: &Device, config: &Config) -> Result<Box<dyn Net>> {
    config.no_dropout(&["resid_pdrop", "embd_pdrop", "attn_pdrop"])?;
    // Those that are computed in f32 while the model is in another type change nothing in f32.
    config.without(&["add_cross_attention", "reorder_and_upcast_attn"])?;
    let (width, heads) = (config.count("n_embd")?, config.count("n_head")?);
    let hidden = config.optional_count("n_inner").unwrap_or(4 * width);
    let activation = Activation::named(config.text("activation_function")?)?;
    let eps = config.number("layer_norm_epsilon")?;
    let by_layer = config.flag("scale_attn_by_inverse_layer_idx");
    let scale = match config.flag("scale_attn_weights") {
        true => 1.0 / ((width / heads) as f64).sqrt(),
        false => 1.0,
    };
    if !config.flag("tie_word_embeddings") {
        return Err(super::config::missing("tie_word_embeddings = false"));
    }
    let norm = || -> Result<LayerNorm> { Ok(LayerNorm::new(device, &[width])?.with_eps(eps)) };
    let block = |index: usize| -> Result<Block> {
        Ok(Block {
            ln_1: norm()?,
            c_attn: Conv1D::new(device, [width, 3 * width])?,
            c_proj: Conv1D::new(device, [width, width])?,
            ln_2: norm()?,
            up: Conv1D::new(device, [width, hidden])?,
            down: Conv1D::new(device, [hidden, width])?,
            heads,
            scale: if by_layer { scale / (index + 1) as f64 } else { scale },
            activation,
        })
    };
    Ok(Box::new(Gpt2 {
        wte: Embedding::new(device, KEY, config.count("vocab_size")?, width)?,
        wpe: Embedding::new(device, KEY, config.count("n_positions")?, width)?,
        h: (0..config.count("n_layer")?).map(block).collect::<Result<_>>()?,
        ln_f: norm()?,
    }))
}

impl Net for Gpt2 {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        let ids = batch.tensor("input_ids")?;
        let mask = keys_of(batch.tensor("attention_mask")?)?;
        let positions = self.wpe.table(pass)?.narrow(0, 0, ids.shape()[1])?;
        let tokens = self.wte.forward(pass, pass.constant(ids.clone()))?;
        let mut x = tokens.add(positions)?;
        for block in &self.h {
            x = block.forward(pass, x, &mask)?;
        }
        let x = self.ln_f.forward(pass, x)?;
        next_token(x.linear(self.wte.table(pass)?, None)?, batch.tensor("labels")?)
    }
}
