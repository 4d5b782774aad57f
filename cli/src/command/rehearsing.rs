//! Trainings of one rank among several, on a simulated device.

use lowtide_tensor::Device;
use lowtide_trainer::{
    Examples, Fit, Parallelism, Plan, PlanOptions, Result, TrainError, lock_pages,
};

use crate::command::DeviceArgs;
use crate::command::capacity::Capacity;
use crate::command::device::Simulated;
use crate::command::parallelism_table::ParallelismTable;
use crate::command::planning::PlanningArgs;
use crate::command::stages::Stages;
use crate::recipe::{Recipe, RecipeData, RecipeTrainer, Samples};

/// The division among ranks of the fastest plan that fits, if there is one.
///
/// # Errors
/// Anything that keeps the recipe from being built.
pub(super) fn fastest_division(
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
    Ok(place.share_batches(recipe, budget_bytes)?.fastest())
}

/// The device and the data of rehearsals.
#[derive(Clone, Copy)]
pub(super) struct Rehearsing<'a> {
    pub(super) planning: &'a PlanningArgs,
    pub(super) sim: &'a Device,
    pub(super) host: Option<&'a Device>,
    pub(super) samples: Samples,
    pub(super) fit: &'a Fit<'a>,
}

impl Rehearsing<'_> {
    /// The training of a rank.
    ///
    /// # Errors
    /// Anything that keeps the training from being built.
    pub(super) fn trainer(
        &self,
        recipe: &Recipe,
        zero: Parallelism,
        index: usize,
    ) -> Result<RecipeTrainer> {
        Capacity::lift(self.sim);
        let ranks = self.planning.simulated_rank(index);
        let mut trainer = recipe.trainer_among(ranks, zero, self.sim, self.samples)?;
        trainer.set_offload(self.host.cloned());
        trainer.cut_for(&Examples::of(self.fit)?)?;
        Ok(trainer)
    }

    /// True if there are several ranks, and the states of the optimizer can be divided among them.
    ///
    /// # Errors
    /// Anything that keeps the recipe from being built.
    pub(super) fn can_divide(&self, recipe: &Recipe) -> Result<bool> {
        Capacity::lift(self.sim);
        let trainer = recipe.trainer(self.sim, self.samples)?;
        Ok(self.planning.rank_count() > 1 && trainer.optimizer().can_update_parts())
    }

    /// The plans within a budget for each parallelism that shares batches.
    ///
    /// # Errors
    /// Errors of a plan except `DoesNotFit`.
    pub(super) fn share_batches(
        &self,
        recipe: &Recipe,
        budget_bytes: usize,
    ) -> Result<ParallelismTable> {
        let capacity = Capacity::of(budget_bytes);
        ParallelismTable::of(capacity, self.fit, |zero| self.trainer(recipe, zero, 0))
    }

    /// The plan of ranks that share a model instead of batches, and the most bytes that a rank
    /// sends in a step; `None` for a model that cannot be shared in this way.
    ///
    /// # Errors
    /// `DoesNotFit`; anything that keeps the recipe from being built.
    pub(super) fn share_model(
        &self,
        recipe: &Recipe,
        zero: Parallelism,
        capacity: Capacity,
    ) -> Result<Option<(Plan, usize)>> {
        let RecipeData { samples, mut train, test } = recipe.open()?;
        lock_pages(&mut train, self.sim)?;
        let fit = recipe.fit(&train, &test);
        let &Rehearsing { planning, sim, host, .. } = self;
        let place = Rehearsing { planning, sim, host, samples, fit: &fit };
        let planned = if zero == Parallelism::Pipeline {
            place.stages(recipe, capacity).map(|(stages, most)| Some(stages.plan_of(most)))
        } else {
            place.share_features(recipe, zero, capacity)
        };
        match planned {
            Err(TrainError::Setting { .. }) => Ok(None),
            planned => planned,
        }
    }

    fn share_features(
        &self,
        recipe: &Recipe,
        zero: Parallelism,
        capacity: Capacity,
    ) -> Result<Option<(Plan, usize)>> {
        let mut trainer = self.trainer(recipe, zero, 0)?;
        if !trainer.optimizer().can_update_parts() {
            return Ok(None);
        }
        let (plan, _) = capacity.plan(&mut trainer, self.fit, &PlanOptions::default())?;
        let sent_bytes = trainer.sent_bytes(&plan);
        Ok(Some((plan, sent_bytes)))
    }

    /// The stages of a pipeline, each within a capacity, and the index of the stage that needs
    /// most.
    ///
    /// # Errors
    /// Errors of a plan; anything that keeps the recipe from being built.
    pub(super) fn stages(&self, recipe: &Recipe, capacity: Capacity) -> Result<(Stages, usize)> {
        Stages::of(self.planning.rank_count(), |index, micro_batch_max, forecasts| {
            let mut trainer = self.trainer(recipe, Parallelism::Pipeline, index)?;
            let forecasts = forecasts.clone();
            let options = PlanOptions { micro_batch_max, forecasts, ..PlanOptions::default() };
            let (plan, _) = capacity.plan(&mut trainer, self.fit, &options)?;
            let sent_bytes = trainer.sent_bytes(&plan);
            Ok((plan, trainer.stage(), sent_bytes))
        })
    }
}
