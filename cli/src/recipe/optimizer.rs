//! Optimizers of a recipe. Most have the options of [`lowtide_nn::optim`] as their keys.

use lowtide_nn::optim::{
    AdadeltaOptions, AdafactorOptions, AdagradOptions, AdamOptions, AdamaxOptions, AmsgradOptions,
    LambOptions, LionOptions, Momentum, MuonOptions, NadamOptions, PerParameter, RadamOptions,
    RateScale, RmsPropOptions, RpropOptions, SgdOptions, Stateful, UpdateRule, WeightDecay,
};
use lowtide_nn::{NnResult, Schedule};
use lowtide_tensor::RandomKey;
use serde::{Deserialize, Serialize};

use crate::recipe::StateType;

/// Declares the kinds of optimizers: documentation, options and name of each, and the update rule
/// that the options make.
macro_rules! optimizers {
    ($($(#[doc = $doc:literal])* $kind:ident($options:ident) = $name:literal, $rule:expr;)*) => {
        /// The optimizer; keys that its kind has no use for are an error.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", deny_unknown_fields)]
        pub enum OptimizerRecipe {
            $($(#[doc = $doc])* #[serde(rename = $name)] $kind($options),)*
        }

        /// The kinds of optimizers, as recipes name them.
        pub const OPTIMIZERS: [&str; [$($name),*].len()] = [$($name),*];

        impl OptimizerRecipe {
            /// The optimizer of this kind, without state yet.
            pub(super) fn build(&self, how: RuleOptions) -> NnResult<Box<dyn Stateful>> {
                match self {
                    $(OptimizerRecipe::$kind(options) => optimizer(options, $rule, how),)*
                }
            }
        }
    };
}

optimizers! {
    /// Adam.
    Adam(AdamRecipe) = "adam", |recipe| recipe.options(WeightDecay::Coupled, 0.0);
    /// Adam with decoupled weight decay.
    Adamw(AdamRecipe) = "adamw", |recipe| recipe.options(WeightDecay::Decoupled, 0.01);
    /// AMSGrad, AdamW whose divisor never falls.
    Amsgrad(AdamRecipe) = "amsgrad",
        |recipe| AmsgradOptions(recipe.options(WeightDecay::Decoupled, 0.01));
    /// NAdam, Adam with Nesterov's momentum.
    Nadam(NadamOptions) = "nadam", |options| *options;
    /// RAdam, Adam that waits until its mean square is known.
    Radam(AdamRecipe) = "radam", |recipe| RadamOptions(recipe.options(WeightDecay::Coupled, 0.0));
    /// Adamax, Adam by the largest magnitude.
    Adamax(AdamaxOptions) = "adamax", |options| *options;
    /// Adadelta, whose steps are as large as those before.
    Adadelta(AdadeltaOptions) = "adadelta", |options| *options;
    /// Rprop, for whole data sets instead of batches.
    Rprop(RpropOptions) = "rprop", |options| *options;
    /// Stochastic gradient descent.
    Sgd(SgdOptions) = "sgd", |options| *options;
    /// RMSprop.
    RmsProp(RmsPropOptions) = "rms-prop", |options| *options;
    /// Adagrad.
    Adagrad(AdagradOptions) = "adagrad", |options| *options;
    /// Lion.
    Lion(LionOptions) = "lion", |options| *options;
    /// LAMB, for large batches.
    Lamb(LambOptions) = "lamb", |options| *options;
    /// Adafactor, with hardly any state.
    Adafactor(AdafactorOptions) = "adafactor", |options| *options;
    /// Muon for matrices, AdamW for the rest.
    Muon(MuonRecipe) = "muon", MuonRecipe::options;
}

/// The options of Adam and related optimizers. The kind decides where weight decay acts: directly
/// on the parameter in AdamW and AMSGrad, through the gradient in Adam and RAdam.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdamRecipe {
    /// Step size.
    pub learning_rate: f64,
    /// Shares of the previous mean and mean square that are kept.
    pub betas: [f64; 2],
    /// Added to the divisor, so that the quotient is finite.
    pub eps: f64,
    /// Pull towards 0. If absent, PyTorch's default for the kind: 0.01 if it acts on the parameter,
    /// else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

/// The options of Muon for matrices, and of AdamW for all other parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MuonRecipe {
    /// Step size of matrices.
    pub learning_rate: f64,
    /// Pull towards 0.
    pub weight_decay: f64,
    /// Share of the previous direction that is kept.
    pub momentum: f64,
    /// The kind of momentum; in a file, true if the step looks ahead.
    #[serde(rename = "nesterov")]
    pub momentum_kind: Momentum,
    /// The dependence of the step size on a matrix' shape.
    pub rate_scale: RateScale,
    /// Step size of AdamW for all other parameters.
    pub others_learning_rate: f64,
    /// Pull of all other parameters towards 0.
    pub others_weight_decay: f64,
}

impl Default for OptimizerRecipe {
    fn default() -> Self {
        // Ten times PyTorch's default, because a run has only about 360 steps.
        OptimizerRecipe::Adam(AdamRecipe { learning_rate: 1e-2, ..Default::default() })
    }
}

impl Default for AdamRecipe {
    fn default() -> Self {
        let AdamOptions { learning_rate, betas, eps, .. } = AdamOptions::default();
        AdamRecipe { learning_rate, betas, eps, weight_decay: None }
    }
}

impl Default for MuonRecipe {
    fn default() -> Self {
        let MuonOptions {
            learning_rate,
            weight_decay,
            momentum,
            momentum_kind,
            rate_scale,
            others,
            ..
        } = MuonOptions::default();
        let (WeightDecay::Coupled(pull) | WeightDecay::Decoupled(pull)) = others.weight_decay;
        MuonRecipe {
            learning_rate,
            weight_decay,
            momentum,
            momentum_kind,
            rate_scale,
            others_learning_rate: others.learning_rate,
            others_weight_decay: pull,
        }
    }
}

/// Options that every update rule has.
pub(super) struct RuleOptions {
    pub(super) schedule: Schedule,
    /// The key of rounding by chance, for parameters in bf16.
    pub(super) rounding: Option<RandomKey>,
    pub(super) states: StateType,
}

/// The optimizer by the update rule that `rule` makes of the options of a kind.
fn optimizer<O, R: UpdateRule>(
    options: &O,
    rule: impl FnOnce(&O) -> R,
    RuleOptions { schedule, rounding, states }: RuleOptions,
) -> NnResult<Box<dyn Stateful>> {
    let mut optimizer = PerParameter::new(rule(options))?.with_schedule(schedule)?;
    if let Some(key) = rounding {
        optimizer = optimizer.with_stochastic_rounding(key);
    }
    Ok(Box::new(match states {
        StateType::F32 => optimizer,
        StateType::EightBit => optimizer.with_8bit_states(),
    }))
}

impl AdamRecipe {
    fn options(&self, kind: fn(f64) -> WeightDecay, default: f64) -> AdamOptions {
        let &AdamRecipe { learning_rate, betas, eps, weight_decay } = self;
        let weight_decay = kind(weight_decay.unwrap_or(default));
        AdamOptions { learning_rate, betas, eps, weight_decay }
    }
}

impl MuonRecipe {
    fn options(&self) -> MuonOptions {
        let &MuonRecipe {
            learning_rate, weight_decay, momentum, momentum_kind, rate_scale, ..
        } = self;
        MuonOptions {
            learning_rate,
            weight_decay,
            momentum,
            momentum_kind,
            rate_scale,
            others: AdamOptions {
                learning_rate: self.others_learning_rate,
                weight_decay: WeightDecay::Decoupled(self.others_weight_decay),
                ..AdamOptions::adamw()
            },
            ..Default::default()
        }
    }
}
