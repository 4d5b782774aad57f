//! Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019), as in `torch.optim`.

use lowtide_tensor::{AdamUpdate, Tensor};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::{check_betas, check_not_negative};
use crate::error::Result;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, UpdateStep, update_jobs};

/// Options of [`Adam`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct AdamOptions {
    /// Learning rate.
    pub learning_rate: f64,
    /// Decay rates of the means of the gradient and of its square.
    pub betas: [f64; 2],
    /// The number that is added to the divisor, so that the divisor is never 0.
    pub eps: f64,
    /// Weight decay: coupled for Adam, decoupled for AdamW.
    pub weight_decay: WeightDecay,
}

impl Default for AdamOptions {
    fn default() -> Self {
        AdamOptions {
            learning_rate: 1e-3,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: WeightDecay::Coupled(0.0),
        }
    }
}

impl AdamOptions {
    /// AdamW with PyTorch's defaults: decoupled weight decay of 0.01.
    pub fn adamw() -> Self {
        AdamOptions { weight_decay: WeightDecay::Decoupled(0.01), ..Default::default() }
    }
}

/// Kinds of weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "kebab-case"))]
pub enum WeightDecay {
    /// Decay that is added to the gradient: Adam.
    Coupled(f64),
    /// Decay that shrinks the weights directly: AdamW.
    Decoupled(f64),
}

impl WeightDecay {
    /// The weight of the parameter in the gradient, and the factor that shrinks the parameter.
    pub(super) fn parts(self, learning_rate: f64) -> (f64, f64) {
        match self {
            WeightDecay::Coupled(decay) => (decay, 1.0),
            WeightDecay::Decoupled(decay) => (0.0, 1.0 - learning_rate * decay),
        }
    }
}

/// Adam:
///
/// ```text
/// g = grad + weight_decay · p                 (AdamW: p = p · (1 - learning_rate · weight_decay))
/// m = β₁ m + (1 - β₁) g,  v = β₂ v + (1 - β₂) g²
/// p = p - learning_rate · m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + eps)
/// ```
pub type Adam = PerParameter<AdamOptions>;

impl UpdateRule for AdamOptions {
    const NAME: &'static str = "adam";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        let (WeightDecay::Coupled(pull) | WeightDecay::Decoupled(pull)) = self.weight_decay;
        let options =
            [("learning_rate", self.learning_rate), ("eps", self.eps), ("weight_decay", pull)];
        check_not_negative(&options)?;
        check_betas(self.betas)
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, _: &Tensor) -> Vec<StateSpec> {
        vec![StateSpec::like_parameter("exp_avg"), StateSpec::like_parameter("exp_avg_sq")]
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        update_jobs::<_, 2, 0>(jobs, |job| self.formula(job.at))
    }
}

impl AdamOptions {
    pub(super) fn formula(&self, at: UpdateStep) -> AdamUpdate {
        let [correction1, correction2] = self.betas.map(|beta| bias_correction(beta, at.number));
        let (coupled, keep) = self.weight_decay.parts(at.learning_rate);
        AdamUpdate {
            betas: self.betas,
            coupled,
            keep,
            rate: at.learning_rate / correction1,
            root_scale: 1.0 / correction2.sqrt(),
            eps: self.eps,
        }
    }
}

/// Adam's correction `1 - βᵗ` of a mean that starts at 0, after `number` updates.
pub(super) fn bias_correction(beta: f64, number: u64) -> f64 {
    // βᵗ is 0 in every float type for more than 2^31 updates.
    1.0 - beta.powi(i32::try_from(number).unwrap_or(i32::MAX))
}
