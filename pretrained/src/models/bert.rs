//! BERT: layers that see all positions, with norms after each branch, and a head that predicts
//! tokens or classes. Devlin et al., "BERT: pre-training of deep bidirectional transformers for
//! language understanding" (2018).
//!
//! `B` batch, `T` positions, `C` features, `V` vocabulary, `K` classes.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::parallel::{Branch, Shared};
use lowtide_nn::{
    CrossEntropyOptions, Embedding, LayerNorm, Linear, LinearCrossEntropyOptions, Loss, Module,
    NnResult, Parameter, Segment, cross_entropy_with, linear_cross_entropy, parameters, run_blocks,
};
use lowtide_tensor::{DType, Device, Tensor};

use super::attention::{Attention, Sizes};
use super::functions::{classes, dropped};
use crate::config::{
    Architecture, Entries, ModelConfig, Shape, activation, head_width, layer_count,
};
use crate::decoder::{Activation, Maker, Weights, keys_of, run_in};
use crate::error::Result;
use crate::weights::Stored;

/// The shape of a BERT.
#[derive(Clone, Debug, PartialEq)]
pub struct BertShape {
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Maximum number of positions.
    pub context: usize,
    /// Number of kinds of segments in a sequence.
    pub types: usize,
    /// Number of features of each position.
    pub width: usize,
    /// Number of hidden features of a layer.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads; divides the width.
    pub heads: usize,
    /// The function between the two hidden layers.
    pub activation: Activation,
    /// The addend of variances.
    pub eps: f64,
    /// Probability of dropping features in training.
    pub dropout: f64,
    /// Probability of dropping an attention weight in training.
    pub attention_dropout: f64,
    /// Probability of dropping features before the layer of classes in training.
    pub head_dropout: f64,
    /// Deviation of the initial weights.
    pub deviation: f64,
    /// The head of the model.
    pub head: BertHead,
}

/// The head of a [`Bert`], by the task of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BertHead {
    /// Logits of the masked token at each position.
    Tokens,
    /// Logits of this number of classes for a sequence.
    Classes(usize),
}

/// The configuration of a BERT.
pub type BertConfig = ModelConfig<BertShape>;

impl BertConfig {
    /// This model with a head for `count` classes instead of its own, for use with
    /// [`load_body`](crate::load_body).
    #[must_use]
    pub fn with_classes(self, count: usize) -> Self {
        let head = BertHead::Classes(count);
        let architecture = "BertForSequenceClassification";
        self.with_head(architecture, count, |shape| BertShape { head, ..shape })
    }
}

/// The input of a [`Bert`].
#[derive(Clone, Debug)]
pub struct BertInput {
    /// `[B, T]` of i64.
    pub tokens: Tensor,
    /// `[B, T]` of any type, 0 at padding; no padding if absent.
    pub mask: Option<Tensor>,
    /// The segment of each token, `[B, T]` of i64; all 0 if absent.
    pub types: Option<Tensor>,
}

#[derive(Clone, Debug)]
struct Layer {
    attention: Attention,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
    activation: Activation,
    dropout: f64,
}

parameters!(Layer {
    attention,
    attention_norm as "attention.output.LayerNorm",
    up as "intermediate.dense",
    down as "output.dense",
    norm as "output.LayerNorm",
}, shared by branches);

impl Layer {
    /// The hidden features, which ranks can share.
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        visitor(Shared::Branch(Branch::hidden([&self.up], &mut self.down)));
    }

    fn forward(&self, pass: &Pass, x: Var, mask: Option<&Tensor>) -> NnResult<Var> {
        let y = pass.within("attention", || {
            let y = self.attention.forward(pass, x.clone(), None, mask, None)?;
            dropped(pass, self.dropout, y)
        })?;
        let x = run_in(pass, "attention.output.LayerNorm", &self.attention_norm, y.add(x)?)?;
        let hidden = self.down.branch_input(x.clone())?;
        let hidden = run_in(pass, "intermediate.dense", &self.up, hidden)?;
        let hidden = self.activation.of(hidden)?;
        let y = pass.within("output.dense", || {
            dropped(pass, self.dropout, self.down.forward(pass, hidden)?)
        })?;
        run_in(pass, "output.LayerNorm", &self.norm, y.add(x)?)
    }
}

/// The head that predicts tokens, with the table of tokens as its last layer.
#[derive(Clone, Debug)]
struct Guess {
    bias: Parameter,
    dense: Linear,
    norm: LayerNorm,
}

parameters!(Guess { bias, dense as "transform.dense", norm as "transform.LayerNorm" });

/// The head that classifies sequences.
#[derive(Clone, Debug)]
struct Classifier {
    pooler: Linear,
    classifier: Linear,
}

parameters!(Classifier { pooler as "bert.pooler.dense", classifier });

/// BERT with its head, [`BertHead`].
#[derive(Clone, Debug)]
pub struct Bert {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    layers: Vec<Segment<Layer>>,
    /// Exactly one of the two heads is present.
    guess: Option<Guess>,
    classifier: Option<Classifier>,
    shape: BertShape,
}

