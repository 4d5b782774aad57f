//! Plans that keep less for backward, for batches that do not fit or may not be split.

use lowtide_autograd::SavedPolicy;
use lowtide_data::{ElementType, Field, Loader, LoaderOptions, Random, Sequential};
use lowtide_nn::models::{Gpt, GptShape, ResNet, ResNetShape, UNet, UNetShape};
use lowtide_nn::optim::{Adam, AdamOptions, Averaged, PerParameter};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{
    Classification, Fit, Flow, Knobs, LanguageModel, MicroBatches, Observer, Options, Plan,
    Recovery, Result, Segmentation, StepReport, Task, Trainer, Training,
};

use crate::common::does_not_fit;

const KEY: RandomKey = RandomKey::new(5);

pub(crate) type Optimizer = Averaged<PerParameter<AdamOptions>>;

pub(crate) fn optimizer() -> Optimizer {
    let adam = Adam::new(AdamOptions { learning_rate: 0.01, ..AdamOptions::adamw() });
    Averaged::new(adam.expect("in range"), 0.9).expect("in range")
}

fn loader(samples: usize, fields: Vec<Field>, bound: u64) -> Loader {
    let options = LoaderOptions { batch_size: 8, ..Default::default() };
    let loader = Loader::with_sampler(Random::new(samples, fields, bound), Sequential, options);
    loader.expect("valid options")
}

pub(crate) fn images(samples: usize, shape: [usize; 3], labels: &[usize]) -> Loader {
    let images = Field::new("images", ElementType::F32, &shape);
    loader(samples, vec![images, Field::new("labels", ElementType::I64, labels)], 4)
}

pub(crate) fn cpu(budget_bytes: Option<usize>) -> Device {
    Device::cpu(CpuOptions { budget_bytes, threads: Some(1), ..Default::default() })
        .expect("address space")
}

fn resnet(device: &Device) -> Classification<ResNet> {
    let shape = ResNetShape { width: 4, classes: 4, ..ResNetShape::RESNET18 };
    Classification::new(ResNet::new(device, KEY, shape).expect("memory"))
}

pub(crate) fn unet(device: &Device) -> Segmentation<UNet> {
    let shape = UNetShape { channels: 1, width: 4, classes: 4 };
    Segmentation::new(UNet::new(device, KEY, shape).expect("memory"))
}

pub(crate) fn gpt(device: &Device) -> LanguageModel<Gpt> {
    let shape = GptShape { vocabulary: 11, context: 32, width: 32, heads: 2, blocks: 6 };
    let model = Gpt::gpt2(device, KEY, shape).and_then(|gpt| gpt.with_dropout(0.1));
    LanguageModel::new(model.expect("memory"))
}

pub(crate) fn tokens(samples: usize) -> Loader {
    loader(samples, vec![Field::new("tokens", ElementType::I64, &[33])], 11)
}

/// A run of two epochs within a budget.
struct Found {
    plan: Plan,
    hash: u64,
    peak_bytes: usize,
}

fn run<T: Task + Clone>(
    task: fn(&Device) -> T,
    loader: &Loader,
    options: &Options,
    budget_bytes: Option<usize>,
) -> Result<Found> {
    let device = cpu(None);
    let mut trainer = Trainer::new(&device, task(&device), optimizer(), options.clone());
    budget_bytes.inspect(|&bytes| device.allocator().set_capacity(bytes));
    let fit = Fit::new(loader).epochs(2).evaluate("test", loader);
    let plan = trainer.plan_run(&fit, &Default::default())?;
    trainer.run(&fit, &mut [])?;
    assert_eq!((trainer.retried_steps(), trainer.knobs()), (0, plan.knobs));
    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    Ok(Found { plan, hash: trainer.state_hash()?, peak_bytes })
}

