//! Schedules of a recipe, in steps of the optimizer.

use lowtide_nn::Schedule;
use serde::{Deserialize, Serialize};

/// How the learning rate changes; the formulas are [`Schedule`]'s. Steps count from the end of the
/// warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ScheduleRecipe {
    /// Not at all. With braces, so that keys it has no use for are an error, too.
    Constant {},
    /// In a straight line to a factor.
    Linear {
        /// Factor of the last step, and of all after it.
        #[serde(default)]
        to: f64,
        /// Steps until then.
        steps: u64,
    },
    /// Along half a cosine.
    Cosine {
        /// Steps of the half wave.
        steps: u64,
        /// The last rate.
        #[serde(default)]
        floor: f64,
    },
    /// Half cosines one after the other.
    CosineRestarts {
        /// Steps of the first half wave.
        first: u64,
        /// How much longer each is than the last.
        #[serde(default = "one")]
        growth: u64,
        /// The rate at the end of each.
        #[serde(default)]
        floor: f64,
    },
    /// By a factor at an interval of steps.
    Step {
        /// Steps between two falls.
        every: u64,
        /// The factor of each.
        #[serde(default = "tenth")]
        factor: f64,
    },
    /// By a factor at given steps.
    Milestones {
        /// The steps, in rising order.
        at: Vec<u64>,
        /// The factor of each.
        #[serde(default = "tenth")]
        factor: f64,
    },
    /// By a factor in each step.
    Exponential {
        /// The factor of each step.
        factor: f64,
    },
    /// To 0 along a power of what is left.
    Polynomial {
        /// Steps until 0.
        steps: u64,
        /// 1 is a straight line.
        #[serde(default = "line")]
        power: f64,
    },
    /// Up to the learning rate and down again in one run.
    OneCycle {
        /// Steps of the whole run.
        steps: u64,
        /// Share of the steps that rise.
        #[serde(default = "rising")]
        rising: f64,
        /// The learning rate over the first rate.
        #[serde(default = "start_divisor")]
        start_divisor: f64,
        /// The first rate over the last.
        #[serde(default = "end_divisor")]
        end_divisor: f64,
    },
}

/// A straight line up to the learning rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmUpRecipe {
    /// Its steps; 0 is none.
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
    /// The schedule, after a warm-up.
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

/// PyTorch's numbers for a cycle.
fn rising() -> f64 {
    0.3
}

fn start_divisor() -> f64 {
    25.0
}

fn end_divisor() -> f64 {
    1e4
}
