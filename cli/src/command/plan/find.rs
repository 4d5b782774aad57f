//! The rehearsal that finds the plan of a recipe.

use lowtide_trainer::{
    Forecast, Forecasts, Knobs, Parallelism, Plan, PlanOptions, Result, lock_pages,
};

use super::found::FoundPlan;
use crate::command::capacity::Capacity;
use crate::command::device::{CAPACITY_BYTES, DeviceArgs, Simulated};
use crate::command::parallelism_table::ParallelismTable;
use crate::command::planning::{Changed, PlanningArgs};
use crate::command::process::{Process, ProcessBudget};
use crate::command::rehearsing::Rehearsing;
use crate::command::stages::Stages;
use crate::recipe::{Recipe, RecipeData};

/// The limit for a plan.
#[derive(Clone, Copy)]
pub(in crate::command) enum PlanBudget {
    /// The budget of the device, within a limit on the process.
    Given(Option<ProcessBudget>),
    /// The smallest budget that has a plan, whatever memory the device has.
    Least,
}

/// Rehearses `recipe` on a simulated device like `device`.
///
/// # Errors
/// `DoesNotFit`; anything that keeps the recipe from being built.
pub(in crate::command) fn find(
    recipe: &Recipe,
    device: &DeviceArgs,
    planning: &PlanningArgs,
    budget: PlanBudget,
) -> Result<FoundPlan> {
    let mut device = device.clone();
    let (is_least, process_budget) = match budget {
        PlanBudget::Given(process_budget) => (false, process_budget),
        PlanBudget::Least => {
            device.limit_to(CAPACITY_BYTES);
            (true, None)
        }
    };
    let Simulated { device: sim, budget_bytes, products, calibration } =
        device.open_simulated(process_budget)?;
    let RecipeData { samples, mut train, test } = recipe.open_share(planning.first_reader())?;
    lock_pages(&mut train, &sim)?;
    let host = planning.open_simulated_host(&device)?;
    let fit = recipe.fit(&train, &test);
    let place = Rehearsing { planning, sim: &sim, host: host.as_ref(), samples, fit: &fit };
    let capacity = Capacity::found(budget_bytes, &device, process_budget);
    let finder = PlanFinder { place, capacity, is_least };
    let mut planning = planning.clone();
    if is_least && planning.divided().is_none() && finder.place.can_divide(recipe)? {
        planning.zero = Some(finder.least_division(recipe)?);
    }
    let mut parallelism = ParallelismTable::default();
    if planning.rank_count() > 1 && planning.divided().is_none() && process_budget.is_none() {
        parallelism = finder.compare(recipe, budget_bytes)?;
        planning.preferred = parallelism.fastest();
    }
    let changed = planning.first_that_fits(recipe, |recipe, zero| finder.plan(recipe, zero))?;
    let Changed { planned, recipe, numerics, zero } = changed;
    let RehearsedPlan { plan, process, stages, sent_bytes, survey } = planned;
    if parallelism.fastest().is_none() && planning.rank_count() > 1 && zero.shares_batches() {
        parallelism = finder.place.share_batches(&recipe, plan.budget_bytes)?;
    }
    Ok(FoundPlan {
        plan,
        process,
        is_least,
        outside_bytes: sim.outside_bytes(),
        is_assumed: device.is_assumed(),
        products,
        calibration,
        survey,
        numerics,
        offload_budget: planning.offload_budget,
        rank_count: planning.rank_count(),
        sent_bytes,
        zero,
        parallelism,
        stages,
    })
}

/// Finds plans of recipes on a simulated device.
struct PlanFinder<'a> {
    place: Rehearsing<'a>,
    capacity: Capacity,
    /// True if the search is for the smallest budget that has a plan.
    is_least: bool,
}

/// A plan of a recipe by one parallelism, and what its rehearsal found.
struct RehearsedPlan {
    plan: Plan,
    process: Option<Process>,
    stages: Stages,
    sent_bytes: usize,
    survey: Vec<(Knobs, Forecast)>,
}

impl PlanFinder<'_> {
    /// The division among ranks that needs least. Gathered parameters may take more than the parts
    /// save.
    fn least_division(&self, recipe: &Recipe) -> Result<Parallelism> {
        let least = |zero| -> Result<usize> {
            let trainer = self.place.trainer(recipe, zero, 0)?;
            trainer.least_bytes(self.place.fit, &Forecasts::default())
        };
        let [gradients, parameters] = [least(Parallelism::Zero2)?, least(Parallelism::Zero3)?];
        Ok(if parameters < gradients { Parallelism::Zero3 } else { Parallelism::Zero2 })
    }

    /// The plans for each parallelism within a budget. If no plan without a flag fits, a note on
    /// the error stream names the flag of a plan that fits.
    fn compare(&self, recipe: &Recipe, budget_bytes: usize) -> Result<ParallelismTable> {
        let mut table = self.place.share_batches(recipe, budget_bytes)?;
        table.add_those_of_one_model(|zero| {
            self.place.share_model(recipe, zero, Capacity::of(budget_bytes))
        })?;
        table.hint();
        Ok(table)
    }

    fn plan(&self, recipe: &Recipe, zero: Parallelism) -> Result<RehearsedPlan> {
        let PlanFinder { place, capacity, is_least } = self;
        let (stages, shown) = if zero == Parallelism::Pipeline {
            place.stages(recipe, *capacity)?
        } else {
            (Stages::default(), 0)
        };
        let mut trainer = place.trainer(recipe, zero, shown)?;
        let forecasts = Forecasts::default();
        let capacity = if *is_least {
            Capacity::of(trainer.least_bytes(place.fit, &forecasts)?)
        } else {
            *capacity
        };
        let options = PlanOptions {
            micro_batch_max: stages.micro_batch(),
            forecasts: forecasts.clone(),
            ..PlanOptions::default()
        };
        let (plan, process) = capacity.plan(&mut trainer, place.fit, &options)?;
        let sent_bytes = trainer.sent_bytes(&plan);
        let survey = trainer.survey(place.fit, &forecasts)?;
        Ok(RehearsedPlan { plan, process, stages, sent_bytes, survey })
    }
}
