//! Every reference model has the same hash after one run, after a run in pieces, and after a run
//! resumed from a checkpoint. Batch norm, dropout, clipping, warm-ups and schedules are those of
//! its recipe.

use lowtide_amp::{LossScaler, LossScalerOptions};
use lowtide_cli::recipe::{Recipe, RecipeData, RecipeTrainer};
use lowtide_nn::optim::{Adam, AdamOptions, Averaged, PerParameter, Stateful};
use lowtide_tensor::{CpuOptions, Device};
use lowtide_trainer::{Options, Task, Trainer};

use crate::small_recipes::{RECIPES, recipe};

pub(crate) fn trainer(recipe: &Recipe, threads: usize) -> RecipeTrainer {
    let options = CpuOptions { threads: Some(threads), ..Default::default() };
    let samples = recipe.open().expect("data").samples;
    recipe.trainer(&Device::cpu(options).expect("a device"), samples).expect("memory")
}

/// The state hash of a training after several runs of these numbers of steps.
fn hash_after<T: Task + Clone, O: Stateful + Clone>(
    recipe: &Recipe,
    trainer: &mut Trainer<T, O>,
    pieces: &[u64],
) -> u64 {
    let RecipeData { train, test, .. } = recipe.open().expect("data");
    for &steps in pieces {
        trainer.run(&recipe.fit(&train, &test).steps(steps), &mut []).expect("memory");
    }
    trainer.state_hash().expect("cpu")
}

/// Checks that five steps in pieces, and five steps resumed from a checkpoint with other threads,
/// equal five steps at once.
fn check<T: Task + Clone, O: Stateful + Clone>(
    name: &str,
    mut recipe: Recipe,
    new: impl Fn(&Recipe, usize) -> Trainer<T, O>,
) {
    let whole = hash_after(&recipe, &mut new(&recipe, 2), &[5]);
    assert_eq!(hash_after(&recipe, &mut new(&recipe, 2), &[1, 2, 2]), whole, "{name}");
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = new(&recipe, 2);
    hash_after(&recipe, &mut first, &[3]);
    first.save(&folder.path().join("three")).expect("room");
    // The numbers of reading and computing threads change.
    *recipe.data.workers_mut() = 0;
    let mut second = new(&recipe, 1);
    second.load(&folder.path().join("three")).expect("whole");
    assert_eq!(hash_after(&recipe, &mut second, &[2]), whole, "{name} from a checkpoint");
}

#[test]
fn pieces_and_checkpoints_are_the_run_for_every_model() {
    for (name, sets) in RECIPES {
        check(name, recipe(name, sets), trainer);
    }
}

/// AdamW in two groups with a schedule, averages, clipping, and a loss scale that overflows at
/// first.
fn with_everything(
    recipe: &Recipe,
    threads: usize,
) -> Trainer<Box<dyn Task>, impl Stateful + Clone + use<>> {
    let options = CpuOptions { threads: Some(threads), ..Default::default() };
    let device = Device::cpu(options).expect("a device");
    let rule = AdamOptions { learning_rate: 0.01, ..AdamOptions::adamw() };
    let slower = AdamOptions { learning_rate: 0.001, ..rule };
    let adam = Adam::new(rule).and_then(|adam| adam.with_group("*.bias", slower));
    let adam = adam.and_then(|adam| adam.with_schedule(recipe.schedule())).expect("in range");
    let averaged: Averaged<PerParameter<AdamOptions>> = Averaged::new(adam, 0.9).expect("in range");
    let scale = LossScalerOptions {
        initial_scale: 2f32.powi(127),
        growth_interval: 2,
        ..LossScalerOptions::default()
    };
    let scaler = Some(LossScaler::new(scale).expect("in range"));
    let options = Options { clip_norm: Some(0.5), scaler, ..Options::default() };
    let samples = recipe.open().expect("data").samples;
    Trainer::new(&device, recipe.task(&device, samples).expect("memory"), averaged, options)
}

#[test]
fn pieces_and_checkpoints_are_the_run_for_every_model_with_everything_on() {
    for (name, sets) in RECIPES {
        check(name, recipe(name, sets), with_everything);
    }
}
