//! After a step, exactly the blocks are live that were live before the step.

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::optim::{Optimizer, Sgd, SgdOptions};
use lowtide_tensor::{Device, SimSpec};

use crate::common::{KEY, Outcome, cpu};
use crate::zoo::{Trained, ZOO};

const STEPS: u64 = 1000;

fn step(case: &mut dyn Trained, optimizer: &mut Sgd, index: u64) -> lowtide_nn::NnResult<()> {
    let attempt = Attempt::new();
    let pass = Pass::train(KEY.step(index), &attempt);
    let loss = case.loss(&pass)?;
    pass.backward(loss)?;
    optimizer.step(case.model(), attempt)
}

/// Number of live blocks, and their bytes.
fn live(device: &Device) -> (u64, usize) {
    let statistics = device.allocator().statistics();
    let blocks = statistics.allocations - statistics.frees;
    (blocks, statistics.requested.current_bytes)
}

fn check(
    device: &Device,
    build: impl Fn(&Device) -> lowtide_nn::NnResult<Box<dyn Trained>>,
    steps: u64,
    name: &str,
) -> Outcome {
    let nothing = live(device);
    let mut case = build(device)?;
    let options = SgdOptions { momentum: 0.9, ..SgdOptions::new(0.01) };
    let mut optimizer = Sgd::new(options)?;
    // The first step allocates the optimizer's states.
    step(&mut *case, &mut optimizer, 0)?;
    let start = live(device);
    for index in 1..=steps {
        step(&mut *case, &mut optimizer, index)?;
        assert_eq!(live(device), start, "{name} after step {index}");
    }
    drop((case, optimizer));
    assert_eq!(live(device), nothing, "{name} after everything");
    Ok(())
}

#[test]
fn no_model_leaves_anything_behind_in_a_thousand_steps() -> Outcome {
    for (name, build) in ZOO {
        let device = Device::sim(SimSpec::like_this_machine(64 << 20))?;
        check(&device, |device| build(device, 0.1), STEPS, name)?;
    }
    Ok(())
}

#[test]
fn no_model_leaves_anything_behind_where_numbers_are_computed() -> Outcome {
    for (name, build) in ZOO {
        check(&cpu(), |device| build(device, 0.1), 3, name)?;
    }
    Ok(())
}
