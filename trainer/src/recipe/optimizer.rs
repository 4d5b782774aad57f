//! Optimizers of a recipe.

use lowtide_nn::optim::{
    AdafactorOptions, AdagradOptions, AdamOptions, LambOptions, LionOptions, Momentum, MuonOptions,
    PerParameter, RateScale, RmsPropOptions, SgdOptions, Spread, Stateful, UpdateRule, WeightDecay,
};
use lowtide_nn::{NnResult, Schedule};
use serde::{Deserialize, Serialize};

/// The optimizer; keys that its kind has no use for are an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OptimizerRecipe {
    /// Adam.
    Adam(AdamRecipe),
    /// Adam with decoupled weight decay.
    Adamw(AdamRecipe),
    /// Stochastic gradient descent.
    Sgd(SgdRecipe),
    /// RMSprop.
    RmsProp(RmsPropRecipe),
    /// Adagrad.
    Adagrad(AdagradRecipe),
    /// Lion.
    Lion(LionRecipe),
    /// LAMB, for large batches.
    Lamb(LambRecipe),
    /// Adafactor, with hardly any state.
    Adafactor(AdafactorRecipe),
    /// Muon for matrices, AdamW for the rest.
    Muon(MuonRecipe),
}

/// Adam's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdamRecipe {
    /// Step size.
    pub learning_rate: f64,
    /// How much of the last mean and mean square is kept.
    pub betas: [f64; 2],
    /// Keeps the quotient finite.
    pub eps: f64,
    /// Pull towards 0; PyTorch's default for the kind (0, AdamW 0.01) if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

/// SGD's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SgdRecipe {
    /// Step size.
    pub learning_rate: f64,
    /// How much of the last direction is kept.
    pub momentum: f64,
    /// Whether the step looks ahead.
    pub nesterov: bool,
    /// Pull towards 0.
    pub weight_decay: f64,
}

/// RMSprop's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RmsPropRecipe {
    /// Step size.
    pub learning_rate: f64,
    /// How much of the last mean square is kept.
    pub smoothing: f64,
    /// Keeps the quotient finite.
    pub eps: f64,
    /// Pull towards 0.
    pub weight_decay: f64,
    /// How much of the last direction is kept.
    pub momentum: f64,
    /// Whether the mean is taken off, so that a variance divides.
    pub centered: bool,
}

/// Adagrad's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdagradRecipe {
    /// Step size.
    pub learning_rate: f64,
    /// By how much the step size shrinks with the steps.
    pub learning_rate_decay: f64,
    /// Pull towards 0.
    pub weight_decay: f64,
    /// Where the sum of squares starts.
    pub initial_sum: f64,
    /// Keeps the quotient finite.
    pub eps: f64,
}

/// Lion's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LionRecipe {
    /// Step size.
    pub learning_rate: f64,
    /// How much momentum is in the direction, and how much of it is kept.
    pub betas: [f64; 2],
    /// Pull towards 0.
    pub weight_decay: f64,
}

/// LAMB's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LambRecipe {
    /// Step size.
    pub learning_rate: f64,
    /// How much of the last mean and mean square is kept.
    pub betas: [f64; 2],
    /// Keeps the quotient finite.
    pub eps: f64,
    /// Pull towards 0.
    pub weight_decay: f64,
}

/// Adafactor's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdafactorRecipe {
    /// The largest step size, relative to a parameter's root mean square.
    pub learning_rate: f64,
    /// The power of the step that says how much of a new square is taken.
    pub beta2_decay: f64,
    /// Keeps quotients finite; the machine epsilon of the parameter's type if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,
    /// The root mean square that a smaller parameter is taken to have.
    pub scale_min: f64,
    /// An update of a larger root mean square is scaled down to it.
    pub clip: f64,
    /// Pull towards 0.
    pub weight_decay: f64,
}

