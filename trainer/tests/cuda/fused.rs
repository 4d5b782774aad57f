//! Fused updates, on the pretend device.

use std::cell::RefCell;

use lowtide_allocator::Repeat;
use lowtide_trainer::{Fit, Flow, Knobs, Observer, Options, Result, StepReport, Training};

use crate::common::{KINDS, Kind, Run};
use crate::gpu::Gpu;
use crate::{WAITS, small};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// Calls a function after each step.
struct After<F>(F);

impl<F: FnMut(u64)> Observer for After<F> {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        (self.0)(report.step);
        Ok(Flow::Continue)
    }
}

/// The state hash after an epoch, with the planned and the measured peak.
fn run(gpu: &Gpu, run: &Run, fused_update: bool, after: impl FnMut(u64)) -> (u64, [usize; 2]) {
    let device = gpu.device();
    let options = Options { clip_norm: Some(0.5), ..Options::default() };
    let mut trainer = run.trainer_with(&device, options);
    let (train, test) = run.loaders();
    let fit = Fit::new(&train).evaluate("test", &test);
    let knobs = Knobs { micro_batch: run.batch_size, fused_update, ..Knobs::default() };
    let plan = trainer.plan_run(&fit, &knobs.into()).expect("no limit");
    trainer.run(&fit, &mut [&mut After(after)]).unwrap_or_else(|error| panic!("{error}"));
    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    (trainer.state_hash().expect("readable"), [plan.predicted_peak_bytes(), peak_bytes])
}

#[test]
fn fused_update_has_the_bits_and_the_planned_peak() {
    let Some(gpu) = Gpu::take() else { return };
    for kind in KINDS {
        let of = Run { kind, ..small() };
        let (apart, _) = run(&gpu, &of, false, |_| {});
        let (fused, [predicted, measured]) = run(&gpu, &of, true, |_| {});
        assert_eq!((fused, predicted), (apart, measured), "{kind:?}");
    }
}

#[test]
fn step_that_clips_waits_for_the_device_once() {
    let Some(gpu) = Gpu::pretend() else { return };
    let of = Run { train_len: 96, ..small() };
    for is_fused in [false, true] {
        let counts = RefCell::new(Vec::new());
        run(&gpu, &of, is_fused, |_| {
            counts.borrow_mut().push(WAITS.map(|call| gpu.pretend.calls(call)));
        });
        let counts = counts.into_inner();
        let of_step = |pair: &[[u64; 3]]| [0, 1, 2].map(|call| pair[1][call] - pair[0][call]);
        let steps: Vec<[u64; 3]> = counts.windows(2).map(of_step).collect();
        assert_eq!(steps, [[1, 0, 1]; 3], "fused: {is_fused}");
    }
}

#[test]
fn fused_step_survives_a_driver_without_memory_at_any_call() {
    let Some(gpu) = Gpu::pretend() else { return };
    let of =
        Run { channels: 2, train_len: 9, test_len: 3, batch_size: 3, kind: Kind::Adam, ..small() };
    let counts = RefCell::new(Vec::new());
    let (calm, _) = run(&gpu, &of, true, |_| counts.borrow_mut().push(gpu.pretend.calls("")));
    let counts = counts.into_inner();
    let calls = counts[2] - counts[1];
    assert!(calls > 60, "{calls} calls are no step");
    for nth in 1..=calls {
        gpu.reset();
        let (stormy, _) = run(&gpu, &of, true, |step| {
            if step == 2 {
                gpu.pretend.fail("", OUT_OF_MEMORY, nth, Repeat::Once);
            }
        });
        assert_eq!(stormy, calm, "call {nth}");
    }
    gpu.reset();
}
