//! Schedules of a recipe, in steps of the optimizer.

use lowtide_nn::Schedule;
use serde::{Deserialize, Serialize};

/// The schedule of the learning rate, with the formulas of [`Schedule`]. Steps count from the end
/// of the warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ScheduleRecipe {
    /// No change. The braces make unused keys an error.
    Constant {},
    /// A straight line to a factor.
    Linear {
        /// Factor of the last step and of all later steps.
        #[serde(default)]
        to: f64,
        /// Number of steps until then.
        steps: u64,
    },
    /// Half a cosine.
    Cosine {
        /// Number of steps of the half wave.
        steps: u64,
        /// The last rate.
        #[serde(default)]
        floor: f64,
    },
    /// Half cosines one after the other.
    CosineRestarts {
        /// Number of steps of the first half wave.
        first: u64,
        /// Length of each half wave over the length of the one before.
        #[serde(default = "one")]
        growth: u64,
        /// The rate at the end of each half wave.
        #[serde(default)]
        floor: f64,
    },
    /// A fall by a factor at an interval of steps.
    Step {
        /// Number of steps between two falls.
        every: u64,
        /// The factor of each fall.
        #[serde(default = "tenth")]
        factor: f64,
    },
    /// A fall by a factor at given steps.
    Milestones {
        /// The steps, in rising order.
        at: Vec<u64>,
        /// The factor of each fall.
        #[serde(default = "tenth")]
        factor: f64,
    },
    /// A fall by a factor in each step.
    Exponential {
        /// The factor of each step.
        factor: f64,
    },
    /// A fall to 0 along a power of the remaining share of steps.
    Polynomial {
        /// Number of steps until 0.
        steps: u64,
        /// The power; 1 gives a straight line.
        #[serde(default = "line")]
        power: f64,
    },
    /// A rise to the learning rate and a fall in one run.
    OneCycle {
        /// Number of steps of the whole run.
        steps: u64,
        /// Share of the steps with a rising rate.
        #[serde(default = "rising")]
        rising: f64,
        /// The learning rate divided by the first rate.
        #[serde(default = "start_divisor")]
        start_divisor: f64,
        /// The first rate divided by the last rate.
        #[serde(default = "end_divisor")]
        end_divisor: f64,
    },
}

/// A straight line up to the learning rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmUpRecipe {
    /// Number of steps; 0 is no warm-up.
    pub steps: u64,
    /// Factor of the first step.
    pub from: f64,
}

impl Default for ScheduleRecipe {
    fn default() -> Self {
        ScheduleRecipe::Constant {}
    }
}

impl ScheduleRecipe {
    /// Number of steps until the schedule ends, if it ends.
    pub(super) fn steps(&self) -> Option<u64> {
        match *self {
            ScheduleRecipe::Linear { steps, .. }
            | ScheduleRecipe::Cosine { steps, .. }
            | ScheduleRecipe::Polynomial { steps, .. }
            | ScheduleRecipe::OneCycle { steps, .. } => Some(steps),
            _ => None,
        }
    }

    /// The schedule of the recipe, which begins after `warm_up`.
    pub(super) fn after(&self, warm_up: WarmUpRecipe) -> Schedule {
        let schedule = match *self {
            ScheduleRecipe::Constant {} => Schedule::Constant,
            ScheduleRecipe::Linear { to, steps } => Schedule::Linear { from: 1.0, to, steps },
            ScheduleRecipe::Cosine { steps, floor } => Schedule::Cosine { steps, floor },
            ScheduleRecipe::CosineRestarts { first, growth, floor } => {
                Schedule::CosineRestarts { first, growth, floor }
            }
            ScheduleRecipe::Step { every, factor } => Schedule::Step { every, factor },
            ScheduleRecipe::Milestones { ref at, factor } => {
                Schedule::Milestones { at: at.clone(), factor }
            }
            ScheduleRecipe::Exponential { factor } => Schedule::Exponential { factor },
            ScheduleRecipe::Polynomial { steps, power } => Schedule::Polynomial { steps, power },
            ScheduleRecipe::OneCycle { steps, rising, start_divisor, end_divisor } => {
                Schedule::OneCycle { steps, rising, start_divisor, end_divisor }
            }
        };
        match warm_up.steps {
            0 => schedule,
            steps => schedule.after_warm_up(warm_up.from, steps),
        }
    }
}

fn one() -> u64 {
    1
}

fn line() -> f64 {
    1.0
}

fn tenth() -> f64 {
    0.1
}

/// PyTorch's defaults for a cycle.
fn rising() -> f64 {
    0.3
}

fn start_divisor() -> f64 {
    25.0
}

fn end_divisor() -> f64 {
    1e4
}
