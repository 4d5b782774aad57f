//! Dynamic loss scaling inside the step.

use lowtide_amp::{LossScaler, LossScalerOptions};
use lowtide_trainer::{Options, Trainer};

use crate::common::{KINDS, Kind, Run, cnn, first_batch, noise, values, versions};

fn scaled(initial_scale: f32) -> Options {
    let options = LossScalerOptions { initial_scale, ..Default::default() };
    let scaler = LossScaler::new(options).expect("in range");
    Options { scaler: Some(scaler), ..Options::default() }
}

#[test]
fn power_of_two_scales_give_the_bits_of_the_unscaled_run() {
    for kind in KINDS {
        let run = Run { kind, epochs: 2, ..Run::default() };
        let plain = run.fit(None);
        for scale in [1.0, 1024.0, 65_536.0] {
            let device = run.device(None);
            let mut trainer = run.trainer_with(&device, scaled(scale));
            let outcome = run.fit_trainer(&device, &mut trainer, |_, _| {}).expect("memory");
            assert_eq!(outcome.losses(), plain.losses(), "{kind:?} scaled by {scale}");
            assert!(outcome.reports.iter().all(|report| !report.skipped));
            let mut reference = run.trainer(&device);
            run.fit_trainer(&device, &mut reference, |_, _| {}).expect("memory");
            assert_eq!(values(trainer.task_mut()), values(reference.task_mut()), "{kind:?}");
            assert_ne!(outcome.state_hash, plain.state_hash, "the scale belongs to the state");
        }
    }
}

#[test]
fn peak_is_predicted_with_scaling_too() {
    for kind in KINDS {
        let run = Run { kind, train_len: 200, epochs: 2, ..Run::default() };
        let outcome = run.fit_with(None, scaled(1024.0), |_, _| {});
        assert_eq!(outcome.measured_peak_bytes, outcome.plan.predicted_peak_bytes());
    }
}

#[test]
fn overflowing_scale_backs_off_and_leaves_the_parameters_alone_until_it_fits() {
    let initial_scale = f32::MAX / 2.0;
    let run = Run { train_len: 96, ..Run::default() };
    let device = run.device(None);
    let task = cnn(&device, run.channels, run.seed);
    let mut trainer = Trainer::new(&device, task, Kind::Adam.build(0.01), scaled(initial_scale));
    // Images so bright that some gradients exceed 2, so that half of the largest float is too large
    // as a scale.
    let bright = noise(&[3; 12], 12, 1e4);
    let batch = first_batch(&bright);

    // A copy of the scaler's state machine, fed with the results that the step reports.
    let mut twin = scaled(initial_scale).scaler.expect("one is given");
    let mut skipped = 0;
    let before = (values(trainer.task_mut()), versions(trainer.task_mut()));
    let blocks = device.allocator().layout_hash();
    let mut losses = Vec::new();
    loop {
        let report = trainer.step(&batch).expect("memory");
        losses.push(report.loss);
        let mut found = [if report.skipped { f32::INFINITY } else { 0.0 }];
        twin.step("", &mut [&mut found[..]][..]).expect("in its turn");
        twin.update().expect("few are skipped");
        if !report.skipped {
            break;
        }
        skipped += 1;
        assert!(skipped < 300, "a scale of {} still overflows", twin.scale());
        let after = (values(trainer.task_mut()), versions(trainer.task_mut()));
        assert_eq!(after, before, "a skipped step wrote");
        assert_eq!(device.allocator().layout_hash(), blocks, "a skipped step left something");
    }
    assert!(skipped >= 1, "the scale was not too large");
    assert!(losses.iter().all(|loss| loss.to_bits() == losses[0].to_bits()), "unscaled losses");
    let after = values(trainer.task_mut());
    assert_ne!(after, before.0);
    assert!(after.iter().all(|value| value.is_finite()));
    assert_eq!(trainer.steps(), skipped + 1);

    // From here on the run equals one that begins with the scale that `twin` reached.
    let task = cnn(&device, run.channels, run.seed);
    let scale = twin.scale();
    let mut late = Trainer::new(&device, task, Kind::Adam.build(0.01), scaled(scale));
    let report = late.step(&batch).expect("memory");
    assert!(!report.skipped);
    assert_eq!(values(late.task_mut()), after);
    let task = cnn(&device, run.channels, run.seed);
    let mut early = Trainer::new(&device, task, Kind::Adam.build(0.01), scaled(2.0 * scale));
    assert!(early.step(&batch).expect("memory").skipped, "twice that scale overflows");
}
