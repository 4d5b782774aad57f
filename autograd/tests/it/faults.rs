//! Each request of a step fails in turn. The step returns an error and leaves nothing behind.

use lowtide_allocator::{Fault, Repeat};
use lowtide_autograd::{Attempt, AutogradResult as Result, LeafId, Pass, Var};
use lowtide_tensor::{Conv2dGeometry, Device, Pool2dGeometry, RandomKey, Tensor};

use crate::common::{Outcome, bits, cpu, tensor};

struct Model {
    leaves: [(LeafId, Tensor); 5],
}

impl Model {
    fn new(device: &Device) -> Self {
        let leaves = [
            tensor(device, "x", [2, 1, 6, 6]),
            tensor(device, "conv", [3, 1, 3, 3]),
            tensor(device, "conv bias", [3]),
            tensor(device, "linear", [4, 12]),
            tensor(device, "scale", [4]),
        ];
        Model { leaves: leaves.map(|value| (LeafId::new(), value)) }
    }

    /// Runs every kind of rule: views, reductions, products, in place and not.
    fn forward(&self, pass: &Pass) -> Result<Var> {
        let leaf = |index: usize| pass.leaf(self.leaves[index].0, &self.leaves[index].1);
        let y = leaf(0)?.conv2d(leaf(1)?, Some(leaf(2)?), Conv2dGeometry::default())?.relu()?;
        let y = y.max_pool2d(Pool2dGeometry::square(2))?.flatten(1..4)?.linear(leaf(3)?, None)?;
        let scale = leaf(4)?.exp()?.add_scalar(1.0)?.sqrt()?;
        let y = y.mul(scale.clone())?.div(scale.clone().log()?.add_scalar(3.0)?)?.sub(scale)?;
        let y = y.transpose(0, 1)?.narrow(1, 0, 1)?.expand([4, 2])?.permute(&[1, 0])?;
        let labels = Tensor::from_slice(self.leaves[0].1.device(), [2], &[1_i64, -100])?;
        let (sum, count) = y.clone().matmul(y.reshape([4, 2])?)?.cross_entropy(&labels, -100)?;
        sum.div(pass.constant(count))
    }

    /// Runs two passes of one attempt, so that gradients are also added.
    fn step(&self) -> Result<Attempt> {
        let attempt = Attempt::new();
        for index in 0..2 {
            let pass = Pass::train(RandomKey::new(index), &attempt);
            let loss = self.forward(&pass)?;
            pass.backward_seeded(loss, 0.5)?;
        }
        Ok(attempt)
    }

    /// The state that a failed step must not change.
    fn state(&self) -> Vec<(Vec<u32>, u64)> {
        self.leaves.iter().map(|(_, value)| (bits(value), value.version())).collect()
    }
}

fn gradient_bits(attempt: Attempt) -> Vec<Vec<u32>> {
    attempt.into_gradients().iter().map(bits).collect()
}

fn check_every_request(repeat: Repeat) -> Outcome {
    let device = cpu();
    let memory = device.allocator();
    let model = Model::new(&device);
    let expected = gradient_bits(model.step()?);
    let start = memory.request_count();
    drop(model.step()?);
    let requests = memory.request_count() - start;
    assert!(requests > 50, "{requests} requests are hardly a step");

    let before = (model.state(), memory.layout_hash(), memory.live_blocks());
    for nth in 1..=requests {
        memory.inject_fault(Fault { nth, repeat });
        let error = model.step().expect_err("a request failed");
        memory.clear_fault();
        let ledger = error.out_of_memory().unwrap_or_else(|| panic!("request {nth}: {error}"));
        assert!(ledger.injected, "request {nth}: {error}");
        let after = (model.state(), memory.layout_hash(), memory.live_blocks());
        assert_eq!(after, before, "request {nth}: {error}");
    }
    memory.inject_fault(Fault { nth: requests + 1, repeat });
    assert_eq!(gradient_bits(model.step()?), expected, "the step itself is as before");
    memory.clear_fault();
    Ok(())
}

#[test]
fn a_step_that_fails_once_anywhere_leaves_nothing_behind() -> Outcome {
    check_every_request(Repeat::Once)
}

#[test]
fn a_step_whose_memory_is_gone_for_good_leaves_nothing_behind() -> Outcome {
    check_every_request(Repeat::Forever)
}
