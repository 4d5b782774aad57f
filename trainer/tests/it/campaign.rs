//! Fault injection into every allocation of a step, on the reference models with all features of a
//! step. The run must end in the state of an undisturbed run.

use lowtide_allocator::{Fault, Repeat};
use lowtide_amp::{LossScaler, LossScalerOptions};
use lowtide_autograd::{Offload, SavedPolicy};
use lowtide_data::{ElementType, Field, Loader, LoaderOptions, Random, Sequential};
use lowtide_nn::models::{Gpt, GptShape, ResNet, ResNetShape, UNet, UNetShape};
use lowtide_nn::optim::{Adam, AdamOptions, Averaged, PerParameter};
use lowtide_nn::{Parameters, Schedule};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{
    Classification, LanguageModel, Options, Segmentation, StepReport, Task, Trainer,
};

use crate::common::is_deep;

const KEY: RandomKey = RandomKey::new(5);

/// An optimizer with averages of the parameters, and with a parameter group that has its own
/// learning rate.
type Optimizer = Averaged<PerParameter<AdamOptions>>;

fn optimizer() -> Optimizer {
    let rule = AdamOptions { learning_rate: 0.01, ..AdamOptions::adamw() };
    let slower = AdamOptions { learning_rate: 0.001, ..rule };
    let schedule = Schedule::Cosine { steps: 5, floor: 0.0 };
    let adam = Adam::new(rule).and_then(|adam| adam.with_group("*.bias", slower));
    let adam = adam.and_then(|adam| adam.with_schedule(schedule)).expect("in range");
    Averaged::new(adam, 0.9).expect("in range")
}

/// Options with clipping and loss scaling. The initial scale may be too large; it grows every
/// second step.
fn options(initial_scale: f32) -> Options {
    let scale =
        LossScalerOptions { initial_scale, growth_interval: 2, ..LossScalerOptions::default() };
    let scaler = LossScaler::new(scale).expect("in range");
    Options { seed: 3, clip_norm: Some(0.5), scaler: Some(scaler), ..Options::default() }
}

/// Makes the blocks keep, recompute and offload their saved tensors in turn.
fn with_policies<M: Parameters>(mut model: M, host: &Device) -> M {
    let to_host = Offload { size_bytes_min: 0, ..Offload::to(host) };
    let policies = [
        SavedPolicy::Recompute,
        SavedPolicy::Offload(to_host.clone()),
        SavedPolicy::RecomputeFrom(to_host),
        SavedPolicy::Keep,
    ];
    let mut turns = policies.iter().cycle();
    model.visit_policies(&mut |policy| *policy = turns.next().cloned());
    model
}

/// Four batches of four samples.
fn loader(fields: Vec<Field>, bound: u64) -> Loader {
    let options = LoaderOptions { batch_size: 4, ..Default::default() };
    let loader = Loader::with_sampler(Random::new(16, fields, bound), Sequential, options);
    loader.expect("valid options")
}

fn images(shape: [usize; 3], labels: &[usize]) -> Loader {
    let images = Field::new("images", ElementType::F32, &shape);
    loader(vec![images, Field::new("labels", ElementType::I64, labels)], 4)
}

fn cpu() -> Device {
    Device::cpu(CpuOptions { budget_bytes: None, threads: Some(1), ..Default::default() })
        .expect("address space")
}

/// A training of a few steps. An allocation fails in one of them.
struct Campaign<T> {
    name: &'static str,
    /// The initial loss scale.
    scale: f32,
    /// Makes the task for a training device and a device to offload to.
    task: fn(&Device, &Device) -> T,
    loader: Loader,
}

/// The place of a failing allocation: the step, the device (0 trains, 1 is for offloading), and the
/// number of the allocation on this device in this step.
#[derive(Clone, Copy, Debug)]
struct Place {
    step: usize,
    device: usize,
    nth: u64,
}

/// The end of a training: hashes of state and memory layout, losses, and skipped steps.
#[derive(Debug, PartialEq)]
struct End {
    state_hash: u64,
    layout_hash: u64,
    losses: Vec<u64>,
    skipped: Vec<bool>,
}

