//! Models with running statistics and with random layers.

use std::time::Duration;

use lowtide_allocator::{Fault, Repeat};
use lowtide_amp::{LossScaler, LossScalerOptions};
use lowtide_nn::optim::Stateful;
use lowtide_nn::{BatchNorm2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, ReLU, Sequential};
use lowtide_tensor::{Conv2dGeometry, Device, RandomKey};
use lowtide_trainer::{Classification, Options, Task, Trainer};

use crate::common::{Kind, Outcome, Run, first_batch, noise, reassociation};

/// The layer between convolution and pooling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Middle {
    BatchNorm,
    Dropout,
}

pub(crate) type Net = Classification<Sequential>;

pub(crate) fn net(device: &Device, run: &Run, middle: Middle) -> Net {
    let key = RandomKey::new(run.seed);
    let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
    let conv = Conv2d::new(device, key.op("conv"), [1, run.channels], [3, 3], geometry);
    let start = Sequential::new().then(conv.expect("memory"));
    let start = match middle {
        Middle::BatchNorm => start.then(BatchNorm2d::new(device, run.channels).expect("memory")),
        Middle::Dropout => start.then(Dropout::new(0.5).expect("in range")),
    };
    let linear = Linear::new(device, key.op("linear"), run.channels * 16, 10).expect("memory");
    let end = start.then(ReLU).then(MaxPool2d::square(2)).then(Flatten);
    Classification::new(end.then(Dropout::new(0.1).expect("in range")).then(linear))
}

pub(crate) fn trainer(
    device: &Device,
    run: &Run,
    middle: Middle,
) -> Trainer<Net, Box<dyn Stateful>> {
    trainer_with(device, run, middle, Options::default())
}

pub(crate) fn trainer_with(
    device: &Device,
    run: &Run,
    middle: Middle,
    options: Options,
) -> Trainer<Net, Box<dyn Stateful>> {
    let options = Options { seed: run.seed, ..options };
    Trainer::new(device, net(device, run, middle), run.kind.build(0.01), options)
}

/// The values of all buffers in one list.
fn buffers(task: &mut impl Task) -> Vec<f64> {
    let mut values = Vec::new();
    task.parameters().visit_buffers(&mut |_, buffer| {
        let wide = buffer.value().to_dtype(lowtide_tensor::DType::F64).expect("memory");
        values.extend(wide.to_vec::<f64>().expect("f64"));
    });
    values
}

fn fit(run: &Run, middle: Middle, budget_bytes: Option<usize>) -> Outcome {
    let device = run.device(budget_bytes);
    run.fit_trainer(&device, &mut trainer(&device, run, middle), |_, _| {}).expect("fits")
}

#[test]
fn peak_of_models_with_buffers_or_randomness_is_the_predicted_one() {
    for middle in [Middle::BatchNorm, Middle::Dropout] {
        for batch_size in [96, 40] {
            let run = Run { batch_size, epochs: 2, ..Run::default() };
            let outcome = fit(&run, middle, None);
            let predicted_bytes = outcome.plan.predicted_peak_bytes();
            assert_eq!(predicted_bytes, outcome.measured_peak_bytes, "{middle:?} {batch_size}");
            assert_eq!(fit(&run, middle, None).state_hash, outcome.state_hash, "{middle:?}");
        }
    }
}

#[test]
fn running_statistics_move_with_every_step_and_belong_to_the_state() {
    let run = Run::default();
    let device = run.device(None);
    let mut trainer = trainer(&device, &run, Middle::BatchNorm);
    assert_eq!(buffers(trainer.task_mut())[2 * run.channels], 0.0, "batches tracked");
    let outcome = run.fit_trainer(&device, &mut trainer, |_, _| {}).expect("fits");
    let after = buffers(trainer.task_mut());
    assert_eq!(after[2 * run.channels], outcome.reports.len() as f64, "batches tracked");
    assert!(after[..run.channels].iter().all(|mean| *mean != 0.0), "{after:?}");
    trainer.task_mut().parameters().visit_buffers(&mut |name, buffer| {
        if name == "1.running_var" {
            buffer.value_mut().mul_scalar_(2.0).expect("not frozen");
        }
    });
    assert_ne!(trainer.state_hash().expect("cpu"), outcome.state_hash);
}

