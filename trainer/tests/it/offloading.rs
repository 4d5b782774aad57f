//! Plans that offload saved tensors of blocks to another device's memory.

use lowtide_allocator::{Fault, Repeat};
use lowtide_data::Loader;
use lowtide_nn::models::Gpt;
use lowtide_tensor::{Device, OpClass, Rate, SimSpec};
use lowtide_trainer::{
    DoesNotFit, Fit, Flow, Knobs, LanguageModel, MicroBatches, Observer, Options, Plan, Recovery,
    Result, StepReport, Task, TrainError, Trainer, Training,
};

use crate::common::does_not_fit;
use crate::recompute::{Optimizer, cpu, gpt, images, optimizer, tokens, unet};

/// Options that forbid splitting and allow offloading to `host`.
fn options(host: &Device) -> Options {
    let micro_batches = MicroBatches::Never;
    Options {
        offload: Some(host.clone()),
        micro_batches,
        clip_norm: Some(0.5),
        ..Default::default()
    }
}

/// A device and a host with this much memory.
fn devices(host_bytes: Option<usize>) -> [Device; 2] {
    [cpu(None), cpu(host_bytes)]
}

fn peak_bytes(device: &Device) -> usize {
    device.allocator().statistics().reserved.peak_bytes
}

/// Runs a training of two epochs, planned by `plan` within `budget_bytes`. Returns the plan, the
/// final hash, and the peaks of device and host.
fn run<T: Task + Clone>(
    task: fn(&Device) -> T,
    loader: &Loader,
    budget_bytes: Option<usize>,
    plan: impl Fn(&mut Trainer<T, Optimizer>, &Fit<'_>) -> Result<Plan>,
) -> Result<(Plan, u64, [usize; 2])> {
    let devices = devices(None);
    let [device, host] = &devices;
    let mut trainer = Trainer::new(device, task(device), optimizer(), options(host));
    budget_bytes.inspect(|&bytes| device.allocator().set_capacity(bytes));
    let fit = Fit::new(loader).epochs(2).evaluate("test", loader);
    let plan = plan(&mut trainer, &fit)?;
    trainer.run(&fit, &mut [])?;
    assert_eq!((trainer.retried_steps(), trainer.knobs()), (0, plan.knobs));
    let hash = trainer.state_hash()?;
    assert_eq!(host.allocator().statistics().allocated.current_bytes, 0, "all of it came back");
    Ok((plan, hash, devices.each_ref().map(peak_bytes)))
}

/// Runs every plan, from the plan without a limit to the least one.
fn every_plan<T: Task + Clone>(name: &str, task: fn(&Device) -> T, loader: &Loader) -> Vec<Knobs> {
    let whole = run(task, loader, None, |trainer, fit| trainer.plan_run(fit, &Default::default()))
        .expect("no limit");
    let (mut budget_bytes, mut plans) = (whole.0.predicted_peak_bytes(), Vec::new());
    loop {
        let found = match run(task, loader, Some(budget_bytes), |trainer, fit| {
            trainer.plan_run(fit, &Default::default())
        }) {
            Ok(found) => found,
            error => {
                assert_eq!(does_not_fit(error).needed_bytes, budget_bytes + 1, "{name}");
                break;
            }
        };
        let (plan, hash, peaks) = found;
        let predicted = [plan.predicted_peak_bytes(), plan.forecast.offloaded_peak_bytes];
        assert_eq!((predicted, hash), (peaks, whole.1), "{name}: {plan}");
        assert_eq!(plan.knobs.offloaded_blocks > 0, predicted[1] > 0, "{name}: {plan}");
        let says = plan.reasons().iter().any(|reason| reason.contains("memory of the host"));
        assert_eq!(plan.knobs.offloaded_blocks > 0, says, "{name}: {plan}");
        println!("{name}: {plan}, {} bytes away", predicted[1]);
        plans.push(plan.knobs);
        budget_bytes = peaks[0] - 1;
    }
    plans
}

#[test]
fn plan_that_offloads_is_exact_on_both_devices_and_keeps_the_bits() {
    let gpt = every_plan("GPT", gpt, &tokens(28));
    let unet = every_plan("U-Net", unet, &images(28, [1, 32, 32], &[32, 32]));
    for knobs in [&gpt, &unet] {
        assert!(knobs.iter().filter(|knobs| knobs.offloaded_blocks > 0).count() > 4, "{knobs:?}");
    }
    let offloads_inputs = |knobs: &Knobs| knobs.recomputed_blocks.min(knobs.offloaded_blocks) > 0;
    assert!(gpt.iter().any(offloads_inputs), "{gpt:?}");
}

#[test]
fn any_number_of_blocks_may_be_offloaded_recomputed_or_not() {
    let loader = tokens(8);
    let with = |knobs: Knobs| {
        run(gpt, &loader, None, |trainer, fit| trainer.plan_run(fit, &knobs.into()))
            .expect("no limit")
    };
    let whole = Knobs { micro_batch: 8, ..Knobs::default() };
    let (_, expected, _) = with(whole);
    for cheap_recomputed in [false, true] {
        for recomputed_blocks in [0, 2, 6] {
            for offloaded_blocks in [0, 1, 2, 5, 6] {
                let blocks = Knobs { recomputed_blocks, offloaded_blocks, ..whole };
                let knobs = Knobs { cheap_recomputed, ..blocks };
                let (plan, hash, peaks) = with(knobs);
                let predicted = [plan.predicted_peak_bytes(), plan.forecast.offloaded_peak_bytes];
                assert_eq!((predicted, hash), (peaks, expected), "{plan}");
                assert_eq!(offloaded_blocks > 0, peaks[1] > 0, "{plan}");
            }
        }
    }
}

/// The plan of a GPT with separate budgets for device and host.
fn plan_within(budgets: [usize; 2]) -> Result<Plan> {
    let [device, host] = devices(Some(budgets[1]));
    let mut trainer = Trainer::new(&device, gpt(&device), optimizer(), options(&host));
    device.allocator().set_capacity(budgets[0]);
    let loader = tokens(28);
    trainer.plan_run(&Fit::new(&loader).epochs(2).evaluate("test", &loader), &Default::default())
}

#[test]
fn budget_of_the_host_is_kept_as_well() {
    let error = |plan| -> DoesNotFit { does_not_fit(plan) };
    let least = error(plan_within([1 << 19, 1 << 30])).needed_bytes;
    let mut host_bytes = 1 << 30;
    let one_short = loop {
        match plan_within([least, host_bytes]) {
            Ok(plan) => {
                assert_eq!(plan.predicted_peak_bytes(), least, "{plan}");
                assert!((1..=host_bytes).contains(&plan.forecast.offloaded_peak_bytes), "{plan}");
                host_bytes = plan.forecast.offloaded_peak_bytes - 1;
            }
            refused => break error(refused),
        }
    };
    assert!(one_short.needed_bytes > least, "{one_short}");
    assert_eq!(one_short.budget_bytes, least);
    let remedy = format!("--offload-budget {}B", host_bytes + 1);
    assert!(one_short.to_string().contains(&remedy), "{one_short}");
}

#[test]
fn faster_of_recomputing_and_offloading_is_planned() {
    let loader = tokens(8);
    let plan = |link_bytes_per_second: f64| {
        let spec = SimSpec::like_this_machine(1 << 40);
        let rate = Rate { bytes_per_second: link_bytes_per_second, ..spec.rates.of(OpClass::Copy) };
        let rates = spec.rates.with(OpClass::Transfer, rate);
        let sim = || Device::sim(SimSpec { rates, ..spec }).expect("none");
        let (device, host) = (sim(), sim());
        let mut trainer = Trainer::new(&device, gpt(&device), optimizer(), options(&host));
        let fit = Fit::new(&loader);
        let cheap = Knobs { micro_batch: 8, cheap_recomputed: true, ..Knobs::default() };
        let cheap = trainer.plan_run(&fit, &cheap.into()).expect("no limit").predicted_peak_bytes();
        device.allocator().set_capacity(cheap - 1);
        trainer.plan_run(&fit, &Default::default()).expect("with less kept").knobs
    };
    let (slow, fast) = (plan(1e6), plan(1e15));
    assert!(slow.recomputed_blocks > 0 && slow.offloaded_blocks == 0, "{slow}");
    assert!(fast.recomputed_blocks == 0 && fast.offloaded_blocks > 0, "{fast}");
}

#[test]
fn without_memory_of_the_host_nothing_is_offloaded() {
    let device = cpu(None);
    let mut trainer = Trainer::new(&device, gpt(&device), optimizer(), Options::default());
    let knobs = Knobs { micro_batch: 8, offloaded_blocks: 1, ..Knobs::default() };
    let loader = tokens(8);
    let error = trainer.plan_run(&Fit::new(&loader), &knobs.into()).expect_err("nowhere to");
    assert_eq!(
        error.to_string(),
        "knobs: micro-batches of 8 with one block offloaded: there is no memory to offload to"
    );
}

#[test]
fn plan_that_wants_more_of_the_host_than_there_is_says_how_much() {
    let [device, host] = devices(None);
    let mut trainer = Trainer::new(&device, gpt(&device), optimizer(), options(&host));
    let knobs = Knobs { micro_batch: 8, offloaded_blocks: 6, ..Knobs::default() };
    let loader = tokens(8);
    let plan = trainer.plan_run(&Fit::new(&loader), &knobs.into()).expect("no limit");
    let bytes = plan.forecast.offloaded_peak_bytes;
    host.allocator().set_capacity(bytes);
    assert!(trainer.plan_run(&Fit::new(&loader), &knobs.into()).is_ok(), "as much as it takes");
    host.allocator().set_capacity(bytes - 1);
    let error = does_not_fit(trainer.plan_run(&Fit::new(&loader), &knobs.into()));
    assert_eq!((error.needed_bytes, error.missing_bytes()), (bytes, 1), "{error}");
    assert!(error.to_string().contains(&format!("--offload-budget {bytes}B")), "{error}");
}

/// Limits the device to `bytes` bytes after step 2.
struct Squeeze {
    bytes: usize,
    recoveries: Vec<Recovery>,
}

impl Observer for Squeeze {
    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        if report.step == 2 {
            training.device().allocator().set_capacity(self.bytes);
        }
        self.recoveries.extend(report.retries.iter().map(|retry| retry.recovery));
        Ok(Flow::Continue)
    }
}

