//! Stochastic gradient descent with momentum, `torch.optim.SGD`.

use lowtide_tensor::{SgdUpdate, Tensor};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::{check_not_negative, check_option};
use crate::error::Result;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, StateSpec, UpdateRule, UpdateStep, update_jobs};

/// Options of [`Sgd`], with PyTorch's defaults; PyTorch has no default learning rate. In a file
/// (feature `serde`) a missing momentum is 0.9 and a missing learning rate is 0.05.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default = "SgdOptions::of_file"))]
pub struct SgdOptions {
    /// Learning rate.
    pub learning_rate: f64,
    /// Momentum; 0 takes no state.
    pub momentum: f64,
    /// Fraction of the gradient that does not enter the momentum.
    pub dampening: f64,
    /// Weight decay, which is added to the gradient.
    pub weight_decay: f64,
    /// The kind of momentum, `nesterov` in files.
    #[cfg_attr(feature = "serde", serde(rename = "nesterov"))]
    pub momentum_kind: Momentum,
}

/// Kinds of momentum: the formula of the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(from = "bool", into = "bool"))]
pub enum Momentum {
    /// The step is the momentum.
    #[default]
    Classical,
    /// The step is the gradient plus the momentum (Nesterov).
    Nesterov,
}

/// Converts from `nesterov`.
#[cfg(feature = "serde")]
impl From<bool> for Momentum {
    fn from(nesterov: bool) -> Self {
        if nesterov { Momentum::Nesterov } else { Momentum::Classical }
    }
}

#[cfg(feature = "serde")]
impl From<Momentum> for bool {
    fn from(kind: Momentum) -> Self {
        kind == Momentum::Nesterov
    }
}

impl SgdOptions {
    /// The values of missing keys in a file.
    #[cfg(feature = "serde")]
    fn of_file() -> Self {
        SgdOptions { momentum: 0.9, ..SgdOptions::new(0.05) }
    }

    /// Plain gradient descent, without momentum and weight decay.
    pub fn new(learning_rate: f64) -> Self {
        SgdOptions {
            learning_rate,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            momentum_kind: Momentum::Classical,
        }
    }
}

/// Stochastic gradient descent:
///
/// ```text
/// g = grad + weight_decay · p
/// m = momentum · m + (1 - dampening) · g      (m = g in the first step)
/// p = p - learning_rate · m                   (Nesterov: p - learning_rate · (g + momentum · m))
/// ```
pub type Sgd = PerParameter<SgdOptions>;

impl UpdateRule for SgdOptions {
    const NAME: &'static str = "sgd";
    const IS_KNOWN: bool = true;
    const IS_ELEMENTWISE: bool = true;

    fn check(&self) -> Result<()> {
        let &SgdOptions { learning_rate, momentum, dampening, weight_decay, .. } = self;
        let options = [
            ("learning_rate", learning_rate),
            ("momentum", momentum),
            ("weight_decay", weight_decay),
        ];
        check_not_negative(&options)?;
        if self.momentum_kind == Momentum::Nesterov {
            check_option("momentum", momentum, "what Nesterov needs: above 0", |x| x > 0.0)?;
            check_option("dampening", dampening, "what Nesterov needs: 0", |x| x == 0.0)?;
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, _: &Tensor) -> Vec<StateSpec> {
        let momentum = (self.momentum != 0.0).then_some("momentum_buffer");
        momentum.map(StateSpec::like_parameter).into_iter().collect()
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        if self.momentum == 0.0 {
            update_jobs::<_, 0, 0>(jobs, |job| self.formula(job.at))
        } else {
            update_jobs::<_, 1, 0>(jobs, |job| self.formula(job.at))
        }
    }
}

impl SgdOptions {
    fn formula(&self, at: UpdateStep) -> SgdUpdate {
        // The first update takes the whole gradient.
        let (keep, take) =
            if at.is_first { (0.0, 1.0) } else { (self.momentum, 1.0 - self.dampening) };
        let (along_g, along_m) = match self.momentum_kind {
            _ if self.momentum == 0.0 => (at.learning_rate, 0.0),
            Momentum::Classical => (0.0, at.learning_rate),
            Momentum::Nesterov => (at.learning_rate, at.learning_rate * self.momentum),
        };
        SgdUpdate { weight_decay: self.weight_decay, keep, take, along_g, along_m }
    }
}
