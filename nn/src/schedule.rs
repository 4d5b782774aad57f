//! Learning rates over time, as `torch.optim.lr_scheduler`.
//!
//! A [`Schedule`] is a pure function of the step: resuming needs no state, and going back gives
//! the same rate. PyTorch multiplies step by step where it has no closed form; the rates agree
//! up to rounding. [`Plateau`] alone looks at a metric and has state.

use std::f64::consts::PI;

use crate::checks::check_option;
use crate::error::Result;

/// The learning rate as a function of the step; `base` is the optimizer's own.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// `base`.
    Constant,
    /// From `base · from` to `base · to` in a straight line over `steps`, then `base · to`
    /// (`LinearLR`; a warm-up ends at 1).
    Linear {
        /// Factor of step 0.
        from: f64,
        /// Factor from step `steps` on.
        to: f64,
        /// Steps from the first factor to the last.
        steps: u64,
    },
    /// Half a cosine from `base` to `floor` over `steps`, then `floor` (`CosineAnnealingLR` up to
    /// its end; Loshchilov & Hutter 2017).
    Cosine {
        /// Steps of the half wave.
        steps: u64,
        /// The last rate.
        floor: f64,
    },
    /// Half cosines one after the other, each `growth` times as long as the one before
    /// (`CosineAnnealingWarmRestarts`; Loshchilov & Hutter 2017).
    CosineRestarts {
        /// Steps of the first half wave, at least 1.
        first: u64,
        /// How much longer each is than the last, at least 1.
        growth: u64,
        /// The rate at the end of each.
        floor: f64,
    },
    /// `base · factorᵏ` after `k` times `every` steps (`StepLR`).
    Step {
        /// Steps between two falls, at least 1.
        every: u64,
        /// The factor of each fall.
        factor: f64,
    },
    /// `base · factorᵏ` once `k` of the milestones are reached (`MultiStepLR`).
    Milestones {
        /// Steps at which the rate falls, in rising order.
        at: Vec<u64>,
        /// The factor of each fall.
        factor: f64,
    },
    /// `base · factorˢᵗᵉᵖ` (`ExponentialLR`).
    Exponential {
        /// The factor of each step.
        factor: f64,
    },
    /// `base · (1 - step / steps)ᵖᵒʷᵉʳ`, then 0 (`PolynomialLR`).
    Polynomial {
        /// Steps until 0.
        steps: u64,
        /// 1 is a straight line.
        power: f64,
    },
    /// Up to `base` and down again in one run (`OneCycleLR` with `base` as its `max_lr`; Smith &
    /// Topin 2018): from `base / start_divisor` along half a cosine to `base`, along another to
    /// `base / start_divisor / end_divisor`.
    OneCycle {
        /// Steps of the whole run, at least 1.
        steps: u64,
        /// Share of the steps that rise, 0.3 in PyTorch.
        rising: f64,
        /// 25 in PyTorch.
        start_divisor: f64,
        /// 10,000 in PyTorch.
        end_divisor: f64,
    },
    /// One after the other, each counting from where it starts (`SequentialLR`).
    Sequence {
        /// The schedules with the number of steps that each lasts.
        parts: Vec<(Schedule, u64)>,
        /// The schedule after the parts.
        last: Box<Schedule>,
    },
}

impl Schedule {
    /// `self` after a straight line from `base · from` to `base` over `steps`.
    #[must_use]
    pub fn after_warm_up(self, from: f64, steps: u64) -> Schedule {
        let warm_up = Schedule::Linear { from, to: 1.0, steps };
        Schedule::Sequence { parts: vec![(warm_up, steps)], last: Box::new(self) }
    }

    /// `Ok` if [`Schedule::learning_rate`] is finite and not negative at every step, for any
    /// `base` that is.
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

    /// The learning rate of `step`, counted from 0. Meaningful where [`Schedule::check`] passes.
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
                // 0⁰ is 1, but the end is 0.
                let left = 1.0 - progress(step, steps);
                if left == 0.0 { 0.0 } else { base * left.powf(power) }
            }
            &Schedule::OneCycle { steps, rising, start_divisor, end_divisor } => {
                let (start, last) = (base / start_divisor, steps.saturating_sub(1) as f64);
                let (peak, at) = (rising * steps as f64 - 1.0, (step as f64).min(last));
                if at <= peak {
                    // A peak at step 0 has no way up.
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

/// How much of `steps` is done, at most 1; all of nothing.
fn progress(step: u64, steps: u64) -> f64 {
    if step >= steps { 1.0 } else { step as f64 / steps as f64 }
}

/// From one value to the other along half a cosine.
fn half_wave(from: f64, to: f64, progress: f64) -> f64 {
    to + (from - to) * (1.0 + (PI * progress).cos()) / 2.0
}

/// `factorᵏ`; beyond 2^31 times it is 0 or 1.
fn power(factor: f64, count: u64) -> f64 {
    factor.powi(i32::try_from(count).unwrap_or(i32::MAX))
}

/// PyTorch's options and defaults for `ReduceLROnPlateau`, except that the threshold is always
/// relative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlateauOptions {
    /// The direction in which a metric gets better.
    pub better: Better,
    /// The factor of a fall, above 0 and below 1.
    pub factor: f64,
    /// Observations without an improvement that are tolerated.
    pub patience: u64,
    /// The share by which a metric must be better to count.
    pub threshold: f64,
    /// Observations after a reduction that do not count.
    pub cooldown: u64,
    /// The rate never falls below.
    pub floor: f64,
}

/// Which way a metric improves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Better {
    /// Lower values are better, as of a loss.
    #[default]
    Lower,
    /// Higher values are better, as of an accuracy.
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

/// Lowers the learning rate when a metric has stopped getting better (`ReduceLROnPlateau`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    options: PlateauOptions,
    state: PlateauState,
}

/// The memory of a [`Plateau`], to store and to go on from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlateauState {
    /// The best metric so far.
    pub best: Option<f64>,
    /// Observations since it improved.
    pub bad_count: u64,
    /// Observations that still do not count.
    pub cooldown_left: u64,
}

impl Plateau {
    /// A schedule that has seen nothing yet.
    ///
    /// # Errors
    /// `Option` for a value out of range.
    pub fn new(options: PlateauOptions) -> Result<Self> {
        let state = PlateauState { best: None, bad_count: 0, cooldown_left: 0 };
        Plateau::resume(options, state)
    }

    /// A schedule that goes on from `state`.
    ///
    /// # Errors
    /// `Option` for a value out of range.
    pub fn resume(options: PlateauOptions, state: PlateauState) -> Result<Self> {
        check_option("factor", options.factor, "0..1", |x| x > 0.0 && x < 1.0)?;
        check_option("threshold", options.threshold, "0..1", |x| (0.0..1.0).contains(&x))?;
        check_option("floor", options.floor, "0..", |x| x.is_finite() && x >= 0.0)?;
        Ok(Plateau { options, state })
    }

    /// The memory of the schedule.
    pub fn state(&self) -> PlateauState {
        self.state
    }

    /// The learning rate after a metric has been measured at `learning_rate`. NaN is no
    /// improvement.
    pub fn observe(&mut self, metric: f64, learning_rate: f64) -> f64 {
        let PlateauOptions { better, factor, patience, threshold, cooldown, floor } = self.options;
        let state = &mut self.state;
        // PyTorch compares with best · (1 ± threshold), whatever the sign of the best.
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
        // A fall of less than 1e-8 is none, as PyTorch's `eps`.
        if learning_rate - lower > 1e-8 { lower } else { learning_rate }
    }
}
