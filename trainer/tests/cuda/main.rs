//! The laws of `it` on an NVIDIA device. The pretend driver may stand in for one.

mod ahead;
#[allow(dead_code, reason = "`it` uses the rest")]
#[path = "../it/common.rs"]
mod common;
mod fused;
mod gpu;
mod language;
mod losses;
mod offloading;
mod optimizers;
mod planned;
#[path = "../pretend/mod.rs"]
mod pretend;
mod shortage;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use lowtide_allocator::{Fault, Repeat};
use lowtide_data::Batch;
use lowtide_nn::NnError;
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions, Sgd, SgdOptions, Stateful};
use lowtide_tensor::{Device, RandomKey};
use lowtide_trainer::{
    Classification, Flow, Observer, Options, Result, StepReport, TrainError, Trainer, Training,
    lock_pages, upload,
};

use crate::common::{KINDS, Kind, Outcome, Run, cnn, does_not_fit, labelled, values, versions};
use gpu::Gpu;

/// Largest relative difference of the losses of both devices. Sums of up to 576 products have
/// another order, and errors of earlier steps are carried on.
const TOLERANCE: f64 = 2e-5;

/// Two steps of few samples on a narrow network, because the pretend driver runs each GPU thread as
/// a slow fiber.
fn small() -> Run {
    Run { channels: 4, train_len: 48, test_len: 20, batch_size: 24, ..Run::default() }
}

fn fit_with(
    gpu: &Gpu,
    run: &Run,
    budget_bytes: Option<usize>,
    on_step: impl FnMut(&Device, u64),
) -> Result<Outcome> {
    let device = gpu.try_device_within(budget_bytes).map_err(NnError::from)?;
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: run.channels, classes: 10 };
    let task = Classification::new(SimpleCnn::new(&device, RandomKey::new(run.seed), shape)?);
    let optimizer = run.kind.build(run.kind.learning_rate());
    // Calls that fail for ever are not waited for.
    let options = Options { seed: run.seed, wait: Some(Duration::ZERO), ..Options::default() };
    let mut trainer = Trainer::new(&device, task, optimizer, options);
    run.fit_trainer(&device, &mut trainer, on_step)
}

fn fit(gpu: &Gpu, run: &Run, budget_bytes: Option<usize>) -> Outcome {
    fit_with(gpu, run, budget_bytes, |_, _| {}).unwrap_or_else(|error| panic!("{error}"))
}

/// The predicted peak and the micro-batch within a budget.
fn predicted_bytes(gpu: &Gpu, run: &Run, budget_bytes: usize) -> Result<(usize, usize)> {
    let (train, test) = run.loaders();
    let device = gpu.device();
    let mut trainer = run.trainer(&device);
    device.allocator().set_capacity(budget_bytes);
    let plan = trainer.plan(&train, &test, run.epochs)?;
    Ok((plan.predicted_peak_bytes(), plan.knobs.micro_batch))
}

#[track_caller]
fn assert_same_losses(found: &Outcome, expected: &Outcome) {
    assert_eq!(found.reports.len(), expected.reports.len());
    for (found, expected) in found.losses().into_iter().zip(expected.losses()) {
        let apart = (found - expected).abs() / expected.abs();
        assert!(apart <= TOLERANCE, "a loss of {found}, not {expected}: {apart:e} apart");
    }
    let [found, expected] = [found, expected].map(|outcome| outcome.score.loss());
    assert!((found - expected).abs() <= TOLERANCE * expected, "{found}, not {expected}");
}

#[test]
fn losses_are_those_of_the_processor_and_the_peak_is_the_predicted_one() {
    let Some(gpu) = Gpu::take() else { return };
    for kind in KINDS {
        let run = Run { epochs: 2, kind, ..small() };
        let found = fit(&gpu, &run, None);
        assert_same_losses(&found, &run.fit(None));
        assert_eq!(found.plan.predicted_peak_bytes(), found.measured_peak_bytes, "{kind:?}");
        assert_eq!(found.retried_steps, 0);
    }
}