/// Runs every plan, from the plan without a limit to the least one.
fn plans<T: Task + Clone>(
    name: &str,
    task: fn(&Device) -> T,
    loader: &Loader,
    options: &Options,
) -> Vec<Knobs> {
    let whole = run(task, loader, options, None).expect("no limit");
    assert_eq!(whole.plan.knobs, Knobs { micro_batch: 8, ..Knobs::default() });
    let (mut knobs, mut budget_bytes) = (Vec::new(), whole.plan.predicted_peak_bytes());
    loop {
        let found = match run(task, loader, options, Some(budget_bytes)) {
            Ok(found) => found,
            error => {
                let error = does_not_fit(error);
                assert_eq!(error.needed_bytes, budget_bytes + 1, "{name}: {error}");
                return knobs;
            }
        };
        let Found { plan, hash, peak_bytes } = found;
        assert_eq!(plan.predicted_peak_bytes(), peak_bytes, "{name}: {plan}");
        // The bits are those of the whole batch, unless the plan splits it.
        assert_eq!(hash == whole.hash, plan.knobs.micro_batch == 8, "{name}: {plan}");
        println!("{name}: {plan}, as {}", plan.reasons().join("; "));
        let is_whole = plan.knobs == whole.plan.knobs;
        assert_eq!(plan.reasons()[0].starts_with("the whole batch fits"), is_whole, "{plan}");
        let says_coupled = plan.reasons().iter().any(|reason| reason.contains("are coupled in"));
        assert_eq!(says_coupled, !is_whole && name != "GPT", "{plan}");
        knobs.push(plan.knobs);
        budget_bytes = peak_bytes - 1;
    }
}

#[test]
fn what_may_not_be_split_is_recomputed_to_the_same_bits() {
    let options = Options { clip_norm: Some(0.5), ..Options::default() };
    let never = Options { micro_batches: MicroBatches::Never, ..options.clone() };
    let resnet = plans("ResNet-18", resnet, &images(28, [3, 32, 32], &[]), &options);
    let unet = plans("U-Net", unet, &images(28, [1, 32, 32], &[32, 32]), &options);
    let gpt = plans("GPT", gpt, &tokens(28), &never);
    for knobs in [&unet, &gpt] {
        let blocks: Vec<usize> = knobs.iter().map(|knobs| knobs.recomputed_blocks).collect();
        assert!(blocks.len() > 3 && blocks[1] == 0 && blocks[2] > 0, "{knobs:?}");
    }
    for knobs in [&resnet, &unet, &gpt] {
        assert!(knobs.len() > 3 && knobs[1].cheap_recomputed, "first what is cheap: {knobs:?}");
        // An update is fused only if nothing else fits.
        assert!(knobs.is_sorted_by_key(|knobs| knobs.fused_update), "{knobs:?}");
    }
    // The U-Net reaches its peak before the first gradient exists.
    for knobs in [&resnet, &gpt] {
        assert!(knobs[knobs.len() - 1].fused_update, "{knobs:?}");
    }
}

#[test]
fn what_may_be_split_is_recomputed_below_the_smallest_parts() {
    let knobs = plans("GPT", gpt, &tokens(16), &Options::default());
    let split = knobs.iter().filter(|knobs| knobs.micro_batch < 8).count();
    let both = knobs.iter().filter(|k| k.micro_batch < 8 && k.recomputed_blocks > 0).count();
    assert!(split > 2 && both > 0, "{knobs:?}");
}

/// Takes memory away after step 2 and gives it back after step 4.
struct Squeeze {
    bytes: usize,
    reports: Vec<StepReport>,
}

impl Observer for Squeeze {
    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        match report.step {
            2 => training.device().allocator().set_capacity(self.bytes),
            4 => training.device().allocator().set_capacity(usize::MAX),
            _ => {}
        }
        self.reports.push(report.clone());
        Ok(Flow::Continue)
    }
}

