//! Trainings of one of several ranks, on a simulated device.

use lowtide_tensor::Device;
use lowtide_trainer::{
    Examples, Fit, Forecasts, Parallelism, Plan, PlanOptions, Result, TrainError, lock_pages,
};

use crate::command::DeviceArgs;
use crate::command::device::{CAPACITY_BYTES, Simulated};
use crate::command::planning::PlanningArgs;
use crate::command::stages::Stages;
use crate::command::ways::Ways;
use crate::recipe::{Recipe, RecipeData, RecipeTrainer, Samples};

/// What is divided among the ranks in the fastest plan that fits, if there is one.
///
/// # Errors
/// Anything that keeps the recipe from being built.
pub(super) fn fastest_way(
    recipe: &Recipe,
    device: &DeviceArgs,
    planning: &PlanningArgs,
) -> Result<Option<Parallelism>> {
    let Simulated { device: sim, budget_bytes, .. } = device.open_simulated(None)?;
    let RecipeData { samples, mut train, test } = recipe.open_share(planning.first_rank())?;
    lock_pages(&mut train, &sim)?;
    let host = planning.open_simulated_host(device)?;
    let fit = recipe.fit(&train, &test);
    let place = Rehearsing { planning, sim: &sim, host: host.as_ref(), samples, fit: &fit };
    let ways = Ways::of(budget_bytes, &fit, |zero| place.trainer(recipe, zero, 0))?;
    Ok(ways.fastest())
}

/// The plan within a budget of ranks that share a model instead of batches, and the most bytes that
/// one of them sends in a step; nothing for a model that cannot be shared so.
///
/// # Errors
/// `DoesNotFit`; anything that keeps the recipe from being built.
pub(super) fn way_of_one_model(
    recipe: &Recipe,
    sim: &Device,
    budget_bytes: usize,
    (planning, host): (&PlanningArgs, Option<&Device>),
    zero: Parallelism,
) -> Result<Option<(Plan, usize)>> {
    let RecipeData { samples, mut train, test } = recipe.open()?;
    lock_pages(&mut train, sim)?;
    let fit = recipe.fit(&train, &test);
    let place = Rehearsing { planning, sim, host, samples, fit: &fit };
    let planned = match zero {
        Parallelism::Pipeline => {
            let stages = place.stages(recipe, |trainer, size_max, forecasts| {
                sim.allocator().set_capacity(budget_bytes);
                trainer.plan_run(
                    &fit,
                    &PlanOptions {
                        micro_batch_max: size_max,
                        forecasts: forecasts.clone(),
                        ..PlanOptions::default()
                    },
                )
            });
            stages.map(|(stages, most)| Some(stages.way(most)))
        }
        _ => place.trainer(recipe, zero, 0).and_then(|mut trainer| {
            if !trainer.optimizer().can_update_parts() {
                return Ok(None);
            }
            sim.allocator().set_capacity(budget_bytes);
            let plan = trainer.plan_run(&fit, &Default::default())?;
            let sent_bytes = trainer.sent_bytes(&plan);
            Ok(Some((plan, sent_bytes)))
        }),
    };
    match planned {
        Err(TrainError::Setting { .. }) => Ok(None),
        planned => planned,
    }
}

/// Where a training is rehearsed.
pub(super) struct Rehearsing<'a> {
    pub(super) planning: &'a PlanningArgs,
    pub(super) sim: &'a Device,
    pub(super) host: Option<&'a Device>,
    pub(super) samples: Samples,
    pub(super) fit: &'a Fit<'a>,
}

impl Rehearsing<'_> {
    /// The training of one of the ranks.
    ///
    /// # Errors
    /// Anything that keeps it from being built.
    pub(super) fn trainer(
        &self,
        recipe: &Recipe,
        zero: Parallelism,
        index: usize,
    ) -> Result<RecipeTrainer> {
        self.sim.allocator().set_capacity(CAPACITY_BYTES);
        let ranks = self.planning.simulated_rank(index);
        let mut trainer = recipe.trainer_among(ranks, zero, self.sim, self.samples)?;
        trainer.set_offload(self.host.cloned());
        trainer.cut_for(&Examples::of(self.fit)?)?;
        Ok(trainer)
    }

    /// The stages of a pipeline, and the index of the one that needs most; `plan` plans for one of
    /// them, in micro-batches of at most so many samples.
    ///
    /// # Errors
    /// Those of a plan; anything that keeps the recipe from being built.
    pub(super) fn stages(
        &self,
        recipe: &Recipe,
        plan: impl Fn(&mut RecipeTrainer, usize, &Forecasts) -> Result<Plan>,
    ) -> Result<(Stages, usize)> {
        Stages::of(self.planning.rank_count(), |index, size_max, forecasts| {
            let mut trainer = self.trainer(recipe, Parallelism::Pipeline, index)?;
            let plan = plan(&mut trainer, size_max, forecasts)?;
            let (blocks, sent_bytes) = trainer.stage(&plan);
            Ok((plan, blocks, sent_bytes))
        })
    }
}
