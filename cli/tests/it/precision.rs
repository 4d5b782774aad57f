//! Training in bf16 and f16: its planned memory, its loss scale, and its bits.

use std::path::Path;

use lowtide_allocator::Category;
use lowtide_amp::{LossScaler, LossScalerOptions};
use lowtide_cli::recipe::{Recipe, RecipeData, RecipeTrainer, StoredType};
use lowtide_trainer::{MicroBatches, Options, Precision, Trainer};

use crate::common::{KINDS, Kind, Run, first_batch, values};
use crate::every_model::trainer;
use crate::small_recipes::{RECIPES, recipe};

const HALF: [Precision; 2] = [Precision::Bf16, Precision::F16];

fn in_type(precision: Precision) -> Options {
    Options { precision, ..Options::default() }
}

#[test]
fn peak_is_predicted_to_the_byte_in_every_precision() {
    for kind in KINDS {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let run = Run { kind, train_len: 200, epochs: 2, ..Run::default() };
            let outcome = run.fit_with(None, in_type(precision), |_, _| {});
            assert_eq!(
                outcome.measured_peak_bytes,
                outcome.plan.predicted_peak_bytes(),
                "{kind:?} in {precision}"
            );
        }
    }
}

#[test]
fn split_batches_in_half_types_are_planned_to_the_byte_and_one_byte_less_does_not_fit() {
    for precision in HALF {
        let run = Run { train_len: 96, ..Run::default() };
        let whole = run.fit_with(None, in_type(precision), |_, _| {});
        let budget_bytes = whole.measured_peak_bytes - 1;
        let split = run.fit_with(Some(budget_bytes), in_type(precision), |_, _| {});
        assert!(split.plan.knobs.micro_batch < run.batch_size, "{precision}");
        assert!(split.measured_peak_bytes <= budget_bytes);
        assert_eq!(split.measured_peak_bytes, split.plan.predicted_peak_bytes());
    }
}

#[test]
fn f16_has_a_scaler_unless_told_otherwise_and_the_others_have_none() {
    let run = Run::default();
    let device = run.device(None);
    let scaler_of = |options| run.trainer_with(&device, options).scaler().clone();
    assert_eq!(scaler_of(in_type(Precision::F16)), LossScaler::default());
    assert!(!scaler_of(in_type(Precision::F32)).is_enabled());
    assert!(!scaler_of(in_type(Precision::Bf16)).is_enabled());
    let unscaled = Options { scaler: Some(LossScaler::disabled()), ..in_type(Precision::F16) };
    assert!(!scaler_of(unscaled).is_enabled());
}

#[test]
fn bf16_is_its_own_training_and_scaling_it_by_a_power_of_two_changes_no_bit() {
    let run = Run { epochs: 2, ..Run::default() };
    let values_after = |options: Options| {
        let device = run.device(None);
        let mut trainer = run.trainer_with(&device, options);
        run.fit_trainer(&device, &mut trainer, |_, _| {}).expect("memory");
        values(trainer.task_mut())
    };
    let options = LossScalerOptions { initial_scale: 1024.0, ..Default::default() };
    let scaler = Some(LossScaler::new(options).expect("in range"));
    let bf16 = values_after(in_type(Precision::Bf16));
    assert_eq!(values_after(Options { scaler, ..in_type(Precision::Bf16) }), bf16);
    assert_ne!(values_after(in_type(Precision::F32)), bf16);
}

#[test]
fn f16_backs_off_from_a_scale_that_overflows_and_goes_on_from_a_checkpoint_of_that() {
    let run = Run { train_len: 96, ..Run::default() };
    let options = LossScalerOptions { initial_scale: 1e15, ..Default::default() };
    let scaler = || Some(LossScaler::new(options).expect("in range"));
    let device = run.device(None);
    let batch = first_batch(&run.loaders().0);
    let options = || Options { scaler: scaler(), ..in_type(Precision::F16) };
    let mut trainer: Trainer<_, _> = run.trainer_with(&device, options());
    let before = values(trainer.task_mut());
    let mut skipped = 0;
    while trainer.step(&batch).expect("memory").skipped {
        skipped += 1;
        assert_eq!(values(trainer.task_mut()), before);
    }
    assert!(skipped > 10, "f16 ends at 65504, so 1e15 is far too much: {skipped} skipped");
    assert_ne!(values(trainer.task_mut()), before);
    let folder = tempfile::tempdir().expect("a folder");
    trainer.save(&folder.path().join("here")).expect("room");
    let mut resumed = run.trainer_with(&device, options());
    resumed.load(&folder.path().join("here")).expect("whole");
    assert_eq!(resumed.scaler(), trainer.scaler());
    let [next, again] = [&mut trainer, &mut resumed].map(|trainer| {
        trainer.step(&batch).expect("memory");
        trainer.state_hash().expect("cpu")
    });
    assert_eq!(next, again);
}

