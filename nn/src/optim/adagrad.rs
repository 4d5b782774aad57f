//! Adagrad (Duchi, Hazan & Singer 2011), `torch.optim.Adagrad`.

use lowtide_tensor::{Float, KnownFormula, StateRange, Tensor, UpdateFormula};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::check_not_negative;
use crate::error::Result;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, update_jobs};

/// Options of [`Adagrad`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct AdagradOptions {
    /// Learning rate.
    pub learning_rate: f64,
    /// Decay of the learning rate: step `t` divides the rate by `1 + decay · (t - 1)`.
    pub learning_rate_decay: f64,
    /// Weight decay, which is added to the gradient.
    pub weight_decay: f64,
    /// Initial value of the sum of squares.
    pub initial_sum: f64,
    /// The number that is added to the divisor, so that the divisor is never 0.
    pub eps: f64,
}

impl Default for AdagradOptions {
    fn default() -> Self {
        AdagradOptions {
            learning_rate: 1e-2,
            learning_rate_decay: 0.0,
            weight_decay: 0.0,
            initial_sum: 0.0,
            eps: 1e-10,
        }
    }
}

/// Adagrad:
///
/// ```text
/// g = grad + weight_decay · p
/// s = s + g²
/// p = p - learning_rate / (1 + learning_rate_decay · (t - 1)) · g / (√s + eps)
/// ```
pub type Adagrad = PerParameter<AdagradOptions>;

impl UpdateRule for AdagradOptions {
    const NAME: &'static str = "adagrad";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        let options = [
            ("learning_rate", self.learning_rate),
            ("learning_rate_decay", self.learning_rate_decay),
            ("weight_decay", self.weight_decay),
            ("initial_sum", self.initial_sum),
            ("eps", self.eps),
        ];
        check_not_negative(&options)
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, _: &Tensor) -> Vec<StateSpec> {
        vec![StateSpec::like_parameter("sum")]
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        update_jobs::<_, 1, 0>(jobs, |job| {
            let steps_before = job.at.number.saturating_sub(1) as f64;
            // States start as zeros.
            let added = if job.at.is_first { self.initial_sum } else { 0.0 };
            let rate = job.at.learning_rate / (1.0 + self.learning_rate_decay * steps_before);
            Formula([added, self.weight_decay, rate, self.eps])
        })
    }
}

/// The coefficients of an update, in the order of [`KnownFormula::Adagrad`].
#[derive(Clone, Copy)]
struct Formula([f64; 4]);

impl UpdateFormula<1, 0> for Formula {
    const NAME: &'static str = AdagradOptions::NAME;
    const FLOPS: f64 = 9.0;

    fn state_ranges(&self) -> [StateRange; 1] {
        [StateRange::Positive]
    }

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Adagrad(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [s]: [T; 1]) -> (T, [T; 1]) {
        let [added, decay, rate, eps] = self.0.map(T::from_f64);
        let g = g + decay * p;
        let s = s + added + g * g;
        (p - rate * g / (s.sqrt() + eps), [s])
    }
}
