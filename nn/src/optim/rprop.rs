//! Rprop (Riedmiller & Braun 1993), `torch.optim.Rprop`.

use lowtide_tensor::{Float, KnownFormula, StateRange, Tensor, UpdateFormula};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::{check_not_negative, check_option};
use crate::error::Result;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, update_jobs};

/// Options of [`Rprop`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct RpropOptions {
    /// Initial step size of each element. Each element then adapts its own step size, so that a
    /// schedule has no effect.
    pub learning_rate: f64,
    /// Factors of the step size: the first after a change of the gradient's sign, the second
    /// otherwise.
    pub factors: [f64; 2],
    /// Smallest and largest step size.
    pub step_range: [f64; 2],
}

impl Default for RpropOptions {
    fn default() -> Self {
        RpropOptions { learning_rate: 1e-2, factors: [0.5, 1.2], step_range: [1e-6, 50.0] }
    }
}

/// Rprop, which uses only the signs of the gradient. For whole data sets, not for batches.
///
/// ```text
/// s = grad · g before:  η = η · η⁺ where s > 0, η · η⁻ where s < 0, within the range
/// g = 0 where s < 0, else grad
/// p = p - sign(g) · η
/// ```
pub type Rprop = PerParameter<RpropOptions>;

impl UpdateRule for RpropOptions {
    const NAME: &'static str = "rprop";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        let RpropOptions { learning_rate, factors: [down, up], step_range: [low, high] } = *self;
        let options = [("learning_rate", learning_rate), ("step_range", low), ("step_range", high)];
        check_not_negative(&options)?;
        check_option("factors", down, "0..1 and above 1", |down| 0.0 < down && down < 1.0)?;
        check_option("factors", up, "0..1 and above 1", |up| up > 1.0)
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, _: &Tensor) -> Vec<StateSpec> {
        vec![StateSpec::like_parameter("prev"), StateSpec::like_parameter("step_size")]
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        let RpropOptions { factors: [down, up], step_range: [low, high], .. } = *self;
        update_jobs::<_, 2, 0>(jobs, |job| {
            // States start as zeros.
            let added = if job.at.is_first { job.at.learning_rate } else { 0.0 };
            Formula([added, down, up, low, high])
        })
    }
}

/// The coefficients of an update, in the order of [`KnownFormula::Rprop`].
#[derive(Clone, Copy)]
struct Formula([f64; 5]);

impl UpdateFormula<2, 0> for Formula {
    const NAME: &'static str = RpropOptions::NAME;
    const FLOPS: f64 = 10.0;

    fn state_ranges(&self) -> [StateRange; 2] {
        [StateRange::Signed, StateRange::Positive]
    }

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Rprop(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [before, step]: [T; 2]) -> (T, [T; 2]) {
        let [zero, one] = [0.0, 1.0].map(T::from_f64);
        let [added, down, up, low, high] = self.0.map(T::from_f64);
        let same = g * before;
        let factor = if same > zero { up } else { one };
        let factor = if same < zero { down } else { factor };
        let step = (step + added) * factor;
        let step = if step < low { low } else { step };
        let step = if step > high { high } else { step };
        let g = if same < zero { zero } else { g };
        let p_down = if g > zero { p - step } else { p };
        let p = if g < zero { p + step } else { p_down };
        (p, [g, step])
    }
}
