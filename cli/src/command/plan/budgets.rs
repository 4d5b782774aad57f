//! The plans of several budgets, side by side.

use std::cell::RefCell;

use lowtide_tensor::Device;
use lowtide_trainer::{
    DoesNotFit, Forecasts, Parallelism, Plan, PlanOptions, Result, TrainError, lock_pages,
};
use serde_json::{Value, json};

use super::PlanArgs;
use crate::command::capacity::Capacity;
use crate::command::device::Simulated;
use crate::command::planning::{Changed, Numerics};
use crate::command::rates::{Calibration, measured_seconds};
use crate::command::say;
use crate::human::{exact_bytes, format_bytes, format_seconds};
use crate::json::{does_not_fit_json, with_knobs};
use crate::recipe::{Recipe, RecipeData};

/// The plan within a budget, or the reason why there is none.
pub(super) type WithinBudget = std::result::Result<FittingPlan, Box<DoesNotFit>>;

/// A plan, and the changes with which it fits.
pub(super) struct FittingPlan {
    pub(super) plan: Plan,
    /// Changes of the recipe's numerics.
    numerics: Vec<Numerics>,
    /// The part of a training that is divided among ranks.
    zero: Parallelism,
}

/// Prints the plan for each of several budgets in one line. Returns true if all budgets have a
/// plan.
pub(super) fn run(recipe: &Recipe, arguments: &PlanArgs) -> Result<bool> {
    let of_rank = arguments.device.of_rank(arguments.planning.first_rank())?;
    of_rank.check_budgets()?;
    let simulated = of_rank.open_simulated(of_rank.process_budget())?;
    let Simulated { device: sim, calibration, .. } = simulated;
    let mut data = recipe.open_share(arguments.planning.first_reader())?;
    lock_pages(&mut data.train, &sim)?;
    let host = arguments.planning.open_simulated_host(&arguments.device)?;
    let planner = BudgetPlanner::new(arguments, &sim, host.as_ref());
    let mut plans = Vec::new();
    for &budget_bytes in &arguments.device.budgets {
        let plan = planner.plan(budget_bytes, recipe, &data)?;
        plans.push((budget_bytes, plan));
    }
    let table = Budgets { arguments, plans, calibration };
    if arguments.json {
        say(&table.to_json().to_string())?;
    } else {
        table.lines(recipe.train.batch_size).iter().try_for_each(|line| say(line))?;
    }
    Ok(table.fits())
}

/// A plan for each budget.
struct Budgets<'a> {
    arguments: &'a PlanArgs,
    plans: Vec<(usize, WithinBudget)>,
    calibration: Option<Calibration>,
}

impl Budgets<'_> {
    fn fits(&self) -> bool {
        self.plans.iter().all(|(_, plan)| plan.is_ok())
    }

    /// Simulated seconds of the fastest plan.
    fn fastest(&self) -> f64 {
        let fitting = self.plans.iter().filter_map(|(_, plan)| plan.as_ref().ok());
        fitting.map(|fitting| fitting.plan.forecast.seconds).fold(f64::INFINITY, f64::min)
    }

    fn to_json(&self) -> Value {
        let fastest = self.fastest();
        let plans = self.plans.iter().map(|(budget_bytes, plan)| match plan {
            Ok(FittingPlan { plan, numerics, zero }) => {
                let fields = json!({
                    "budget_bytes": budget_bytes,
                    "numerics": numerics,
                    "zero": zero,
                    "offloaded_peak_bytes": plan.forecast.offloaded_peak_bytes,
                    "predicted_peak_bytes": plan.predicted_peak_bytes(),
                    "relative_time": plan.forecast.seconds / fastest,
                    "step_seconds": measured_seconds(self.calibration.as_ref(), &plan.forecast),
                });
                with_knobs(plan.knobs, fields)
            }
            Err(error) => json!({
                "budget_bytes": budget_bytes,
                "does_not_fit": does_not_fit_json(error),
            }),
        });
        let measured_on = self.calibration.as_ref().map(|calibration| &calibration.measured_on);
        let plans = plans.collect::<Vec<_>>();
        json!({ "fits": self.fits(), "rates_measured_on": measured_on, "plans": plans })
    }

    fn lines(&self, batch_size: usize) -> Vec<String> {
        let calibration = self.calibration.as_ref();
        let time = match calibration {
            Some(_) => {
                format!("time of a step {}", self.arguments.device.tell_rates(calibration))
            }
            None => "time relative to the fastest".to_owned(),
        };
        let share = match self.arguments.planning.share_count() {
            1 => String::new(),
            count => format!(", {} on each of {count} ranks", batch_size / count),
        };
        let width = if calibration.is_some() { 8 } else { 4 };
        let head = [
            format!("batches of {batch_size} samples{share}; {time}"),
            String::new(),
            format!("budget       peak                             {:>width$}  plan", "time"),
        ];
        let fastest = self.fastest();
        let rows = self.plans.iter().map(|(budget_bytes, plan)| {
            let budget = format_bytes(*budget_bytes as u64);
            let (bytes, time, words) = match plan {
                Ok(fitting) => {
                    let forecast = &fitting.plan.forecast;
                    let time = match measured_seconds(calibration, forecast) {
                        Some(seconds) => format_seconds(seconds),
                        None => format!("{:.2}", forecast.seconds / fastest),
                    };
                    (fitting.plan.predicted_peak_bytes(), time, fitting.words())
                }
                Err(error) => (error.needed_bytes, "-".to_owned(), missing_words(error)),
            };
            format!("{budget:<12} {:<32} {time:>width$}  {words}", exact_bytes(bytes))
        });
        head.into_iter().chain(rows).collect()
    }
}

