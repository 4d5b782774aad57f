//! T5: scores that are not scaled but have a learned number for each range of distances, RMS norms,
//! no biases. The plain form has ReLU and scales what the output layer sees, version 1.1 is gated.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{
    Embedding, Linear, Module, RelativePositionBias, RelativePositionOptions, RmsNorm, Sides,
    parameters,
};
use lowtide_tensor::{AttentionOptions, DType, Device, Tensor};

use super::config::{Batch, Config, missing};
use super::parts::{
    Activation, Attention, AttentionShape, KEY, Seen, keys_of, linear, same_token, window,
};
use super::{Net, Step};
use crate::call::Result;

/// Attention after a norm, added to its input.
struct Attending {
    attention: Attention,
    norm: RmsNorm,
}

/// A hidden layer after a norm, added to its input: plain, or with a gate.
struct Hidden {
    wi: Vec<Linear>,
    wo: Linear,
    norm: RmsNorm,
    activation: Activation,
}

impl Hidden {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let normed = self.norm.forward(pass, x.clone())?;
        let mut hidden = self.activation.of(self.wi[0].forward(pass, normed.clone())?)?;
        if let Some(up) = self.wi.get(1) {
            hidden = hidden.mul(up.forward(pass, normed)?)?;
        }
        Ok(self.wo.forward(pass, hidden)?.add(x)?)
    }
}

/// A block of the encoder, or with `cross` one of the decoder.
struct Block {
    own: Attending,
    cross: Option<Attending>,
    hidden: Hidden,
}

impl lowtide_nn::Parameters for Block {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut lowtide_nn::Parameter)) {
        use lowtide_nn::fields::Field;
        self.own.attention.visit_as("layer.0.SelfAttention", visitor);
        self.own.norm.visit_as("layer.0.layer_norm", visitor);
        if let Some(cross) = &mut self.cross {
            cross.attention.visit_as("layer.1.EncDecAttention", visitor);
            cross.norm.visit_as("layer.1.layer_norm", visitor);
        }
        let (place, Hidden { wi, wo, norm, .. }) = (1 + self.cross.iter().len(), &mut self.hidden);
        let layer = |name: &str| format!("layer.{place}.{name}");
        match &mut wi[..] {
            [plain] => plain.visit_as(layer("DenseReluDense.wi").as_str(), visitor),
            gated => gated.iter_mut().enumerate().for_each(|(at, wi)| {
                wi.visit_as(layer(&format!("DenseReluDense.wi_{at}")).as_str(), visitor);
            }),
        }
        wo.visit_as(layer("DenseReluDense.wo").as_str(), visitor);
        norm.visit_as(layer("layer_norm").as_str(), visitor);
    }
}

impl Block {
    fn forward(&self, pass: &Pass, x: Var, seen: &Seen, memory: Option<&Memory>) -> Result<Var> {
        let normed = self.own.norm.forward(pass, x.clone())?;
        let mut x = self.own.attention.forward(pass, normed, seen)?.add(x)?;
        if let (Some(cross), Some(memory)) = (&self.cross, memory) {
            let normed = cross.norm.forward(pass, x.clone())?;
            let sources = [normed, memory.values.clone()];
            x = cross.attention.attend(pass, sources, &memory.seen)?.add(x)?;
        }
        self.hidden.forward(pass, x)
    }
}

/// What a decoder attends to.
struct Memory {
    values: Var,
    seen: Seen,
}

struct Stack {
    blocks: Vec<Block>,
    bias: RelativePositionBias,
    norm: RmsNorm,
}

parameters!(Stack {
    blocks as "block.",
    bias as "block.0.layer.0.SelfAttention.relative_attention_bias",
    norm as "final_layer_norm",
});

impl Stack {
    fn forward(&self, pass: &Pass, x: Var, seen: Seen, memory: Option<&Memory>) -> Result<Var> {
        let len = x.shape()[1];
        let seen = Seen { bias: Some(self.bias.bias(pass, [len, len])?), ..seen };
        let run = |x, block: &Block| block.forward(pass, x, &seen, memory);
        let x = self.blocks.iter().try_fold(x, run)?;
        Ok(self.norm.forward(pass, x)?)
    }
}

struct T5 {
    shared: Embedding,
    encoder: Stack,
    decoder: Stack,
    start: i64,
    padding: f64,
    /// What the output layer's input is multiplied by.
    scale: f64,
}

parameters!(T5 { shared, encoder, decoder });

