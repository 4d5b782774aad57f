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

pub use adam::WeightDecay;
pub use ascending::Ascending;
pub use average::Averaged;
pub use by_model::{ByModel, OneModel};
pub use clip::{clip_norm, clip_scale, clip_value, shorten};
pub use file::{
    load_state, part_of_state_from_safetensors, save_state, state_from_safetensors,
    state_to_safetensors,
};
pub use masked::Masked;
pub use muon::{Matrices, RateScale};
pub use optimizer::{
    FusedUpdate, Optimizer, OptimizerMemory, OptimizerState, Pace, Scheduled, Stateful, Update,
};
pub use part::Part;
pub use parts::Parts;
pub use per_parameter::PerParameter;
pub use rms_prop::Spread;
pub use rule::{Job, Scratch, StateShape, StateSpec, UpdateRule, UpdateStep};
pub use sgd::Momentum;

/// Exports optimizers with the options that are their update rules, and lists the rules.
macro_rules! optimizers {
    ($($module:ident::{$optimizer:ident, $options:ident},)*) => {
        $(pub use $module::{$optimizer, $options};)*

        /// The [names](UpdateRule::NAME) of all update rules.
        pub const RULES: [&str; [$($options::NAME),*].len()] = [$($options::NAME),*];
    };
}

optimizers! {
    adadelta::{Adadelta, AdadeltaOptions},
    adafactor::{Adafactor, AdafactorOptions},
    adagrad::{Adagrad, AdagradOptions},
    adam::{Adam, AdamOptions},
    adamax::{Adamax, AdamaxOptions},
    amsgrad::{Amsgrad, AmsgradOptions},
    lamb::{Lamb, LambOptions},
    lion::{Lion, LionOptions},
    muon::{Muon, MuonOptions},
    nadam::{Nadam, NadamOptions},
    radam::{Radam, RadamOptions},
    rms_prop::{RmsProp, RmsPropOptions},
    rprop::{Rprop, RpropOptions},
    sgd::{Sgd, SgdOptions},
}
