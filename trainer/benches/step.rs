//! Cost of transactional steps over a bare loop, and cost of a whole plan.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lowtide_autograd::{Attempt, Pass};
use lowtide_data::{Digits, Loader, LoaderOptions, Sequential};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer};
use lowtide_nn::{Module, cross_entropy};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{Classification, Options, Task, Trainer, field, upload};

fn device() -> Device {
    Device::cpu(CpuOptions::default()).expect("a device")
}

/// Batches of digits to train on and to test on.
fn loaders() -> (Loader, Loader) {
    let (train, test) = Digits::load().expect("the digits").split();
    let options = LoaderOptions { batch_size: 256, ..Default::default() };
    let train = Loader::new(train, options).expect("valid options");
    (train, Loader::with_sampler(test, Sequential, options).expect("valid options"))
}

fn task(device: &Device) -> Classification<SimpleCnn> {
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: 64, classes: 10 };
    let model = SimpleCnn::new(device, RandomKey::new(0), shape);
    Classification::new(model.expect("it fits"))
}

fn optimizer() -> Adam {
    Adam::new(AdamOptions { learning_rate: 1e-2, ..Default::default() }).expect("valid options")
}

fn trainer(device: &Device) -> Trainer<Classification<SimpleCnn>, Adam> {
    Trainer::new(device, task(device), optimizer(), Options::default())
}

/// The steps of one epoch.
fn epoch(criterion: &mut Criterion) {
    let (train, test) = loaders();
    let mut group = criterion.benchmark_group("trainer/epoch");
    group.throughput(Throughput::Elements(train.dataset().len() as u64));
    group.bench_function("baseline_bare_loop", |bencher| {
        let device = device();
        let (mut task, mut optimizer) = (task(&device), optimizer());
        bencher.iter(|| bare_epoch(&device, &mut task, &mut optimizer, &train));
    });
    group.bench_function("transactions", |bencher| {
        let device = device();
        let mut trainer = trainer(&device);
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

/// A whole plan, for which a user waits before the first step.
fn plan(criterion: &mut Criterion) {
    let (train, test) = loaders();
    let device = device();
    criterion.bench_function("trainer/plan/digits", |bencher| {
        let mut trainer = trainer(&device);
        bencher.iter(|| trainer.plan(&train, &test, 60).expect("fits"));
    });
}

criterion_group!(benches, epoch, plan);
criterion_main!(benches);
