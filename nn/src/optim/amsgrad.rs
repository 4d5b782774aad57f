//! AMSGrad (Reddi, Kale & Kumar 2018), `amsgrad=True` of `torch.optim.Adam` and `AdamW`.

use lowtide_tensor::{AdamUpdate, Float, KnownFormula, StateRange, Tensor, UpdateFormula};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::optim::adam::AdamOptions;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, update_jobs};

/// Options of [`Amsgrad`], with Adam's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(transparent))]
pub struct AmsgradOptions(pub AdamOptions);

/// [`crate::optim::Adam`] with the largest mean square so far, so that the divisor never falls.
///
/// ```text
/// m and v as Adam's,  w = max(w, v)
/// p = p - learning_rate · m / (1 - β₁ᵗ) / (√(w / (1 - β₂ᵗ)) + eps)
/// ```
pub type Amsgrad = PerParameter<AmsgradOptions>;

impl UpdateRule for AmsgradOptions {
    const NAME: &'static str = "amsgrad";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        self.0.check()
    }

    fn learning_rate(&self) -> f64 {
        self.0.learning_rate
    }

    fn states(&self, parameter: &Tensor) -> Vec<StateSpec> {
        let mut states = self.0.states(parameter);
        states.push(StateSpec::like_parameter("max_exp_avg_sq"));
        states
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        update_jobs::<_, 3, 0>(jobs, |job| Formula(self.0.formula(job.at)))
    }
}

#[derive(Clone, Copy)]
struct Formula(AdamUpdate);

impl UpdateFormula<3, 0> for Formula {
    const NAME: &'static str = AmsgradOptions::NAME;
    const FLOPS: f64 = 18.0;

    fn state_ranges(&self) -> [StateRange; 3] {
        [StateRange::Signed, StateRange::Positive, StateRange::Positive]
    }

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Amsgrad(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m, v, w]: [T; 3]) -> (T, [T; 3]) {
        let AdamUpdate { betas: [beta1, beta2], coupled, keep, rate, root_scale, eps } = self.0;
        let [keep1, take1, keep2, take2] =
            [beta1, 1.0 - beta1, beta2, 1.0 - beta2].map(T::from_f64);
        let [coupled, keep, rate, scale, eps] =
            [coupled, keep, rate, root_scale, eps].map(T::from_f64);
        let g = g + coupled * p;
        let m = keep1 * m + take1 * g;
        let v = keep2 * v + take2 * g * g;
        let w = w.maximum(v);
        (keep * p - rate * m / (w.sqrt() * scale + eps), [m, v, w])
    }
}
