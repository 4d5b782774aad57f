//! A step fails and its retry fails too: every pair of a k-th and then a j-th allocation.

use lowtide_allocator::{Fault, Repeat};
use lowtide_data::{ElementType, Field, Loader, LoaderOptions, Random, Sequential};
use lowtide_nn::models::{Gpt, GptShape, ResNet, ResNetShape};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{
    Classification, Fit, Flow, LanguageModel, Observer, Options, Recovery, Result, StepReport,
    Task, Trainer, Training,
};

use crate::common::{cnn, is_deep};

const KEY: RandomKey = RandomKey::new(5);

/// Makes one allocation of the first attempt and one of the second fail. Each is counted from the
/// beginning of the forward pass.
struct Pair<'a> {
    device: &'a Device,
    faults: Vec<Fault>,
    reports: Vec<StepReport>,
}

impl Observer for Pair<'_> {
    fn on_phase(&mut self, _: u64, phase: &'static str) {
        if phase == "forward"
            && let Some(fault) = self.faults.pop()
        {
            self.device.allocator().inject_fault(fault);
        }
    }

    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.reports.push(report.clone());
        Ok(Flow::Continue)
    }
}

fn loader(fields: Vec<Field>, bound: u64) -> Loader {
    let options = LoaderOptions { batch_size: 2, ..Default::default() };
    let loader = Loader::with_sampler(Random::new(8, fields, bound), Sequential, options);
    loader.expect("valid options")
}

fn images(shape: [usize; 3]) -> Loader {
    let images = Field::new("images", ElementType::F32, &shape);
    loader(vec![images, Field::new("labels", ElementType::I64, &[])], 4)
}

/// Checks every `stride`-th pair of a step. Returns the number of pairs.
fn check<T: Task + Clone>(
    name: &str,
    task: impl Fn(&Device) -> T,
    loader: &Loader,
    stride: u64,
) -> u64 {
    let options = CpuOptions { budget_bytes: None, threads: Some(1), ..Default::default() };
    let device = Device::cpu(options).expect("address space");
    let adam = Adam::new(AdamOptions { learning_rate: 0.01, ..AdamOptions::adamw() });
    let options = Options { clip_norm: Some(0.5), ..Options::default() };
    let mut trainer = Trainer::new(&device, task(&device), adam.expect("in range"), options);
    // The first step creates the optimizer's state.
    trainer.run(&Fit::new(loader).steps(1), &mut []).expect("memory");
    let begin = trainer.snapshot().expect("readable");
    let fit = Fit::new(loader).steps(1);
    let run = |trainer: &mut Trainer<T, _>, faults: Vec<Fault>| {
        trainer.restore(&begin).expect("of this training");
        let count = device.allocator().request_count();
        let mut pair = Pair { device: &device, faults, reports: Vec::new() };
        trainer.run(&fit, &mut [&mut pair]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let count = device.allocator().request_count() - count;
        (trainer.state_hash().expect("readable"), count, pair.reports)
    };
    let once = |nth| Fault { nth, repeat: Repeat::Once };
    run(&mut trainer, Vec::new());
    let (calm, requests, _) = run(&mut trainer, Vec::new());
    assert!(requests > 20, "{name}: {requests} allocations are no step");
    // At least one of the `requests` comes before the first forward pass, from which faults are
    // counted.
    let (mut pairs, mut at) = (0, 0);
    let end = requests - 1;
    for first in 1..=end {
        for second in 1..=end {
            at += 1;
            if at % stride != 0 {
                continue;
            }
            let (hash, _, reports) = run(&mut trainer, vec![once(second), once(first)]);
            assert_eq!(hash, calm, "{name}: {first}, then {second}");
            let recoveries: Vec<Recovery> =
                reports[0].retries.iter().map(|retry| retry.recovery).collect();
            assert!(recoveries.iter().all(|&r| r == Recovery::SamePlan), "{recoveries:?}");
            // Faults are counted from the forward pass, so a second fault near the end may not
            // strike.
            assert!((1..=2).contains(&recoveries.len()), "{name}: {first}, then {second}");
            pairs += u64::from(recoveries.len() == 2);
        }
    }
    println!("{name}: {pairs} pairs in {requests} allocations of a step");
    pairs
}

#[test]
fn step_survives_every_pair_of_failures_and_is_the_same() {
    // Strides without a common factor with the allocations of a layer meet every kind of pair.
    let [small, large] = if is_deep() { [1, 7] } else { [53, 4001] };
    let cnn = check("SimpleCnn", |device| cnn(device, 2, 7), &images([1, 8, 8]), small);
    let tokens = loader(vec![Field::new("tokens", ElementType::I64, &[5])], 11);
    let gpt = |device: &Device| {
        let shape = GptShape { vocabulary: 11, context: 4, width: 4, heads: 2, blocks: 2 };
        LanguageModel::new(Gpt::gpt2(device, KEY, shape).expect("memory"))
    };
    let gpt = check("GPT", gpt, &tokens, small);
    let resnet = |device: &Device| {
        let shape = ResNetShape { width: 2, classes: 4, ..ResNetShape::RESNET18 };
        Classification::new(ResNet::new(device, KEY, shape).expect("memory"))
    };
    let resnet = check("ResNet-18", resnet, &images([3, 32, 32]), large);
    assert!(cnn.min(gpt).min(resnet) > 15, "{cnn} {gpt} {resnet}");
}