impl<T: Task + Clone> Campaign<T> {
    /// Runs all steps. Returns the end, and the number of allocations of each step on both devices.
    fn run(&self, fault: Option<Place>) -> (End, Vec<[u64; 2]>) {
        let devices = [cpu(), cpu()];
        let task = (self.task)(&devices[0], &devices[1]);
        let mut trainer = Trainer::new(&devices[0], task, optimizer(), options(self.scale));
        let count = || devices.each_ref().map(|device| device.allocator().request_count());
        let (mut reports, mut counts): (Vec<StepReport>, Vec<_>) = (Vec::new(), Vec::new());
        // Planned before counting, because a rehearsal offloads to the real second device.
        trainer.plan(&self.loader, &self.loader, 1).expect("fits");
        for (step, batch) in self.loader.epoch(0).enumerate() {
            let fault = fault.filter(|fault| fault.step == step);
            if let Some(Place { device, nth, .. }) = fault {
                devices[device].allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
            }
            let before = count();
            let report = trainer.step(&batch.expect("readable"));
            let report = report.unwrap_or_else(|e| panic!("{} with {fault:?}: {e}", self.name));
            assert_eq!(report.retries.len(), fault.iter().len(), "{} with {fault:?}", self.name);
            assert!(report.retries.iter().all(|retry| retry.failure.injected), "{fault:?}");
            let after = count();
            counts.push([after[0] - before[0], after[1] - before[1]]);
            reports.push(report);
        }
        let end = End {
            state_hash: trainer.state_hash().expect("cpu"),
            layout_hash: devices[0].allocator().layout_hash(),
            losses: reports.iter().map(|report| report.loss.to_bits()).collect(),
            skipped: reports.iter().map(|report| report.skipped).collect(),
        };
        (end, counts)
    }

    /// Makes every `stride`-th allocation of all steps fail. Returns the number of faults.
    fn check(&self, stride: usize) -> u64 {
        let (calm, counts) = self.run(None);
        assert!(calm.skipped.contains(&false), "{}: every step is skipped", self.name);
        assert_eq!(self.run(None).0, calm, "{} is not deterministic", self.name);
        assert!(counts[0][1] > 0, "{}: nothing is offloaded", self.name);
        let places = counts.iter().enumerate().flat_map(|(step, counts)| {
            counts.iter().enumerate().flat_map(move |(device, &count)| {
                (1..=count).map(move |nth| Place { step, device, nth })
            })
        });
        let mut faults = 0;
        for place in places.step_by(stride) {
            assert_eq!(self.run(Some(place)).0, calm, "{} with {place:?}", self.name);
            faults += 1;
        }
        let allocations: u64 = counts.iter().flatten().sum();
        let skipped = calm.skipped.iter().filter(|&&skipped| skipped).count();
        println!(
            "{}: {faults} faults in {allocations} allocations of {} steps, {skipped} skipped",
            self.name,
            counts.len()
        );
        faults
    }
}

#[test]
fn step_with_everything_on_survives_the_failure_of_any_of_its_allocations() {
    let resnet = Campaign {
        name: "ResNet-18",
        scale: 2f32.powi(127),
        task: |device, host| {
            let shape = ResNetShape { width: 2, classes: 4, ..ResNetShape::RESNET18 };
            let model = ResNet::new(device, KEY, shape).expect("memory");
            Classification::new(with_policies(model, host))
        },
        loader: images([3, 32, 32], &[]),
    };
    let gpt = Campaign {
        name: "GPT",
        scale: f32::MAX,
        task: |device, host| {
            let shape = GptShape { vocabulary: 11, context: 8, width: 8, heads: 2, blocks: 3 };
            let model = Gpt::gpt2(device, KEY, shape).and_then(|gpt| gpt.with_dropout(0.1));
            LanguageModel::new(with_policies(model.expect("memory"), host))
        },
        loader: loader(vec![Field::new("tokens", ElementType::I64, &[9])], 11),
    };
    let unet = Campaign {
        name: "U-Net",
        scale: 2f32.powi(127),
        task: |device, host| {
            let shape = UNetShape { channels: 1, width: 2, classes: 4 };
            let model = UNet::new(device, KEY, shape).expect("memory");
            Segmentation::new(with_policies(model, host))
        },
        loader: images([1, 16, 16], &[16, 16]),
    };
    // A stride without a common factor with the allocations of a layer meets every kind of
    // allocation.
    let stride = if is_deep() { 1 } else { 23 };
    let faults = resnet.check(stride) + gpt.check(stride) + unet.check(stride);
    println!("{faults} faults in all");
    assert!(faults > if is_deep() { 2731 } else { 100 }, "{faults}");
}