#[test]
fn step_that_ran_out_of_memory_offloads_to_the_same_bits() {
    let loader = tokens(8 * 4);
    let fit = Fit::new(&loader);
    let end = |squeezes: bool| {
        let [device, host] = devices(None);
        let mut trainer: Trainer<LanguageModel<Gpt>, Optimizer> =
            Trainer::new(&device, gpt(&device), optimizer(), options(&host));
        let recomputed = Knobs { micro_batch: 8, cheap_recomputed: true, ..Knobs::default() };
        let recomputed = Knobs { recomputed_blocks: 6, ..recomputed };
        let bytes =
            trainer.plan_run(&fit, &recomputed.into()).expect("no limit").predicted_peak_bytes();
        trainer.plan_run(&fit, &Default::default()).expect("no limit");
        let bytes = if squeezes { bytes - 1 } else { usize::MAX };
        let mut squeeze = Squeeze { bytes, recoveries: Vec::new() };
        trainer.run(&fit, &mut [&mut squeeze]).expect("it fits with less kept");
        (trainer.state_hash().expect("readable"), squeeze.recoveries)
    };
    let (expected, none) = end(false);
    let (found, recoveries) = end(true);
    assert_eq!((found, none), (expected, Vec::new()));
    assert!(matches!(recoveries[..], [Recovery::Offload { .. }]), "{recoveries:?}");
}