pub(super) fn seq2seq(device: &Device, config: &Config) -> Result<Box<dyn Net>> {
    config.no_dropout(&["dropout_rate"])?;
    config.without(&["is_decoder"])?;
    if !config.flag("tie_word_embeddings") {
        return Err(missing("tie_word_embeddings = false"));
    }
    let width = config.count("d_model")?;
    let is_scaled = config.flag("scale_decoder_outputs");
    let (encoder, decoder) = (config.count("num_layers")?, config.count("num_decoder_layers")?);
    Ok(Box::new(T5 {
        shared: Embedding::new(device, KEY, config.count("vocab_size")?, width)?,
        encoder: stack(device, config, encoder, Sides::Both)?,
        decoder: stack(device, config, decoder, Sides::Before)?,
        start: config.count("decoder_start_token_id")? as i64,
        padding: config.number("pad_token_id")?,
        scale: if is_scaled { 1.0 / (width as f64).sqrt() } else { 1.0 },
    }))
}

/// The blocks of an encoder, or of a decoder, whose queries see keys before them.
fn stack(device: &Device, config: &Config, count: usize, sides: Sides) -> Result<Stack> {
    let (width, heads) = (config.count("d_model")?, config.count("num_heads")?);
    let (hidden, eps) = (config.count("d_ff")?, config.number("layer_norm_epsilon")?);
    let head_width = config.count("d_kv")?;
    // Both say the same as what follows.
    config.text("feed_forward_proj")?;
    let gates = 1 + usize::from(config.flag("is_gated_act"));
    let activation = Activation::named(config.text("dense_act_fn")?)?;
    let norm = || -> Result<RmsNorm> { Ok(RmsNorm::new(device, &[width])?.with_eps(eps)) };
    let attending = || -> Result<Attending> {
        let shape = AttentionShape {
            width,
            heads,
            groups: heads,
            head_width,
            biases: [false; 2],
            names: ["q", "k", "v", "o"],
            norm_eps: None,
        };
        Ok(Attending { attention: Attention::new(device, shape)?, norm: norm()? })
    };
    let wi = |_| linear(device, [width, hidden], false);
    let block = |_| -> Result<Block> {
        let cross = (sides == Sides::Before).then(attending).transpose()?;
        let hidden = Hidden {
            wi: (0..gates).map(wi).collect::<Result<_>>()?,
            wo: linear(device, [hidden, width], false)?,
            norm: norm()?,
            activation,
        };
        Ok(Block { own: attending()?, cross, hidden })
    };
    let options = RelativePositionOptions {
        heads,
        buckets: config.count("relative_attention_num_buckets")?,
        distance_max: config.count("relative_attention_max_distance")?,
        sides,
    };
    Ok(Stack {
        blocks: (0..count).map(block).collect::<Result<_>>()?,
        bias: RelativePositionBias::new(device, KEY, options)?,
        norm: norm()?,
    })
}

impl T5 {
    /// The labels one position later, after the token that starts a sequence.
    fn shifted(&self, labels: &Tensor) -> Result<Tensor> {
        let (batch, len) = (labels.shape()[0], labels.shape()[1]);
        let start = Tensor::full(labels.device(), [batch, 1], DType::I64, self.start as f64)?;
        let ids = Tensor::cat(&[&start, &labels.narrow(1, 0, len - 1)?], 1)?;
        let is_ignored = ids.eq_scalar(-100.0)?;
        Ok(ids.masked_fill(&is_ignored, self.padding)?)
    }
}

impl Net for T5 {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        let (ids, labels) = (batch.tensor("input_ids")?, batch.tensor("labels")?);
        let (device, len) = (labels.device(), labels.shape()[1]);
        let mask = Some(keys_of(batch.tensor("attention_mask")?)?);
        let options = AttentionOptions { scale: Some(1.0), ..Default::default() };
        let table = |ids: Tensor| self.shared.forward(pass, pass.constant(ids));
        let seen = Seen { mask, options, ..Default::default() };
        let values = self.encoder.forward(pass, table(ids.clone())?, seen.clone(), None)?;
        let memory = Memory { values, seen };
        // A window as long as the sequence: all positions up to the query's.
        let seen = Seen { mask: Some(window(device, len, len)?), ..Default::default() };
        let y = table(self.shifted(labels)?)?;
        let y = self.decoder.forward(pass, y, seen, Some(&memory))?.mul_scalar(self.scale)?;
        same_token(y.linear(self.shared.table(pass)?, None)?, labels)
    }
}
