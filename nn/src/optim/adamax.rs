//! Adamax (Kingma & Ba 2015, section 7), `torch.optim.Adamax`.

use lowtide_tensor::{Float, KnownFormula, StateRange, Tensor, UpdateFormula};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::{check_betas, check_not_negative};
use crate::error::Result;
use crate::optim::adam::bias_correction;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, update_jobs};

/// Options of [`Adamax`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct AdamaxOptions {
    /// Learning rate, which is the largest step of an element.
    pub learning_rate: f64,
    /// Decay rates of the mean of the gradient and of its largest magnitude.
    pub betas: [f64; 2],
    /// The number that is added to magnitudes, so that the divisor is never 0.
    pub eps: f64,
    /// Weight decay, which is added to the gradient.
    pub weight_decay: f64,
}

impl Default for AdamaxOptions {
    fn default() -> Self {
        AdamaxOptions { learning_rate: 2e-3, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0 }
    }
}

/// Adamax, which is Adam with the largest magnitude instead of the mean square:
///
/// ```text
/// g = grad + weight_decay · p
/// m = β₁ m + (1 - β₁) g,  u = max(β₂ u, |g| + eps)
/// p = p - learning_rate · m / (1 - β₁ᵗ) / u
/// ```
pub type Adamax = PerParameter<AdamaxOptions>;

impl UpdateRule for AdamaxOptions {
    const NAME: &'static str = "adamax";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        let options = [
            ("learning_rate", self.learning_rate),
            ("eps", self.eps),
            ("weight_decay", self.weight_decay),
        ];
        check_not_negative(&options)?;
        check_betas(self.betas)
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, _: &Tensor) -> Vec<StateSpec> {
        vec![StateSpec::like_parameter("exp_avg"), StateSpec::like_parameter("exp_inf")]
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        let AdamaxOptions { betas: [beta1, beta2], eps, weight_decay, .. } = *self;
        update_jobs::<_, 2, 0>(jobs, |job| {
            let rate = job.at.learning_rate / bias_correction(beta1, job.at.number);
            Formula([beta1, 1.0 - beta1, beta2, weight_decay, rate, eps])
        })
    }
}

/// The coefficients of an update, in the order of [`KnownFormula::Adamax`].
#[derive(Clone, Copy)]
struct Formula([f64; 6]);

impl UpdateFormula<2, 0> for Formula {
    const NAME: &'static str = AdamaxOptions::NAME;
    const FLOPS: f64 = 13.0;

    fn state_ranges(&self) -> [StateRange; 2] {
        [StateRange::Signed, StateRange::Positive]
    }

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Adamax(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m, u]: [T; 2]) -> (T, [T; 2]) {
        let [keep, take, fade, decay, rate, eps] = self.0.map(T::from_f64);
        let g = g + decay * p;
        let m = keep * m + take * g;
        let u = (fade * u).maximum(g.maximum(-g) + eps);
        (p - rate * m / u, [m, u])
    }
}
