//! RMSprop (Hinton 2012, lecture 6e; centered: Graves 2013), `torch.optim.RMSprop`.

use lowtide_tensor::{Float, StateRange, Tensor, UpdateFormula};

use crate::Result;
use crate::optim::elementwise::states;
use crate::optim::{Elementwise, UpdateRule, UpdateStep, check_option};

/// PyTorch's options and defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropOptions {
    /// Step size.
    pub learning_rate: f64,
    /// How much of the last mean square is kept, `α`.
    pub smoothing: f64,
    /// Keeps the quotient finite.
    pub eps: f64,
    /// Pull towards 0, added to the gradient.
    pub weight_decay: f64,
    /// How much of the last direction is kept; 0 needs no state.
    pub momentum: f64,
    /// What the gradient is divided by.
    pub spread: Spread,
}

/// The measure of a gradient's size over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// The root of the mean square.
    #[default]
    MeanSquare,
    /// The root of the variance, `centered` in PyTorch; needs one state more.
    Variance,
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
pub type RmsProp = Elementwise<RmsPropOptions>;

impl UpdateRule for RmsPropOptions {
    const NAME: &'static str = "rms_prop";

    fn check(&self) -> Result<()> {
        let options = [
            ("learning_rate", self.learning_rate),
            ("smoothing", self.smoothing),
            ("eps", self.eps),
            ("weight_decay", self.weight_decay),
            ("momentum", self.momentum),
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
        1 + usize::from(self.spread == Spread::Variance) + usize::from(self.momentum != 0.0)
    }

    fn update(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        state: &mut [Tensor],
        at: UpdateStep,
    ) -> lowtide_tensor::Result<()> {
        let (p, g, formula, rounding) = (parameter, gradient, Formula(*self), at.rounding);
        match (self.spread, self.momentum != 0.0) {
            (Spread::MeanSquare, false) => p.update_(g, states::<1>(state), [], formula, rounding),
            (Spread::MeanSquare, true) | (Spread::Variance, false) => {
                p.update_(g, states::<2>(state), [], formula, rounding)
            }
            (Spread::Variance, true) => p.update_(g, states::<3>(state), [], formula, rounding),
        }
    }
}

#[derive(Clone, Copy)]
struct Formula(RmsPropOptions);

/// States: the mean square, then the mean if there is one, then the momentum if there is one.
impl<const STATES: usize> UpdateFormula<STATES, 0> for Formula {
    const NAME: &'static str = RmsPropOptions::NAME;
    const FLOPS: f64 = 6.0 + 4.0 * STATES as f64;

    fn state_ranges(&self) -> [StateRange; STATES] {
        let mut ranges = [StateRange::Signed; STATES];
        ranges[0] = StateRange::Positive;
        ranges
    }

    #[inline(always)]
    fn element<T: Float>(
        &self,
        _: [T; 0],
        p: T,
        g: T,
        mut states: [T; STATES],
    ) -> (T, [T; STATES]) {
        let options = &self.0;
        let [keep, take] = [options.smoothing, 1.0 - options.smoothing].map(T::from_f64);
        let [decay, rate] = [options.weight_decay, options.learning_rate].map(T::from_f64);
        let g = g + decay * p;
        states[0] = keep * states[0] + take * g * g;
        let mut spread = states[0];
        if options.spread == Spread::Variance {
            states[1] = keep * states[1] + take * g;
            spread = spread - states[1] * states[1];
        }
        let mut direction = g / (spread.sqrt() + T::from_f64(options.eps));
        if options.momentum != 0.0 {
            states[STATES - 1] = T::from_f64(options.momentum) * states[STATES - 1] + direction;
            direction = states[STATES - 1];
        }
        (p - rate * direction, states)
    }
}
