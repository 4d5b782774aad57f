//! The beginning of a run: data, device, model and plan.

use std::io::{self, Write};
use std::sync::Arc;

use lowtide_data::{DataError, Loader};
use lowtide_ranks::Collectives;
use lowtide_tensor::Device;
use lowtide_trainer::{
    Examples, Fit, Parallelism, Plan, PlanOptions, Position, Result, TrainError, agree, lock_pages,
};

use super::arguments::RunArgs;
use crate::command::capacity::Capacity;
use crate::command::plan::{self, PlanBudget};
use crate::command::plan_file::PlanFile;
use crate::command::planning::{Changed, PlanningArgs};
use crate::command::process::Process;
#[cfg(feature = "cuda")]
use crate::command::ranks;
use crate::command::rehearsing::fastest_division;
use crate::command::staging::Origin;
use crate::recipe::{Recipe, RecipeData, RecipeTrainer, Samples};

/// Opens the data, the device and the model of a run, and plans it. Then calls `work` with the
/// arguments of this rank, the training, and the test data.
///
/// # Errors
/// Anything that keeps the run from being planned, and errors of `work`.
pub(super) fn with_planned<R>(
    mut recipe: Recipe,
    origin: Option<&Origin>,
    arguments: &RunArgs,
    ranks: Option<Arc<dyn Collectives>>,
    work: impl FnOnce(&RunArgs, Changed<Planned<'_>>, &Loader) -> Result<R>,
) -> Result<R> {
    let rank = ranks.as_ref().map_or(arguments.planning.first_rank(), |ranks| ranks.rank());
    let plan_file = arguments.plan.as_deref().map(PlanFile::read).transpose()?;
    let mut arguments = arguments.clone();
    if let Some(file) = &plan_file {
        arguments.adopt(file, &mut recipe)?;
    }
    arguments.device = arguments.device.of_rank(rank)?;
    let arguments = &arguments;
    let every = arguments.checkpoint_every.or(recipe.train.checkpoint_every);
    recipe.train.checkpoint_every = every;
    let RecipeData { samples, mut train, mut test } =
        recipe.open_share(arguments.planning.reader(rank))?;
    let device = arguments.device.open(arguments.device.process_budget())?;
    #[cfg(feature = "cuda")]
    let ranks = ranks
        .map(|ranks| ranks::by_nccl(ranks, &device, &arguments.device, arguments.wait))
        .transpose()?;
    for loader in [&mut train, &mut test] {
        lock_pages(loader, &device)?;
    }
    let plan_file = plan_file.as_ref();
    let data = Data { samples, train: &train, test: &test };
    let begin = Begin { arguments, origin, plan_file, ranks, device: &device, data };
    let mut changed = begin.plan_alike(&recipe)?;
    if let Some(file) = plan_file {
        changed.numerics = file.numerics().to_vec();
    }
    work(arguments, changed, &test)
}

impl RunArgs {
    /// Takes the budgets, the parallelism and the numerics of a plan file, unless the user gave
    /// them.
    ///
    /// # Errors
    /// `Setting` for the plan of a pipeline.
    fn adopt(&mut self, file: &PlanFile, recipe: &mut Recipe) -> Result<()> {
        self.device.limit_to(file.budget_bytes());
        let planning = &mut self.planning;
        planning.offload_budget = planning.offload_budget.or(file.offload_budget());
        file.numerics().iter().for_each(|change| change.apply(recipe));
        planning.zero = planning.divided().or(Some(file.zero()));
        if planning.divided() == Some(Parallelism::Pipeline) {
            let problem = "is of one stage: a pipeline is planned when it is run";
            let place = file.path().display().to_string();
            return Err(TrainError::Setting { place, problem: problem.to_owned() });
        }
        Ok(())
    }
}

/// The data of a run.
#[derive(Clone, Copy)]
struct Data<'a> {
    samples: Samples,
    train: &'a Loader,
    test: &'a Loader,
}

/// The inputs of the plan of a run.
struct Begin<'a> {
    arguments: &'a RunArgs,
    origin: Option<&'a Origin>,
    plan_file: Option<&'a PlanFile>,
    /// The connection with the other ranks, if several train together.
    ranks: Option<Arc<dyn Collectives>>,
    device: &'a Device,
    data: Data<'a>,
}