#[test]
fn every_allocation_of_the_host_fails_once_to_the_same_bits() {
    let loader = tokens(8 * 2);
    let fit = Fit::new(&loader);
    let end = |nth: Option<u64>| {
        let [device, host] = devices(None);
        let mut trainer = Trainer::new(&device, gpt(&device), optimizer(), options(&host));
        let knobs = Knobs { micro_batch: 8, recomputed_blocks: 3, ..Knobs::default() };
        let knobs = Knobs { offloaded_blocks: 5, cheap_recomputed: true, ..knobs };
        trainer.plan_run(&fit, &knobs.into()).expect("no limit");
        if let Some(nth) = nth {
            host.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
        }
        trainer.run(&fit, &mut []).expect("a step is tried again");
        assert_eq!(trainer.retried_steps(), u64::from(nth.is_some()), "{nth:?}");
        (trainer.state_hash().expect("readable"), host.allocator().request_count())
    };
    let (expected, requests) = end(None);
    assert!(requests > 20, "{requests}");
    for nth in 1..=requests {
        assert_eq!(end(Some(nth)).0, expected, "{nth}");
    }
}

#[test]
fn host_that_has_less_than_planned_for_is_an_error_or_another_plan() {
    let loader = tokens(8 * 2);
    let fit = Fit::new(&loader);
    let [device, host] = devices(None);
    let mut trainer = Trainer::new(&device, gpt(&device), optimizer(), options(&host));
    let knobs = Knobs { micro_batch: 8, offloaded_blocks: 6, ..Knobs::default() };
    let planned = trainer.plan_run(&fit, &knobs.into()).expect("no limit");
    device.allocator().set_capacity(planned.predicted_peak_bytes());
    host.allocator().set_capacity(planned.forecast.offloaded_peak_bytes / 2);
    let outcome = trainer.step(&loader.epoch(0).next().expect("a batch").expect("readable"));
    match outcome {
        Ok(report) => assert!(!report.retries.is_empty(), "{report:?}"),
        Err(TrainError::DoesNotFit(error)) => assert!(error.step.is_some(), "{error}"),
        Err(error) => panic!("{error}"),
    }
}
