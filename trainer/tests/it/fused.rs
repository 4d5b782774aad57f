//! Steps with a fused update: the bits of other steps, less memory, and still transactions.

use std::cell::Cell;

use lowtide_allocator::{Category, Fault, Repeat};
use lowtide_amp::{LossScaler, LossScalerOptions};
use lowtide_autograd::Pass;
use lowtide_data::{BatchView, ElementType, Field, Loader, LoaderOptions, Random, Sequential};
use lowtide_nn::models::{Gpt, GptShape, ResNet, ResNetShape};
use lowtide_nn::optim::{
    Adagrad, AdagradOptions, Adam, AdamOptions, Averaged, Lamb, LambOptions, Lion, LionOptions,
    Nadam, NadamOptions, RmsProp, RmsPropOptions, Scheduled, Sgd, SgdOptions, Stateful,
};
use lowtide_nn::{Linear, Loss, Module, Schedule, parameters};
use lowtide_tensor::{CpuOptions, DType, Device, RandomKey, SimSpec, Tensor};
use lowtide_trainer::{
    Classification, Fit, Flow, FnTask, Knobs, LanguageModel, MicroBatches, NonFinite, Observer,
    Options, Precision, Recovery, Result, StepReport, Task, TrainError, Trainer, Training,
};

use crate::common::{cnn, does_not_fit, is_deep};

const KEY: RandomKey = RandomKey::new(5);

type Optimizer = Box<dyn Stateful>;

fn loader(fields: Vec<Field>, bound: u64) -> Loader {
    let options = LoaderOptions { batch_size: 6, ..Default::default() };
    let loader = Loader::with_sampler(Random::new(24, fields, bound), Sequential, options);
    loader.expect("valid options")
}

fn images(shape: [usize; 3]) -> Loader {
    let images = Field::new("images", ElementType::F32, &shape);
    loader(vec![images, Field::new("labels", ElementType::I64, &[])], 4)
}

fn tokens() -> Loader {
    loader(vec![Field::new("tokens", ElementType::I64, &[33])], 11)
}

fn cpu() -> Device {
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    Device::cpu(options).expect("address space")
}

fn gpt(device: &Device) -> LanguageModel<Gpt> {
    let shape = GptShape { vocabulary: 11, context: 32, width: 64, heads: 2, blocks: 3 };
    let model = Gpt::gpt2(device, KEY, shape).and_then(|gpt| gpt.with_dropout(0.1));
    LanguageModel::new(model.expect("memory"))
}

fn resnet(device: &Device) -> Classification<ResNet> {
    let shape = ResNetShape { width: 4, classes: 4, ..ResNetShape::RESNET18 };
    Classification::new(ResNet::new(device, KEY, shape).expect("memory"))
}

fn adamw() -> Adam {
    Adam::new(AdamOptions { learning_rate: 0.01, ..AdamOptions::adamw() }).expect("in range")
}

/// Elementwise optimizers with all their options.
fn optimizers() -> Vec<(&'static str, Optimizer)> {
    let sgd = SgdOptions { momentum: 0.9, weight_decay: 0.01, ..SgdOptions::new(0.05) };
    let still = SgdOptions { momentum: 0.0, ..sgd };
    let faster = AdamOptions { learning_rate: 0.1, ..AdamOptions::adamw() };
    let groups = || adamw().with_group("*.bias", faster).expect("in range");
    let schedule = Schedule::Cosine { steps: 10, floor: 0.0 };
    let scheduled = Sgd::new(sgd).and_then(|sgd| sgd.with_schedule(schedule));
    let averaged = Averaged::new(groups(), 0.9);
    vec![
        ("SGD", Box::new(Sgd::new(still).expect("in range"))),
        ("scheduled SGD with momentum", Box::new(scheduled.expect("in range"))),
        ("AdamW in groups", Box::new(groups())),
        ("AdamW in groups with averages", Box::new(averaged.expect("in range"))),
        ("AdamW with 8-bit states", Box::new(adamw().with_8bit_states())),
        ("Lion", Box::new(Lion::new(LionOptions::default()).expect("in range"))),
        ("Adagrad", Box::new(Adagrad::new(AdagradOptions::default()).expect("in range"))),
        ("RMSprop", Box::new(RmsProp::new(RmsPropOptions::default()).expect("in range"))),
        ("NAdam", Box::new(Nadam::new(NadamOptions::default()).expect("in range"))),
    ]
}

