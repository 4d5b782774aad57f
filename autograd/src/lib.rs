#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod attempt;
pub mod check;
mod error;
mod pass;
mod rules;
mod saved;
mod tape;
mod var;

pub use attempt::{Attempt, Gradients, LeafId};
pub use error::AutogradError;
pub use pass::Pass;
pub use saved::Saved;
pub use tape::{InputGradients, Needs, Rule};
pub use var::Var;

/// The result of an autograd operation.
pub type Result<T, E = AutogradError> = std::result::Result<T, E>;