#[test]
fn amp_fused_optimizer_parity() {
    // Lightning compares a fused optimizer with an ordinary one, both with a scaled loss. Here the
    // plain formula w - rate · dw is applied to the gradients after scaling.
    let rate = 0.25;
    let run = Run { train_len: 96, ..Run::default() };
    let batch = first_batch(&run.loaders().0);
    let step = |rate: f64, precision| {
        let device = run.device(None);
        let task = crate::common::cnn(&device, run.channels, run.seed);
        let mut trainer = Trainer::new(&device, task, Kind::Plain.build(rate), in_type(precision));
        let before = values(trainer.task_mut());
        assert!(!trainer.step(&batch).expect("memory").skipped);
        let after = values(trainer.task_mut());
        (before, after)
    };
    for precision in HALF {
        // A rate of 1 and a power of two show the gradient exactly, except for the rounding of w.
        let ((before, whole), (_, part)) = (step(1.0, precision), step(rate, precision));
        for ((w, whole), part) in before.iter().zip(&whole).zip(&part) {
            let expected = w - (w - whole) * rate as f32;
            let tolerance = 4.0 * f32::EPSILON * w.abs().max(whole.abs()).max(1.0);
            assert!((part - expected).abs() <= tolerance, "{part} is not {expected}");
        }
    }
}

/// Types of operations and of parameters.
const NARROW: [(Precision, StoredType); 4] = [
    (Precision::Bf16, StoredType::F32),
    (Precision::F16, StoredType::F32),
    (Precision::F32, StoredType::Bf16),
    (Precision::Bf16, StoredType::Bf16),
];

#[test]
fn every_model_learns_in_half_types_as_planned_and_goes_on_from_a_checkpoint() {
    for ((name, sets), (precision, stored)) in
        RECIPES.into_iter().flat_map(|model| NARROW.map(|types| (model, types)))
    {
        let what = format!("{name} in {precision}, parameters in {stored:?}");
        let mut recipe = recipe(name, sets);
        recipe.train.precision = precision;
        recipe.train.parameters = stored;
        let RecipeData { train, test, .. } = recipe.open().expect("data");
        let mut whole = trainer(&recipe, 2);
        let fit = recipe.fit(&train, &test).steps(4);
        whole.run(&fit, &mut []).unwrap_or_else(|error| panic!("{what}: {error}"));
        let plan = whole.current_plan().expect("it was planned").clone();
        let statistics = whole.device().allocator().statistics();
        assert_eq!(statistics.reserved.peak_bytes, plan.predicted_peak_bytes(), "{what}");
        let folder = tempfile::tempdir().expect("a folder");
        let mut first = trainer(&recipe, 1);
        let run = |trainer: &mut RecipeTrainer, steps| {
            let fit = recipe.fit(&train, &test).steps(steps);
            trainer.run(&fit, &mut []).unwrap_or_else(|error| panic!("{what}: {error}"));
        };
        run(&mut first, 3);
        first.save(&folder.path().join("three")).expect("room");
        let mut second = trainer(&recipe, 2);
        second.load(&folder.path().join("three")).expect("whole");
        run(&mut second, 1);
        let [one, other] = [&mut whole, &mut second].map(|t| t.state_hash().expect("cpu"));
        assert_eq!(one, other, "{what}");
    }
}

#[test]
fn parameters_in_bf16_take_half_and_reach_what_f32_does() {
    let outcome = |parameters: &str| {
        let sets = ["train.batch_size=64".to_owned(), format!("train.parameters={parameters}")];
        let recipe = Recipe::load_with(Some(Path::new("digits-mlp")), &sets).expect("it ships");
        let RecipeData { train, test, .. } = recipe.open().expect("data");
        let mut trainer = trainer(&recipe, 2);
        let score = trainer.run(&recipe.fit(&train, &test).epochs(12), &mut []).expect("memory");
        let bytes = trainer.device().allocator().statistics().by_category;
        (score.accuracy(), bytes[Category::Parameter].current_bytes)
    };
    let ((f32, f32_bytes), (bf16, bf16_bytes)) = (outcome("f32"), outcome("bf16"));
    assert!(bf16 > 0.85 && bf16 > f32 - 0.03, "{bf16} against {f32}");
    assert!(bf16_bytes * 10 < f32_bytes * 6, "{bf16_bytes} of {f32_bytes} bytes");
}

#[test]
fn activations_of_a_convolutional_network_take_about_half() {
    let peaks = |precision| {
        let options = Options { micro_batches: MicroBatches::Never, ..in_type(precision) };
        let run = Run { train_len: 384, batch_size: 384, ..Run::default() };
        let plan = run.fit_with(None, options, |_, _| {}).plan;
        let of = |(category, bytes): &(Category, usize)| {
            (*category == Category::Activation).then_some(*bytes)
        };
        plan.forecast.category_peaks.iter().find_map(of).expect("every category has one")
    };
    let f32 = peaks(Precision::F32);
    for precision in HALF {
        let half = peaks(precision);
        assert!(half * 10 < f32 * 7, "{half} of {f32} bytes in {precision}");
    }
}
