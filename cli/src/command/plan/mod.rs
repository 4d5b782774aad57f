//! `lowtide plan`.

mod budgets;
mod find;
mod found;
mod longest;
mod survey;

use clap::Args;
use lowtide_trainer::{Parallelism, Result, TrainError};

pub(super) use find::{PlanBudget, find};

use crate::command::device::DeviceArgs;
use crate::command::model::ModelArgs;
use crate::command::planning::PlanningArgs;
use crate::command::rows::{rows_json, say_rows};
use crate::command::{RecipeArgs, say};

#[derive(Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    recipe: RecipeArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    planning: PlanningArgs,
    /// Finds the longest rows that fit each budget, up to the context of the model.
    #[arg(long, conflicts_with = "seq")]
    longest: bool,
    /// Finds the smallest budget that has a plan.
    #[arg(long, conflicts_with_all = ["budgets", "process_budget", "longest", "allow"])]
    least: bool,
    /// Prints the plan, or the reason why there is none, as one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

/// Columns of the labels of a plan.
const LABEL_COLUMNS: usize = 15;

impl PlanArgs {
    /// # Errors
    /// `Setting` for options that do not work with a pipeline.
    fn check_pipeline(&self) -> Result<()> {
        let is_pipeline = self.planning.divided() == Some(Parallelism::Pipeline);
        if !is_pipeline || !(self.least || self.longest || self.device.budgets.len() > 1) {
            return Ok(());
        }
        let problem = "is planned within one budget, not with --least, --longest or several";
        Err(TrainError::Setting { place: "--pipeline".to_owned(), problem: problem.to_owned() })
    }
}

/// Prints the plan. Returns true if everything requested fits.
pub(super) fn run(arguments: &PlanArgs) -> Result<bool> {
    let PlanArgs { device, planning, .. } = arguments;
    let recipe = arguments.model.recipe(&arguments.recipe)?;
    arguments.check_pipeline()?;
    if arguments.longest {
        return longest::run(arguments);
    }
    if device.budgets.len() > 1 {
        return budgets::run(&recipe, arguments);
    }
    let device = &device.of_rank(planning.first_rank())?;
    let budget = if arguments.least {
        PlanBudget::Least
    } else {
        PlanBudget::Given(device.process_budget())
    };
    let found = find(&recipe, device, planning, budget)?;
    device.doubt(found.plan.predicted_peak_bytes());
    let rows = found.rows(device);
    if arguments.json {
        say(&rows_json(rows).to_string())?;
    } else {
        say_rows(&rows, LABEL_COLUMNS)?;
    }
    Ok(true)
}
