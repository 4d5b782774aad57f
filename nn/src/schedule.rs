//! Learning rates over time, as in `torch.optim.lr_scheduler`.
//!
//! A [`Schedule`] is a pure function of the step: resuming needs no state, and a repeated step has
//! the same rate. PyTorch multiplies step by step if it has no closed form; the rates agree up to
//! rounding. Only [`Plateau`] depends on a metric and has state.

use std::f64::consts::PI;

use crate::checks::check_option;
use crate::error::Result;

/// The learning rate as a function of the step. `base` is the optimizer's own learning rate.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// The constant rate `base`.
    Constant,
    /// Linear from `base · from` to `base · to` over `steps`, then `base · to` (`LinearLR`; a
    /// warm-up has `to` = 1).
    Linear {
        /// Factor of step 0.
        from: f64,
        /// Factor from step `steps` on.
        to: f64,
        /// Number of steps from the first factor to the last.
        steps: u64,
    },
    /// Half a cosine from `base` to `floor` over `steps`, then `floor` (`CosineAnnealingLR`, which
    /// PyTorch continues periodically; Loshchilov & Hutter 2017).
    Cosine {
        /// Number of steps of the half cosine.
        steps: u64,
        /// The rate at the end.
        floor: f64,
    },
    /// A sequence of half cosines from `base` to `floor`, each `growth` times as long as the
    /// previous one (`CosineAnnealingWarmRestarts`; Loshchilov & Hutter 2017).
    CosineRestarts {
        /// Number of steps of the first half cosine, at least 1.
        first: u64,
        /// Ratio of the length of a half cosine to the previous length, at least 1.
        growth: u64,
        /// The rate at the end of each half cosine.
        floor: f64,
    },
    /// `base · factorᵏ` from step `k · every` on (`StepLR`).
    Step {
        /// Number of steps between two reductions, at least 1.
        every: u64,
        /// The factor of each reduction.
        factor: f64,
    },
    /// `base · factorᵏ` after `k` of the milestones (`MultiStepLR`).
    Milestones {
        /// Steps at which the rate is reduced, in ascending order.
        at: Vec<u64>,
        /// The factor of each reduction.
        factor: f64,
    },
    /// `base · factorˢᵗᵉᵖ` (`ExponentialLR`).
    Exponential {
        /// The factor of each step.
        factor: f64,
    },
    /// `base · (1 - step / steps)ᵖᵒʷᵉʳ`, then 0 (`PolynomialLR`).
    Polynomial {
        /// Number of steps until the rate is 0.
        steps: u64,
        /// The exponent; 1 gives a straight line.
        power: f64,
    },
    /// One cycle up to `base` and down again (`OneCycleLR` with `base` as its `max_lr`; Smith &
    /// Topin 2018). The rate rises along half a cosine from `base / start_divisor` to `base`, then
    /// falls along half a cosine to `base / start_divisor / end_divisor`.
    OneCycle {
        /// Number of steps of the whole run, at least 1.
        steps: u64,
        /// Fraction of the steps in which the rate rises; 0.3 in PyTorch.
        rising: f64,
        /// Ratio of `base` to the first rate; 25 in PyTorch.
        start_divisor: f64,
        /// Ratio of the first rate to the last rate; 10,000 in PyTorch.
        end_divisor: f64,
    },
    /// Schedules in sequence. Each counts steps from its own start (`SequentialLR`).
    Sequence {
        /// Each schedule with its number of steps.
        parts: Vec<(Schedule, u64)>,
        /// The schedule after the parts.
        last: Box<Schedule>,
    },
}

impl Schedule {
    /// This schedule after a warm-up: a straight line from `base · from` to `base` over `steps`.
    #[must_use]
    pub fn after_warm_up(self, from: f64, steps: u64) -> Schedule {
        let warm_up = Schedule::Linear { from, to: 1.0, steps };
        Schedule::Sequence { parts: vec![(warm_up, steps)], last: Box::new(self) }
    }

