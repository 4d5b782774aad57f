//! Other users of the training's device: their blocks are not counted as its own, and the training
//! waits for memory that they take.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lowtide_allocator::{Category, Fault, Repeat};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};
use lowtide_trainer::{
    Flow, Observer, Options, Plan, Recovery, Result, StepReport, TrainError, Training,
};

use crate::common::{Run, is_deep};

/// Sixteen steps of a narrow network.
fn run(seed: u64) -> Run {
    Run { channels: 4, train_len: 96 * 16, epochs: 1, seed, ..Run::default() }
}

/// Trains beside `neighbour`. Returns the hash of the state with the reports, or the error.
fn beside(
    run: &Run,
    options: Options,
    neighbour: impl Fn(&Device, &Plan, &AtomicBool) + Sync,
    observer: &mut dyn Observer,
) -> Result<(u64, Vec<StepReport>)> {
    let device = run.device(None);
    let mut trainer = run.trainer_with(&device, options);
    let (train, test) = run.loaders();
    let plan = trainer.plan(&train, &test, run.epochs).expect("no limit");
    let (is_over, neighbours_device) = (AtomicBool::new(false), device.clone());
    let has_begun = AtomicBool::new(false);
    let mut reports = Reports { has_begun: &has_begun, reports: Vec::new() };
    let ended = thread::scope(|scope| {
        scope.spawn(|| {
            while !has_begun.load(Ordering::Relaxed) && !is_over.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            neighbour(&neighbours_device, &plan, &is_over);
        });
        let ended = trainer.fit(&train, &test, run.epochs, &mut [&mut reports, observer]);
        is_over.store(true, Ordering::Relaxed);
        ended
    });
    device.allocator().set_capacity(usize::MAX);
    ended?;
    Ok((trainer.state_hash()?, reports.reports))
}

/// Records the reports, and signals the end of the first step.
struct Reports<'a> {
    has_begun: &'a AtomicBool,
    reports: Vec<StepReport>,
}

impl Observer for Reports<'_> {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.reports.push(report.clone());
        self.has_begun.store(true, Ordering::Relaxed);
        Ok(Flow::Continue)
    }
}

struct Nothing;

impl Observer for Nothing {}

fn calm(run: &Run) -> u64 {
    beside(run, Options::default(), |_, _, _| {}, &mut Nothing).expect("undisturbed").0
}

/// Makes an allocation of every second step fail.
struct Faults {
    key: RandomKey,
}

impl Observer for Faults {
    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        if report.step % 2 == 1 {
            let nth = 1 + (self.key.uniform(report.step) * 60.0) as u64;
            training.device().allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
        }
        Ok(Flow::Continue)
    }
}

/// Allocates and frees blocks, at most 20 at a time.
fn allocates(device: &Device, is_over: &AtomicBool, key: RandomKey, size_bytes_max: usize) {
    let (mut held, mut count) = (Vec::new(), 0);
    while !is_over.load(Ordering::Relaxed) {
        count += 2;
        let size_bytes = (key.uniform(count) * size_bytes_max as f32) as usize;
        held.extend(Tensor::empty_in(device, Category::Other, [size_bytes], DType::U8).ok());
        if held.len() > 20 || (key.uniform(count + 1) < 0.5 && !held.is_empty()) {
            let at = key.uniform(count + 1) * held.len() as f32;
            drop(held.swap_remove(at as usize));
        }
        // The pause leaves most of the requests, and so most of the faults, to the step.
        thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn blocks_of_a_neighbour_are_never_called_left_over() {
    let runs = if is_deep() { 250 } else { 12 };
    let mut retried = 0;
    for seed in 0..runs {
        let run = run(seed);
        let key = RandomKey::new(seed);
        let neighbour = |device: &Device, _: &Plan, is_over: &AtomicBool| {
            allocates(device, is_over, key.op("sizes"), 1 << 16);
        };
        let mut faults = Faults { key: key.op("faults") };
        let found = beside(&run, Options::default(), neighbour, &mut faults);
        let (hash, reports) = found.unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert_eq!(hash, calm(&run), "{seed}");
        retried += reports.iter().filter(|report| !report.retries.is_empty()).count();
    }
    assert!(retried > 0, "no step failed in {runs} runs");
}

#[test]
fn memory_that_comes_back_is_waited_for() {
    let runs = if is_deep() { 250 } else { 12 };
    let mut waited = 0;
    // On a busy machine no step may meet the lack of memory; then more runs are made.
    for seed in 0..20 * runs {
        if seed >= runs && waited > 0 {
            break;
        }
        let run = run(seed);
        let key = RandomKey::new(seed);
        let neighbour = |device: &Device, plan: &Plan, is_over: &AtomicBool| {
            let peak_bytes = plan.predicted_peak_bytes();
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                count += 1;
                let share = key.uniform(count);
                let capacity_bytes = (peak_bytes as f32 * share) as usize;
                device.allocator().set_capacity(capacity_bytes);
                // The pause is long enough for a step that fails and checks again.
                thread::sleep(Duration::from_millis(4));
                device.allocator().set_capacity(usize::MAX);
                thread::sleep(Duration::from_millis(13));
            }
        };
        let options = Options { wait: Some(Duration::from_secs(30)), ..Options::default() };
        let found = beside(&run, options, neighbour, &mut Nothing);
        let (hash, reports) = found.unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert_eq!(hash, calm(&run), "{seed}");
        let recoveries = reports.iter().flat_map(|report| &report.retries);
        waited +=
            recoveries.filter(|retry| matches!(retry.recovery, Recovery::Waited { .. })).count();
    }
    assert!(waited > 0, "no step had to wait");
}

#[test]
fn without_a_wait_memory_that_is_gone_ends_the_run_and_nothing_is_lost() {
    let run = run(3);
    let device = run.device(None);
    let options = Options { wait: Some(Duration::from_millis(120)), ..Options::default() };
    let mut trainer = run.trainer_with(&device, options);
    let (train, test) = run.loaders();
    struct Take;
    impl Observer for Take {
        fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
            if report.step == 3 {
                training.device().allocator().set_capacity(1 << 10);
            }
            Ok(Flow::Continue)
        }
    }
    let error = trainer.fit(&train, &test, 1, &mut [&mut Take]).unwrap_err();
    assert!(matches!(error, TrainError::DoesNotFit(_)), "{error:?}");
    assert_eq!(trainer.position().step, 3);
    device.allocator().set_capacity(usize::MAX);
    trainer.fit(&train, &test, 1, &mut []).expect("memory is back");
    assert_eq!(trainer.state_hash().expect("readable"), calm(&run));
}
