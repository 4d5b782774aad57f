#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod anomaly;
mod attempt;
mod backward;
mod cast;
pub mod check;
mod checkpoint;
mod coupling;
mod error;
mod foreign;
mod journal;
mod offload;
mod pass;
mod random;
mod rule;
mod rules;
mod saved;
mod tape;
mod transfer;
mod var;

pub use anomaly::{Anomaly, Phase};
pub use attempt::{Attempt, BufferId, BufferUpdates, Gradients, LeafId};
pub use cast::CastPolicy;
pub use checkpoint::SavedPolicy;
pub use coupling::Coupling;
pub use error::{AutogradError, LeafFault, RuleFault};
pub use foreign::{Foreign, Role};
pub use offload::Offload;
pub use pass::Pass;
pub use rule::{InputGradients, Needs, Rule, RuleMany};
pub use saved::{Saved, Saver};
pub use var::Var;

/// The result of an autograd operation. It is not called `Result`, so that all crates of the
/// workspace can be imported by glob together.
pub type AutogradResult<T, E = AutogradError> = std::result::Result<T, E>;

// The name inside of this crate.
pub(crate) use AutogradResult as Result;
