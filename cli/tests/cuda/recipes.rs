//! The shipped recipes, made small: every kind of model.

use lowtide_cli::recipe::{OPTIMIZERS, Recipe, RecipeData};
use lowtide_tensor::{CpuOptions, Device};
use lowtide_trainer::Precision;

use crate::gpu::Gpu;
use crate::losses::Losses;
use crate::small_recipes::{RECIPES, recipe};

/// Largest relative difference between the losses of both devices: sums have another order, and the
/// error of the step before is carried on. The largest seen is 8e-8, the last digit of an f32.
const TOLERANCE: f64 = 1e-6;

/// Trains two steps. Returns the predicted and the measured peak, and the losses.
fn run(device: &Device, recipe: &Recipe) -> ([usize; 2], Vec<f64>) {
    let RecipeData { samples, train, test, .. } = recipe.open().expect("data");
    let mut trainer = recipe.trainer(device, samples).expect("memory");
    let fit = recipe.fit(&train, &test).steps(2);
    let plan = trainer.plan_run(&fit, &Default::default()).expect("there is no limit");
    let mut losses = Losses::default();
    trainer.run(&fit, &mut [&mut losses]).expect("as planned");
    let measured_bytes = device.allocator().statistics().reserved.peak_bytes;
    ([plan.predicted_peak_bytes(), measured_bytes], losses.0)
}

/// Tolerances in bf16 and f16: a value between two numbers may be rounded to either.
const TOLERANCE_OF_HALVES: [f64; 2] = [4e-3, 5e-4];

fn check(gpu: &Gpu, name: &str, recipe: &Recipe, tolerance: f64) {
    let options = CpuOptions { threads: Some(1), ..Default::default() };
    let (_, expected) = run(&Device::cpu(options).expect("addresses"), recipe);
    let ([predicted, measured], found) = run(&gpu.device(), recipe);
    assert_eq!(predicted, measured, "{name}");
    assert_eq!(found.len(), expected.len(), "{name}");
    for (found, expected) in found.iter().zip(&expected) {
        let apart = (found - expected).abs() / expected.abs();
        assert!(apart <= tolerance, "{name}: a loss of {found}, not {expected}: {apart}");
    }
}

#[test]
fn every_recipe_trains_as_on_the_processor_and_as_planned() {
    let Some(gpu) = Gpu::take() else { return };
    for (name, sets) in RECIPES {
        check(&gpu, name, &recipe(name, sets), TOLERANCE);
    }
}

#[test]
fn every_recipe_trains_in_half_types_as_on_the_processor_and_as_planned() {
    let Some(gpu) = Gpu::take() else { return };
    for (name, sets) in RECIPES {
        for (precision, tolerance) in
            [Precision::Bf16, Precision::F16].into_iter().zip(TOLERANCE_OF_HALVES)
        {
            let mut recipe = recipe(name, sets);
            recipe.train.precision = precision;
            check(&gpu, &format!("{name} in {precision}"), &recipe, tolerance);
        }
    }
}

#[test]
fn every_optimizer_of_a_recipe_trains_as_on_the_processor_and_as_planned() {
    let Some(gpu) = Gpu::take() else { return };
    for kind in OPTIMIZERS {
        let of_kind = format!("optimizer.kind={kind}");
        check(&gpu, kind, &recipe("digits-mlp", &["model.hidden=[16, 16]", &of_kind]), TOLERANCE);
    }
}
