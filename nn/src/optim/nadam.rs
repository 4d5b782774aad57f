//! NAdam, Adam with Nesterov's momentum (Dozat 2016), `torch.optim.NAdam`.

use lowtide_tensor::{Float, KnownFormula, StateRange, Tensor, UpdateFormula};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::{check_betas, check_not_negative};
use crate::error::Result;
use crate::optim::adam::{AdamOptions, WeightDecay, bias_correction};
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, UpdateStep, update_jobs};

/// Options of [`Nadam`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct NadamOptions {
    /// Learning rate, before the factors of the momentum.
    pub learning_rate: f64,
    /// Decay rates of the means of the gradient and of its square. The momentum approaches the
    /// first rate.
    pub betas: [f64; 2],
    /// The number that is added to the divisor, so that the divisor is never 0.
    pub eps: f64,
    /// Weight decay, coupled or decoupled.
    pub weight_decay: WeightDecay,
    /// Speed at which the momentum grows from half of the first decay rate to the whole.
    pub momentum_decay: f64,
}

impl Default for NadamOptions {
    fn default() -> Self {
        let AdamOptions { betas, eps, weight_decay, .. } = AdamOptions::default();
        let (learning_rate, momentum_decay) = (2e-3, 4e-3);
        NadamOptions { learning_rate, betas, eps, weight_decay, momentum_decay }
    }
}

/// NAdam:
///
/// ```text
/// μₜ = β₁ (1 - 0.96^(t · momentum_decay) / 2)
/// g = grad + weight_decay · p           (decoupled: p = p · (1 - learning_rate · weight_decay))
/// m = β₁ m + (1 - β₁) g,  v = β₂ v + (1 - β₂) g²
/// n = μₜ₊₁ m / (1 - μ₁ ⋯ μₜ₊₁) + (1 - μₜ) g / (1 - μ₁ ⋯ μₜ)
/// p = p - learning_rate · n / (√(v / (1 - β₂ᵗ)) + eps)
/// ```
pub type Nadam = PerParameter<NadamOptions>;

impl UpdateRule for NadamOptions {
    const NAME: &'static str = "nadam";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        let (WeightDecay::Coupled(pull) | WeightDecay::Decoupled(pull)) = self.weight_decay;
        let options = [
            ("learning_rate", self.learning_rate),
            ("eps", self.eps),
            ("weight_decay", pull),
            ("momentum_decay", self.momentum_decay),
        ];
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
        let number = jobs.first().map_or(1, |job| job.at.number);
        let product = self.momentum_product(number);
        update_jobs::<_, 2, 0>(jobs, |job| self.formula(job.at, product))
    }
}

impl NadamOptions {
    /// The momentum μ of the update `number`.
    fn momentum(&self, number: u64) -> f64 {
        self.betas[0] * (1.0 - 0.5 * 0.96_f64.powf(number as f64 * self.momentum_decay))
    }

    /// The product of the momenta up to the update `number`. Recomputed for each update, so that no
    /// file has to store it. The loop ends when the product is negligible, after 700 updates for a
    /// decay rate of 0.9.
    fn momentum_product(&self, number: u64) -> f64 {
        let mut product = 1.0;
        for number in 1..=number {
            product *= self.momentum(number);
            if product < f64::EPSILON * f64::EPSILON {
                break;
            }
        }
        product
    }

    fn formula(&self, at: UpdateStep, product: f64) -> Formula {
        let [momentum, next] = [at.number, at.number + 1].map(|number| self.momentum(number));
        let (coupled, keep) = self.weight_decay.parts(at.learning_rate);
        let mean_rate = at.learning_rate * next / (1.0 - product * next);
        let rate = at.learning_rate * (1.0 - momentum) / (1.0 - product);
        let [beta1, beta2] = self.betas;
        let [take1, take2] = [1.0 - beta1, 1.0 - beta2];
        let scale = 1.0 / bias_correction(beta2, at.number).sqrt();
        Formula([beta1, take1, beta2, take2, coupled, keep, mean_rate, rate, scale, self.eps])
    }
}

/// The coefficients of an update, in the order of [`KnownFormula::Nadam`].
#[derive(Clone, Copy)]
struct Formula([f64; 10]);

impl UpdateFormula<2, 0> for Formula {
    const NAME: &'static str = NadamOptions::NAME;
    const FLOPS: f64 = 19.0;

    fn state_ranges(&self) -> [StateRange; 2] {
        [StateRange::Signed, StateRange::Positive]
    }

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Nadam(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m, v]: [T; 2]) -> (T, [T; 2]) {
        let [keep1, take1, keep2, take2, coupled, keep, mean_rate, rate, scale, eps] =
            self.0.map(T::from_f64);
        let g = g + coupled * p;
        let m = keep1 * m + take1 * g;
        let v = keep2 * v + take2 * g * g;
        (keep * p - (mean_rate * m + rate * g) / (v.sqrt() * scale + eps), [m, v])
    }
}