impl FittingPlan {
    /// The knobs, the parallelism and the numerics in words.
    fn words(&self) -> String {
        let divided = self.zero.divided().map(|what| format!("{what} divided among ranks"));
        let numerics = self.numerics.iter().map(Numerics::to_string);
        let words = std::iter::once(self.plan.knobs.to_string()).chain(divided).chain(numerics);
        words.collect::<Vec<_>>().join(", ")
    }
}

fn missing_words(error: &DoesNotFit) -> String {
    let missing = format_bytes(error.missing_bytes() as u64);
    format!("does not fit: {missing} missing, even in {}", error.knobs)
}

/// Makes plans of several budgets on one simulated device.
pub(super) struct BudgetPlanner<'a> {
    arguments: &'a PlanArgs,
    sim: &'a Device,
    host: Option<&'a Device>,
    /// Forecasts of each recipe and parallelism, shared by all budgets.
    known: RefCell<Vec<((Recipe, Parallelism), Forecasts)>>,
}

impl<'a> BudgetPlanner<'a> {
    pub(super) fn new(arguments: &'a PlanArgs, sim: &'a Device, host: Option<&'a Device>) -> Self {
        BudgetPlanner { arguments, sim, host, known: RefCell::default() }
    }

    /// The forecasts that were made of a recipe with a parallelism.
    fn forecasts(&self, recipe: &Recipe, zero: Parallelism) -> Forecasts {
        let mut known = self.known.borrow_mut();
        let is_same = |(of, divided): &(Recipe, Parallelism)| of == recipe && *divided == zero;
        if let Some((_, forecasts)) = known.iter().find(|(of, _)| is_same(of)) {
            return forecasts.clone();
        }
        let forecasts = Forecasts::default();
        known.push(((recipe.clone(), zero), forecasts.clone()));
        forecasts
    }

    /// The plan of a recipe within a budget, or the reason why there is none.
    ///
    /// # Errors
    /// Anything that keeps the recipe from being built.
    pub(super) fn plan(
        &self,
        budget_bytes: usize,
        recipe: &Recipe,
        data: &RecipeData,
    ) -> Result<WithinBudget> {
        let &BudgetPlanner { arguments: PlanArgs { device, planning, .. }, sim, host, .. } = self;
        let of_rank = device.of_rank(planning.first_rank())?;
        let capacity = Capacity::given(budget_bytes, of_rank.process_budget());
        let fit = recipe.fit(&data.train, &data.test);
        let found = planning.first_that_fits(recipe, |recipe, zero| {
            Capacity::lift(sim);
            let mut trainer = recipe.trainer(sim, data.samples)?;
            trainer.set_offload(host.cloned());
            trainer.set_ranks(planning.simulated_ranks());
            trainer.set_parallelism(zero);
            let forecasts = self.forecasts(recipe, zero);
            let options = PlanOptions { forecasts, ..PlanOptions::default() };
            capacity.plan(&mut trainer, &fit, &options)
        });
        match found {
            Err(TrainError::DoesNotFit(error)) => Ok(Err(error)),
            found => found.map(|Changed { planned: (plan, _), numerics, zero, .. }| {
                Ok(FittingPlan { plan, numerics, zero })
            }),
        }
    }
}
