//! Optimizers: `prepare` does everything that can fail, `commit` writes in place and allocates
//! nothing.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod amsgrad;
mod ascending;
mod average;
mod boxed;
mod by_model;
mod clip;
mod file;
mod lamb;
mod lion;
mod masked;
mod muon;
mod nadam;
mod optimizer;
pub(crate) mod part;
mod parts;
mod per_parameter;
mod radam;
mod rms_prop;
mod rprop;
mod rule;
mod sgd;
mod slots;

pub use adadelta::{Adadelta, AdadeltaOptions};
pub use adafactor::{Adafactor, AdafactorOptions};
pub use adagrad::{Adagrad, AdagradOptions};
pub use adam::{Adam, AdamOptions, WeightDecay};
pub use adamax::{Adamax, AdamaxOptions};
pub use amsgrad::{Amsgrad, AmsgradOptions};
pub use ascending::Ascending;
pub use average::Averaged;
pub use by_model::{ByModel, OneModel};
pub use clip::{clip_norm, clip_scale, clip_value, shorten};
pub use file::{
    load_state, part_of_state_from_safetensors, save_state, state_from_safetensors,
    state_to_safetensors,
};
pub use lamb::{Lamb, LambOptions};
pub use lion::{Lion, LionOptions};
pub use masked::Masked;
pub use muon::{Matrices, Muon, MuonOptions, RateScale};
pub use nadam::{Nadam, NadamOptions};
pub use optimizer::{
    FusedUpdate, Optimizer, OptimizerMemory, OptimizerState, Pace, Scheduled, Stateful, Update,
};
pub use part::Part;
pub use parts::Parts;
pub use per_parameter::PerParameter;
pub use radam::{Radam, RadamOptions};
pub use rms_prop::{RmsProp, RmsPropOptions, Spread};
pub use rprop::{Rprop, RpropOptions};
pub use rule::{Job, Scratch, StateShape, StateSpec, UpdateRule, UpdateStep};
pub use sgd::{Momentum, Sgd, SgdOptions};