parameters!(Bert {
    words as "bert.embeddings.word_embeddings",
    positions as "bert.embeddings.position_embeddings",
    types as "bert.embeddings.token_type_embeddings",
    norm as "bert.embeddings.LayerNorm",
    layers as "bert.encoder.layer.",
    guess as "cls.predictions",
    classifier as "",
});

impl Bert {
    /// A model of `shape` whose parameters are `weights` of `dtype`.
    ///
    /// # Errors
    /// `DType` unless a float type, `OutOfMemory`.
    pub fn new(
        device: &Device,
        shape: BertShape,
        weights: impl Into<Weights>,
        dtype: DType,
    ) -> Result<Self> {
        let (weights, deviation) = (weights.into(), shape.deviation);
        let make = Maker { device, dtype, weights, deviation };
        let (width, hidden, heads) = (shape.width, shape.hidden, shape.heads);
        let norm = || make.layer_norm(width, shape.eps);
        let table =
            |name: &str, rows: usize| make.table(&format!("bert.embeddings.{name}"), [rows, width]);
        let layer = |index: usize| -> Result<Segment<Layer>> {
            let path = format!("bert.encoder.layer.{index}");
            let sizes = Sizes {
                width,
                heads,
                head_width: width / heads,
                biases: [true; 2],
                names: ["self.query", "self.key", "self.value", "output.dense"],
                scale: None,
                dropout: shape.attention_dropout,
                deviations: [deviation; 4],
            };
            Ok(Segment::new(Layer {
                attention: Attention::new(&make, &format!("{path}.attention"), sizes)?,
                attention_norm: norm()?,
                up: make.linear(&format!("{path}.intermediate.dense"), [width, hidden], true)?,
                down: make.linear(&format!("{path}.output.dense"), [hidden, width], true)?,
                norm: norm()?,
                activation: shape.activation,
                dropout: shape.dropout,
            }))
        };
        let (mut guess, mut classifier) = (None, None);
        match shape.head {
            BertHead::Tokens => {
                let dense = "cls.predictions.transform.dense";
                guess = Some(Guess {
                    bias: make.zeros(shape.vocabulary)?,
                    dense: make.linear(dense, [width, width], true)?,
                    norm: norm()?,
                });
            }
            BertHead::Classes(count) => {
                classifier = Some(Classifier {
                    pooler: make.linear("bert.pooler.dense", [width, width], true)?,
                    classifier: make.linear("classifier", [width, count], true)?,
                });
            }
        }
        Ok(Bert {
            words: table("word_embeddings", shape.vocabulary)?,
            positions: table("position_embeddings", shape.context)?,
            types: table("token_type_embeddings", shape.types)?,
            norm: norm()?,
            layers: (0..shape.layers).map(layer).collect::<Result<_>>()?,
            guess,
            classifier,
            shape,
        })
    }

    /// The shape of the model.
    pub fn shape(&self) -> &BertShape {
        &self.shape
    }

    /// The features of each position after all layers.
    ///
    /// # Shapes
    /// `[B, T, C]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `Index` for a token outside the vocabulary or too many positions,
    /// `OutOfMemory`.
    pub fn features(&self, pass: &Pass, input: &BertInput) -> NnResult<Var> {
        let tokens = &input.tokens;
        let len = tokens.shape().last().copied().unwrap_or_default();
        let constant = |tensor: &Tensor| pass.constant(tensor.clone());
        let path = |name: &str| format!("bert.embeddings.{name}");
        let types = match &input.types {
            Some(types) => types.clone(),
            None => Tensor::zeros(tokens.device(), *tokens.shape(), DType::I64)?,
        };
        let words = run_in(pass, &path("word_embeddings"), &self.words, constant(tokens))?;
        let types = run_in(pass, &path("token_type_embeddings"), &self.types, constant(&types))?;
        let positions = self.positions.table(pass)?.narrow(0, 0, len)?;
        let x = words.add(types)?.add(positions)?;
        let x = pass.within(&path("LayerNorm"), || {
            dropped(pass, self.shape.dropout, self.norm.forward(pass, x)?)
        })?;
        let mask = input.mask.as_ref().map(keys_of).transpose()?;
        run_blocks("bert.encoder.layer.", &self.layers, pass, x, move |layer, pass, x| {
            layer.forward(pass, x, mask.as_ref())
        })
    }

    /// The logits of the head: of the token at each position, or of the class of the sequence.
    ///
    /// # Shapes
    /// `[B, T, V]`, or `[B, K]`
    ///
    /// # Errors
    /// The errors of [`Bert::features`].
    pub fn logits(&self, pass: &Pass, input: &BertInput) -> NnResult<Var> {
        let x = self.features(pass, input)?;
        if let Some(guess) = &self.guess {
            let (x, bias) = (self.guessed(pass, guess, x)?, guess.bias.var(pass)?);
            return Ok(x.linear(self.words.table(pass)?, Some(bias))?);
        }
        let Some(Classifier { pooler, classifier }) = &self.classifier else { return Ok(x) };
        let pooled = run_in(pass, "bert.pooler.dense", pooler, x.select(1, 0)?)?.tanh()?;
        let forward = || classifier.forward(pass, dropped(pass, self.shape.head_dropout, pooled)?);
        pass.within("classifier", forward)
    }

