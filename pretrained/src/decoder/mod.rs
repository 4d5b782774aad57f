//! Decoders of text: layers of causal attention and feed-forward, for Llama, Qwen, Mistral, Gemma,
//! GPT-2 and GPT-NeoX.
//!
//! `B` batch, `T` positions, `C` features of a position, `V` vocabulary.

mod attention;
mod cache;
mod feed_forward;
mod functions;
mod layer;
mod layer_cache;
mod make;
mod model;
mod names;
mod norm;
mod part;
mod shape;
mod stored;

pub(crate) use functions::{before, keys_of, run_in};
pub(crate) use make::Maker;
pub(crate) use names::{LayerNames, Names};

pub use cache::KeyValueCache;
pub use make::Weights;
pub use model::Decoder;
pub use shape::{
    Activation, AttentionShape, DecoderShape, DropoutShape, Family, FeedForwardShape, LayerShape,
    NormKind, NormShape, Positions, Projections, Residual,
};