#[test]
fn step_that_ran_out_of_memory_recomputes_and_goes_back_to_keeping() {
    let loader = tokens(8 * 20);
    let fit = Fit::new(&loader);
    let options = Options { micro_batches: MicroBatches::Never, ..Options::default() };
    let mut ends = Vec::new();
    // First cheap results are recomputed, then blocks as well.
    for (squeezes, blocks) in [(false, 0), (true, 0), (true, 1)] {
        let device = cpu(None);
        let mut trainer = Trainer::new(&device, gpt(&device), optimizer(), options.clone());
        let mut peak_bytes = |knobs: Knobs| {
            trainer.plan_run(&fit, &knobs.into()).expect("no limit").predicted_peak_bytes()
        };
        let whole = Knobs { micro_batch: 8, ..Knobs::default() };
        let cheap = Knobs { cheap_recomputed: true, ..whole };
        let bytes = [peak_bytes(whole), peak_bytes(cheap)][blocks] - 1;
        let bytes = if squeezes { bytes } else { usize::MAX };
        trainer.plan_run(&fit, &Default::default()).expect("no limit");
        let mut squeeze = Squeeze { bytes, reports: Vec::new() };
        trainer.run(&fit, &mut [&mut squeeze]).expect("it fits with less kept");
        ends.push(trainer.state_hash().expect("readable"));
        let reports = squeeze.reports;
        let recomputed: Vec<(bool, usize)> = reports
            .iter()
            .map(|report| (report.cheap_recomputed, report.recomputed_blocks))
            .collect();
        let keeping = (false, 0);
        if !squeezes {
            assert_eq!(recomputed, [keeping; 20]);
            continue;
        }
        let less = (true, blocks);
        assert_eq!(recomputed, [vec![keeping; 2], vec![less; 9], vec![keeping; 9]].concat());
        let recoveries: Vec<Recovery> =
            reports.iter().flat_map(|report| &report.retries).map(|retry| retry.recovery).collect();
        let recovery = match blocks {
            0 => Recovery::CheapRecomputation,
            blocks => Recovery::MoreRecomputation { blocks },
        };
        assert_eq!(recoveries, [recovery]);
    }
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

#[test]
fn policies_of_the_users_own_stay_as_they_are() {
    let device = cpu(None);
    let mut task = gpt(&device);
    let mut own = [Some(SavedPolicy::Keep), None, Some(SavedPolicy::Recompute)].into_iter().cycle();
    task.parameters().visit_policies(&mut |policy| *policy = own.next().expect("endless"));
    let policies = |task: &mut LanguageModel<Gpt>| {
        let mut policies = Vec::new();
        task.parameters().visit_policies(&mut |policy| policies.push(policy.clone()));
        policies
    };
    let before = policies(&mut task);
    let never = Options { micro_batches: MicroBatches::Never, ..Options::default() };
    let mut trainer = Trainer::new(&device, task, optimizer(), never);
    let loader = tokens(16);
    let fit = Fit::new(&loader);
    let plan = trainer.plan_run(&fit, &Default::default()).expect("no limit");
    let cheap = Knobs { cheap_recomputed: true, ..plan.knobs };
    let cheap = trainer.plan_run(&fit, &cheap.into()).expect("no limit");
    device.allocator().set_capacity(cheap.predicted_peak_bytes() - 1);
    let plan = trainer.plan_run(&fit, &Default::default()).expect("two blocks may be recomputed");
    assert!((1..=2).contains(&plan.knobs.recomputed_blocks), "{plan}");
    trainer.run(&fit, &mut []).expect("as planned");
    assert_eq!(policies(trainer.task_mut()), before);
}

#[test]
fn many_blocks_are_recomputed_several_at_once_where_that_needs_less() {
    let deep = |device: &Device| {
        let shape = GptShape { vocabulary: 11, context: 128, width: 8, heads: 2, blocks: 32 };
        LanguageModel::new(Gpt::gpt2(device, KEY, shape).expect("memory"))
    };
    let loader = loader(16, vec![Field::new("tokens", ElementType::I64, &[129])], 11);
    let never = Options { micro_batches: MicroBatches::Never, ..Options::default() };
    let fit = Fit::new(&loader).epochs(2).evaluate("test", &loader);
    let device = cpu(None);
    let mut trainer = Trainer::new(&device, deep(&device), optimizer(), never.clone());
    let all = Knobs { micro_batch: 8, cheap_recomputed: true, ..Knobs::default() };
    let all = Knobs { recomputed_blocks: 32, ..all };
    let singly = trainer.plan_run(&fit, &all.into()).expect("no limit").predicted_peak_bytes();
    let whole = run(deep, &loader, &never, None).expect("no limit");
    let found = run(deep, &loader, &never, Some(singly - 1)).expect("with several at once");
    let Found { plan, hash, peak_bytes } = found;
    assert!(plan.knobs.blocks_at_once > 1 && !plan.knobs.fused_update, "{plan}");
    assert_eq!((plan.predicted_peak_bytes(), hash), (peak_bytes, whole.hash), "{plan}");
    assert!(plan.to_string().contains("at once) recomputed"), "{plan}");
}