    /// The input of the layer that predicts tokens.
    fn guessed(&self, pass: &Pass, guess: &Guess, x: Var) -> NnResult<Var> {
        let hidden = run_in(pass, "cls.predictions.transform.dense", &guess.dense, x)?;
        let hidden = self.shape.activation.of(hidden)?;
        run_in(pass, "cls.predictions.transform.LayerNorm", &guess.norm, hidden)
    }

    /// The cross-entropy of [`Bert::logits`] with labels; a label of -100 is ignored. The loss of
    /// tokens is computed in chunks, so that the logits never exist as a whole.
    ///
    /// # Shapes
    /// `labels: [B, T]`, or `[B]`, of i64
    ///
    /// # Errors
    /// The errors of [`Bert::features`], and `Label` for a label outside the vocabulary or the
    /// classes.
    pub fn loss(
        &self,
        pass: &Pass,
        input: &BertInput,
        labels: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> NnResult<Loss> {
        let Some(guess) = &self.guess else {
            let LinearCrossEntropyOptions { ignore_index, label_smoothing } = options;
            let options = CrossEntropyOptions { ignore_index, label_smoothing, weight: None };
            return cross_entropy_with(self.logits(pass, input)?, labels, options);
        };
        let features = self.features(pass, input)?;
        let (x, bias) = (self.guessed(pass, guess, features)?, guess.bias.var(pass)?);
        linear_cross_entropy(x, self.words.table(pass)?, Some(bias), labels, options)
    }
}

impl Module for Bert {
    /// [`Bert::logits`] of sequences of one segment without padding.
    fn forward(&self, pass: &Pass, input: Var) -> NnResult<Var> {
        let input = BertInput { tokens: input.into_value(), mask: None, types: None };
        self.logits(pass, &input)
    }
}

impl Stored for Bert {
    fn is_unused(&self, name: &str) -> bool {
        let of_tokens = name.starts_with("cls.seq_relationship.")
            || name.starts_with("cls.predictions.decoder.")
            || name.starts_with("bert.pooler.");
        name == "bert.embeddings.position_ids" || (self.shape.head == BertHead::Tokens && of_tokens)
    }

    fn is_of_head(&self, name: &str) -> bool {
        ["cls.", "classifier.", "bert.pooler."].iter().any(|start| name.starts_with(start))
    }
}

impl Shape for BertShape {
    type Model = Bert;

    fn architectures() -> &'static [Architecture<Self>] {
        &[
            ("BertForMaskedLM", "bert", tokens),
            ("BertForPreTraining", "bert", tokens),
            ("BertForSequenceClassification", "bert", classifier),
        ]
    }

    fn model(&self, device: &Device, weights: Weights, dtype: DType) -> Result<Bert> {
        Bert::new(device, self.clone(), weights, dtype)
    }

    fn count(&self) -> u128 {
        let [width, hidden, layers] = [self.width, self.hidden, self.layers].map(|n| n as u128);
        let rows = (self.vocabulary + self.context + self.types) as u128;
        let head = match self.head {
            BertHead::Tokens => width * (width + 3) + self.vocabulary as u128,
            BertHead::Classes(count) => (width + 1) * (width + count as u128),
        };
        let layer = 4 * width * (width + 1) + 2 * width * hidden + hidden + 5 * width;
        (rows + 2) * width + layers * layer + head
    }
}

fn tokens(entries: &Entries) -> Result<BertShape> {
    entries.only("tie_word_embeddings", true)?;
    shape(entries, BertHead::Tokens)
}

fn classifier(entries: &Entries) -> Result<BertShape> {
    entries.flag("tie_word_embeddings", true)?;
    shape(entries, BertHead::Classes(classes(entries)?))
}

fn shape(entries: &Entries, head: BertHead) -> Result<BertShape> {
    entries.without(&["is_decoder", "add_cross_attention"])?;
    if let Some(kind) = entries.optional_text("position_embedding_type")?
        && kind != "absolute"
    {
        return Err(entries.unsupported("position_embedding_type", &kind.into()));
    }
    let (width, heads) = (entries.count("hidden_size")?, entries.count("num_attention_heads")?);
    head_width(entries, "num_attention_heads", width, heads)?;
    let dropout = entries.probability("hidden_dropout_prob", 0.1)?;
    Ok(BertShape {
        vocabulary: entries.count("vocab_size")?,
        context: entries.count("max_position_embeddings")?,
        types: entries.optional_count("type_vocab_size")?.unwrap_or(2),
        width,
        hidden: entries.count("intermediate_size")?,
        layers: layer_count(entries, "num_hidden_layers")?,
        heads,
        activation: activation(entries, "hidden_act")?,
        eps: entries.optional_number("layer_norm_eps")?.unwrap_or(1e-12),
        dropout,
        attention_dropout: entries.probability("attention_probs_dropout_prob", 0.1)?,
        head_dropout: entries.probability("classifier_dropout", dropout)?,
        deviation: entries.optional_number("initializer_range")?.unwrap_or(0.02),
        head,
    })
}
