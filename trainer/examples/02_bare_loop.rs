//! Training on the digits without the trainer: no plan and no recovery, but every line is visible.

use lowtide_autograd::{Attempt, Pass};
use lowtide_data::{Digits, Loader, LoaderOptions, Sequential};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer};
use lowtide_nn::{Module, cross_entropy};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{Classification, Result, Task, evaluate, field, upload};

fn main() -> Result<()> {
    let (train, test) = Digits::load()?.split();
    let options = LoaderOptions { batch_size: 256, ..Default::default() };
    let train = Loader::new(train, options)?;
    let test = Loader::with_sampler(test, Sequential, options)?;

    let device = Device::cpu(CpuOptions::default())?;
    let key = RandomKey::new(0);
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: 64, classes: 10 };
    let mut task = Classification::new(SimpleCnn::new(&device, key, shape)?);
    let mut adam = Adam::new(AdamOptions { learning_rate: 1e-2, ..Default::default() })?;

    let mut step = 0;
    for epoch in 0..20 {
        for batch in train.epoch(epoch) {
            let batch = batch?;
            step += 1;
            let images = upload(&device, field(&batch.view(), "images")?)?; // [B, 1, 8, 8]
            let labels = upload(&device, field(&batch.view(), "labels")?)?; // [B]

            let attempt = Attempt::new(); // dropped with its gradients on any `?`
            let pass = Pass::train(key.step(step), &attempt);
            let logits = task.model().forward(&pass, pass.constant(images))?; // [B, 10]
            let loss = cross_entropy(logits, &labels)?;
            pass.backward(loss.mean()?)?;
            adam.step(task.parameters(), attempt)?; // moved: no gradients to be zeroed
        }
        let score = evaluate(&task, &device, &test, 256)?;
        println!("epoch {}: accuracy {:.4}", epoch + 1, score.accuracy());
    }
    Ok(())
}

#[test]
fn it_runs() -> Result<()> {
    main()
}
