//! RAdam (Liu et al. 2020), `torch.optim.RAdam`: Adam without the divisor until the variance of the
//! mean square is known.

use lowtide_tensor::{AdamUpdate, Float, KnownFormula, StateRange, Tensor, UpdateFormula};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::optim::adam::{AdamOptions, bias_correction};
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, UpdateStep, update_jobs};

/// Options of [`Radam`], with Adam's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(transparent))]
pub struct RadamOptions(pub AdamOptions);

/// RAdam:
///
/// ```text
/// m and v as Adam's,  n = m / (1 - β₁ᵗ)
/// ρ∞ = 2 / (1 - β₂) - 1,  ρ = ρ∞ - 2 t β₂ᵗ / (1 - β₂ᵗ)
/// ρ > 5: r = √((ρ - 4) (ρ - 2) ρ∞ / ((ρ∞ - 4) (ρ∞ - 2) ρ))
///        p = p - learning_rate · r · n · √(1 - β₂ᵗ) / (√v + eps)
/// else:  p = p - learning_rate · n
/// ```
pub type Radam = PerParameter<RadamOptions>;

impl UpdateRule for RadamOptions {
    const NAME: &'static str = "radam";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        self.0.check()
    }

    fn learning_rate(&self) -> f64 {
        self.0.learning_rate
    }

    fn states(&self, parameter: &Tensor) -> Vec<StateSpec> {
        self.0.states(parameter)
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        update_jobs::<_, 2, 0>(jobs, |job| self.formula(job.at))
    }
}

impl RadamOptions {
    fn formula(&self, at: UpdateStep) -> Formula {
        let AdamOptions { betas: [beta1, beta2], eps, weight_decay, .. } = self.0;
        let [correction1, correction2] =
            [beta1, beta2].map(|beta| bias_correction(beta, at.number));
        let limit = 2.0 / (1.0 - beta2) - 1.0;
        let terms = limit - 2.0 * at.number as f64 * (1.0 - correction2) / correction2;
        let rate = at.learning_rate / correction1;
        let (coupled, keep) = weight_decay.parts(at.learning_rate);
        let known = (terms - 4.0) * (terms - 2.0) * limit;
        let all = (limit - 4.0) * (limit - 2.0) * terms;
        let (rate, root_scale, eps) = if terms > 5.0 {
            (rate * (known / all).sqrt() * correction2.sqrt(), 1.0, eps)
        } else {
            // Without the root of the mean square, the divisor is 1.
            (rate, 0.0, 1.0)
        };
        Formula(AdamUpdate { betas: self.0.betas, coupled, keep, rate, root_scale, eps })
    }
}

/// Adam's update. The divisor is the root of the mean square, or 1.
#[derive(Clone, Copy)]
struct Formula(AdamUpdate);

impl UpdateFormula<2, 0> for Formula {
    const NAME: &'static str = RadamOptions::NAME;
    const FLOPS: f64 = 17.0;

    fn state_ranges(&self) -> [StateRange; 2] {
        [StateRange::Signed, StateRange::Positive]
    }

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Adam(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m, v]: [T; 2]) -> (T, [T; 2]) {
        let AdamUpdate { betas: [beta1, beta2], coupled, keep, rate, root_scale, eps } = self.0;
        let [keep1, take1, keep2, take2] =
            [beta1, 1.0 - beta1, beta2, 1.0 - beta2].map(T::from_f64);
        let [coupled, keep, rate, root, eps] =
            [coupled, keep, rate, root_scale, eps].map(T::from_f64);
        let g = g + coupled * p;
        let m = keep1 * m + take1 * g;
        let v = keep2 * v + take2 * g * g;
        (keep * p - rate * m / (v.sqrt() * root + eps), [m, v])
    }
}
