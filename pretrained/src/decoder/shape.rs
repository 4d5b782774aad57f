//! The shape of a decoder.

use lowtide_nn::RotaryEmbedding;

/// A family of models, by the names of their parameters and the layout of their files.
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
    /// The family, which determines the names of the parameters.
    pub family: Family,
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Number of features of each position.
    pub width: usize,
    /// The factor of the embeddings from the table of tokens.
    pub table_scale: f64,
    /// The encoding of positions.
    pub positions: Positions,
    /// The attention of all layers.
    pub attention: AttentionShape,
    /// The feed-forward part of all layers.
    pub feed_forward: FeedForwardShape,
    /// The kind of all norms, and the addend of their variance.
    pub norm: NormShape,
    /// The arrangement of branches and norms.
    pub residual: Residual,
    /// The differences between layers, one entry for each.
    pub layers: Vec<LayerShape>,
    /// True if the output layer is the table of tokens.
    pub is_tied: bool,
    /// Deviation of the initial weights.
    pub deviation: f64,
    /// Number of positions that the model was made for.
    pub context: usize,
    /// Probabilities of dropout in training.
    pub dropout: DropoutShape,
    /// The soft bound of the logits. The loss of a model with this bound holds all logits.
    pub logit_cap: Option<f64>,
}

/// The encoding of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// A table of learned embeddings for the positions of the context, added to the token
    /// embeddings.
    Learned,
    /// Queries and keys are rotated by the angles of their layer.
    Rotary,
}

/// The attention of all layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Number of heads of queries.
    pub heads: usize,
    /// Number of heads of keys and values; divides `heads`.
    pub groups: usize,
    /// Number of features of a head.
    pub head_width: usize,
    /// The layers that make queries, keys and values.
    pub projections: Projections,
    /// True if queries, keys and values have biases.
    pub has_input_bias: bool,
    /// True if the output has a bias.
    pub has_output_bias: bool,
    /// True if the heads of queries and keys are normalised.
    pub has_head_norms: bool,
    /// The soft bound of the scores. Attention with this bound holds the scores of all pairs.
    pub score_cap: Option<f64>,
    /// Probability of dropping an attention weight in training.
    pub dropout: f64,
}

impl AttentionShape {
    /// Attention without heads, biases, norms of heads, a cap and dropout.
    pub(crate) const PLAIN: AttentionShape = AttentionShape {
        heads: 0,
        groups: 0,
        head_width: 0,
        projections: Projections::Separate,
        has_input_bias: false,
        has_output_bias: false,
        has_head_norms: false,
        score_cap: None,
        dropout: 0.0,
    };
}

/// Probabilities of dropping features in training, in `[0, 1)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DropoutShape {
    /// The probability for the sum of the embeddings.
    pub embedding: f64,
    /// The probability for each branch, before it is added.
    pub branch: f64,
}

/// The layers that make queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projections {
    /// One layer each for queries, keys and values.
    Separate,
    /// One layer for all three: queries of all heads, then keys, then values.
    Packed,
    /// One layer for all three: query, key and value of the first head, then of the next head.
    /// Costs a copy of the output.
    PackedByHead,
}

/// The feed-forward part of all layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeedForwardShape {
    /// Hidden features between the layers.
    pub width: usize,
    /// The function between the layers.
    pub activation: Activation,
    /// True if the hidden features are multiplied by a gate: SwiGLU, GeGLU.
    pub is_gated: bool,
    /// True if the layers have biases.
    pub has_bias: bool,
}

impl FeedForwardShape {
    /// Layers without hidden features, a gate and biases.
    pub(crate) const PLAIN: FeedForwardShape = FeedForwardShape {
        width: 0,
        activation: Activation::Silu,
        is_gated: false,
        has_bias: false,
    };
}

/// A function of each hidden feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// GELU by the error function.
    Gelu,
    /// GELU approximated by a hyperbolic tangent.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x · sigmoid(x)`.
    Silu,
}

/// All norms of a decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormShape {
    /// The statistics that are normalised, and the parameters.
    pub kind: NormKind,
    /// The addend of the variance or of the mean square.
    pub eps: f64,
}

/// The kinds of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Mean 0 and variance 1, with weights and biases.
    Layer,
    /// Mean square 1, with weights.
    Rms,
    /// Mean square 1, with weights `1 + w`, as in Gemma.
    RmsPlusOne,
}

/// The arrangement of the two branches of a layer and their norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// One branch after the other, each with a norm before: `x + f(norm(x))`.
    PreNorm,
    /// One branch after the other, each with norms before and after: `x + norm(f(norm(x)))`.
    PrePostNorm,
    /// Both branches with the same input, each with its own norm: `x + f(norm(x)) + g(norm(x))`.
    Parallel,
}

/// The part of the shape that may differ between layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerShape {
    /// Number of positions that a query sees, including its own; all positions up to its own if
    /// absent.
    pub window: Option<usize>,
    /// The rotation of queries and keys.
    pub rotary: Option<RotaryEmbedding>,
    /// Factor of the scores; `1 / sqrt(head_width)` if absent.
    pub scale: Option<f64>,
}

impl DecoderShape {
    /// A decoder without features and layers, and without the parts that only some families have:
    /// a family says what it has besides.
    pub(crate) const PLAIN: DecoderShape = DecoderShape {
        family: Family::Llama,
        vocabulary: 0,
        width: 0,
        table_scale: 1.0,
        positions: Positions::Rotary,
        attention: AttentionShape::PLAIN,
        feed_forward: FeedForwardShape::PLAIN,
        norm: NormShape { kind: NormKind::Rms, eps: 1e-6 },
        residual: Residual::PreNorm,
        layers: Vec::new(),
        is_tied: false,
        deviation: 0.02,
        context: 2048,
        dropout: DropoutShape { embedding: 0.0, branch: 0.0 },
        logit_cap: None,
    };

    /// Deviation of the initial weights of the last layer of a branch.
    pub(super) fn branch_deviation(&self) -> f64 {
        match self.family {
            // As in "Language models are unsupervised multitask learners" (2019).
            Family::Gpt2 => self.deviation / (2.0 * self.layers.len() as f64).sqrt(),
            Family::Llama | Family::Gemma2 | Family::Neox => self.deviation,
        }
    }

    /// Number of elements of all parameters.
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
        let norms = match self.residual {
            Residual::PreNorm | Residual::Parallel => 2,
            Residual::PrePostNorm => 4,
        };
        let learned = match self.positions {
            Positions::Learned => context * width,
            Positions::Rotary => 0,
        };
        let tables = vocabulary * width * if self.is_tied { 1 } else { 2 };
        tables + learned + layers * (attention + feed_forward + norms * norm(width)) + norm(width)
    }
}
