//! Training of pruned models: weights stay pruned through failing steps and checkpoints, and the
//! plan counts the memory of the masks.

use std::cell::RefCell;

use lowtide_allocator::{Fault, Repeat};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions, Masked, Stateful};
use lowtide_nn::prune::{self, ChannelOptions, MagnitudeOptions, Masks, Scope};
use lowtide_tensor::{Device, RandomKey};
use lowtide_trainer::{Classification, Options, Task, Trainer};

use crate::common::{Cnn, KINDS, Kind, Outcome, Run, cnn, does_not_fit};

type Pruning = Trainer<Cnn, Masked<Box<dyn Stateful>>>;

/// A trainer of a network in which most weights are pruned.
fn pruned(run: &Run, device: &Device, optimizer: Box<dyn Stateful>) -> Pruning {
    let mut task = cnn(device, run.channels, run.seed);
    let options =
        MagnitudeOptions { fraction: 0.7, scope: Scope::PerParameter, ..Default::default() };
    let masks = prune::magnitude(task.parameters(), &options).expect("memory");
    let options = Options { seed: run.seed, ..Options::default() };
    Trainer::new(device, task, Masked::new(optimizer, masks), options)
}

/// AdamW with 8-bit states for large parameters.
fn eight_bit() -> Box<dyn Stateful> {
    let adam = Adam::new(AdamOptions { learning_rate: 0.01, ..AdamOptions::adamw() });
    Box::new(adam.expect("in range").with_8bit_states())
}

/// Number of weights that are exactly zero, and of all weights, in parameters with two or more
/// dimensions.
fn zeros(task: &mut Cnn) -> (usize, usize) {
    let (mut zeros, mut all) = (0, 0);
    task.parameters().visit(&mut |_, parameter| {
        if parameter.value().shape().len() > 1 {
            let values = parameter.value().to_vec::<f32>().expect("values");
            zeros += values.iter().filter(|x| x.to_bits() == 0).count();
            all += values.len();
        }
    });
    (zeros, all)
}

#[track_caller]
fn check(run: &Run, budget_bytes: Option<usize>, optimizer: Box<dyn Stateful>) -> Outcome {
    let device = run.device(None);
    let mut trainer = pruned(run, &device, optimizer);
    if let Some(bytes) = budget_bytes {
        device.allocator().set_capacity(bytes);
    }
    let before = zeros(trainer.task_mut());
    let outcome = run.fit_trainer(&device, &mut trainer, |_, _| {}).expect("fits");
    assert_eq!(outcome.measured_peak_bytes, outcome.plan.predicted_peak_bytes());
    assert_eq!(outcome.retried_steps, 0);
    let after = zeros(trainer.task_mut());
    assert!(after.0 >= before.0 && after.0 * 10 >= after.1 * 7 - 10, "{before:?} {after:?}");
    assert!(after.0 < before.0 + 10, "what is not pruned is trained: {before:?} {after:?}");
    outcome
}

#[test]
fn predicted_peak_with_masks_is_the_measured_one_within_every_budget() {
    // The linear layer is large enough for 8-bit states.
    let run = Run { channels: 64, epochs: 2, ..Run::default() };
    let optimizers = KINDS.map(|kind| kind.build(kind.learning_rate()));
    for optimizer in optimizers.into_iter().chain([eight_bit()]) {
        let whole = check(&run, None, optimizer.clone());
        let device = run.device(None);
        let mut trainer = pruned(&run, &device, optimizer.clone());
        let (train, test) = run.loaders();
        device.allocator().set_capacity(0);
        let least = does_not_fit(trainer.plan(&train, &test, run.epochs)).needed_bytes;
        let whole_bytes = whole.plan.predicted_peak_bytes();
        assert!(least < whole_bytes);
        for bytes in [least, (least + whole_bytes) / 2] {
            let tight = check(&run, Some(bytes), optimizer.clone());
            assert!(tight.plan.predicted_peak_bytes() <= bytes);
        }
    }
}

