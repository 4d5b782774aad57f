//! Cost of the trainer over a bare loop, on a convolution of 16 channels with 128 images of 32x32
//! (w1) and on a GPT of 4 blocks and width 128 with 16 sequences of 128 tokens (w4). Cost of
//! background checkpoints over no checkpoints, on w4. The two sides of a comparison alternate, so
//! that a slow moment of the machine affects both: `cargo bench -p lowtide-trainer --bench
//! overhead`.

use std::time::Instant;

use lowtide_autograd::{Attempt, Pass};
use lowtide_data::{Batch, ElementType, Field, InMemory, Loader, LoaderOptions, Random};
use lowtide_nn::models::{Gpt, GptShape, SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer};
use lowtide_tensor::{CpuOptions, DType, Device, RandomKey};
use lowtide_trainer::observers::{CheckpointEvery, Checkpoints};
use lowtide_trainer::{
    CheckpointFolder, Classification, Fit, LanguageModel, Observer, Options, Result, Task, Trainer,
};

const CONTEXT: usize = 128;
const BATCH: usize = 16;
/// Number of steps between two checkpoints.
const INTERVAL: u64 = 20;

fn task(device: &Device) -> Result<LanguageModel<Gpt>> {
    let shape = GptShape { vocabulary: 96, context: CONTEXT, width: 128, heads: 4, blocks: 4 };
    Ok(LanguageModel::new(Gpt::new(device, RandomKey::new(0), shape)?))
}

fn loader(batches: usize) -> Result<Loader> {
    let (samples, key) = (batches * BATCH, RandomKey::new(1));
    let token = |index: u64| (key.uniform(index) * 96.0) as i64;
    let tokens = (0..(samples * (CONTEXT + 1)) as u64).map(token).collect::<Vec<_>>();
    let data = InMemory::new(samples).with("tokens", &[CONTEXT + 1], tokens)?;
    let options = LoaderOptions { batch_size: BATCH, prefetch: 4, ..Default::default() };
    Ok(Loader::new(data, options)?)
}

fn images() -> Result<Loader> {
    let fields = vec![
        Field::new("images", ElementType::F32, &[3, 32, 32]),
        Field::new("labels", ElementType::I64, &[]),
    ];
    let options = LoaderOptions { batch_size: 128, ..Default::default() };
    Ok(Loader::new(Random::new(128, fields, 10), options)?)
}

fn cnn(device: &Device) -> Result<Classification<SimpleCnn>> {
    let shape = SimpleCnnShape { image: [3, 32, 32], channels: 16, classes: 10 };
    Ok(Classification::new(SimpleCnn::new(device, RandomKey::new(0), shape)?))
}

fn adam() -> Result<Adam> {
    Ok(Adam::new(AdamOptions::adamw())?)
}

/// Runs a step of a bare loop. Like every training loop, the bare loop reads the loss.
fn bare_step(
    device: &Device,
    task: &mut impl Task,
    adam: &mut Adam,
    batch: &Batch,
    step: u64,
) -> Result<()> {
    let attempt = Attempt::new();
    let pass = Pass::train(RandomKey::new(0).step(step), &attempt);
    let loss = task.loss(&pass, device, &batch.view())?.mean()?;
    let value = loss.value().clone();
    pass.backward(loss)?;
    adam.step(task.parameters(), attempt)?;
    std::hint::black_box(value.to_dtype(DType::F64)?.item::<f64>()?);
    Ok(())
}

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64())
}

/// The quartiles of the ratios of the two columns; the middle one is the median.
fn ratio(pairs: &[[f64; 2]]) -> [f64; 3] {
    let mut ratios: Vec<f64> = pairs.iter().map(|[a, b]| b / a).collect();
    ratios.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| ratios[quarter * (ratios.len() - 1) / 4])
}

fn show(what: &str, pairs: &[[f64; 2]]) {
    let [low, median, high] = ratio(pairs);
    println!("{what}: {median:.4} ({low:.4} to {high:.4}) over {} pairs", pairs.len());
}

/// Compares steps of a trainer with steps of a bare loop, on one batch.
fn compare<T: Task + Clone>(
    name: &str,
    task: fn(&Device) -> Result<T>,
    loader: &Loader,
    rounds: u64,
    steps: u64,
) -> Result<()> {
    let device = Device::cpu(CpuOptions::default())?;
    let (mut bare, mut bare_adam) = (task(&device)?, adam()?);
    let mut trainer = Trainer::new(&device, task(&device)?, adam()?, Options::default());
    trainer.plan_run(&Fit::new(loader), &Default::default())?;
    let batch = loader.epoch(0).next().expect("a batch")?;
    let mut pairs = Vec::new();
    for round in 0..rounds {
        let mut run_bare = || {
            seconds(|| {
                (0..steps).try_for_each(|step| {
                    bare_step(&device, &mut bare, &mut bare_adam, &batch, round * steps + step)
                })
            })
        };
        let mut run_own =
            || seconds(|| (0..steps).try_for_each(|_| trainer.step(&batch).map(drop)));
        // Each side goes first in half of the rounds.
        pairs.push(match round % 2 {
            0 => [run_bare()?, run_own()?],
            _ => {
                let own = run_own()?;
                [run_bare()?, own]
            }
        });
    }
    show(&format!("{name}: a step of the trainer over one of a bare loop"), &pairs);
    Ok(())
}

fn main() -> Result<()> {
    // `cargo bench` passes `--bench`; `cargo test --benches` does not, and only needs a short run.
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    let (steps, rounds, runs) = if is_test { (1, 1, 1) } else { (4, 60, 6) };
    let device = Device::cpu(CpuOptions::default())?;
    let loader = loader(if is_test { 2 } else { 60 })?;

    compare("w1", cnn, &images()?, rounds, 4 * steps)?;
    compare("w4", task, &loader, rounds, steps)?;

    let folder = tempfile::tempdir().expect("a folder");
    let options = Options { background_checkpoints: true, ..Options::default() };
    let mut plain = Trainer::new(&device, task(&device)?, adam()?, Options::default());
    let mut saving = Trainer::new(&device, task(&device)?, adam()?, options);
    let fit = Fit::new(&loader);
    plain.plan_run(&fit, &Default::default())?;
    saving.plan_run(&fit, &Default::default())?;
    let mut pairs = Vec::new();
    for run in 0..runs {
        let without = seconds(|| plain.run(&fit, &mut []).map(drop))?;
        let path = folder.path().join(run.to_string());
        let kept = CheckpointFolder::new(&path);
        let mut checkpoints = Checkpoints::new(kept, CheckpointEvery::Steps(INTERVAL));
        let observers: &mut [&mut dyn Observer] = &mut [&mut checkpoints];
        let with = seconds(|| saving.run(&fit, observers).map(drop))?;
        pairs.push([without, with]);
    }
    show(&format!("a run with a checkpoint every {INTERVAL} steps over one without"), &pairs);
    Ok(())
}
