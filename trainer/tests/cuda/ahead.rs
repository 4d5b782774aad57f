//! Copies of the next batch to the device during a step, from page-locked memory.

use lowtide_allocator::{Fault, Repeat};
use lowtide_data::{Dataset, Loader, LoaderOptions, Mapped, SampleSlot, SampleView, Sequential};
use lowtide_tensor::{Device, SimSpec};
use lowtide_trainer::{
    Fit, Flow, Observer, Plan, Result, StepReport, TrainError, Trainer, Training, lock_pages,
};

use crate::common::{Kind, Run, digits};
use crate::gpu::Gpu;
use crate::small;

/// Bytes of the images and the labels of a batch of 24 samples, each rounded up to 256 bytes.
const BATCH_BYTES: usize = 24 * 64 * 4 + 256;

/// Results of a run.
#[derive(Debug, PartialEq)]
struct Found {
    plan: Plan,
    state_hash: u64,
    peak_bytes: usize,
    retried_steps: u64,
}

/// Trains with batches in page-locked memory, or in plain memory.
fn run_on(
    device: &Device,
    run: &Run,
    is_locked: bool,
    observer: &mut dyn Observer,
) -> Result<Found> {
    let (mut train, mut test) = run.loaders();
    for loader in [&mut train, &mut test].into_iter().filter(|_| is_locked) {
        assert!(lock_pages(loader, device)?);
    }
    let mut trainer = run.trainer(device);
    let plan = trainer.plan(&train, &test, run.epochs)?;
    trainer.fit(&train, &test, run.epochs, &mut [observer])?;
    Ok(Found {
        plan,
        state_hash: trainer.state_hash()?,
        peak_bytes: device.allocator().statistics().reserved.peak_bytes,
        retried_steps: trainer.retried_steps(),
    })
}

/// Counts the copies from the host, and within the device, at the beginning of each phase.
struct Copies<'a> {
    gpu: &'a Gpu,
    seen: Vec<(u64, &'static str, [u64; 2])>,
}

impl Observer for Copies<'_> {
    fn on_phase(&mut self, step: u64, phase: &'static str) {
        let calls = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoDAsync_v2"];
        self.seen.push((step, phase, calls.map(|call| self.gpu.pretend.calls(call))));
    }
}

impl Copies<'_> {
    /// Number of copies in step `step` between the beginnings of two phases.
    fn between(&self, step: u64, from: &str, to: &str) -> [u64; 2] {
        let at = |phase: &str| {
            let is_it = |seen: &&(u64, &str, _)| (seen.0, seen.1) == (step, phase);
            self.seen.iter().find(is_it).expect("the phase is there").2
        };
        let (from, to) = (at(from), at(to));
        [0, 1].map(|kind| to[kind] - from[kind])
    }
}

#[test]
fn next_batch_is_copied_during_a_step_and_changes_no_bit() {
    let Some(gpu) = Gpu::with_pages(64 << 10) else { return };
    for (seed, workers) in [(0, 0), (1, 2), (2, 2), (3, 0)] {
        gpu.pretend.schedule(seed);
        let run = Run { workers, train_len: 120, epochs: 2, ..small() };
        let plain = run_on(&gpu.device(), &run, false, &mut Nothing);
        let plain = plain.expect("undisturbed");
        let mut copies = Copies { gpu: &gpu, seen: Vec::new() };
        let ahead = run_on(&gpu.device(), &run, true, &mut copies).expect("undisturbed");
        assert_eq!(ahead.state_hash, plain.state_hash, "schedule {seed}");
        assert_eq!((plain.plan.copy_ahead_bytes, ahead.plan.copy_ahead_bytes), (0, BATCH_BYTES));
        for found in [&plain, &ahead] {
            assert_eq!(found.peak_bytes, found.plan.predicted_peak_bytes(), "schedule {seed}");
        }
        for step in 1..=10 {
            let [begins, ends] = [step % 5 == 1, step % 5 == 0];
            let expected = if begins { [2, 0] } else { [0, 2] };
            let found = copies.between(step, "forward", "backward");
            assert_eq!(found, expected, "images and labels of step {step}");
            let next = copies.between(step, "backward", "optimizer");
            assert_eq!(next, [if ends { 0 } else { 2 }, 0], "those of the step after {step}");
        }
    }
    gpu.pretend.schedule(0);
}

/// An observer that does nothing.
struct Nothing;

impl Observer for Nothing {}

