//! Losses and gradients that are not finite are not committed.

use lowtide_amp::{LossScaler, LossScalerOptions};
use lowtide_autograd::Phase;
use lowtide_data::{InMemory, Loader, LoaderOptions, Sequential};
use lowtide_tensor::RandomKey;
use lowtide_trainer::{
    Flow, NonFinite, NotFinite, NotFiniteWhat, Observer, Options, StepReport, Task, TrainError,
    Trainer, Training,
};

use crate::common::{Run, first_batch, labelled, values};

/// Eight images in batches of four; the sixth image contains this pixel.
fn with_pixel(pixel: f32) -> Loader {
    let key = RandomKey::new(3).op("images");
    let mut images: Vec<f32> = (0..8 * 64).map(|index| key.uniform(index)).collect();
    images[5 * 64 + 9] = pixel;
    let data = InMemory::new(8).with("images", &[1, 8, 8], images);
    let data = data.and_then(|data| data.with("labels", &[], vec![1i64; 8])).expect("columns");
    let options = LoaderOptions { batch_size: 4, ..Default::default() };
    Loader::with_sampler(data, Sequential, options).expect("valid options")
}

fn not_finite<T>(result: Result<T, TrainError>) -> NotFinite {
    match result.map(drop) {
        Err(TrainError::NotFinite(error)) => *error,
        other => panic!("{other:?} instead of an error that it is not finite"),
    }
}

