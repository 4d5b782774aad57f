//! Adagrad (Duchi, Hazan & Singer 2011), `torch.optim.Adagrad`.

use lowtide_tensor::{Float, StateRange, Tensor, UpdateFormula};

use crate::Result;
use crate::optim::elementwise::states;
use crate::optim::{Elementwise, UpdateRule, UpdateStep, check_option};

/// PyTorch's options and defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdagradOptions {
    /// Step size.
    pub learning_rate: f64,
    /// By how much the step size shrinks: over `1 + decay · (t - 1)` in step `t`.
    pub learning_rate_decay: f64,
    /// Pull towards 0, added to the gradient.
    pub weight_decay: f64,
    /// Where the sum of squares starts.
    pub initial_sum: f64,
    /// Keeps the quotient finite.
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
pub type Adagrad = Elementwise<AdagradOptions>;

impl UpdateRule for AdagradOptions {
    const NAME: &'static str = "adagrad";

    fn check(&self) -> Result<()> {
        let options = [
            ("learning_rate", self.learning_rate),
            ("learning_rate_decay", self.learning_rate_decay),
            ("weight_decay", self.weight_decay),
            ("initial_sum", self.initial_sum),
            ("eps", self.eps),
        ];
        let check = |(name, value)| check_option(name, value, "0..", |x| x >= 0.0);
        options.into_iter().try_for_each(check)
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
        let formula = Formula {
            rate: self.learning_rate
                / (1.0 + self.learning_rate_decay * at.number.saturating_sub(1) as f64),
            // States start as zeros.
            added: if at.is_first { self.initial_sum } else { 0.0 },
            options: *self,
        };
        parameter.update_(gradient, states(state), [], formula, at.rounding)
    }
}

#[derive(Clone, Copy)]
struct Formula {
    rate: f64,
    added: f64,
    options: AdagradOptions,
}

impl UpdateFormula<1, 0> for Formula {
    const NAME: &'static str = AdagradOptions::NAME;
    const FLOPS: f64 = 9.0;

    fn state_ranges(&self) -> [StateRange; 1] {
        [StateRange::Positive]
    }

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [s]: [T; 1]) -> (T, [T; 1]) {
        let [rate, added] = [self.rate, self.added].map(T::from_f64);
        let [decay, eps] = [self.options.weight_decay, self.options.eps].map(T::from_f64);
        let g = g + decay * p;
        let s = s + added + g * g;
        (p - rate * g / (s.sqrt() + eps), [s])
    }
}
