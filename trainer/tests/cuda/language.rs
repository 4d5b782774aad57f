//! A language model: embeddings, attention, layer norms and its loss in chunks.

use lowtide_allocator::Repeat;
use lowtide_data::{ElementType, Field, Loader, LoaderOptions, Random, Sequential};
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_tensor::{CpuOptions, Device, RandomKey, SimSpec};
use lowtide_trainer::{Fit, Knobs, LanguageModel, Options, TrainError, Trainer};

use crate::gpu::Gpu;
use crate::losses::Losses;

/// Small pages, so that plans differ.
const PAGE_BYTES: usize = 64 << 10;

/// Largest relative difference of the losses of both devices. Sums have another order, and errors
/// of earlier steps are carried on.
const TOLERANCE: f64 = 2e-5;

fn tokens() -> Loader {
    let options = LoaderOptions { batch_size: 12, ..Default::default() };
    let fields = vec![Field::new("tokens", ElementType::I64, &[17])];
    Loader::with_sampler(Random::new(24, fields, 31), Sequential, options).expect("valid options")
}

fn trainer(device: &Device) -> Trainer<LanguageModel<Gpt>, Adam> {
    let shape = GptShape { vocabulary: 31, context: 16, width: 32, heads: 2, blocks: 3 };
    trainer_of(device, shape)
}

fn trainer_of(device: &Device, shape: GptShape) -> Trainer<LanguageModel<Gpt>, Adam> {
    let task = LanguageModel::new(Gpt::gpt2(device, RandomKey::new(5), shape).expect("memory"));
    Trainer::new(
        device,
        task,
        Adam::new(AdamOptions::adamw()).expect("in range"),
        Options::default(),
    )
}

/// The plan's knobs and peak, and the losses of the planned steps.
fn run(device: &Device) -> ((Knobs, usize), Vec<f64>) {
    let (loader, mut trainer, mut losses) = (tokens(), trainer(device), Losses::default());
    let fit = Fit::new(&loader);
    let plan = trainer.plan_run(&fit, &Default::default()).expect("the budget is enough");
    trainer.run(&fit, &mut [&mut losses]).expect("as planned");
    ((plan.knobs, plan.predicted_peak_bytes()), losses.0)
}

#[test]
fn language_model_has_the_losses_of_the_processor_and_the_planned_peak_in_every_budget() {
    let Some(gpu) = Gpu::with_pages(PAGE_BYTES) else { return };
    let processor = Device::cpu(CpuOptions { threads: Some(1), ..Default::default() });
    let (_, expected) = run(&processor.expect("addresses"));
    assert_eq!(expected.len(), 2);
    let mut plans = Vec::new();
    let whole_bytes = {
        let device = gpu.device();
        run(&device).0.1
    };
    for part in [8, 7, 6, 5] {
        let budget_bytes = whole_bytes / 8 * part / PAGE_BYTES * PAGE_BYTES;
        let device = gpu.try_device_within(Some(budget_bytes)).expect("a budget");
        let ((knobs, predicted_bytes), losses) = run(&device);
        let measured_bytes = device.allocator().statistics().reserved.peak_bytes;
        assert_eq!(predicted_bytes, measured_bytes, "within {budget_bytes}");
        assert!(measured_bytes <= budget_bytes);
        for (found, expected) in losses.iter().zip(&expected) {
            let apart = (found - expected).abs() / expected;
            assert!(apart <= TOLERANCE, "{found}, not {expected} within {budget_bytes}");
        }
        // A simulated device gets the same plan.
        let spec = SimSpec { page_bytes: PAGE_BYTES, ..SimSpec::like_cuda(1 << 50) };
        let simulated = Device::sim(spec).expect("no memory is needed");
        let (loader, mut trainer) = (tokens(), trainer(&simulated));
        simulated.allocator().set_capacity(budget_bytes);
        let plan = trainer
            .plan_run(&Fit::new(&loader), &Default::default())
            .expect("the budget is enough");
        assert_eq!((plan.knobs, plan.predicted_peak_bytes()), (knobs, predicted_bytes));
        plans.push(plan.knobs);
    }
    plans.dedup();
    assert!(plans.len() > 2, "these budgets hardly differ: {plans:?}");
}

#[test]
fn budget_that_is_too_small_is_told_by_what_is_needed_though_not_every_remedy_has_a_kernel() {
    let simulated = Device::sim(SimSpec::like_cuda(1 << 50)).expect("no memory is needed");
    let (loader, mut trainer) = (tokens(), trainer(&simulated));
    simulated.allocator().set_capacity(PAGE_BYTES);
    let error = trainer.plan_run(&Fit::new(&loader), &Default::default()).map(drop).unwrap_err();
    assert!(matches!(error, TrainError::DoesNotFit(_)), "{error}");
}

#[test]
fn steady_step_of_a_language_model_survives_a_driver_without_memory_at_any_call() {
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    const OUT_OF_MEMORY: i32 = 2;
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let options = LoaderOptions { batch_size: 2, ..Default::default() };
    let fields = vec![Field::new("tokens", ElementType::I64, &[5])];
    let loader = Loader::with_sampler(Random::new(4, fields, 11), Sequential, options);
    let loader = loader.expect("valid options");
    let shape = GptShape { vocabulary: 11, context: 4, width: 4, heads: 2, blocks: 1 };
    let mut trainer = trainer_of(&device, shape);
    trainer.run(&Fit::new(&loader).steps(2), &mut []).expect("memory");
    let begin = trainer.snapshot().expect("readable");
    let mut step = |nth: Option<u64>| {
        trainer.restore(&begin).expect("of this training");
        let before = gpu.pretend.calls("");
        if let Some(nth) = nth {
            gpu.pretend.fail("", OUT_OF_MEMORY, nth, Repeat::Once);
        }
        let done = trainer.run(&Fit::new(&loader).steps(1), &mut []);
        done.unwrap_or_else(|error| panic!("call {nth:?}: {error}"));
        let calls = gpu.pretend.calls("") - before;
        (trainer.state_hash().expect("readable"), calls)
    };
    step(None);
    let (calm, calls) = step(None);
    assert!(calls > 100, "{calls} calls are no step");
    for nth in 1..=calls {
        let (hash, _) = step(Some(nth));
        assert_eq!(hash, calm, "call {nth}");
    }
    drop(trainer);
    drop(device);
    gpu.reset();
}
