//! Adadelta (Zeiler 2012), `torch.optim.Adadelta`.

use lowtide_tensor::{Float, KnownFormula, StateRange, Tensor, UpdateFormula};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::{check_not_negative, check_option};
use crate::error::Result;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, update_jobs};

/// Options of [`Adadelta`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct AdadeltaOptions {
    /// Factor of the update. The previous updates determine the size of the update.
    pub learning_rate: f64,
    /// Decay rate of both means of squares, `ρ`.
    pub smoothing: f64,
    /// The number that is added to both means of squares.
    pub eps: f64,
    /// Weight decay, which is added to the gradient.
    pub weight_decay: f64,
}

impl Default for AdadeltaOptions {
    fn default() -> Self {
        AdadeltaOptions { learning_rate: 1.0, smoothing: 0.9, eps: 1e-6, weight_decay: 0.0 }
    }
}

/// Adadelta:
///
/// ```text
/// g = grad + weight_decay · p
/// v = ρ v + (1 - ρ) g²
/// d = √(u + eps) / √(v + eps) · g
/// u = ρ u + (1 - ρ) d²
/// p = p - learning_rate · d
/// ```
pub type Adadelta = PerParameter<AdadeltaOptions>;

impl UpdateRule for AdadeltaOptions {
    const NAME: &'static str = "adadelta";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        let options = [
            ("learning_rate", self.learning_rate),
            ("eps", self.eps),
            ("weight_decay", self.weight_decay),
        ];
        check_not_negative(&options)?;
        check_option("smoothing", self.smoothing, "[0, 1]", |share| (0.0..=1.0).contains(&share))
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, _: &Tensor) -> Vec<StateSpec> {
        vec![StateSpec::like_parameter("square_avg"), StateSpec::like_parameter("acc_delta")]
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        let AdadeltaOptions { smoothing, eps, weight_decay, .. } = *self;
        update_jobs::<_, 2, 0>(jobs, |job| {
            Formula([smoothing, 1.0 - smoothing, weight_decay, job.at.learning_rate, eps])
        })
    }
}

/// The coefficients of an update, in the order of [`KnownFormula::Adadelta`].
#[derive(Clone, Copy)]
struct Formula([f64; 5]);

impl UpdateFormula<2, 0> for Formula {
    const NAME: &'static str = AdadeltaOptions::NAME;
    const FLOPS: f64 = 18.0;

    fn state_ranges(&self) -> [StateRange; 2] {
        [StateRange::Positive; 2]
    }

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Adadelta(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [v, u]: [T; 2]) -> (T, [T; 2]) {
        let [keep, take, decay, rate, eps] = self.0.map(T::from_f64);
        let g = g + decay * p;
        let v = keep * v + take * g * g;
        let d = (u + eps).sqrt() / (v + eps).sqrt() * g;
        (p - rate * d, [v, keep * u + take * d * d])
    }
}
