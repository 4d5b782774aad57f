#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod scaler;

pub use error::AmpError;
pub use scaler::{LossScaler, LossScalerOptions, LossScalerState};
