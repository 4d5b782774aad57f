//! Plans on a simulated device, and the use of their seconds.

use lowtide_tensor::{Device, SimSpec};
use lowtide_trainer::{Fit, TrainError};

use crate::common::{KINDS, Kind, Run, does_not_fit};

fn simulated(run: &Run, capacity_bytes: usize) -> Device {
    let spec = SimSpec::like_this_machine(capacity_bytes);
    Device::sim(SimSpec { threads: run.threads, ..spec }).expect("no memory is needed")
}

#[test]
fn plan_on_a_simulated_device_is_that_of_the_cpu_to_the_byte() {
    for kind in KINDS {
        for threads in [1, 2] {
            let run = Run { kind, threads, train_len: 200, epochs: 2, ..Run::default() };
            let whole_bytes = run.plan(None).expect("fits").predicted_peak_bytes();
            for budget_bytes in [whole_bytes, whole_bytes - 1, whole_bytes / 2] {
                let (train, test) = run.loaders();
                let device = simulated(&run, budget_bytes);
                let plan = run.trainer(&device).plan(&train, &test, 2).expect("fits");
                let real = run.plan(Some(budget_bytes)).expect("fits");
                assert_eq!(plan.knobs.micro_batch, real.knobs.micro_batch);
                assert_eq!(plan.rejected, real.rejected);
                assert_eq!(plan.forecast.peak_bytes, real.forecast.peak_bytes);
                assert_eq!(plan.forecast.category_peaks, real.forecast.category_peaks);
                assert_eq!(plan.forecast.modules_at_peak, real.forecast.modules_at_peak);
            }
        }
    }
}

#[test]
fn misfit_on_a_simulated_device_is_that_of_the_cpu() {
    let run = Run::default();
    let budget_bytes = does_not_fit(run.plan(Some(0))).needed_bytes - 1;
    let (train, test) = run.loaders();
    let device = simulated(&run, budget_bytes);
    let error = does_not_fit(run.trainer(&device).plan(&train, &test, 1));
    assert_eq!(error, does_not_fit(run.plan(Some(budget_bytes))));
}

#[test]
fn larger_machine_than_this_one_can_be_planned_for() {
    let run = Run { channels: 1 << 14, batch_size: 192, ..Run::default() };
    let device = simulated(&run, 1 << 40);
    let (train, test) = run.loaders();
    let plan = run.trainer(&device).plan(&train, &test, 1).expect("fits");
    // 192 images of 64 pixels in 2^14 channels of f32, twice: the activation and its gradient.
    assert!(plan.predicted_peak_bytes() > 2 * 192 * 64 * (1 << 14) * 4);
}

#[test]
fn training_on_a_simulated_device_takes_the_predicted_peak_and_has_no_values() {
    let run = Run { train_len: 200, epochs: 2, ..Run::default() };
    let device = simulated(&run, 1 << 30);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    let plan = trainer.plan(&train, &test, 2).expect("fits");
    trainer.fit(&train, &test, 2, &mut []).expect("fits");
    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    assert_eq!(peak_bytes, plan.predicted_peak_bytes());
    let error = trainer.state_hash().expect_err("no values");
    assert!(matches!(error, TrainError::Nn(_)) && error.to_string().contains("simulated"));
}

#[test]
fn finer_parts_never_cost_less_time() {
    for kind in [Kind::Adam, Kind::Plain] {
        let run = Run { kind, train_len: 200, epochs: 2, ..Run::default() };
        let device = run.device(None);
        let (train, test) = run.loaders();
        let survey = run
            .trainer(&device)
            .survey(&Fit::new(&train).evaluate("test", &test).epochs(2), &Default::default())
            .expect("rehearsed");
        let sizes: Vec<usize> = survey.iter().map(|(knobs, _)| knobs.micro_batch).collect();
        // Parts that need no less memory than larger ones are left out.
        assert!(sizes.len() > 3 && sizes[..3] == [96, 48, 24], "{sizes:?}");
        assert!(sizes.iter().all(|size| [96, 48, 24, 12, 6, 3, 2, 1].contains(size)), "{sizes:?}");
        for pair in survey.windows(2) {
            let [(coarse, before), (fine, after)] = pair else { unreachable!("pairs") };
            assert!(after.seconds >= before.seconds, "{fine:?} is faster than {coarse:?}");
            assert!(after.peak_bytes < before.peak_bytes, "{fine:?} needs no less than {coarse:?}");
        }
        let last = &survey[survey.len() - 1].1;
        assert!(last.seconds > survey[0].1.seconds, "all cost the same");
    }
}

#[test]
fn rehearsal_leaves_the_device_and_the_model_alone() {
    let run = Run { epochs: 3, ..Run::default() };
    let device = run.device(None);
    let mut trainer = run.trainer(&device);
    let (train, test) = run.loaders();
    let before = (device.allocator().statistics(), device.allocator().request_count());
    let hash = trainer.state_hash().expect("cpu");
    trainer.plan(&train, &test, 3).expect("fits");
    trainer
        .survey(&Fit::new(&train).evaluate("test", &test).epochs(3), &Default::default())
        .expect("rehearsed");
    assert_eq!((device.allocator().statistics(), device.allocator().request_count()), before);
    assert_eq!(trainer.state_hash().expect("cpu"), hash);
}
