//! RMSprop (Hinton 2012, lecture 6e; centered: Graves 2013), `torch.optim.RMSprop`.

use lowtide_tensor::{Float, KnownFormula, StateRange, Tensor, UpdateFormula};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::check_not_negative;
use crate::error::Result;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, update_jobs};

/// Options of [`RmsProp`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct RmsPropOptions {
    /// Learning rate.
    pub learning_rate: f64,
    /// Decay rate of the mean square, `α`.
    pub smoothing: f64,
    /// The number that is added to the divisor, so that the divisor is never 0.
    pub eps: f64,
    /// Weight decay, which is added to the gradient.
    pub weight_decay: f64,
    /// Momentum; 0 takes no state.
    pub momentum: f64,
    /// The measure that a gradient is divided by.
    #[cfg_attr(feature = "serde", serde(rename = "centered"))]
    pub spread: Spread,
}

/// Measures of a gradient's size over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(from = "bool", into = "bool"))]
pub enum Spread {
    /// The root of the mean square.
    #[default]
    MeanSquare,
    /// The root of the variance, `centered` in PyTorch. Needs one more state.
    Variance,
}

/// Converts from `centered`.
#[cfg(feature = "serde")]
impl From<bool> for Spread {
    fn from(centered: bool) -> Self {
        if centered { Spread::Variance } else { Spread::MeanSquare }
    }
}

#[cfg(feature = "serde")]
impl From<Spread> for bool {
    fn from(spread: Spread) -> Self {
        spread == Spread::Variance
    }
}

impl Default for RmsPropOptions {
    fn default() -> Self {
        RmsPropOptions {
            learning_rate: 1e-2,
            smoothing: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum: 0.0,
            spread: Spread::MeanSquare,
        }
    }
}

/// RMSprop:
///
/// ```text
/// g = grad + weight_decay · p
/// v = α v + (1 - α) g²                 (variance: a = α a + (1 - α) g as well)
/// d = g / (√v + eps)                   (variance: √(v - a²))
/// m = momentum · m + d                 (only with momentum, then d = m)
/// p = p - learning_rate · d
/// ```
pub type RmsProp = PerParameter<RmsPropOptions>;

impl UpdateRule for RmsPropOptions {
    const NAME: &'static str = "rms_prop";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        let options = [
            ("learning_rate", self.learning_rate),
            ("smoothing", self.smoothing),
            ("eps", self.eps),
            ("weight_decay", self.weight_decay),
            ("momentum", self.momentum),
        ];
        check_not_negative(&options)
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, _: &Tensor) -> Vec<StateSpec> {
        let mean = (self.spread == Spread::Variance).then_some("grad_avg");
        let momentum = (self.momentum != 0.0).then_some("momentum_buffer");
        let names = [Some("square_avg"), mean, momentum].into_iter().flatten();
        names.map(StateSpec::like_parameter).collect()
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        let RmsPropOptions { smoothing, eps, weight_decay, momentum, spread, .. } = *self;
        let formula = |job: &Job| {
            let rate = job.at.learning_rate;
            let constants = [smoothing, 1.0 - smoothing, weight_decay, rate, eps, momentum];
            Formula { constants, spread }
        };
        match (self.spread, self.momentum != 0.0) {
            (Spread::MeanSquare, false) => update_jobs::<_, 1, 0>(jobs, formula),
            (Spread::MeanSquare, true) | (Spread::Variance, false) => {
                update_jobs::<_, 2, 0>(jobs, formula)
            }
            (Spread::Variance, true) => update_jobs::<_, 3, 0>(jobs, formula),
        }
    }
}

#[derive(Clone, Copy)]
struct Formula {
    /// Coefficients in the order of [`KnownFormula::RmsProp`].
    constants: [f64; 6],
    spread: Spread,
}

/// States: the mean square, then the mean if `spread` needs it, then the momentum if it is not 0.
impl<const STATES: usize> UpdateFormula<STATES, 0> for Formula {
    const NAME: &'static str = RmsPropOptions::NAME;
    const FLOPS: f64 = 6.0 + 4.0 * STATES as f64;

    fn state_ranges(&self) -> [StateRange; STATES] {
        let mut ranges = [StateRange::Signed; STATES];
        ranges[0] = StateRange::Positive;
        ranges
    }

    fn known(&self) -> Option<KnownFormula> {
        Some(match self.spread {
            Spread::MeanSquare => KnownFormula::RmsProp(self.constants),
            Spread::Variance => KnownFormula::CenteredRmsProp(self.constants),
        })
    }

    #[inline(always)]
    fn element<T: Float>(
        &self,
        _: [T; 0],
        p: T,
        g: T,
        mut states: [T; STATES],
    ) -> (T, [T; STATES]) {
        let [.., momentum] = self.constants;
        let [keep, take, decay, rate, eps, share] = self.constants.map(T::from_f64);
        let g = g + decay * p;
        states[0] = keep * states[0] + take * g * g;
        let mut spread = states[0];
        if self.spread == Spread::Variance {
            states[1] = keep * states[1] + take * g;
            spread = spread - states[1] * states[1];
        }
        let mut direction = g / (spread.sqrt() + eps);
        if momentum != 0.0 {
            states[STATES - 1] = share * states[STATES - 1] + direction;
            direction = states[STATES - 1];
        }
        (p - rate * direction, states)
    }
}