#[test]
fn step_of_a_pruned_model_that_fails_anywhere_is_the_same_in_the_end() {
    let run = Run { channels: 64, ..Run::default() };
    for optimizer in [Kind::Momentum.build(0.05), eight_bit()] {
        let counts = RefCell::new(Vec::new());
        let device = run.device(None);
        let mut calm = pruned(&run, &device, optimizer.clone());
        let count =
            |device: &Device, _| counts.borrow_mut().push(device.allocator().request_count());
        let expected = run.fit_trainer(&device, &mut calm, count).expect("fits");
        let counts = counts.into_inner();
        let requests = counts[1] - counts[0];
        for nth in (1..=requests).step_by(3).chain([requests]) {
            let device = run.device(None);
            let mut trainer = pruned(&run, &device, optimizer.clone());
            let inject = |device: &Device, step| {
                if step == 0 {
                    device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
                }
            };
            let stormy = run.fit_trainer(&device, &mut trainer, inject).expect("recovers");
            assert_eq!(stormy.retried_steps, 1, "allocation {nth} of {requests}");
            assert_eq!(stormy.state_hash, expected.state_hash, "allocation {nth} of {requests}");
            assert_eq!(stormy.layout_hash, expected.layout_hash);
            assert_eq!(zeros(trainer.task_mut()), zeros(calm.task_mut()));
        }
    }
}

#[test]
fn checkpoint_of_a_pruned_model_goes_on_to_the_same_bits_and_stays_pruned() {
    let run = Run { channels: 64, epochs: 1, ..Run::default() };
    let (train, test) = run.loaders();
    let mut trainer = pruned(&run, &run.device(None), eight_bit());
    trainer.fit(&train, &test, 1, &mut []).expect("fits");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("checkpoint");
    trainer.save(&path).expect("a disk");

    let device = run.device(None);
    let optimizer = Masked::new(eight_bit(), Masks::default());
    let options = Options { seed: run.seed, ..Options::default() };
    let mut other = Trainer::new(&device, cnn(&device, run.channels, 99), optimizer, options);
    other.load(&path).expect("it is whole");
    assert_eq!(other.state_hash().expect("cpu"), trainer.state_hash().expect("cpu"));
    for trainer in [&mut trainer, &mut other] {
        trainer.fit(&train, &test, 2, &mut []).expect("fits");
    }
    assert_eq!(other.state_hash().expect("cpu"), trainer.state_hash().expect("cpu"));
    let (zeros, all) = zeros(other.task_mut());
    assert!(zeros * 10 >= all * 7 - 10, "{zeros} of {all}");
    // A snapshot from the run works as well as the saved file.
    let snapshot = trainer.snapshot().expect("whole");
    other.restore(&snapshot).expect("of the same training");
    assert_eq!(other.state_hash().expect("cpu"), trainer.state_hash().expect("cpu"));
}

#[test]
fn model_without_channels_is_trained_within_less_and_its_plan_holds() {
    let run = Run { channels: 32, epochs: 2, ..Run::default() };
    let fit = |fraction: f64| {
        let device = run.device(None);
        let shape = SimpleCnnShape { image: [1, 8, 8], channels: 32, classes: 10 };
        let mut model = SimpleCnn::new(&device, RandomKey::new(run.seed), shape).expect("memory");
        let options = ChannelOptions { fraction, ..Default::default() };
        prune::channels(&mut model, &options).expect("memory");
        let options = Options { seed: run.seed, ..Options::default() };
        let optimizer = Kind::Adam.build(0.01);
        let mut trainer = Trainer::new(&device, Classification::new(model), optimizer, options);
        let outcome = run.fit_trainer(&device, &mut trainer, |_, _| {}).expect("fits");
        assert_eq!(outcome.measured_peak_bytes, outcome.plan.predicted_peak_bytes());
        outcome
    };
    let (whole, half) = (fit(0.0), fit(0.5));
    assert!(half.measured_peak_bytes * 10 < whole.measured_peak_bytes * 7);
    assert!(half.losses().last() < half.losses().first());
    // The plan takes the time of a model that was made with this number of channels.
    let narrow = Run { channels: 16, ..run }.fit(None);
    assert_eq!(half.plan.forecast.seconds, narrow.plan.forecast.seconds);
}