struct Ran {
    hash: u64,
    predicted_bytes: usize,
    peak_bytes: usize,
    gradient_bytes: usize,
    losses: Vec<(f64, Option<f64>)>,
}

/// Records the report of each step.
#[derive(Default)]
struct Notes(Vec<StepReport>);

impl Observer for Notes {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.0.push(report.clone());
        Ok(Flow::Continue)
    }
}

/// Trains an epoch with these knobs.
fn run<T: Task + Clone>(
    task: fn(&Device) -> T,
    optimizer: &Optimizer,
    loader: &Loader,
    options: &Options,
    knobs: Knobs,
) -> Ran {
    let device = cpu();
    let mut trainer = Trainer::new(&device, task(&device), optimizer.clone(), options.clone());
    let fit = Fit::new(loader).evaluate("test", loader);
    let plan = trainer.plan_run(&fit, &knobs.into()).expect("no limit");
    assert_eq!(plan.knobs, knobs);
    let mut notes = Notes::default();
    trainer.run(&fit, &mut [&mut notes]).expect("memory");
    assert!(notes.0.iter().all(|step| step.fused_update == knobs.fused_update));
    let gradients = plan.forecast.category_peaks.iter().find(|(of, _)| *of == Category::Gradient);
    Ran {
        hash: trainer.state_hash().expect("readable"),
        predicted_bytes: plan.predicted_peak_bytes(),
        peak_bytes: device.allocator().statistics().reserved.peak_bytes,
        gradient_bytes: gradients.expect("each has one").1,
        losses: notes.0.iter().map(|step| (step.loss, step.gradient_norm)).collect(),
    }
}

/// Checks that a fused run gives the result of another run within the planned memory, in whole
/// batches and in parts.
fn check<T: Task + Clone>(
    name: &str,
    task: fn(&Device) -> T,
    optimizer: &Optimizer,
    loader: &Loader,
    options: &Options,
) {
    let may_split = options.micro_batches == MicroBatches::AsNeeded;
    for micro_batch in if may_split { vec![6, 4, 2] } else { vec![6] } {
        for (recomputed_blocks, cheap_recomputed) in [(0, false), (0, true), (2, false), (2, true)]
        {
            let knobs =
                Knobs { micro_batch, cheap_recomputed, recomputed_blocks, ..Knobs::default() };
            let apart = run(task, optimizer, loader, options, knobs);
            let knobs = Knobs { fused_update: true, ..knobs };
            let fused = run(task, optimizer, loader, options, knobs);
            let name = format!("{name}, {knobs}");
            assert_eq!(fused.losses, apart.losses, "{name}");
            assert_eq!(fused.hash, apart.hash, "{name}");
            assert_eq!(fused.predicted_bytes, fused.peak_bytes, "{name}");
            if micro_batch == 6 {
                let bytes = (fused.gradient_bytes, apart.gradient_bytes);
                assert!(bytes.0 < bytes.1 / 2, "{name}: {bytes:?}");
                assert!(fused.peak_bytes <= apart.peak_bytes, "{name}");
            }
        }
    }
}

#[test]
fn every_elementwise_optimizer_has_the_bits_of_an_update_of_all() {
    let clipped = Options { clip_norm: Some(0.5), ..Options::default() };
    for (name, optimizer) in &optimizers() {
        check(name, gpt, optimizer, &tokens(), &clipped);
    }
}

#[test]
fn every_way_to_look_at_gradients_has_the_same_bits() {
    let scaler = LossScaler::new(LossScalerOptions { growth_interval: 2, ..Default::default() });
    let scaler = Some(scaler.expect("in range"));
    let ways = [
        ("unchecked", Options { non_finite: NonFinite::Ignore, ..Options::default() }),
        ("measured", Options { gradient_norm: true, ..Options::default() }),
        ("bf16", Options { precision: Precision::Bf16, ..Options::default() }),
        ("f16", Options { precision: Precision::F16, clip_norm: Some(0.5), ..Options::default() }),
        ("scaled", Options { scaler, clip_norm: Some(0.5), ..Options::default() }),
    ];
    let optimizer: Optimizer = Box::new(adamw());
    for (name, options) in &ways {
        check(name, gpt, &optimizer, &tokens(), options);
    }
}

#[test]
fn buffers_move_once_though_the_batch_is_computed_twice() {
    let optimizer: Optimizer = Box::new(adamw());
    let options = Options { micro_batches: MicroBatches::Never, ..Options::default() };
    check("ResNet", resnet, &optimizer, &images([3, 16, 16]), &options);
}