/// A training that is ready to begin.
pub(super) struct Planned<'a> {
    pub(super) trainer: RecipeTrainer,
    /// The remaining steps; `None` if only the end of the run is missing.
    pub(super) rest: Option<Fit<'a>>,
    /// The memory limit of the process and its division, if the process has a limit.
    pub(super) process: Option<Process>,
    pub(super) plan: Plan,
}

impl<'a> Begin<'a> {
    /// Makes the plan of this rank with the same division on all ranks: the fastest one. If ranks
    /// find different ones, all use the one that divides most.
    ///
    /// # Errors
    /// Errors of [`Begin::plan`] on any rank.
    fn plan_alike(&self, recipe: &Recipe) -> Result<Changed<Planned<'a>>> {
        let ranks = self.ranks.as_deref();
        let mut planning = self.arguments.planning.clone();
        if self.origin.is_some() || self.plan_file.is_some() {
            // A run that has begun, or that has a plan, keeps its numerics.
            planning.allow.clear();
        }
        if let Some(ranks) = ranks.filter(|_| planning.divided().is_none()) {
            planning.preferred = self.preferred(ranks, recipe, &planning)?;
        }
        let changed = self.plan_by(recipe, &planning)?;
        let zeros = ranks.map(|ranks| ranks.exchange(&[changed.zero as u8]));
        let zeros = zeros.transpose()?.unwrap_or_default();
        if zeros.iter().all(|zero| *zero == zeros[0]) {
            return Ok(changed);
        }
        // A rank with less memory than others divides more; then all ranks do.
        let most = zeros.iter().flatten().max();
        planning.zero =
            Parallelism::OF_SHARED_BATCHES.into_iter().find(|&zero| Some(&(zero as u8)) == most);
        self.plan_by(recipe, &planning)
    }

    /// The fastest division according to the first rank's rehearsals.
    fn preferred(
        &self,
        ranks: &dyn Collectives,
        recipe: &Recipe,
        planning: &PlanningArgs,
    ) -> Result<Option<Parallelism>> {
        let fastest = match ranks.rank().index {
            0 => fastest_division(recipe, &self.arguments.device, planning).ok().flatten(),
            _ => None,
        };
        let said = ranks.exchange(&[fastest.map_or(u8::MAX, |zero| zero as u8)])?;
        Ok(Parallelism::OF_SHARED_BATCHES.into_iter().find(|&zero| said[0] == [zero as u8]))
    }

    /// The plan of a run that has none: with the knobs that it had before it was resumed, if they
    /// still fit, or else the fastest.
    fn plan_freely(
        &self,
        capacity: &Capacity,
        trainer: &mut RecipeTrainer,
        fit: &Fit<'_>,
    ) -> Result<(Plan, Option<Process>)> {
        let resumed = self.arguments.resumed.as_ref().filter(|_| self.arguments.keeps_knobs);
        if let Some(was) = resumed {
            match capacity.plan(trainer, fit, &was.knobs.into()) {
                // Knobs do not go with a data set of less than a batch, for example.
                Err(TrainError::Setting { place, .. }) if place == "knobs" => {}
                Err(TrainError::DoesNotFit(_) | TrainError::Ranks(_)) => {}
                planned => return planned.map_err(advise),
            }
        }
        let planned = capacity.plan(trainer, fit, &PlanOptions::default()).map_err(advise)?;
        let is_first = self.ranks.as_ref().is_none_or(|ranks| ranks.rank().index == 0);
        if is_first && resumed.is_some_and(|was| was.knobs != planned.0.knobs) {
            let line = "the plan of the run does not fit any more: it goes on with another";
            drop(writeln!(io::stderr(), "note: {line}, maybe to other bits"));
        }
        Ok(planned)
    }

    fn plan_by(&self, recipe: &Recipe, planning: &PlanningArgs) -> Result<Changed<Planned<'a>>> {
        let changed = planning.first_that_fits(recipe, |recipe, zero| self.plan(recipe, zero));
        // No rank writes anything before every rank is ready.
        agree(self.ranks.as_deref(), changed)
    }

    /// Makes the model and its plan.
    ///
    /// # Errors
    /// `DoesNotFit`; errors that keep the recipe from being run.
    fn plan(&self, recipe: &Recipe, zero: Parallelism) -> Result<Planned<'a>> {
        let &Begin { arguments, origin, plan_file, ref ranks, device, data } = self;
        let capacity = Capacity::of_opened(device, &arguments.device);
        let built = recipe.trainer_among(ranks.clone(), zero, device, data.samples);
        // Ranks that share the blocks or features of one model communicate while they plan.
        let stages = ranks.as_deref().filter(|_| !zero.shares_batches());
        let mut trainer = match agree(stages, built) {
            // The rehearsal on a larger, simulated device finds all missing bytes.
            Err(error) if error.out_of_memory().is_some() => {
                let mut as_it_is = arguments.planning.clone();
                as_it_is.allow.clear();
                as_it_is.zero = Some(zero);
                let budget = PlanBudget::Given(capacity.process_budget());
                let found = plan::find(recipe, &arguments.device, &as_it_is, budget);
                return found.and(Err(error));
            }
            built => built?,
        };
        trainer.set_wait(arguments.wait);
        trainer.set_offload(arguments.planning.open_host(&arguments.device)?);
        let fit = recipe.fit(data.train, data.test);
        if trainer.is_to_be_cut() {
            trainer.cut_for(&agree(stages, Examples::of(&fit))?)?;
        }
        if let Some(origin) = origin {
            let loaded = trainer.load(&origin.checkpoint).map_err(|error| offer(origin, error));
            agree(stages, loaded)?;
            if origin.restarts_epoch {
                trainer.restart_epoch();
            }
        }
        let rest = rest_of(recipe, origin, &fit, trainer.position())?;
        let planned_for = rest.as_ref().unwrap_or(&fit);
        let (plan, process) = match plan_file {
            Some(file) => capacity
                .plan_by(&mut trainer, planned_for, |trainer| file.follow(trainer, planned_for))?,
            None => self.plan_freely(&capacity, &mut trainer, planned_for)?,
        };
        Ok(Planned { trainer, rest, process, plan })
    }
}