#[test]
fn bad_sample_stops_the_run_is_named_and_nothing_of_its_step_is_written() {
    let run = Run::default();
    let (bad, test) = (with_pixel(f32::NAN), labelled(&[0; 4], 4));
    let device = run.device(None);
    let mut trainer = run.trainer(&device);
    let mut calm = run.trainer(&run.device(None));
    calm.step(&first_batch(&bad)).expect("the first batch is finite");
    let error = not_finite(trainer.fit(&bad, &test, 1, &mut []));
    assert_eq!((error.step, error.what), (2, NotFiniteWhat::Loss));
    assert_eq!(error.samples, [5]);
    let anomaly = error.anomaly.expect("an operation was the first");
    assert_eq!((anomaly.op, anomaly.phase), ("conv2d", Phase::Forward));
    assert_eq!(anomaly.module.expect("a layer").path(), "conv");
    let text = error.to_string();
    for words in
        ["step 2 was not committed: the loss is NaN", "sample 5 alone", "in conv: the result"]
    {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(trainer.steps(), 1);
    assert_eq!(trainer.state_hash().expect("cpu"), calm.state_hash().expect("cpu"));
    let calm_step = calm.step(&first_batch(&test)).expect("finite");
    let next = trainer.step(&first_batch(&test)).expect("finite");
    assert_eq!(next.loss.to_bits(), calm_step.loss.to_bits());
}

#[test]
fn gradient_that_overflows_under_a_finite_loss_is_not_committed() {
    let run = Run::default();
    let device = run.device(None);
    let mut trainer = run.trainer(&device);
    // Logits and loss are finite; the gradient of the first layer is not.
    for (layer, scale) in [("conv.weight", 1e-20), ("linear.weight", 1e30)] {
        trainer.task_mut().parameters().visit(&mut |name, parameter| {
            if name == layer {
                parameter.value_mut().mul_scalar_(scale).expect("nothing else uses it");
            }
        });
    }
    let hash = trainer.state_hash().expect("cpu");
    let bright = crate::common::noise(&[1, 2, 3, 4], 4, 1e10);
    let error = not_finite(trainer.step(&first_batch(&bright)));
    assert_eq!(error.what, NotFiniteWhat::Gradient, "{error}");
    assert!(error.loss.is_finite(), "{error}");
    assert_eq!(error.anomaly.expect("found").phase, Phase::Backward);
    assert_eq!(trainer.state_hash().expect("cpu"), hash);
}

#[test]
fn steps_are_skipped_up_to_the_given_number_in_a_row() {
    let run = Run::default();
    let options = Options { non_finite: NonFinite::Skip(2), ..Options::default() };
    let device = run.device(None);
    let mut trainer = run.trainer_with(&device, options);
    let (bad, good) = (with_pixel(f32::INFINITY), first_batch(&labelled(&[0; 4], 4)));
    let bad: Vec<_> = bad.epoch(0).map(|batch| batch.expect("readable")).collect();
    let hash = trainer.state_hash().expect("cpu");
    for _ in 0..2 {
        assert!(trainer.step(&bad[1]).expect("skipped").skipped);
    }
    let after = trainer.state_hash().expect("cpu");
    assert_ne!(hash, after, "steps are counted");
    assert!(!trainer.step(&good).expect("finite").skipped);
    for _ in 0..2 {
        assert!(trainer.step(&bad[1]).expect("a new row").skipped);
    }
    let error = not_finite(trainer.step(&bad[1]));
    assert_eq!(error.what, NotFiniteWhat::Skipped { skipped: 3 });
    assert!(error.to_string().contains("3 steps in a row"), "{error}");
}

#[test]
fn nothing_is_looked_at_where_that_is_asked_for() {
    let run = Run::default();
    let options = Options { non_finite: NonFinite::Ignore, ..Options::default() };
    let device = run.device(None);
    let mut trainer = run.trainer_with(&device, options);
    let bad = with_pixel(f32::NAN);
    let test = labelled(&[0; 4], 4);
    trainer.fit(&bad, &test, 1, &mut []).expect("as in PyTorch");
    assert_eq!(trainer.steps(), 2);
}

#[test]
fn scaler_that_never_finds_a_scale_ends_the_run() {
    let run = Run::default();
    let scaler = LossScaler::new(LossScalerOptions::default()).expect("in range");
    let options = Options { scaler: Some(scaler), ..Options::default() };
    let device = run.device(None);
    let mut trainer: Trainer<_, _> = run.trainer_with(&device, options);
    let bad: Vec<_> = with_pixel(f32::NAN).epoch(0).map(|batch| batch.expect("data")).collect();
    let mut skipped = 0;
    let error = loop {
        match trainer.step(&bad[1]) {
            Ok(report) => {
                assert!(report.skipped);
                skipped += 1;
            }
            error => break not_finite(error),
        }
    };
    assert_eq!((skipped, error.what), (50, NotFiniteWhat::ScaledGradients { skipped: 51 }));
    assert!(!trainer.step(&first_batch(&labelled(&[0; 4], 4))).expect("finite").skipped);
}

/// An observer that stops a run after its first step.
struct StopAtOnce;

impl Observer for StopAtOnce {
    fn on_step(&mut self, _: &StepReport, _: &mut dyn Training) -> Result<Flow, TrainError> {
        Ok(Flow::Stop)
    }
}

#[test]
fn run_whose_steps_were_all_skipped_does_not_end_as_done() {
    let run = Run::default();
    let options = Options { non_finite: NonFinite::Skip(10), ..Options::default() };
    let device = run.device(None);
    let mut trainer = run.trainer_with(&device, options);
    let bad = crate::common::noise(&[1; 8], 4, f32::NAN);
    let good = labelled(&[0; 8], 4);
    let before = values(trainer.task_mut());
    // A run that was stopped has not ended.
    let score = trainer.fit(&bad, &good, 2, &mut [&mut StopAtOnce]).expect("it may go on");
    assert!(score.loss().is_finite() && trainer.steps() == 1);
    let error = not_finite(trainer.fit(&bad, &good, 2, &mut []));
    assert_eq!((error.step, error.what), (4, NotFiniteWhat::Skipped { skipped: 4 }));
    assert!(error.to_string().contains("4 steps in a row"), "{error}");
    assert!(values(trainer.task_mut()) == before && trainer.steps() == 4);
    // With data that is finite it goes on, and skipped steps at its end are no error.
    trainer.fit(&good, &good, 1, &mut []).expect("finite");
    trainer.fit(&bad, &good, 1, &mut []).expect("it has learned something");
    assert_eq!(trainer.steps(), 8);
}

#[test]
fn run_whose_last_loss_is_nan_does_not_end_as_done_unless_nothing_is_looked_at() {
    let fit = |non_finite, test: &Loader| {
        let run = Run::default();
        let options = Options { non_finite, ..Options::default() };
        let mut trainer = run.trainer_with(&run.device(None), options);
        trainer.fit(&labelled(&[0; 8], 4), test, 1, &mut [])
    };
    let bad = with_pixel(f32::NAN);
    for non_finite in [NonFinite::Stop, NonFinite::Skip(2)] {
        let error = not_finite(fit(non_finite, &bad));
        assert_eq!((error.step, error.what), (2, NotFiniteWhat::Score));
        let text = error.to_string();
        assert!(text.contains("evaluation after step 2 is NaN"), "{text}");
    }
    assert!(fit(NonFinite::Ignore, &bad).expect("as in PyTorch").loss().is_nan());
    // A set without targets has no loss.
    let blank = fit(NonFinite::Stop, &labelled(&[-100; 4], 4)).expect("nothing is infinite");
    assert!(blank.loss().is_nan() && blank.count == 0.0);
}
