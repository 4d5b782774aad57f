#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod activations;
mod attention;
mod batch_norm;
mod buffer;
mod conv2d;
mod dropout;
mod embedding;
mod error;
mod flatten;
pub mod init;
mod linear;
mod loss;
mod max_pool2d;
pub mod models;
mod module;
mod norm;
pub mod optim;
mod parameter;
mod relu;
mod safetensors;
mod schedule;
mod sequential;

pub use activations::{ELU, GELU, LeakyReLU, SiLU, Sigmoid, Softmax, Softplus, Tanh};
pub use attention::{MultiHeadAttention, MultiHeadOptions};
pub use batch_norm::{BatchNorm1d, BatchNorm2d};
pub use buffer::{Buffer, check_buffers, commit_buffers};
pub use conv2d::Conv2d;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use error::{NnError, WeightsProblem};
pub use flatten::Flatten;
pub use linear::Linear;
pub use loss::{
    CrossEntropyOptions, Loss, PairLoss, bce, bce_with_logits, cross_entropy, cross_entropy_with,
    huber, kl_divergence, l1, mse, pair_loss, smooth_l1,
};
pub use max_pool2d::MaxPool2d;
pub use module::{Module, Parameters};
pub use norm::{GroupNorm, LayerNorm, RmsNorm};
pub use parameter::Parameter;
pub use relu::ReLU;
pub use safetensors::{load, save};
pub use schedule::{Better, Plateau, PlateauOptions, PlateauState, Schedule};
pub use sequential::Sequential;

/// The result of an operation of this crate.
pub type Result<T, E = NnError> = std::result::Result<T, E>;