/// Muon's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MuonRecipe {
    /// Step size of matrices.
    pub learning_rate: f64,
    /// Pull towards 0.
    pub weight_decay: f64,
    /// How much of the last direction is kept.
    pub momentum: f64,
    /// Whether the step looks ahead.
    pub nesterov: bool,
    /// How the step size depends on a matrix' shape.
    pub rate_scale: RateScaleRecipe,
    /// Step size of AdamW for everything else.
    pub others_learning_rate: f64,
    /// Pull of everything else towards 0.
    pub others_weight_decay: f64,
}

/// How Muon's step size depends on a matrix' shape; see [`RateScale`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateScaleRecipe {
    /// Jordan's own.
    #[default]
    Original,
    /// Updates as large as AdamW's.
    MatchRmsAdamw,
    /// Bernstein's.
    SpectralUnclamped,
}

impl Default for OptimizerRecipe {
    fn default() -> Self {
        // Ten times PyTorch's default: 360 steps are few.
        OptimizerRecipe::Adam(AdamRecipe { learning_rate: 1e-2, ..Default::default() })
    }
}

impl Default for AdamRecipe {
    fn default() -> Self {
        let AdamOptions { learning_rate, betas, eps, .. } = AdamOptions::default();
        AdamRecipe { learning_rate, betas, eps, weight_decay: None }
    }
}

impl Default for SgdRecipe {
    fn default() -> Self {
        SgdRecipe { learning_rate: 0.05, momentum: 0.9, nesterov: false, weight_decay: 0.0 }
    }
}

impl Default for RmsPropRecipe {
    fn default() -> Self {
        let RmsPropOptions { learning_rate, smoothing, eps, weight_decay, momentum, .. } =
            RmsPropOptions::default();
        RmsPropRecipe { learning_rate, smoothing, eps, weight_decay, momentum, centered: false }
    }
}

impl Default for AdagradRecipe {
    fn default() -> Self {
        let AdagradOptions { learning_rate, learning_rate_decay, weight_decay, initial_sum, eps } =
            AdagradOptions::default();
        AdagradRecipe { learning_rate, learning_rate_decay, weight_decay, initial_sum, eps }
    }
}

impl Default for LionRecipe {
    fn default() -> Self {
        let LionOptions { learning_rate, betas, weight_decay } = LionOptions::default();
        LionRecipe { learning_rate, betas, weight_decay }
    }
}

impl Default for LambRecipe {
    fn default() -> Self {
        let LambOptions { learning_rate, betas, eps, weight_decay } = LambOptions::default();
        LambRecipe { learning_rate, betas, eps, weight_decay }
    }
}

impl Default for AdafactorRecipe {
    fn default() -> Self {
        let AdafactorOptions { learning_rate, beta2_decay, eps, scale_min, clip, weight_decay } =
            AdafactorOptions::default();
        AdafactorRecipe { learning_rate, beta2_decay, eps, scale_min, clip, weight_decay }
    }
}

impl Default for MuonRecipe {
    fn default() -> Self {
        let MuonOptions { learning_rate, weight_decay, momentum, others, .. } =
            MuonOptions::default();
        let (WeightDecay::Coupled(pull) | WeightDecay::Decoupled(pull)) = others.weight_decay;
        MuonRecipe {
            learning_rate,
            weight_decay,
            momentum,
            nesterov: true,
            rate_scale: RateScaleRecipe::Original,
            others_learning_rate: others.learning_rate,
            others_weight_decay: pull,
        }
    }
}

