#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod autocast;
mod error;
mod gradients;
mod scale;
mod scaler;

pub use autocast::Autocast;
pub use error::{AmpError, GradientError, OrderFault};
pub use gradients::{ScaledGradients, unscale};
pub use scale::{LossScalerOptions, LossScalerState};
pub use scaler::LossScaler;