#[test]
fn planner_fuses_where_nothing_else_fits() {
    let loader = images([3, 16, 16]);
    let plan = |budget_bytes: Option<usize>| {
        let device = cpu();
        let mut trainer = Trainer::new(&device, resnet(&device), adamw(), Options::default());
        budget_bytes.inspect(|&bytes| device.allocator().set_capacity(bytes));
        let fit = Fit::new(&loader).epochs(2);
        let plan = trainer.plan_run(&fit, &Default::default())?;
        trainer.run(&fit, &mut [])?;
        let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
        assert_eq!((plan.predicted_peak_bytes(), trainer.knobs()), (peak_bytes, plan.knobs));
        Ok::<_, TrainError>((plan, trainer.state_hash()?))
    };
    let (mut planned, hash) = plan(None).expect("no limit");
    let mut fused = 0;
    let error = loop {
        match plan(Some(planned.predicted_peak_bytes() - 1)) {
            Ok((next, same)) => {
                assert_eq!(same, hash, "{next}");
                fused += u32::from(next.knobs.fused_update);
                assert!(fused == 0 || next.knobs.fused_update, "{next} after a fused one");
                assert_eq!(next.to_string().contains("a fused update"), next.knobs.fused_update);
                planned = next;
            }
            error => break does_not_fit(error),
        }
    };
    assert!(fused > 0 && error.knobs.fused_update, "{error}");
    assert_eq!(error.needed_bytes, planned.predicted_peak_bytes());
}

/// Makes an allocation fail that is counted from the beginning of a step's nth forward pass.
struct FaultAt<'a> {
    device: &'a Device,
    forward: usize,
    fault: Fault,
    retries: usize,
}

impl Observer for FaultAt<'_> {
    fn on_phase(&mut self, _: u64, phase: &'static str) {
        if phase == "forward" {
            if self.forward == 0 {
                self.device.allocator().inject_fault(self.fault);
            }
            self.forward = self.forward.wrapping_sub(1);
        }
    }

    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.device.allocator().clear_fault();
        self.retries += report.retries.len();
        Ok(Flow::Continue)
    }
}

/// Injects a fault into every allocation of a fused step.
fn fault_everywhere<T: Task + Clone>(
    name: &str,
    task: fn(&Device) -> T,
    loader: &Loader,
    (parts, recomputed_blocks): (usize, usize),
) {
    let device = cpu();
    let optimizer = Averaged::new(adamw(), 0.9).expect("in range");
    let options = Options { clip_norm: Some(0.5), ..Options::default() };
    let mut trainer = Trainer::new(&device, task(&device), optimizer, options);
    let knobs = Knobs {
        micro_batch: 6_usize.div_ceil(parts),
        cheap_recomputed: true,
        recomputed_blocks,
        fused_update: true,
        ..Knobs::default()
    };
    let fit = Fit::new(loader).steps(1);
    let begin = trainer.snapshot().expect("readable");
    let mut once = |forward: usize, nth: u64| {
        trainer.restore(&begin).expect("of this training");
        trainer.plan_run(&fit, &knobs.into()).expect("no limit");
        let fault = Fault { nth, repeat: Repeat::Once };
        let count = device.allocator().request_count();
        let mut observer = FaultAt { device: &device, forward, fault, retries: 0 };
        trainer.run(&fit, &mut [&mut observer]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let count = device.allocator().request_count() - count;
        (trainer.state_hash().expect("readable"), count, observer.retries)
    };
    let (calm, requests, _) = once(0, u64::MAX);
    assert!(requests > 40, "{name}: {requests} allocations are no step");
    let stride = if is_deep() { 1 } else { 7 };
    let mut struck = 0;
    for nth in (1..=requests).step_by(stride) {
        let (hash, _, retries) = once(0, nth);
        assert_eq!(hash, calm, "{name}: allocation {nth}");
        struck += retries;
    }
    println!("{name}: {requests} allocations, {struck} of those tried failed");
    // About half of the allocations belong to the trial; promised allocations do not fail.
    assert!(struck * stride > requests as usize / 3, "{name}: {struck} of {requests}");
    // Once the last part has begun its second run, nothing fails any more.
    assert_eq!(once(parts, 1), (calm, requests, 0), "{name}: in the second run");
}

#[test]
fn fault_at_any_allocation_ends_in_the_undisturbed_bits() {
    fault_everywhere("CNN", |device| cnn(device, 4, 1), &images([1, 8, 8]), (1, 0));
    fault_everywhere("GPT", gpt, &tokens(), (1, 1));
    fault_everywhere("GPT in parts", gpt, &tokens(), (3, 1));
}

/// Takes all free memory when the update begins, and returns it after the step.
struct Greedy<'a>(&'a Device, Cell<usize>);

