//! Lion, the evolved sign momentum of Chen et al. 2023, "Symbolic discovery of optimization
//! algorithms", with the defaults of its reference implementation.

use lowtide_tensor::{Float, Tensor, UpdateFormula};

use crate::Result;
use crate::optim::elementwise::states;
use crate::optim::{Elementwise, UpdateRule, UpdateStep, check_option};

/// Options and defaults of the paper's implementation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionOptions {
    /// Step size: every element moves by it.
    pub learning_rate: f64,
    /// How much momentum is in the direction, and how much of it is kept.
    pub betas: [f64; 2],
    /// Pull of the weights towards 0, beside the gradient.
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
pub type Lion = Elementwise<LionOptions>;

impl UpdateRule for LionOptions {
    const NAME: &'static str = "lion";

    fn check(&self) -> Result<()> {
        check_option("learning_rate", self.learning_rate, "0..", |x| x >= 0.0)?;
        check_option("weight_decay", self.weight_decay, "0..", |x| x >= 0.0)?;
        let beta = |beta| check_option("beta", beta, "0..1", |x| (0.0..1.0).contains(&x));
        self.betas.into_iter().try_for_each(beta)
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.learning_rate = learning_rate;
    }

    fn state_count(&self) -> usize {
        1
    }

    fn update(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        state: &mut [Tensor],
        at: UpdateStep,
    ) -> lowtide_tensor::Result<()> {
        parameter.update_(gradient, states(state), [], Formula(*self), at.rounding)
    }
}

#[derive(Clone, Copy)]
struct Formula(LionOptions);

impl UpdateFormula<1, 0> for Formula {
    const NAME: &'static str = LionOptions::NAME;
    const FLOPS: f64 = 9.0;

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m]: [T; 1]) -> (T, [T; 1]) {
        let LionOptions { learning_rate, betas, weight_decay } = self.0;
        let [beta1, beta2] = betas.map(T::from_f64);
        let [take1, take2] = betas.map(|beta| T::from_f64(1.0 - beta));
        let [rate, keep] = [learning_rate, 1.0 - learning_rate * weight_decay].map(T::from_f64);
        let direction = beta1 * m + take1 * g;
        let up = if direction > T::ZERO { rate } else { T::ZERO };
        let down = if direction < T::ZERO { rate } else { T::ZERO };
        (keep * p - up + down, [beta2 * m + take2 * g])
    }
}
