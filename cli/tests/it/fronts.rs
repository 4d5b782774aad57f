//! The plans of common models over all budgets. Each plan is run, takes exactly the predicted
//! bytes, and computes the result of the run without a limit.

use lowtide_cli::recipe::{Recipe, RecipeData};
use lowtide_tensor::{CpuOptions, Device};
use lowtide_trainer::{Knobs, Plan, Precision, Remedy, Result};

use crate::common::does_not_fit;
use crate::losses::Losses;
use crate::small_recipes::recipe;

/// Models with batch normalisation may not be split, because it couples samples.
const MODELS: [(&str, &str, &[&str]); 7] = [
    ("ResNet-18", "digits-resnet", &["model.width=4", "data.shape=[3, 16, 16]"]),
    ("ResNet-50", "digits-resnet", &["model.width=4", "model.depth=50", "data.shape=[3, 16, 16]"]),
    ("U-Net", "digits-unet", &["model.width=4"]),
    ("ViT", "digits-vit", &["model.width=32", "model.blocks=4", "model.hidden=64"]),
    (
        "GPT with dropout",
        "text-gpt",
        &["model.width=32", "model.blocks=4", "data.context=32", "model.dropout=0.1"],
    ),
    ("seq2seq", "text-seq2seq", &["model.width=32", "model.hidden=64", "data.context=16"]),
    ("LSTM", "text-lstm", &["model.width=16", "model.hidden=32", "data.context=16"]),
];

const BUDGETS: usize = 10;
const STEPS: u64 = 2;

struct Found {
    plan: Plan,
    losses: Vec<f64>,
    hash: u64,
}

fn run(recipe: &Recipe, budget_bytes: usize) -> Result<Found> {
    let options = CpuOptions { threads: Some(2), ..Default::default() };
    let device = Device::cpu(options).expect("address space");
    let RecipeData { samples, train, test } = recipe.open()?;
    let mut trainer = recipe.trainer(&device, samples)?;
    device.allocator().set_capacity(budget_bytes);
    let fit = recipe.fit(&train, &test).steps(STEPS);
    let plan = trainer.plan_run(&fit, &Default::default())?;
    let mut losses = Losses::default();
    trainer.run(&fit, &mut [&mut losses])?;
    assert_eq!((trainer.retried_steps(), trainer.knobs()), (0, plan.knobs));
    let measured_bytes = device.allocator().statistics().reserved.peak_bytes;
    assert_eq!(plan.predicted_peak_bytes(), measured_bytes, "{plan}");
    Ok(Found { plan, losses: losses.0, hash: trainer.state_hash()? })
}

#[test]
fn plans_of_seven_models_at_ten_budgets_take_what_they_say_and_compute_the_same() {
    let (mut runs, mut wider_evaluations, mut half_precision_helps) = (0, 0, 0);
    for (name, recipe_name, sets) in MODELS {
        let recipe = recipe(recipe_name, sets);
        let whole = run(&recipe, usize::MAX).expect("no limit");
        let whole_bytes = whole.plan.predicted_peak_bytes();
        let least_bytes = does_not_fit(run(&recipe, 1 << 16)).needed_bytes;
        let mut knobs: Vec<Knobs> = Vec::new();
        for index in 0..BUDGETS {
            let budget_bytes = least_bytes + (whole_bytes - least_bytes) * index / (BUDGETS - 1);
            let found =
                run(&recipe, budget_bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            let plan = &found.plan;
            println!("{name}: {plan}: {:.3}", plan.forecast.seconds / whole.plan.forecast.seconds);
            assert!(plan.predicted_peak_bytes() <= budget_bytes);
            assert!(plan.evaluation_batch >= plan.knobs.micro_batch, "{name}: {plan}");
            wider_evaluations += usize::from(plan.evaluation_batch > plan.knobs.micro_batch);
            if plan.knobs.micro_batch == plan.batch_size {
                assert_eq!(found.hash, whole.hash, "{name}: {plan}");
                assert_eq!(found.losses, whole.losses, "{name}: {plan}");
            }
            for (own, expected) in found.losses.iter().zip(&whole.losses) {
                assert!((own - expected).abs() < 1e-5 * expected.abs(), "{name}: {own} {expected}");
            }
            runs += 1;
            knobs.push(plan.knobs);
        }
        knobs.dedup();
        assert!(knobs.len() > 2, "{name}: {knobs:?}");
        // With one byte less than the least budget there is no plan, and the error names the same
        // least budget.
        let error = does_not_fit(run(&recipe, least_bytes - 1));
        assert_eq!(error.needed_bytes, least_bytes, "{name}");
        for remedy in error.remedies {
            let Remedy::HalfPrecision { needed_bytes } = remedy else { continue };
            let mut halved = recipe.clone();
            halved.train.precision = Precision::Bf16;
            let found = run(&halved, needed_bytes).expect("it was said to fit");
            assert!(found.plan.predicted_peak_bytes() < least_bytes, "{name}: {}", found.plan);
            half_precision_helps += 1;
        }
    }
    assert_eq!(runs, 70);
    assert!(wider_evaluations > 20, "{wider_evaluations}");
    assert!(half_precision_helps > 0);
}