#[test]
fn step_of_a_model_with_buffers_survives_the_failure_of_any_of_its_allocations() {
    let run = Run { channels: 8, ..Run::default() };
    let device = run.device(None);
    let (mut counts, mut calm) = (Vec::new(), trainer(&device, &run, Middle::BatchNorm));
    let note = |device: &Device, _| counts.push(device.allocator().request_count());
    let calm = run.fit_trainer(&device, &mut calm, note).expect("undisturbed");
    for nth in 1..=counts[1] - counts[0] {
        let device = run.device(None);
        let mut stormy = trainer(&device, &run, Middle::BatchNorm);
        let inject = |device: &Device, step| {
            if step == 0 {
                device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
            }
        };
        let stormy = run.fit_trainer(&device, &mut stormy, inject).expect("recovered");
        assert_eq!(stormy.state_hash, calm.state_hash, "allocation {nth}");
        assert_eq!(stormy.retried_steps, 1, "allocation {nth}");
        assert_eq!(stormy.layout_hash, calm.layout_hash, "allocation {nth}");
    }
}

#[test]
fn step_that_fails_for_good_leaves_the_buffers_alone() {
    let run = Run { channels: 8, ..Run::default() };
    let device = run.device(None);
    let mut trainer = trainer(&device, &run, Middle::BatchNorm);
    let batch = first_batch(&run.loaders().0);
    trainer.step(&batch).expect("undisturbed");
    let (state_hash, blocks) =
        (trainer.state_hash().expect("cpu"), device.allocator().live_blocks());
    let begin = device.allocator().request_count();
    trainer.step(&batch).expect("undisturbed");
    let requests = device.allocator().request_count() - begin;
    assert_ne!(trainer.state_hash().expect("cpu"), state_hash);
    trainer.set_wait(Some(Duration::ZERO));
    for nth in 1..=requests {
        let state_hash = trainer.state_hash().expect("cpu");
        device.allocator().inject_fault(Fault { nth, repeat: Repeat::Forever });
        trainer.step(&batch).expect_err("no memory");
        device.allocator().clear_fault();
        assert_eq!(trainer.state_hash().expect("cpu"), state_hash, "allocation {nth}");
        assert_eq!(device.allocator().live_blocks(), blocks, "allocation {nth}");
    }
}

#[test]
fn skipped_step_leaves_the_buffers_alone() {
    let run = Run::default();
    let device = run.device(None);
    let options = LossScalerOptions { initial_scale: f32::MAX / 2.0, ..Default::default() };
    let scaler = LossScaler::new(options).expect("in range");
    let task = net(&device, &run, Middle::BatchNorm);
    let options = Options { scaler: Some(scaler), ..Options::default() };
    let mut trainer = Trainer::new(&device, task, Kind::Plain.build(0.01), options);
    let batch = first_batch(&noise(&[3; 12], 12, 1e4));
    let before = buffers(trainer.task_mut());
    assert!(trainer.step(&batch).expect("memory").skipped, "the scale was not too large");
    assert_eq!(buffers(trainer.task_mut()), before);
    while trainer.step(&batch).expect("memory").skipped {}
    assert_ne!(buffers(trainer.task_mut()), before);
}

#[test]
fn coupled_batches_stay_whole_and_random_ones_lose_the_same_elements_in_parts() {
    // The learning rate is so small that an error in one step does not grow in the next.
    let run = Run { epochs: 2, ..Run::default() };
    let plan = |trainer: &mut Trainer<Net, Box<dyn Stateful>>| {
        let (train, test) = run.loaders();
        trainer.plan(&train, &test, run.epochs)
    };
    let mut budget_bytes = None;
    loop {
        let device = run.device(budget_bytes);
        let Ok(plan) = plan(&mut trainer(&device, &run, Middle::BatchNorm)) else { break };
        assert_eq!(plan.knobs.micro_batch, plan.batch_size, "{plan}");
        budget_bytes = Some(plan.predicted_peak_bytes() - 1);
    }
    assert!(budget_bytes.is_some(), "there is a plan without a limit");

    let whole = fit(&run, Middle::Dropout, None);
    let parts = fit(&run, Middle::Dropout, Some(whole.measured_peak_bytes - 1));
    assert!(parts.plan.knobs.micro_batch < whole.plan.knobs.micro_batch);
    for (a, b) in parts.losses().into_iter().zip(whole.losses()) {
        // Dropping other elements would change the result by about a tenth.
        let tolerance = 4.0 * reassociation(run.batch_size * 64) * b.max(1.0);
        assert!((a - b).abs() <= tolerance, "{a} {b} {tolerance:e}");
    }
}
