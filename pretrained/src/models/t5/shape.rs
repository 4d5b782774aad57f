//! The sizes of a T5.

use crate::decoder::Activation;

/// The shape of a T5.
#[derive(Clone, Debug, PartialEq)]
pub struct T5Shape {
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Number of features of each position.
    pub width: usize,
    /// Number of hidden features of a layer.
    pub hidden: usize,
    /// Number of layers of the encoder and of the decoder.
    pub layers: [usize; 2],
    /// Number of attention heads.
    pub heads: usize,
    /// Number of features of a head.
    pub head_width: usize,
    /// The function between the hidden layers.
    pub activation: Activation,
    /// True if the hidden features are multiplied by a gate.
    pub is_gated: bool,
    /// Number of learned biases for distances of each head.
    pub buckets: usize,
    /// From this distance on, all keys share the last bias.
    pub distance_max: usize,
    /// The addend of mean squares.
    pub eps: f64,
    /// Probability of dropping features and attention weights in training.
    pub dropout: f64,
    /// True if the output layer is the table of tokens.
    pub is_tied: bool,
    /// True if the output layer's input is divided by the root of the width.
    pub is_scaled: bool,
    /// The token that starts a sequence of the decoder.
    pub start: i64,
    /// The token that pads a sequence of the decoder.
    pub padding: i64,
    /// The factor of the deviations of the initial weights.
    pub factor: f64,
}
