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
mod meta;
mod offload;
mod pass;
mod random;
mod recipe;
mod rule;
mod rules;
mod saved;
mod store;
mod taking;
mod tape;
mod turn;
mod var;

pub use anomaly::{Anomaly, Phase};
pub use attempt::{Attempt, BufferId, BufferUpdates, Gradients, LeafId};
pub use backward::Dependencies;
pub use cast::CastPolicy;
pub use checkpoint::SavedPolicy;
pub use coupling::Coupling;
pub use error::{AutogradError, AutogradResult, LeafFault, RuleFault};
pub use foreign::{Foreign, Role};
pub use meta::TensorMeta;
pub use offload::Offload;
pub use pass::Pass;
pub use rule::{InputGradients, Needs, Rule, RuleMany};
pub use rules::GridOrder;
pub use saved::{Saved, Saver};
pub use turn::Turn;
pub use var::Var;