impl OptimizerRecipe {
    /// The optimizer with `schedule`, without state yet.
    pub(super) fn build(&self, schedule: Schedule) -> NnResult<Box<dyn Stateful>> {
        fn new<R: UpdateRule>(rule: R, schedule: Schedule) -> NnResult<Box<dyn Stateful>> {
            Ok(Box::new(PerParameter::new(rule)?.with_schedule(schedule)?))
        }
        match self {
            OptimizerRecipe::Adam(recipe) => new(recipe.options(AdamOptions::default()), schedule),
            OptimizerRecipe::Adamw(recipe) => new(recipe.options(AdamOptions::adamw()), schedule),
            OptimizerRecipe::Sgd(recipe) => new(recipe.options(), schedule),
            OptimizerRecipe::RmsProp(recipe) => new(recipe.options(), schedule),
            OptimizerRecipe::Adagrad(recipe) => new(recipe.options(), schedule),
            OptimizerRecipe::Lion(recipe) => new(recipe.options(), schedule),
            OptimizerRecipe::Lamb(recipe) => new(recipe.options(), schedule),
            OptimizerRecipe::Adafactor(recipe) => new(recipe.options(), schedule),
            OptimizerRecipe::Muon(recipe) => new(recipe.options(), schedule),
        }
    }
}

impl AdagradRecipe {
    fn options(&self) -> AdagradOptions {
        let &AdagradRecipe { learning_rate, learning_rate_decay, weight_decay, initial_sum, eps } =
            self;
        AdagradOptions { learning_rate, learning_rate_decay, weight_decay, initial_sum, eps }
    }
}

impl LionRecipe {
    fn options(&self) -> LionOptions {
        let &LionRecipe { learning_rate, betas, weight_decay } = self;
        LionOptions { learning_rate, betas, weight_decay }
    }
}

impl LambRecipe {
    fn options(&self) -> LambOptions {
        let &LambRecipe { learning_rate, betas, eps, weight_decay } = self;
        LambOptions { learning_rate, betas, eps, weight_decay }
    }
}

impl AdamRecipe {
    fn options(&self, defaults: AdamOptions) -> AdamOptions {
        let &AdamRecipe { learning_rate, betas, eps, weight_decay } = self;
        let weight_decay = match (defaults.weight_decay, weight_decay) {
            (default, None) => default,
            (WeightDecay::Coupled(_), Some(pull)) => WeightDecay::Coupled(pull),
            (WeightDecay::Decoupled(_), Some(pull)) => WeightDecay::Decoupled(pull),
        };
        AdamOptions { learning_rate, betas, eps, weight_decay }
    }
}

impl SgdRecipe {
    fn options(&self) -> SgdOptions {
        SgdOptions {
            momentum: self.momentum,
            weight_decay: self.weight_decay,
            momentum_kind: momentum_kind(self.nesterov),
            ..SgdOptions::new(self.learning_rate)
        }
    }
}

impl RmsPropRecipe {
    fn options(&self) -> RmsPropOptions {
        let &RmsPropRecipe { learning_rate, smoothing, eps, weight_decay, momentum, centered } =
            self;
        let spread = if centered { Spread::Variance } else { Spread::MeanSquare };
        RmsPropOptions { learning_rate, smoothing, eps, weight_decay, momentum, spread }
    }
}

impl AdafactorRecipe {
    fn options(&self) -> AdafactorOptions {
        let &AdafactorRecipe { learning_rate, beta2_decay, eps, scale_min, clip, weight_decay } =
            self;
        AdafactorOptions { learning_rate, beta2_decay, eps, scale_min, clip, weight_decay }
    }
}

impl MuonRecipe {
    fn options(&self) -> MuonOptions {
        let &MuonRecipe { learning_rate, weight_decay, momentum, nesterov, rate_scale, .. } = self;
        MuonOptions {
            learning_rate,
            weight_decay,
            momentum,
            momentum_kind: momentum_kind(nesterov),
            rate_scale: match rate_scale {
                RateScaleRecipe::Original => RateScale::Original,
                RateScaleRecipe::MatchRmsAdamw => RateScale::MatchRmsAdamW,
                RateScaleRecipe::SpectralUnclamped => RateScale::SpectralUnclamped,
            },
            others: AdamOptions {
                learning_rate: self.others_learning_rate,
                weight_decay: WeightDecay::Decoupled(self.others_weight_decay),
                ..AdamOptions::adamw()
            },
            ..Default::default()
        }
    }
}

fn momentum_kind(nesterov: bool) -> Momentum {
    if nesterov { Momentum::Nesterov } else { Momentum::Classical }
}