#[test]
fn budget_has_room_for_it_or_goes_without_and_plans_are_runs_to_the_byte() {
    let Some(gpu) = Gpu::with_pages(64 << 10) else { return };
    let run =
        Run { channels: 24, kind: Kind::Momentum, train_len: 432, batch_size: 144, ..small() };
    let whole = run_on(&gpu.device(), &run, true, &mut Nothing).expect("undisturbed");
    let mut budget_bytes = whole.peak_bytes;
    let mut seen = Vec::new();
    // With one byte less than a plan needs, the next smaller plan is found.
    while let Ok(found) = {
        let device = gpu.try_device_within(Some(budget_bytes)).expect("memory");
        run_on(&device, &run, true, &mut Nothing)
    } {
        let spec = SimSpec { page_bytes: 64 << 10, ..SimSpec::like_cuda(1 << 50) };
        let device = Device::sim(spec).expect("no memory is needed");
        let (mut train, test) = run.loaders();
        assert!(lock_pages(&mut train, &device).expect("ordinary memory"));
        let mut trainer = run.trainer(&device);
        device.allocator().set_capacity(budget_bytes);
        let plan = trainer.plan(&train, &test, run.epochs).expect("as the run");
        let of = |plan: &Plan| (plan.knobs.micro_batch, plan.copy_ahead_bytes);
        assert_eq!(of(&plan), of(&found.plan), "within {budget_bytes}");
        assert_eq!(plan.predicted_peak_bytes(), found.peak_bytes, "within {budget_bytes}");
        assert_eq!((found.plan.predicted_peak_bytes(), found.retried_steps), (found.peak_bytes, 0));
        seen.push(of(&plan));
        budget_bytes = found.peak_bytes - 1;
    }
    let with = seen.iter().filter(|(_, bytes)| *bytes > 0).count();
    assert!(with > 2, "{seen:?}");
    // The planner gives up copying ahead before it splits the batch further.
    assert!(seen.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[1].1 == 0), "{seen:?}");
}

/// Makes an allocation of step 2 fail.
struct Storm<'a> {
    device: &'a Device,
    nth: u64,
    counts: Vec<u64>,
}

impl Observer for Storm<'_> {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.counts.push(self.device.allocator().request_count());
        if report.step == 1 && self.nth > 0 {
            self.device.allocator().inject_fault(Fault { nth: self.nth, repeat: Repeat::Once });
        }
        Ok(Flow::Continue)
    }
}

#[test]
fn step_that_fails_gives_its_memory_up_and_is_the_same() {
    let Some(gpu) = Gpu::pretend() else { return };
    let run = Run { train_len: 72, ..small() };
    let storm = |nth| {
        let device = gpu.device();
        let mut storm = Storm { device: &device, nth, counts: Vec::new() };
        let found = run_on(&device, &run, true, &mut storm);
        (found.unwrap_or_else(|error| panic!("allocation {nth}: {error}")), storm.counts)
    };
    let (calm, counts) = storm(0);
    let requests = counts[1] - counts[0];
    assert!(requests > 10, "{requests} allocations are no step");
    for nth in 1..=requests {
        let (stormy, _) = storm(nth);
        assert_eq!(stormy.state_hash, calm.state_hash, "allocation {nth}");
        assert_eq!(stormy.retried_steps, 1, "allocation {nth}");
        assert!(stormy.peak_bytes <= calm.peak_bytes, "allocation {nth}");
    }
}

#[test]
fn sample_that_cannot_be_read_is_told_when_its_batch_is_due() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    for workers in [0, 2] {
        let read = |index: usize, sample: &SampleView<'_>, slot: &mut SampleSlot<'_>| {
            if index == 10 {
                return Err("no such sample".into());
            }
            for field in 0..2 {
                slot.bytes(field).copy_from_slice(sample.bytes(field));
            }
            Ok(())
        };
        let samples = Mapped::new(digits(), digits().fields().to_vec(), read).expect("fits");
        let options = LoaderOptions { batch_size: 4, workers, ..Default::default() };
        let mut train = Loader::with_sampler(samples, Sequential, options).expect("valid options");
        assert!(lock_pages(&mut train, &device).expect("room"));
        let run = small();
        let mut trainer = run.trainer(&device);
        let error = trainer.run(&Fit::new(&train).steps(5), &mut []).unwrap_err();
        assert!(matches!(error, TrainError::Data(_)), "{error:?}");
        assert_eq!((trainer.steps(), trainer.position().batch), (2, 2));
    }
}

#[test]
fn loader_of_one_buffer_has_none_for_the_next_batch() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let options = LoaderOptions { batch_size: 4, prefetch: 1, workers: 0, ..Default::default() };
    let mut train = Loader::with_sampler(digits(), Sequential, options).expect("valid options");
    assert!(lock_pages(&mut train, &device).expect("room"));
    let mut trainer: Trainer<_, _> = small().trainer(&device);
    let plan = trainer.plan_run(&Fit::new(&train).steps(3), &Default::default()).expect("fits");
    assert_eq!(plan.copy_ahead_bytes, 0);
    trainer.run(&Fit::new(&train).steps(3), &mut []).expect("undisturbed");
}
