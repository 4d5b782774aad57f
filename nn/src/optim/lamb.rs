//! LAMB: You et al. 2020, "Large batch optimization for deep learning: training BERT in 76
//! minutes", algorithm 2 with the identity as φ.

use lowtide_tensor::{
    Float, KnownFormula, KnownNorms, NormFormula, StateRange, Tensor, UpdateFormula,
};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::{check_betas, check_not_negative};
use crate::error::Result;
use crate::optim::adam::bias_correction;
use crate::optim::per_parameter::PerParameter;
use crate::optim::rule::{Job, Scratch, StateSpec, UpdateRule, UpdateStep, update_jobs};
use crate::optim::slots::{block_bytes, norm_partials_bytes};

/// Options of [`Lamb`]. Weight decay and epsilon have the paper's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct LambOptions {
    /// Learning rate.
    pub learning_rate: f64,
    /// Decay rates of the means of the gradient and of its square.
    pub betas: [f64; 2],
    /// The number that is added to the divisor, so that the divisor is never 0.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for LambOptions {
    fn default() -> Self {
        LambOptions { learning_rate: 1e-3, betas: [0.9, 0.999], eps: 1e-6, weight_decay: 0.01 }
    }
}

/// LAMB, which scales each update by the ratio of the parameter's norm to the update's:
///
/// ```text
/// m = β₁ m + (1 - β₁) g,  v = β₂ v + (1 - β₂) g²
/// r = m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + eps) + weight_decay · p
/// p = p - learning_rate · ‖p‖ / ‖r‖ · r           (1 for the quotient if a norm is 0)
/// ```
pub type Lamb = PerParameter<LambOptions>;

impl UpdateRule for LambOptions {
    const NAME: &'static str = "lamb";
    const IS_KNOWN: bool = true;

    fn check(&self) -> Result<()> {
        let &LambOptions { learning_rate, betas, eps, weight_decay } = self;
        let options =
            [("learning_rate", learning_rate), ("eps", eps), ("weight_decay", weight_decay)];
        check_not_negative(&options)?;
        check_betas(betas)
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn states(&self, _: &Tensor) -> Vec<StateSpec> {
        vec![StateSpec::like_parameter("exp_avg"), StateSpec::like_parameter("exp_avg_sq")]
    }

    fn scratch(&self, parameters: &[&Tensor]) -> Scratch {
        let norms = |parameter: &Tensor| block_bytes(2, parameter.dtype().computed());
        let held_bytes = parameters.iter().copied().map(norms).sum();
        let partials_bytes = norm_partials_bytes(parameters.iter().copied(), 2);
        Scratch { held_bytes, peak_bytes: held_bytes + partials_bytes }
    }

    fn prepare(&self, jobs: &mut [Job]) -> Result<Vec<Tensor>> {
        for job in jobs {
            let formula = self.formula(job.at);
            let norms = job.parameter.update_norms(&job.gradient, job.states(), formula)?;
            job.scratch = vec![norms.narrow(0, 0, 1)?, norms.narrow(0, 1, 1)?];
        }
        Ok(Vec::new())
    }

    fn commit(&self, jobs: &mut [Job], _: &mut [Tensor]) -> lowtide_tensor::TensorResult<()> {
        update_jobs::<_, 2, 2>(jobs, |job| self.formula(job.at))
    }
}

impl LambOptions {
    fn formula(&self, at: UpdateStep) -> Formula {
        let [correction1, correction2] = self.betas.map(|beta| bias_correction(beta, at.number));
        let [beta1, beta2] = self.betas;
        Formula([
            beta1,
            1.0 - beta1,
            beta2,
            1.0 - beta2,
            1.0 / correction1,
            1.0 / correction2.sqrt(),
            self.eps,
            self.weight_decay,
            at.learning_rate,
        ])
    }
}

/// The coefficients of an update, in the order of [`KnownFormula::Lamb`]. Both bias corrections are
/// computed once, outside of the loop.
#[derive(Clone, Copy)]
struct Formula([f64; 9]);

impl Formula {
    /// The direction and the new states of an element.
    #[inline(always)]
    fn direction<T: Float>(&self, p: T, g: T, [m, v]: [T; 2]) -> (T, [T; 2]) {
        let [beta1, take1, beta2, take2, scale, root_scale, eps, decay, _] =
            self.0.map(T::from_f64);
        let m = beta1 * m + take1 * g;
        let v = beta2 * v + take2 * g * g;
        (scale * m / (v.sqrt() * root_scale + eps) + decay * p, [m, v])
    }
}

const RANGES: [StateRange; 2] = [StateRange::Signed, StateRange::Positive];

/// The norms of the parameter and of the direction.
impl NormFormula<2, 2> for Formula {
    const NAME: &'static str = LambOptions::NAME;
    const FLOPS: f64 = 15.0;

    fn state_ranges(&self) -> [StateRange; 2] {
        RANGES
    }

    fn known(&self) -> Option<KnownNorms> {
        Some(KnownNorms::Lamb(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(&self, p: T, g: T, states: [T; 2]) -> [T; 2] {
        [p, self.direction(p, g, states).0]
    }
}

impl UpdateFormula<2, 2> for Formula {
    const NAME: &'static str = LambOptions::NAME;
    const FLOPS: f64 = 18.0;

    fn state_ranges(&self) -> [StateRange; 2] {
        RANGES
    }

    fn known(&self) -> Option<KnownFormula> {
        Some(KnownFormula::Lamb(self.0))
    }

    #[inline(always)]
    fn element<T: Float>(
        &self,
        [p_norm, r_norm]: [T; 2],
        p: T,
        g: T,
        states: [T; 2],
    ) -> (T, [T; 2]) {
        let (direction, states) = self.direction(p, g, states);
        let has_norms = p_norm > T::ZERO && r_norm > T::ZERO;
        let trust = if has_norms { p_norm / r_norm } else { T::ONE };
        let [.., rate] = self.0.map(T::from_f64);
        (p - rate * trust * direction, states)
    }
}
