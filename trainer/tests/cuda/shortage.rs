//! A driver without memory for one of its calls, at each call of a steady step.

use std::cell::RefCell;

use lowtide_allocator::Repeat;

use crate::common::Run;
use crate::gpu::Gpu;
use crate::{fit_with, small};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// Three steps, the last of which is like all later ones.
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