#[test]
fn budget_splits_the_batch_keeps_the_losses_and_holds_to_the_byte() {
    // Small pages, so that different micro-batches need different numbers of pages.
    let Some(gpu) = Gpu::with_pages(64 << 10) else { return };
    let run = Run { channels: 16, train_len: 96, batch_size: 48, kind: Kind::Momentum, ..small() };
    let whole = fit(&gpu, &run, None);
    let whole_bytes = whole.plan.predicted_peak_bytes();
    assert_eq!(whole_bytes, whole.measured_peak_bytes);
    let same = fit(&gpu, &run, Some(whole_bytes));
    assert_eq!((same.micro_batch, same.retried_steps), (run.batch_size, 0));
    assert_eq!(same.state_hash, whole.state_hash);
    let mut budget_bytes = whole_bytes;
    let mut splits = 0;
    // With one byte less than a plan needs, the next smaller plan is found.
    while let Ok((peak_bytes, micro_batch)) = predicted_bytes(&gpu, &run, budget_bytes - 1) {
        assert!(micro_batch < run.batch_size && peak_bytes < budget_bytes);
        let found = fit(&gpu, &run, Some(peak_bytes));
        assert_eq!((found.micro_batch, found.retried_steps), (micro_batch, 0));
        assert_eq!(
            (found.plan.predicted_peak_bytes(), found.measured_peak_bytes),
            (peak_bytes, peak_bytes)
        );
        assert_same_losses(&found, &whole);
        budget_bytes = peak_bytes;
        splits += 1;
    }
    assert!(splits >= 2, "{splits} smaller plans");
    let error = does_not_fit(predicted_bytes(&gpu, &run, budget_bytes - 1));
    assert_eq!(error.needed_bytes, budget_bytes);
}

#[test]
fn step_survives_the_failure_of_any_of_its_allocations_and_is_the_same() {
    let Some(gpu) = Gpu::take() else { return };
    let run = small();
    let counts = RefCell::new(Vec::new());
    let calm = fit_with(&gpu, &run, None, |device, _| {
        counts.borrow_mut().push(device.allocator().request_count());
    });
    let (calm, counts) = (calm.expect("an undisturbed run"), counts.into_inner());
    for step in 1..=2 {
        let requests = counts[step] - counts[step - 1];
        assert!(requests > 10, "{requests} allocations are no step");
        for nth in 1..=requests {
            let stormy = fit_with(&gpu, &run, None, |device, at| {
                if at == step as u64 - 1 {
                    device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
                }
            });
            let stormy = stormy.unwrap_or_else(|error| panic!("allocation {nth}: {error}"));
            assert_eq!(stormy.state_hash, calm.state_hash, "allocation {nth} of step {step}");
            assert_eq!(stormy.retried_steps, 1, "allocation {nth} of step {step}");
            assert_eq!(stormy.micro_batch, calm.micro_batch);
            assert_eq!(stormy.measured_peak_bytes, calm.measured_peak_bytes);
        }
    }
}

/// Calls of the driver that take or give memory, and calls that wait for all work of a device.
const MEMORY_CALLS: [&str; 9] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
];

#[test]
fn steady_step_makes_no_memory_call_to_the_driver() {
    let Some(gpu) = Gpu::pretend() else { return };
    let run = Run { train_len: 144, test_len: 20, epochs: 2, ..small() };
    let counts = RefCell::new(Vec::new());
    let outcome = fit_with(&gpu, &run, None, |_, _| {
        counts.borrow_mut().push(MEMORY_CALLS.map(|call| gpu.pretend.calls(call)));
    });
    outcome.expect("an undisturbed run");
    let counts = counts.into_inner();
    assert!(counts[2][4] > 0, "memory was taken by another call than those counted: {counts:?}");
    // 13 counts are before step 1 and after each of 12 steps. Step 7 is the first after an
    // evaluation.
    assert_eq!(counts.len(), 13);
    assert!(counts[2..].iter().all(|calls| *calls == counts[2]), "{counts:?}");
}

/// Calls in which the host waits for the device; the last one reads a value.
const WAITS: [&str; 3] = ["cuStreamSynchronize", "cuCtxSynchronize", "cuMemcpyDtoHAsync_v2"];

#[test]
fn steady_step_waits_for_the_device_once_where_the_loss_is_read() {
    let Some(gpu) = Gpu::with_pages(64 << 10) else { return };
    let run = Run { channels: 16, train_len: 144, ..small() };
    let whole_bytes = fit(&gpu, &run, None).plan.predicted_peak_bytes();
    for budget_bytes in [None, Some(whole_bytes - 1)] {
        let counts = RefCell::new(Vec::new());
        let outcome = fit_with(&gpu, &run, budget_bytes, |_, _| {
            counts.borrow_mut().push(WAITS.map(|call| gpu.pretend.calls(call)));
        });
        let outcome = outcome.expect("an undisturbed run");
        assert_eq!(outcome.micro_batch < run.batch_size, budget_bytes.is_some());
        let counts = counts.into_inner();
        let of_step = |pair: &[[u64; 3]]| [0, 1, 2].map(|call| pair[1][call] - pair[0][call]);
        let steps: Vec<[u64; 3]> = counts.windows(2).map(of_step).collect();
        assert_eq!(steps.len(), 6);
        assert!(steps[1..].iter().all(|calls| *calls == [1, 0, 1]), "{steps:?}");
    }
}

