//! The sizes of a T5.

use crate::decoder::Activation;

/// The shape of a T5.
#[derive(Clone, Debug, PartialEq)]
pub struct T5Shape {
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Features of each position.
    pub width: usize,
    /// Hidden features of a layer.
    pub hidden: usize,
    /// Layers of the encoder and of the decoder.
    pub layers: [usize; 2],
    /// Heads of attention.
    pub heads: usize,
    /// Features of a head.
    pub head_width: usize,
    /// The function between the hidden layers.
    pub activation: Activation,
    /// True if the hidden features are multiplied by a gate.
    pub is_gated: bool,
    /// Numbers for distances, of each head.
    pub buckets: usize,
    /// From this distance on, all keys share the last number.
    pub distance_max: usize,
    /// Added to mean squares.
    pub eps: f64,
    /// Probability with which features and weights of pairs are dropped in training.
    pub dropout: f64,
    /// True if the output layer is the table of tokens.
    pub is_tied: bool,
    /// True if the output layer's input is divided by the root of the width.
    pub is_scaled: bool,
    /// The token that starts a sequence of the decoder.
    pub start: i64,
    /// The token that pads one.
    pub padding: i64,
    /// The factor of the deviations of the initial weights.
    pub factor: f64,
}