    /// `Ok` if [`Schedule::learning_rate`] is finite and not negative at every step, for every
    /// `base` that is finite and not negative.
    ///
    /// # Errors
    /// `Option` for the first value out of range.
    pub fn check(&self) -> Result<()> {
        let count = |name, value: u64| check_option(name, value as f64, "1..", |x| x >= 1.0);
        let finite = |x: f64| x.is_finite() && x >= 0.0;
        let rate = |name, value| check_option(name, value, "0..", finite);
        let share = |name, value| check_option(name, value, "0..=1", |x| (0.0..=1.0).contains(&x));
        let above = |name, value| check_option(name, value, "above 0", |x| finite(x) && x > 0.0);
        match self {
            Schedule::Constant => Ok(()),
            &Schedule::Linear { from, to, .. } => rate("from", from).and(rate("to", to)),
            &Schedule::Cosine { floor, .. } => rate("floor", floor),
            &Schedule::CosineRestarts { first, growth, floor } => {
                count("first", first).and(count("growth", growth)).and(rate("floor", floor))
            }
            &Schedule::Step { every, factor } => count("every", every).and(share("factor", factor)),
            &Schedule::Milestones { ref at, factor } => {
                let falls = at.windows(2).position(|pair| pair[0] > pair[1]);
                let next = falls.map_or(0.0, |index| at[index + 1] as f64);
                check_option("milestone", next, "rising order", |_| falls.is_none())?;
                share("factor", factor)
            }
            &Schedule::Exponential { factor } => share("factor", factor),
            &Schedule::Polynomial { power, .. } => rate("power", power),
            &Schedule::OneCycle { steps, rising, start_divisor, end_divisor } => {
                count("steps", steps).and(share("rising", rising))?;
                above("start_divisor", start_divisor).and(above("end_divisor", end_divisor))
            }
            Schedule::Sequence { parts, last } => {
                parts.iter().try_for_each(|(part, _)| part.check())?;
                last.check()
            }
        }
    }

    /// The learning rate of `step`, counted from 0. Valid if [`Schedule::check`] succeeds.
    pub fn learning_rate(&self, base: f64, step: u64) -> f64 {
        match self {
            Schedule::Constant => base,
            &Schedule::Linear { from, to, steps } => {
                base * (from + (to - from) * progress(step, steps))
            }
            &Schedule::Cosine { steps, floor } => half_wave(base, floor, progress(step, steps)),
            &Schedule::CosineRestarts { first, growth, floor } => {
                let (mut at, mut len) = (step, first.max(1));
                if growth <= 1 {
                    at %= len;
                }
                while at >= len {
                    at -= len;
                    len = len.saturating_mul(growth);
                }
                half_wave(base, floor, at as f64 / len as f64)
            }
            &Schedule::Step { every, factor } => base * power(factor, step / every.max(1)),
            Schedule::Milestones { at, factor } => {
                let reached = at.iter().filter(|&&milestone| milestone <= step).count();
                base * power(*factor, reached as u64)
            }
            &Schedule::Exponential { factor } => base * power(factor, step),
            &Schedule::Polynomial { steps, power } => {
                // `0⁰` would be 1, but the rate ends at 0.
                let left = 1.0 - progress(step, steps);
                if left == 0.0 { 0.0 } else { base * left.powf(power) }
            }
            &Schedule::OneCycle { steps, rising, start_divisor, end_divisor } => {
                let (start, last) = (base / start_divisor, steps.saturating_sub(1) as f64);
                let (peak, at) = (rising * steps as f64 - 1.0, (step as f64).min(last));
                if at <= peak {
                    // With the peak at step 0 there is no rise.
                    let risen = if peak == 0.0 { 1.0 } else { at / peak };
                    return half_wave(start, base, risen);
                }
                let fall = if last == peak { 1.0 } else { (at - peak) / (last - peak) };
                half_wave(base, start / end_divisor, fall)
            }
            Schedule::Sequence { parts, last } => {
                let mut at = step;
                for (part, steps) in parts {
                    if at < *steps {
                        return part.learning_rate(base, at);
                    }
                    at -= steps;
                }
                last.learning_rate(base, at)
            }
        }
    }
}

/// Fraction of `steps` that is done, at most 1; 1 if `steps` is 0.
fn progress(step: u64, steps: u64) -> f64 {
    if step >= steps { 1.0 } else { step as f64 / steps as f64 }
}