#[test]
fn label_that_is_no_class_ends_the_step_before_anything_is_written() {
    let Some(gpu) = Gpu::take() else { return };
    let run = small();
    let device = gpu.device();
    let mut trainer = run.trainer(&device);
    let loader = labelled(&[0, 1, 2, 3, 4, 99, 5, 6], 4);
    let batches: Vec<Batch> = loader.epoch(0).map(|batch| batch.expect("readable")).collect();
    trainer.step(&batches[0]).expect("labels that are classes");
    let before = (trainer.state_hash().expect("readable"), versions(trainer.task_mut()));
    let error = trainer.step(&batches[1]).unwrap_err();
    let text = "cross_entropy: label 99 at position 1 is none of 10 classes";
    assert_eq!(error.to_string(), text);
    assert!(matches!(error, TrainError::Nn(_)), "{error:?}");
    let after = (trainer.state_hash().expect("readable"), versions(trainer.task_mut()));
    assert_eq!(after, before);
    assert_eq!((trainer.steps(), trainer.is_torn()), (1, false));
    trainer.step(&batches[0]).expect("the label is forgotten");
}

#[test]
fn batches_in_page_locked_memory_end_in_the_same_bits_and_the_same_peak() {
    let Some(gpu) = Gpu::pretend() else { return };
    for (seed, workers) in [(0, 0), (1, 2), (2, 2)] {
        gpu.pretend.schedule(seed);
        let run = Run { workers, train_len: 96, ..small() };
        let [plain, locked] = [false, true].map(|is_locked| {
            let device = gpu.device();
            let (mut train, mut test) = run.loaders();
            for loader in [&mut train, &mut test].into_iter().filter(|_| is_locked) {
                assert!(lock_pages(loader, &device).expect("room"));
                let batch = loader.epoch(0).next().expect("one").expect("readable");
                assert!(batch.fields().all(|field| field.page_locked().is_some()));
                // Only the ring is page-locked: a copy through other page-locked memory would
                // allocate again.
                let made = gpu.pretend.calls("cuMemHostAlloc");
                let images = upload(&device, batch.field("images").expect("there"));
                assert_eq!(images.expect("room").shape()[0], batch.len());
                assert_eq!(gpu.pretend.calls("cuMemHostAlloc"), made);
            }
            let mut trainer = run.trainer(&device);
            let plan = trainer.plan(&train, &test, run.epochs).expect("fits");
            trainer.fit(&train, &test, run.epochs, &mut []).expect("undisturbed");
            let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
            assert_eq!(peak_bytes, plan.predicted_peak_bytes());
            trainer.state_hash().expect("readable")
        });
        assert_eq!(locked, plain, "schedule {seed}");
    }
    gpu.pretend.schedule(0);
    // Without page-locked memory, batches stay in plain memory.
    gpu.pretend.fail("cuMemHostAlloc", 2, 1, Repeat::Forever);
    let (mut train, _) = small().loaders();
    assert!(!lock_pages(&mut train, &gpu.device()).expect("a loader of plain memory"));
    gpu.pretend.fail("cuMemHostAlloc", 0, 0, Repeat::Once);
    let batch = train.epoch(0).next().expect("one").expect("readable");
    assert!(batch.fields().all(|field| field.page_locked().is_none()));
}

/// Makes the nth launch of the driver in the last phase of a step fail.
struct Cut<'a> {
    gpu: &'a Gpu,
    step: u64,
    nth: u64,
}

impl Observer for Cut<'_> {
    fn on_phase(&mut self, step: u64, phase: &'static str) {
        if (step, phase) == (self.step, "optimizer") {
            // `CUDA_ERROR_UNKNOWN`
            self.gpu.pretend.fail("cuLaunchKernel", 999, self.nth, Repeat::Once);
        }
    }
}

/// An optimizer of this kind with a group for the biases. Each of the two groups takes a launch.
fn in_groups(kind: Kind) -> Box<dyn Stateful> {
    let learning_rate = kind.learning_rate();
    let momentum = if kind == Kind::Momentum { 0.9 } else { 0.0 };
    let sgd = SgdOptions { momentum, ..SgdOptions::new(learning_rate) };
    let adam = AdamOptions { learning_rate, ..Default::default() };
    if kind == Kind::Adam {
        let of_biases = AdamOptions { learning_rate: learning_rate / 2.0, ..adam };
        let optimizer = Adam::new(adam).and_then(|all| all.with_group("*.bias", of_biases));
        return Box::new(optimizer.expect("in range"));
    }
    let of_biases = SgdOptions { learning_rate: learning_rate / 2.0, ..sgd };
    let optimizer = Sgd::new(sgd).and_then(|all| all.with_group("*.bias", of_biases));
    Box::new(optimizer.expect("in range"))
}

