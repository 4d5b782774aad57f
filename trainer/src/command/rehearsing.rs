//! Trainings of one of several ranks, on a simulated device.

use lowtide_tensor::Device;

use crate::command::DeviceArgs;
use crate::command::device::{CAPACITY_BYTES, Simulated};
use crate::command::planning::PlanningArgs;
use crate::command::ways::Ways;
use crate::error::Result;
use crate::outline::{Examples, Fit};
use crate::page_lock::lock_pages;
use crate::recipe::{Recipe, RecipeData, RecipeTrainer, Samples};
use crate::zero::Zero;

/// What is divided among the ranks in the fastest plan that fits, if there is one.
///
/// # Errors
/// Anything that keeps the recipe from being built.
pub(super) fn fastest_way(
    recipe: &Recipe,
    device: &DeviceArgs,
    planning: &PlanningArgs,
) -> Result<Option<Zero>> {
    let Simulated { device: sim, budget_bytes, .. } = device.open_simulated(None)?;
    let RecipeData { samples, mut train, test } = recipe.open_share(planning.first_rank())?;
    lock_pages(&mut train, &sim)?;
    let host = planning.open_simulated_host(device)?;
    let fit = recipe.fit(&train, &test);
    let place = Rehearsing { planning, sim: &sim, host: host.as_ref(), samples, fit: &fit };
    let ways = Ways::of(budget_bytes, &fit, |zero| place.trainer(recipe, zero, 0))?;
    Ok(ways.fastest())
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
        zero: Zero,
        index: usize,
    ) -> Result<RecipeTrainer> {
        self.sim.allocator().set_capacity(CAPACITY_BYTES);
        let ranks = self.planning.simulated_rank(index);
        let mut trainer = recipe.trainer_among(ranks, zero, self.sim, self.samples)?;
        trainer.set_offload(self.host.cloned());
        trainer.cut_for(&Examples::of(self.fit)?)?;
        Ok(trainer)
    }
}
