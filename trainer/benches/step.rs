//! What the transaction costs over the bare loop, and what a rehearsal costs.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lowtide_autograd::{Attempt, Pass};
use lowtide_data::Loader;
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::Optimizer;
use lowtide_nn::{Module, cross_entropy};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::recipe::{Recipe, RecipeData};
use lowtide_trainer::{Classification, Task, field, upload};

fn device() -> Device {
    Device::cpu(CpuOptions::default()).expect("a device")
}

/// The steps of one epoch of the built-in recipe.
fn epoch(criterion: &mut Criterion) {
    let recipe = Recipe::default();
    let RecipeData { samples, train, test } = recipe.open().expect("the digits");
    let mut group = criterion.benchmark_group("trainer/epoch");
    group.throughput(Throughput::Elements(train.dataset().len() as u64));
    group.bench_function("baseline_bare_loop", |bencher| {
        let device = device();
        let shape = SimpleCnnShape { image: [1, 8, 8], channels: 64, classes: 10 };
        let model = SimpleCnn::new(&device, RandomKey::new(0), shape).expect("it fits");
        let mut task = Classification::new(model);
        let mut optimizer = recipe.optimizer().expect("valid options");
        bencher.iter(|| bare_epoch(&device, &mut task, &mut optimizer, &train));
    });
    group.bench_function("transactions", |bencher| {
        let device = device();
        let mut trainer = recipe.trainer(&device, samples).expect("the model fits");
        trainer.plan(&train, &test, 1).expect("fits");
        bencher.iter(|| {
            for batch in train.epoch(0) {
                trainer.step(&batch.expect("readable data")).expect("memory");
            }
        });
    });
    group.finish();
}

fn bare_epoch(
    device: &Device,
    task: &mut Classification<SimpleCnn>,
    optimizer: &mut impl Optimizer,
    train: &Loader,
) {
    for batch in train.epoch(0) {
        let batch = batch.expect("readable data");
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(0), &attempt);
        let upload = |name| upload(device, field(&batch.view(), name).expect("a field"));
        let images = pass.constant(upload("images").expect("memory"));
        let logits = task.model().forward(&pass, images).expect("memory");
        let loss = cross_entropy(logits, &upload("labels").expect("memory")).expect("memory");
        pass.backward(loss.mean().expect("memory")).expect("memory");
        optimizer.step(task.parameters(), attempt).expect("memory");
    }
}

/// A whole plan of the built-in recipe: what a user waits for before the first step.
fn plan(criterion: &mut Criterion) {
    let recipe = Recipe::default();
    let RecipeData { samples, train, test } = recipe.open().expect("the digits");
    let device = device();
    criterion.bench_function("trainer/plan/digits", |bencher| {
        let mut trainer = recipe.trainer(&device, samples).expect("the model fits");
        bencher.iter(|| trainer.plan(&train, &test, 60).expect("fits"));
    });
}

criterion_group!(benches, epoch, plan);
criterion_main!(benches);
