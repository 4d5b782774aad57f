//! Lion: Chen et al. 2023, "Symbolic discovery of optimization algorithms", with the defaults of
//! the reference implementation.

use lowtide_tensor::{Float, KnownFormula, Tensor, UpdateFormula};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::{check_betas, check_not_negative};
use crate::error::Result;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, update_jobs};

/// Options of [`Lion`], with the defaults of the paper's implementation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct LionOptions {
    /// Learning rate, which is the step of every element.
    pub learning_rate: f64,
    /// Decay rates of the momentum: the first for the direction of the update, the second for the
    /// stored momentum.
    pub betas: [f64; 2],
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for LionOptions {
    fn default() -> Self {
        LionOptions { learning_rate: 1e-4, betas: [0.9, 0.99], weight_decay: 0.0 }
    }
}

/// Lion:
///
/// ```text
/// p = p · (1 - learning_rate · weight_decay) - learning_rate · sign(β₁ m + (1 - β₁) g)
/// m = β₂ m + (1 - β₂) g
/// ```
pub type Lion = PerParameter<LionOptions>;

impl UpdateRule for LionOptions {
    const NAME: &'static str = "lion";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        let options = [("learning_rate", self.learning_rate), ("weight_decay", self.weight_decay)];
        check_not_negative(&options)?;
        check_betas(self.betas)
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, _: &Tensor) -> Vec<StateSpec> {
        vec![StateSpec::like_parameter("exp_avg")]
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        let [beta1, beta2] = self.betas;
        update_jobs::<_, 1, 0>(jobs, |job| {
            let rate = job.at.learning_rate;
            let keep = 1.0 - rate * self.weight_decay;
            Formula([beta1, 1.0 - beta1, beta2, 1.0 - beta2, keep, rate])
        })
    }
}

/// The coefficients of an update, in the order of [`KnownFormula::Lion`].
#[derive(Clone, Copy)]
struct Formula([f64; 6]);

impl UpdateFormula<1, 0> for Formula {
    const NAME: &'static str = LionOptions::NAME;
    const FLOPS: f64 = 9.0;

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Lion(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m]: [T; 1]) -> (T, [T; 1]) {
        let [beta1, take1, beta2, take2, keep, rate] = self.0.map(T::from_f64);
        let direction = beta1 * m + take1 * g;
        let up = if direction > T::ZERO { rate } else { T::ZERO };
        let down = if direction < T::ZERO { rate } else { T::ZERO };
        (keep * p - up + down, [beta2 * m + take2 * g])
    }
}
