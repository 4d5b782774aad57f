//! What a decoder is made of.

use lowtide_nn::RotaryEmbedding;

/// Whose names the parameters have, and whose layout their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// Llama, Mistral, Qwen2, Qwen3 and Gemma: `model.layers.0.self_attn.q_proj.weight`.
    Llama,
    /// Gemma 2 and 3: the names of Llama, with two more norms in a layer.
    Gemma2,
    /// GPT-2: `transformer.h.0.attn.c_attn.weight`. Files have weights as `[inputs, outputs]`.
    Gpt2,
    /// GPT-NeoX and Pythia: `gpt_neox.layers.0.attention.query_key_value.weight`.
    Neox,
}

/// A decoder, as plain numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderShape {
    /// Whose names the parameters have.
    pub family: Family,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Features of each position.
    pub width: usize,
    /// What the rows of the table of tokens are multiplied by.
    pub table_scale: f64,
    /// How positions are encoded.
    pub positions: Positions,
    /// What is the same in all layers of attention.
    pub attention: AttentionShape,
    /// What is the same in all layers of hidden features.
    pub feed_forward: FeedForwardShape,
    /// Of all norms: which one, and its addend.
    pub norm: NormShape,
    /// How branches are added.
    pub residual: Residual,
    /// What differs between layers, one entry for each.
    pub layers: Vec<LayerShape>,
    /// Whether the output layer is the table of tokens.
    pub is_tied: bool,
    /// Deviation of the initial weights.
    pub deviation: f64,
    /// Positions that the model was made for.
    pub context: usize,
    /// What is dropped in training.
    pub dropout: DropoutShape,
    /// What logits are kept below, softly. The loss of such a model holds all logits.
    pub logit_cap: Option<f64>,
}

/// How positions are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// A table of learned embeddings of the context, which are added to those of the tokens.
    Learned,
    /// Queries and keys are turned, by the angles of their layer.
    Rotary,
}

/// What is the same in all layers of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub groups: usize,
    /// Features of a head.
    pub head_width: usize,
    /// Whether queries, keys and values are one product.
    pub projections: Projections,
    /// Whether queries, keys and values have biases.
    pub has_input_bias: bool,
    /// Whether the result has a bias.
    pub has_output_bias: bool,
    /// Whether the heads of queries and keys are normalised.
    pub has_head_norms: bool,
    /// What scores are kept below, softly. Such attention holds the scores of all pairs.
    pub score_cap: Option<f64>,
    /// Probability with which the weight of a pair is dropped in training.
    pub dropout: f64,
}

/// Probabilities with which features are dropped in training, in `[0, 1)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DropoutShape {
    /// Of the sum of the embeddings.
    pub embedding: f64,
    /// Of each branch, before it is added.
    pub branch: f64,
}

/// The layers that make queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projections {
    /// A layer for each of the three.
    Separate,
    /// One for all: queries of all heads, then keys, then values.
    Packed,
    /// One for all: query, key and value of the first head, then of the next. Costs a copy of what
    /// it makes.
    PackedByHead,
}

/// What is the same in all layers of hidden features.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeedForwardShape {
    /// Hidden features between the layers.
    pub width: usize,
    /// What is between the layers.
    pub activation: Activation,
    /// Whether the hidden features are multiplied by a gate: SwiGLU, GeGLU.
    pub is_gated: bool,
    /// Whether the layers have biases.
    pub has_bias: bool,
}

/// A function of each hidden feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// By the error function.
    Gelu,
    /// By a hyperbolic tangent.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x · sigmoid(x)`.
    Silu,
}

/// All norms of a decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormShape {
    /// What is normalised, and by which parameters.
    pub kind: NormKind,
    /// Added to the variance or to the mean square.
    pub eps: f64,
}

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Mean 0 and variance 1, with weights and biases.
    Layer,
    /// Mean square 1, with weights.
    Rms,
    /// Mean square 1, with weights that 1 is added to: Gemma's.
    RmsPlusOne,
}

/// How the two branches of a layer are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// One after the other, each with a norm before: `x + f(norm(x))`.
    PreNorm,
    /// One after the other, each with norms before and after: `x + norm(f(norm(x)))`.
    PrePostNorm,
    /// Both of the same input, each with a norm of its own: `x + f(norm(x)) + g(norm(x))`.
    Parallel,
}

/// What differs between layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerShape {
    /// How many positions a query sees, its own among them; all up to its own if absent.
    pub window: Option<usize>,
    /// How queries and keys are turned.
    pub rotary: Option<RotaryEmbedding>,
    /// Factor of the scores; `1 / sqrt(head_width)` if absent.
    pub scale: Option<f64>,
}

impl DecoderShape {
    /// Elements of all parameters.
    pub fn parameter_count(&self) -> u128 {
        let [vocabulary, width, context, layers] =
            [self.vocabulary, self.width, self.context, self.layers.len()].map(|n| n as u128);
        let linear = |inputs: u128, outputs: u128, has_bias: bool| {
            inputs * outputs + if has_bias { outputs } else { 0 }
        };
        let norm = |width: u128| match self.norm.kind {
            NormKind::Layer => 2 * width,
            NormKind::Rms | NormKind::RmsPlusOne => width,
        };
        let AttentionShape { has_input_bias, has_output_bias, has_head_norms, .. } = self.attention;
        let [heads, groups, head] =
            [self.attention.heads, self.attention.groups, self.attention.head_width]
                .map(|n| n as u128);
        let attention = linear(width, (heads + 2 * groups) * head, has_input_bias)
            + linear(heads * head, width, has_output_bias)
            + if has_head_norms { 2 * norm(head) } else { 0 };
        let FeedForwardShape { width: hidden, is_gated, has_bias, .. } = self.feed_forward;
        let inner = linear(width, hidden as u128, has_bias);
        let feed_forward =
            inner * if is_gated { 2 } else { 1 } + linear(hidden as u128, width, has_bias);
        let norms = if self.residual == Residual::PrePostNorm { 4 } else { 2 };
        let learned = if self.positions == Positions::Learned { context * width } else { 0 };
        let tables = vocabulary * width * if self.is_tied { 1 } else { 2 };
        tables + learned + layers * (attention + feed_forward + norms * norm(width)) + norm(width)
    }
}
