//! BERT with a head that guesses tokens, and with one for classes.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{Embedding, LayerNorm, Linear, Module, Parameter, parameters};
use lowtide_tensor::Device;

use super::config::{Batch, Config};
use super::parts::{
    Activation, Attention, AttentionShape, KEY, Seen, classes, keys_of, linear, same_token,
};
use super::{Net, Step};
use crate::call::Result;

struct Block {
    attention: Attention,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
    activation: Activation,
}

parameters!(Block {
    attention,
    attention_norm as "attention.output.LayerNorm",
    up as "intermediate.dense",
    down as "output.dense",
    norm as "output.LayerNorm",
});

impl Block {
    fn forward(&self, pass: &Pass, x: Var, seen: &Seen) -> Result<Var> {
        let y = self.attention.forward(pass, x.clone(), seen)?.add(x)?;
        let x = self.attention_norm.forward(pass, y)?;
        let hidden = self.activation.of(self.up.forward(pass, x.clone())?)?;
        let y = self.down.forward(pass, hidden)?.add(x)?;
        Ok(self.norm.forward(pass, y)?)
    }
}

struct Bert {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    blocks: Vec<Block>,
    pooler: Option<Linear>,
}

parameters!(Bert {
    words as "embeddings.word_embeddings",
    positions as "embeddings.position_embeddings",
    types as "embeddings.token_type_embeddings",
    norm as "embeddings.LayerNorm",
    blocks as "encoder.layer.",
    pooler as "pooler.dense",
});

impl Bert {
    fn new(device: &Device, config: &Config, pooler: Option<Linear>) -> Result<Self> {
        config.no_dropout(&["hidden_dropout_prob", "attention_probs_dropout_prob"])?;
        config.without(&["is_decoder", "add_cross_attention"])?;
        let (width, hidden) = (config.count("hidden_size")?, config.count("intermediate_size")?);
        let heads = config.count("num_attention_heads")?;
        let activation = Activation::named(config.text("hidden_act")?)?;
        let norm = || norm(device, config);
        let table = |rows: &str| -> Result<Embedding> {
            Ok(Embedding::new(device, KEY, config.count(rows)?, width)?)
        };
        let block = |_| -> Result<Block> {
            let shape = AttentionShape {
                width,
                heads,
                groups: heads,
                head_width: width / heads,
                biases: [true; 2],
                names: ["self.query", "self.key", "self.value", "output.dense"],
                norm_eps: None,
            };
            Ok(Block {
                attention: Attention::new(device, shape)?,
                attention_norm: norm()?,
                up: linear(device, [width, hidden], true)?,
                down: linear(device, [hidden, width], true)?,
                norm: norm()?,
                activation,
            })
        };
        Ok(Bert {
            words: table("vocab_size")?,
            positions: table("max_position_embeddings")?,
            types: table("type_vocab_size")?,
            norm: norm()?,
            blocks: (0..config.count("num_hidden_layers")?).map(block).collect::<Result<_>>()?,
            pooler,
        })
    }

    /// `[B, T, width]`
    fn features(&self, pass: &Pass, batch: &Batch) -> Result<Var> {
        let (ids, types) = (batch.tensor("input_ids")?, batch.tensor("token_type_ids")?);
        let words = self.words.forward(pass, pass.constant(ids.clone()))?;
        let types = self.types.forward(pass, pass.constant(types.clone()))?;
        let positions = self.positions.table(pass)?.narrow(0, 0, ids.shape()[1])?;
        let mut x = self.norm.forward(pass, words.add(types)?.add(positions)?)?;
        let mask = Some(keys_of(batch.tensor("attention_mask")?)?);
        let seen = Seen { mask, ..Default::default() };
        for block in &self.blocks {
            x = block.forward(pass, x, &seen)?;
        }
        Ok(x)
    }
}

fn norm(device: &Device, config: &Config) -> Result<LayerNorm> {
    let eps = config.number("layer_norm_eps")?;
    Ok(LayerNorm::new(device, &[config.count("hidden_size")?])?.with_eps(eps))
}

struct MaskedLm {
    bert: Bert,
    dense: Linear,
    norm: LayerNorm,
    bias: Parameter,
    activation: Activation,
}

parameters!(MaskedLm {
    bert,
    bias as "cls.predictions.bias",
    dense as "cls.predictions.transform.dense",
    norm as "cls.predictions.transform.LayerNorm",
});

pub(super) fn masked_lm(device: &Device, config: &Config) -> Result<Box<dyn Net>> {
    if !config.flag("tie_word_embeddings") {
        return Err(super::config::missing("tie_word_embeddings = false"));
    }
    let width = config.count("hidden_size")?;
    Ok(Box::new(MaskedLm {
        bert: Bert::new(device, config, None)?,
        dense: linear(device, [width, width], true)?,
        norm: norm(device, config)?,
        bias: Parameter::full(device, [config.count("vocab_size")?], 0.0)?,
        activation: Activation::named(config.text("hidden_act")?)?,
    }))
}

impl Net for MaskedLm {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        let x = self.bert.features(pass, batch)?;
        let hidden = self.activation.of(self.dense.forward(pass, x)?)?;
        let hidden = self.norm.forward(pass, hidden)?;
        let bias = self.bias.var(pass)?;
        let logits = hidden.linear(self.bert.words.table(pass)?, Some(bias))?;
        same_token(logits, batch.tensor("labels")?)
    }
}

struct Classifier {
    bert: Bert,
    classifier: Linear,
}

parameters!(Classifier { bert, classifier });

pub(super) fn classifier(device: &Device, config: &Config) -> Result<Box<dyn Net>> {
    let width = config.count("hidden_size")?;
    config.flag("tie_word_embeddings");
    let pooler = Some(linear(device, [width, width], true)?);
    // The number of classes is that of their names.
    let names = config.value("id2label").and_then(|names| names.as_object());
    Ok(Box::new(Classifier {
        bert: Bert::new(device, config, pooler)?,
        classifier: linear(device, [width, names.map_or(2, serde_json::Map::len)], true)?,
    }))
}

impl Net for Classifier {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        let first = self.bert.features(pass, batch)?.select(1, 0)?;
        let pooler = self.bert.pooler.as_ref().expect("made with one");
        let pooled = pooler.forward(pass, first)?.tanh()?;
        classes(self.classifier.forward(pass, pooled)?, batch.tensor("labels")?)
    }
}