impl Observer for Greedy<'_> {
    fn on_phase(&mut self, _: u64, phase: &'static str) {
        if phase == "optimizer" {
            self.0.allocator().set_capacity(0);
            self.0.allocator().trim();
        }
    }

    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        assert_eq!((self.0.allocator().capacity_bytes(), report.retries.len()), (0, 0));
        self.0.allocator().set_capacity(self.1.get());
        Ok(Flow::Continue)
    }
}

#[test]
fn memory_that_is_taken_while_parameters_are_written_is_taken_after() {
    let run = |is_disturbed: bool| {
        let device = cpu();
        let mut trainer = Trainer::new(&device, gpt(&device), adamw(), Options::default());
        let (tokens, knobs) =
            (tokens(), Knobs { micro_batch: 6, fused_update: true, ..Knobs::default() });
        let fit = Fit::new(&tokens);
        trainer.plan_run(&fit, &knobs.into()).expect("no limit");
        let mut greedy = Greedy(&device, Cell::new(device.allocator().capacity_bytes()));
        let mut observers: Vec<&mut dyn Observer> = Vec::new();
        if is_disturbed {
            observers.push(&mut greedy);
        }
        trainer.run(&fit, &mut observers).expect("it was promised");
        trainer.state_hash().expect("readable")
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn short_memory_in_mid_run_fuses_the_update() {
    /// Leaves room only for a fused step from the second step on.
    struct Less<'a>(&'a Device, usize, Vec<Recovery>);
    impl Observer for Less<'_> {
        fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
            self.0.allocator().set_capacity(self.1);
            self.2.extend(report.retries.iter().map(|retry| retry.recovery));
            Ok(Flow::Continue)
        }
    }
    let (tokens, options) =
        (tokens(), Options { micro_batches: MicroBatches::Never, ..Options::default() });
    let fit = Fit::new(&tokens);
    let trainer = |device: &Device| Trainer::new(device, gpt(device), adamw(), options.clone());
    let device = cpu();
    let mut calm = trainer(&device);
    let mut least = |fused_update: bool| {
        let knobs =
            Knobs { micro_batch: 6, recomputed_blocks: 3, fused_update, ..Knobs::default() };
        calm.plan_run(&fit, &knobs.into()).expect("no limit").predicted_peak_bytes()
    };
    let between = least(true).midpoint(least(false));
    calm.run(&fit, &mut []).expect("memory");

    let device = cpu();
    let mut disturbed = trainer(&device);
    let mut less = Less(&device, between, Vec::new());
    disturbed.run(&fit, &mut [&mut less]).expect("there is a way");
    assert!(less.2.contains(&Recovery::FusedUpdate), "{:?}", less.2);
    assert_eq!(disturbed.state_hash().expect("readable"), calm.state_hash().expect("readable"));
}

#[test]
fn step_that_is_not_finite_writes_nothing() {
    let device = cpu();
    let options = Options { non_finite: NonFinite::Skip(9), ..Options::default() };
    let mut task = cnn(&device, 4, 1);
    let mut bias = None;
    task.parameters().visit(&mut |_, parameter| bias = Some(parameter.value().clone()));
    bias.expect("there are parameters").fill_(f64::INFINITY).expect("writable");
    let mut trainer = Trainer::new(&device, task, adamw(), options);
    let (loader, knobs) =
        (images([1, 8, 8]), Knobs { micro_batch: 6, fused_update: true, ..Knobs::default() });
    let fit = Fit::new(&loader).steps(2);
    trainer.plan_run(&fit, &knobs.into()).expect("no limit");
    let mut begin = Vec::new();
    trainer
        .task_mut()
        .parameters()
        .visit(&mut |_, p| begin.push(p.value().to_bytes().expect("cpu")));
    let mut notes = Notes::default();
    trainer.run(&fit, &mut [&mut notes]).expect_err("nothing was learned");
    assert!(notes.0.len() == 2 && notes.0.iter().all(|step| step.skipped));
    let mut end = Vec::new();
    trainer.task_mut().parameters().visit(&mut |_, p| end.push(p.value().to_bytes().expect("cpu")));
    assert_eq!((begin, trainer.optimizer().steps()), (end, 0));
}

#[derive(Clone)]
struct Pair {
    first: Linear,
    second: Linear,
}

parameters!(Pair { first, second });

