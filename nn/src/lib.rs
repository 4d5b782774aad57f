#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod conv2d;
mod error;
mod flatten;
pub mod init;
mod linear;
mod loss;
mod max_pool2d;
pub mod models;
mod module;
pub mod optim;
mod parameter;
mod relu;
mod safetensors;
mod schedule;
mod sequential;

pub use conv2d::Conv2d;
pub use error::{NnError, WeightsProblem};
pub use flatten::Flatten;
pub use linear::Linear;
pub use loss::{CrossEntropyOptions, Loss, cross_entropy, cross_entropy_with};
pub use max_pool2d::MaxPool2d;
pub use module::{Module, Parameters};
pub use parameter::Parameter;
pub use relu::ReLU;
pub use safetensors::{load, save};
pub use schedule::{Better, Plateau, PlateauOptions, PlateauState, Schedule};
pub use sequential::Sequential;

/// The result of an operation of this crate.
pub type Result<T, E = NnError> = std::result::Result<T, E>;
