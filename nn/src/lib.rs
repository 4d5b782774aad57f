#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod activations;
mod attention;
mod batch_norm;
mod buffer;
mod conv1d;
mod conv2d;
mod conv_transpose2d;
mod cross_attention;
mod dropout;
mod embedding;
mod error;
mod flatten;
pub mod init;
mod linear;
mod loss;
mod loss_compositions;
mod max_pool2d;
pub mod models;
mod module;
mod norm;
pub mod optim;
mod parameter;
mod pool1d;
mod pool2d;
mod prelu;
mod recurrent;
mod relu;
mod rotary;
mod safetensors;
mod schedule;
mod segment;
mod sequential;
mod transformer;
mod transformer_stack;
mod upsample;

pub use activations::{
    ELU, GELU, GLU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid,
    LogSoftmax, Mish, ReLU6, SELU, SiLU, Sigmoid, Softmax, Softmin, Softplus, Softshrink, Softsign,
    Tanh, TanhGELU, Tanhshrink, Threshold,
};
pub use attention::{MultiHeadAttention, MultiHeadOptions, key_padding_mask};
pub use batch_norm::{BatchNorm1d, BatchNorm2d};
pub use buffer::{Buffer, check_buffers, commit_buffers};
pub use conv_transpose2d::ConvTranspose2d;
pub use conv1d::Conv1d;
pub use conv2d::Conv2d;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use error::{NnError, WeightsProblem};
pub use flatten::Flatten;
pub use linear::Linear;
pub use loss::{
    CrossEntropyOptions, LinearCrossEntropyOptions, Loss, PairLoss, bce, bce_with_logits,
    cross_entropy, cross_entropy_with, huber, kl_divergence, l1, linear_cross_entropy, mse,
    pair_loss, smooth_l1, soft_cross_entropy,
};
pub use loss_compositions::{NllOptions, cosine_embedding, dice, nll};
pub use max_pool2d::MaxPool2d;
pub use module::{Module, Parameters};
pub use norm::{GroupNorm, LayerNorm, RmsNorm};
pub use parameter::Parameter;
pub use pool1d::{AvgPool1d, MaxPool1d};
pub use pool2d::{AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool2d};
pub use prelu::PReLU;
pub use recurrent::{Directions, Gru, Lstm, LstmState, RecurrentOptions};
pub use relu::ReLU;
pub use rotary::{RotaryEmbedding, RotaryPairs, RotaryTables};
pub use safetensors::{load, save};
pub use schedule::{Better, Plateau, PlateauOptions, PlateauState, Schedule};
pub use segment::Segments;
pub use sequential::Sequential;
pub use transformer::{
    HiddenActivation, NormPlace, TransformerDecoderLayer, TransformerEncoderLayer,
    TransformerOptions,
};
pub use transformer_stack::{TransformerDecoder, TransformerEncoder};
pub use upsample::Upsample;

/// The result of an operation of this crate. It is not called `Result`, so that all crates of the
/// workspace can be imported by glob together.
pub type NnResult<T, E = NnError> = std::result::Result<T, E>;

// The name inside of this crate.
pub(crate) use NnResult as Result;
