//! A plan on a simulated device compared with the run on the pretend device.

use lowtide_nn::NnResult;
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Job, PerParameter, StateSpec, UpdateRule};
use lowtide_tensor::{Device, RandomKey, SimSpec, Tensor, TensorResult};
use lowtide_trainer::{Classification, Options, Result, TrainError, Trainer};

use crate::common::{Kind, Run};
use crate::gpu::Gpu;
use crate::{fit_with, small};

/// The micro-batch and the peak of a plan, or the bytes that the smallest plan needs.
type Planned = std::result::Result<(usize, usize), usize>;

fn planned<T>(found: Result<T>, of: impl FnOnce(T) -> (usize, usize)) -> Planned {
    match found {
        Ok(found) => Ok(of(found)),
        Err(TrainError::DoesNotFit(error)) => Err(error.needed_bytes),
        Err(error) => panic!("{error}"),
    }
}

fn simulated() -> Device {
    Device::sim(SimSpec::like_cuda(1 << 50)).expect("no memory is needed")
}

#[test]
fn plan_without_a_device_is_the_run_on_one_to_the_byte() {
    let Some(gpu) = Gpu::take() else { return };
    let of = Run { channels: 24, kind: Kind::Momentum, ..small() };
    let run = Run { train_len: 1440, batch_size: 1440, ..of };
    let mut outcomes = Vec::new();
    // Half of these budgets are not a multiple of the page size.
    for budget_bytes in (0..10).map(|index| (5 << 19) + index * (3 << 19)) {
        let device = simulated();
        let (train, test) = run.loaders();
        let mut trainer = run.trainer(&device);
        device.allocator().set_capacity(budget_bytes);
        let plan = trainer.plan(&train, &test, run.epochs);
        let plan = planned(plan, |plan| (plan.knobs.micro_batch, plan.predicted_peak_bytes()));
        let found = fit_with(&gpu, &run, Some(budget_bytes), |_, _| {});
        let found = planned(found, |found| (found.micro_batch, found.measured_peak_bytes));
        assert_eq!(plan, found, "with {budget_bytes} bytes");
        outcomes.push(plan);
    }
    outcomes.dedup();
    assert!(outcomes.len() > 3, "these budgets hardly differ: {outcomes:?}");
}

/// An update rule that is defined outside the library.
#[derive(Clone, Debug)]
struct Own;

impl UpdateRule for Own {
    const NAME: &'static str = "own";

    fn check(&self) -> NnResult<()> {
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        0.1
    }

    fn states(&self, _: &Tensor) -> Vec<StateSpec> {
        Vec::new()
    }

    fn commit(&self, _: &mut [Job], _: &mut [Tensor]) -> TensorResult<()> {
        Ok(())
    }
}

#[test]
fn plan_of_what_has_no_kernel_fails_as_its_run_would() {
    let Some(gpu) = Gpu::take() else { return };
    let run = small();
    let (train, test) = run.loaders();
    let errors = [simulated(), gpu.device()].map(|device| {
        let shape = SimpleCnnShape { image: [1, 8, 8], channels: 4, classes: 10 };
        let model = SimpleCnn::new(&device, RandomKey::new(1), shape).expect("memory");
        let own = PerParameter::new(Own).expect("in range");
        let task = Classification::new(model);
        let mut trainer = Trainer::new(&device, task, own, Options::default());
        let planned = trainer.plan(&train, &test, 1).unwrap_err().to_string();
        (planned, device.is_simulated())
    });
    let text = "own: has no kernel for cuda";
    assert_eq!(errors, [(text.to_owned(), true), (text.to_owned(), false)]);
}