/// Ends a run after its first step.
struct Stop;

impl Observer for Stop {
    fn on_step(&mut self, _: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        Ok(Flow::Stop)
    }
}

#[test]
fn step_that_is_cut_off_while_it_is_written_has_no_next_one_until_a_state_is_restored() {
    let Some(gpu) = Gpu::pretend() else { return };
    for kind in KINDS {
        let run = Run { kind, train_len: 72, ..small() };
        let (train, test) = run.loaders();
        let device = gpu.device();
        let new_trainer = || {
            let task = cnn(&device, run.channels, run.seed);
            let options = Options { seed: run.seed, ..Options::default() };
            Trainer::new(&device, task, in_groups(kind), options)
        };
        let mut trainer = new_trainer();
        trainer.fit(&train, &test, 1, &mut [&mut Stop]).expect("an undisturbed step");
        let whole = values(trainer.task_mut());
        let snapshot = trainer.snapshot().expect("readable");
        trainer.fit(&train, &test, 1, &mut []).expect("undisturbed");
        let hash = trainer.state_hash().expect("readable");
        let mut trainer = new_trainer();
        let mut cut = Cut { gpu: &gpu, step: 2, nth: 2 };
        let error = trainer.fit(&train, &test, 1, &mut [&mut cut]).unwrap_err();
        assert!(matches!(error, TrainError::Torn { step: 2, .. }), "{error:?}");
        assert_eq!((trainer.steps(), trainer.is_torn()), (1, true));
        let torn = values(trainer.task_mut());
        let moved = torn.iter().zip(&whole).filter(|(a, b)| a != b).count();
        assert!((1..torn.len()).contains(&moved), "{moved} of {}", torn.len());
        let launches = gpu.pretend.calls("cuLaunchKernel");
        let again = trainer.fit(&train, &test, 1, &mut []).unwrap_err();
        assert!(matches!(again, TrainError::Torn { step: 2, .. }), "{again:?}");
        assert_eq!(gpu.pretend.calls("cuLaunchKernel"), launches);
        assert_eq!(values(trainer.task_mut()), torn);
        // A restored snapshot makes the trainer whole again.
        trainer.restore(&snapshot).expect("of this training");
        assert_eq!((trainer.steps(), trainer.is_torn()), (1, false));
        assert_eq!(values(trainer.task_mut()), whole);
        trainer.fit(&train, &test, 1, &mut []).expect("undisturbed");
        assert_eq!(trainer.state_hash().expect("readable"), hash);
    }
}

/// Error codes: unrelated to memory, out of memory, and device lost.
const CODES: [i32; 3] = [1, 2, 719];

#[test]
fn run_in_which_a_driver_call_fails_goes_on_or_ends_with_a_typed_error() {
    let Some(gpu) = Gpu::pretend() else { return };
    let run = Run { channels: 2, train_len: 6, test_len: 3, batch_size: 3, ..small() };
    let calm = fit(&gpu, &run, None);
    gpu.reset();
    drop(fit(&gpu, &run, None));
    let count = gpu.pretend.calls("");
    assert!(count > 200, "{count}");
    let ended = Cell::new(0);
    let check = |outcome: Result<Outcome>, place: &str| match outcome {
        Ok(outcome) => {
            assert_eq!(outcome.reports.len(), calm.reports.len(), "{place}");
            assert_eq!(outcome.state_hash, calm.state_hash, "{place}");
        }
        Err(error) => {
            ended.set(ended.get() + 1);
            use TrainError::{DoesNotFit, Nn, Torn};
            let is_of_device = matches!(error, Nn(_) | DoesNotFit(_) | Torn { .. });
            assert!(is_of_device, "{place}: {error:?}");
        }
    };
    for nth in 1..=count {
        gpu.reset();
        let code = CODES[nth as usize % 3];
        gpu.pretend.fail("", code, nth, Repeat::Once);
        check(fit_with(&gpu, &run, None, |_, _| {}), &format!("call {nth} gives {code}"));
        assert_eq!(gpu.left(), [], "call {nth} gives {code}");
    }
    let ended_once = ended.take();
    assert!((1..count).contains(&ended_once), "{ended_once} of {count} runs ended");
    for nth in (1..=count).step_by(7) {
        gpu.reset();
        gpu.pretend.fail("", CODES[nth as usize % 3], nth, Repeat::Forever);
        check(fit_with(&gpu, &run, None, |_, _| {}), &format!("calls from {nth} on fail"));
    }
    gpu.reset();
}
