//! `lowtide train`.

mod arguments;
mod begin;
mod conditions;
mod running;
mod summary;

use std::sync::Arc;

use lowtide_ranks::{Collectives, Rank};
use lowtide_trace::Recording;
use lowtide_trainer::{Plan, Result};
use serde_json::Value;

pub(super) use arguments::{RunArgs, TrainArgs};
use begin::{Planned, offer, with_planned};
pub(super) use conditions::Conditions;
use running::{Run, Sets};
use summary::{LABEL_COLUMNS, Outcome, summary_json};

use crate::command::interrupt::Interrupt;
use crate::command::planning::Changed;
use crate::command::process::Process;
use crate::command::recording::Output;
use crate::command::rows::say_rows;
use crate::command::saving::rescue;
use crate::command::staging::{Origin, Staging};
use crate::command::{ranks, say};
use crate::recipe::Recipe;
use crate::report;
use crate::run_dir::{RunDir, Summary};

pub(super) fn run(arguments: &TrainArgs) -> Result<()> {
    let Some(path) = &arguments.resume else {
        return run_recipe(arguments.recipe.load()?, None, &arguments.run);
    };
    let mut origin = Origin::find(path)?;
    origin.restarts_epoch = arguments.restart_epoch;
    let [saved, recipe] =
        arguments.recipe.load_saved(&origin.checkpoint).map_err(|e| offer(&origin, e))?;
    origin.recipe = Some(saved);
    run_recipe(recipe, Some(&origin), &arguments.run)
}

/// Trains a recipe, or resumes its run, and prints the summary.
///
/// # Errors
/// Anything that keeps the run from being published.
pub(super) fn run_recipe(
    recipe: Recipe,
    origin: Option<&Origin>,
    arguments: &RunArgs,
) -> Result<()> {
    #[cfg(feature = "mpi")]
    if let Some(ranks) = ranks::of_process(arguments.wait)? {
        let rank = ranks.rank();
        let planning = arguments.planning.of_processes(rank.count)?;
        let arguments = RunArgs { planning, ..arguments.clone() };
        let arguments = &arguments.going_on(origin, &recipe, rank);
        return match rank.index {
            0 => Ended::of_rank(recipe, origin, arguments, Some(ranks))?.tell(arguments, None),
            _ => follow(recipe, origin, arguments, ranks),
        };
    }
    let arguments = &arguments.going_on(origin, &recipe, Rank::ALONE);
    Ended::of(recipe, origin, arguments)?.tell(arguments, None)
}

/// A run whose files are published.
pub(super) struct Ended {
    summary: Summary,
    pub(super) run_dir: RunDir,
    /// The content of the report.
    pub(super) report: report::Run,
    pub(super) was_interrupted: bool,
    plan: Plan,
    process: Option<Process>,
    /// The outcome of writing the trace.
    traced: Result<()>,
}

impl Ended {
    /// Trains a recipe, or resumes its run, on one rank or several.
    ///
    /// # Errors
    /// Anything that keeps the run from being published.
    pub(super) fn of(recipe: Recipe, origin: Option<&Origin>, arguments: &RunArgs) -> Result<Self> {
        let count = arguments.planning.rank_count();
        if count == 1 {
            return Ended::of_rank(recipe, origin, arguments, None);
        }
        ranks::on_threads(
            count,
            arguments.wait,
            |ranks| Ended::of_rank(recipe.clone(), origin, arguments, Some(ranks)),
            |ranks| follow(recipe.clone(), origin, arguments, ranks),
        )
    }

    /// Trains on the one rank that writes files.
    fn of_rank(
        recipe: Recipe,
        origin: Option<&Origin>,
        arguments: &RunArgs,
        ranks: Option<Arc<dyn Collectives>>,
    ) -> Result<Self> {
        with_planned(recipe, origin, arguments, ranks, |arguments, changed, test| {
            let Changed { recipe, planned, numerics, zero } = changed;
            let Planned { mut trainer, rest, process, plan } = planned;
            arguments.device.doubt(plan.predicted_peak_bytes());

            // All outputs are opened before the first step.
            let trace = arguments.trace.as_ref().map(Output::open).transpose()?;
            let out = arguments.out.as_deref();
            let staging = match origin {
                Some(origin) => Staging::resume(origin, out)?,
                None => Staging::new(out, recipe.name())?,
            };
            let interrupt = Interrupt::listen()?;
            let (recipe, files) = (&recipe, staging.partial());
            let run = Run {
                arguments,
                recipe,
                numerics: &numerics,
                zero,
                plan: &plan,
                process: process.as_ref(),
                files,
                origin,
            };
            let worked = run.work(&mut trainer, Sets { rest: rest.as_ref(), test }, &interrupt);
            // The model is published before any other output.
            let published = worked.and_then(|worked| Ok((worked, staging.publish()?)));
            if published.is_err() {
                rescue(&mut trainer, recipe, staging);
            }
            let recording = || Recording::of(&trainer.device().allocator().capture());
            let traced = trace.map_or(Ok(()), |trace| trace.write(&recording()));
            let ((summary, report), run_dir) = published?;
            // Ranks that have already left are not waited for.
            drop(trainer.leave());
            let was_interrupted = interrupt.came();
            Ok(Ended { summary, run_dir, report, was_interrupted, plan, process, traced })
        })
    }

    /// Prints the summary. In JSON, `more` is added as a field, if given.
    ///
    /// # Errors
    /// `File` if it cannot be printed, or the trace was not written.
    pub(super) fn tell(self, arguments: &RunArgs, more: Option<(&str, Value)>) -> Result<()> {
        let Ended { summary, run_dir, was_interrupted, plan, process, traced, .. } = self;
        if arguments.json {
            let mut json = summary_json(&summary, &run_dir);
            if let Some((key, value)) = more {
                json[key] = value;
            }
            say(&json.to_string())?;
        } else {
            if was_interrupted {
                say("interrupted: everything up to the last step is in the run folder")?;
            }
            let outcome = Outcome {
                summary: &summary,
                plan: &plan,
                process: process.as_ref(),
                run_dir: &run_dir,
                fault_at: arguments.fault_at,
            };
            say_rows(&outcome.rows(), LABEL_COLUMNS)?;
        }
        traced
    }
}

/// Trains on a rank that writes no files.
fn follow(
    mut recipe: Recipe,
    origin: Option<&Origin>,
    arguments: &RunArgs,
    ranks: Arc<dyn Collectives>,
) -> Result<()> {
    recipe.train.checkpoint_every = None;
    let arguments = RunArgs { checkpoint_every: None, ..arguments.clone() };
    with_planned(recipe, origin, &arguments, Some(ranks), |_, changed, test| {
        let Planned { mut trainer, rest, .. } = changed.planned;
        match rest {
            Some(rest) => trainer.run(&rest, &mut [])?,
            None => trainer.evaluate_by_all(test)?,
        };
        trainer.leave()
    })
}
