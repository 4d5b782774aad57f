//! T5: an encoder and a decoder. Scores are not scaled, but have a learned bias for each range of
//! distances. Norms are RMS norms, and there are no biases of layers. The plain form has ReLU and
//! scales the input of the output layer; version 1.1 is gated. Raffel et al., "Exploring the limits
//! of transfer learning with a unified text-to-text transformer" (2019).
//!
//! `B` batch, `S` positions of the encoder, `T` of the decoder, `C` features, `V` vocabulary.

mod config;
mod model;
mod shape;
mod stack;

pub use config::T5Config;
pub use model::T5;
pub use shape::T5Shape;