/// A loss that also reads the second weight directly, past its leaf and in an earlier operation.
/// Backward still needs the weight when its gradient is complete.
fn read_behind(model: &Pair, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
    let numbers = part.field("numbers").expect("the field").values::<f32>().expect("f32");
    let x = Tensor::from_slice(device, [part.len(), 4], numbers)?;
    let y = model.first.forward(pass, pass.constant(x))?;
    let y = y.mul(pass.constant(model.second.weight().value().reshape([4])?))?;
    let y = model.second.forward(pass, y)?;
    let count = Tensor::full(device, [], DType::F32, part.len() as f64)?;
    Ok(Loss { sum: y.sum(&[0, 1])?, count })
}

#[test]
fn what_cannot_be_fused_is_refused_and_not_planned() {
    let knobs = Knobs { micro_batch: 6, fused_update: true, ..Knobs::default() };
    let numbers = loader(vec![Field::new("numbers", ElementType::F32, &[4])], 4);
    let fit = Fit::new(&numbers);
    let pair = |device: &Device| {
        let [first, second] = [4, 1].map(|outputs| Linear::new(device, KEY, 4, outputs));
        FnTask::new(
            Pair { first: first.expect("memory"), second: second.expect("memory") },
            read_behind,
        )
    };
    let device = cpu();
    let mut trainer = Trainer::new(&device, pair(&device), adamw(), Options::default());
    let error = trainer.plan_run(&fit, &knobs.into()).unwrap_err();
    assert!(error.to_string().contains("was changed in place"), "{error}");
    device.allocator().set_capacity(1 << 10);
    assert!(!does_not_fit(trainer.plan_run(&fit, &Default::default())).knobs.fused_update);
    device.allocator().set_capacity(usize::MAX);
    trainer.run(&fit, &mut []).expect("not fused");

    let device = cpu();
    let lamb = Lamb::new(LambOptions::default()).expect("in range");
    let mut trainer = Trainer::new(&device, gpt(&device), lamb, Options::default());
    let error = trainer.plan_run(&Fit::new(&tokens()), &knobs.into()).unwrap_err();
    assert!(error.to_string().contains("all parameters together"), "{error}");
    let part = Knobs { micro_batch: 7, ..Knobs::default() };
    let error = trainer.plan_run(&Fit::new(&tokens()), &part.into()).unwrap_err();
    assert!(error.to_string().contains("micro-batches of 7 of a batch of 6"), "{error}");
}

/// A fused update frees most gradients of GPT-2 with 124 million parameters. The peak falls unless
/// the activations of a large batch dominate it.
#[test]
fn gpt2_needs_less_by_its_gradients() {
    const SHAPE: GptShape =
        GptShape { vocabulary: 50_257, context: 1024, width: 768, heads: 12, blocks: 12 };
    let peaks = |batch_size: usize, recomputed_blocks: usize, fused_update: bool| {
        let device = Device::sim(SimSpec::like_this_machine(1 << 40)).expect("no memory is needed");
        let tokens = vec![Field::new("tokens", ElementType::I64, &[1025])];
        let options = LoaderOptions { batch_size, ..Default::default() };
        let random = Random::new(2 * batch_size, tokens, 50_257);
        let loader = Loader::with_sampler(random, Sequential, options).expect("valid options");
        let task = LanguageModel::new(Gpt::gpt2(&device, KEY, SHAPE).expect("memory"));
        let mut trainer = Trainer::new(&device, task, adamw(), Options::default());
        let knobs =
            Knobs { micro_batch: batch_size, recomputed_blocks, fused_update, ..Knobs::default() };
        let plan = trainer.plan_run(&Fit::new(&loader), &knobs.into()).expect("no limit");
        let of = |category| {
            let peaks = &plan.forecast.category_peaks;
            peaks.iter().find(|(own, _)| *own == category).expect("each has one").1
        };
        let [parameters, gradients] = [Category::Parameter, Category::Gradient].map(of);
        println!(
            "batch {batch_size}, {knobs}: {}, gradients {gradients}",
            plan.predicted_peak_bytes()
        );
        (plan.predicted_peak_bytes(), parameters, gradients)
    };
    for (batch_size, blocks) in [(1, 0), (1, 12), (4, 12)] {
        let (apart, parameters, gradients) = peaks(batch_size, blocks, false);
        let (fused, _, left) = peaks(batch_size, blocks, true);
        assert!(gradients - left > parameters / 2, "{gradients} {left}");
        assert!(fused < apart, "{fused} {apart}");
    }
}
