//! A driver that lacks memory in one call: in each call of a steady step, and in one more call of
//! the second attempt.

use std::cell::RefCell;

use lowtide_allocator::Repeat;
use lowtide_trainer::{Fit, Flow, Observer, Options, Result, StepReport, Training};

use crate::common::{Kind, Run, is_deep};
use crate::gpu::Gpu;
use crate::{fit_with, small};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// Three steps. The last one is like all later steps.
fn run() -> Run {
    Run { channels: 2, train_len: 9, test_len: 3, batch_size: 3, ..small() }
}

#[test]
fn steady_step_survives_a_driver_without_memory_at_any_call_and_is_the_same() {
    let Some(gpu) = Gpu::pretend() else { return };
    let counts = RefCell::new(Vec::new());
    let calm = fit_with(&gpu, &run(), None, |_, _| {
        counts.borrow_mut().push(gpu.pretend.calls(""));
    });
    let (calm, counts) = (calm.expect("an undisturbed run"), counts.into_inner());
    let calls = counts[3] - counts[2];
    assert!(calls > 60, "{calls} calls are no step");
    let mut retried_steps = 0;
    for nth in 1..=calls {
        gpu.reset();
        let stormy = fit_with(&gpu, &run(), None, |_, step| {
            if step == 2 {
                gpu.pretend.fail("", OUT_OF_MEMORY, nth, Repeat::Once);
            }
        });
        let stormy = stormy.unwrap_or_else(|error| panic!("call {nth}: {error}"));
        assert_eq!(stormy.state_hash, calm.state_hash, "call {nth}");
        assert_eq!(stormy.micro_batch, calm.micro_batch, "call {nth}");
        assert_eq!(gpu.left(), [], "call {nth}");
        retried_steps += stormy.retried_steps;
    }
    assert!(retried_steps < calls, "each call made the whole step again");
    gpu.reset();
}

/// Makes one call of the first attempt and one of the second fail. Each is counted from the
/// beginning of the forward pass.
struct Pair<'a> {
    gpu: &'a Gpu,
    /// The numbers of the failing calls, that of the second attempt first.
    nths: Vec<u64>,
    retries: usize,
}

impl Observer for Pair<'_> {
    fn on_phase(&mut self, _: u64, phase: &'static str) {
        if phase == "forward"
            && let Some(nth) = self.nths.pop()
        {
            self.gpu.pretend.fail("", OUT_OF_MEMORY, nth, Repeat::Once);
        }
    }

    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.retries += report.retries.len();
        Ok(Flow::Continue)
    }
}

#[test]
fn steady_step_survives_every_pair_of_calls_without_memory_and_is_the_same() {
    let Some(gpu) = Gpu::pretend() else { return };
    let run = Run { kind: Kind::Adam, ..run() };
    let device = gpu.device();
    let options = Options { clip_norm: Some(0.5), ..Options::default() };
    let mut trainer = run.trainer_with(&device, options);
    let (train, _) = run.loaders();
    trainer.run(&Fit::new(&train).steps(2), &mut []).expect("memory");
    let begin = trainer.snapshot().expect("readable");
    let mut step = |nths: Vec<u64>| {
        trainer.restore(&begin).expect("of this training");
        let before = gpu.pretend.calls("");
        let mut pair = Pair { gpu: &gpu, nths, retries: 0 };
        let done = trainer.run(&Fit::new(&train).steps(1), &mut [&mut pair]);
        let calls = gpu.pretend.calls("") - before;
        done.unwrap_or_else(|error| panic!("{:?}: {error}", pair.nths));
        (trainer.state_hash().expect("readable"), calls, pair.retries)
    };
    step(Vec::new());
    let (calm, calls, _) = step(Vec::new());
    assert!(calls > 60, "{calls} calls are no step");
    // Most failed calls are repeated by their callers; the others fail the step.
    let fails = |nth: &u64| {
        let (hash, _, retries) = step(vec![*nth]);
        assert_eq!(hash, calm, "call {nth}");
        retries > 0
    };
    let fragile: Vec<u64> = (1..=calls).filter(fails).collect();
    // A stride without a common factor with the calls of a layer meets every kind of pair.
    let stride = if is_deep() { 1 } else { 97 };
    let (mut at, mut pairs) = (0, 0);
    for first in 1..=calls {
        for second in 1..=calls {
            at += 1;
            let fails_twice = [first, second].iter().all(|nth| fragile.contains(nth));
            if at % stride != 0 && !fails_twice {
                continue;
            }
            let (hash, _, retries) = step(vec![second, first]);
            assert_eq!(hash, calm, "{first}, then {second}");
            pairs += usize::from(retries == 2);
        }
    }
    println!("{} of {calls} calls fail a step; {pairs} pairs of them, twice", fragile.len());
    assert!(pairs >= 4, "{pairs} steps failed twice");
    drop(trainer);
    drop(device);
    gpu.reset();
}