/// The value on half a cosine from one value to the other.
fn half_wave(from: f64, to: f64, progress: f64) -> f64 {
    to + (from - to) * (1.0 + (PI * progress).cos()) / 2.0
}

/// `factorᵏ` for `count` k. An exponent above 2^31 is replaced by 2^31, with a result of 0 or 1.
fn power(factor: f64, count: u64) -> f64 {
    factor.powi(i32::try_from(count).unwrap_or(i32::MAX))
}

/// Options of [`Plateau`] with the defaults of `ReduceLROnPlateau`, except that the threshold is
/// always relative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlateauOptions {
    /// The direction in which the metric improves.
    pub better: Better,
    /// The factor of a reduction, above 0 and below 1.
    pub factor: f64,
    /// Number of observations without an improvement before a reduction.
    pub patience: u64,
    /// Relative change of the metric that counts as an improvement.
    pub threshold: f64,
    /// Number of observations that are ignored after a reduction.
    pub cooldown: u64,
    /// Smallest learning rate.
    pub floor: f64,
}

/// The direction in which a metric improves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Better {
    /// Lower values are better, as for a loss.
    #[default]
    Lower,
    /// Higher values are better, as for an accuracy.
    Higher,
}

impl Default for PlateauOptions {
    fn default() -> Self {
        PlateauOptions {
            better: Better::Lower,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            cooldown: 0,
            floor: 0.0,
        }
    }
}

/// Reduces the learning rate when a metric stops improving (`ReduceLROnPlateau`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    options: PlateauOptions,
    state: PlateauState,
}

/// The state of a [`Plateau`], which can be stored and resumed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlateauState {
    /// The best metric so far.
    pub best: Option<f64>,
    /// Number of observations since the last improvement.
    pub bad_count: u64,
    /// Number of observations that are still ignored.
    pub cooldown_left: u64,
}

impl Plateau {
    /// A plateau without observations.
    ///
    /// # Errors
    /// `Option` for a value out of range.
    pub fn new(options: PlateauOptions) -> Result<Self> {
        let state = PlateauState { best: None, bad_count: 0, cooldown_left: 0 };
        Plateau::resume(options, state)
    }

    /// A plateau that continues from `state`.
    ///
    /// # Errors
    /// `Option` for a value out of range.
    pub fn resume(options: PlateauOptions, state: PlateauState) -> Result<Self> {
        check_option("factor", options.factor, "0..1", |x| x > 0.0 && x < 1.0)?;
        check_option("threshold", options.threshold, "0..1", |x| (0.0..1.0).contains(&x))?;
        check_option("floor", options.floor, "0..", |x| x.is_finite() && x >= 0.0)?;
        Ok(Plateau { options, state })
    }

    /// The state, to be stored.
    pub fn state(&self) -> PlateauState {
        self.state
    }

    /// The learning rate after an observation of the metric; `learning_rate` is the rate before.
    /// NaN is no improvement.
    pub fn observe(&mut self, metric: f64, learning_rate: f64) -> f64 {
        let PlateauOptions { better, factor, patience, threshold, cooldown, floor } = self.options;
        let state = &mut self.state;
        // PyTorch compares with best · (1 ± threshold), also if the best is negative.
        let is_better = !metric.is_nan()
            && state.best.is_none_or(|best| match better {
                Better::Lower => metric < best * (1.0 - threshold),
                Better::Higher => metric > best * (1.0 + threshold),
            });
        if is_better {
            (state.best, state.bad_count) = (Some(metric), 0);
        } else {
            state.bad_count += 1;
        }
        if state.cooldown_left > 0 {
            (state.cooldown_left, state.bad_count) = (state.cooldown_left - 1, 0);
        }
        if state.bad_count <= patience {
            return learning_rate;
        }
        (state.cooldown_left, state.bad_count) = (cooldown, 0);
        let lower = (learning_rate * factor).max(floor);
        // A reduction of at most 1e-8 is skipped, as with PyTorch's `eps`.
        if learning_rate - lower > 1e-8 { lower } else { learning_rate }
    }
}