/// Adds to the refusal of a loader how the run can go on.
fn advise(error: TrainError) -> TrainError {
    let TrainError::Data(mismatch @ DataError::StateMismatch { .. }) = error else { return error };
    let problem = format!(
        "{mismatch}: the data is not that of the unfinished epoch; --restart-epoch begins the \
         epoch again, and learns a part of it twice"
    );
    TrainError::Setting { place: "--resume".to_owned(), problem }
}

/// The remaining steps of a run after `position`; `None` if only its end is missing.
///
/// # Errors
/// `Setting` if the run has ended and no epochs are added.
fn rest_of<'a>(
    recipe: &Recipe,
    origin: Option<&Origin>,
    fit: &Fit<'a>,
    position: Position,
) -> Result<Option<Fit<'a>>> {
    let epochs = recipe.train.epochs;
    if position.epoch < epochs {
        return Ok(Some(fit.clone().epochs(epochs - position.epoch)));
    }
    if origin.is_some_and(|origin| origin.has_ended) {
        return Err(TrainError::Setting {
            place: "--resume".to_owned(),
            problem: format!(
                "the run has its {epochs} epochs; --epochs {} adds one to them",
                position.epoch + 1
            ),
        });
    }
    Ok(None)
}

/// Adds to the error of an unusable checkpoint the checkpoint before it, which can be resumed.
pub(super) fn offer(origin: &Origin, error: TrainError) -> TrainError {
    let Some(before) = &origin.before else { return error };
    let (path, problem) = match error {
        TrainError::Checkpoint { path, problem } => (path, problem),
        TrainError::File { path, source } => (path, source.to_string()),
        error => return error,
    };
    let before = before.display();
    let problem =
        format!("{problem}; `lowtide train --resume {before}` goes on after the one before");
    TrainError::Checkpoint { path, problem }
}
