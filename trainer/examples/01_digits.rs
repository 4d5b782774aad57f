//! A convolutional network on handwritten digits, within 6 MiB.

use lowtide_data::{Digits, Loader, LoaderOptions, Sequential};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{Classification, Options, Progress, Result, Trainer};

fn main() -> Result<()> {
    let (train, test) = Digits::load()?.split();
    let options = LoaderOptions { batch_size: 256, ..Default::default() };
    let train = Loader::new(train, options)?;
    let test = Loader::with_sampler(test, Sequential, options)?;

    let device = Device::cpu(CpuOptions { budget_bytes: Some(6 << 20), ..Default::default() })?;
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: 64, classes: 10 };
    let model = SimpleCnn::new(&device, RandomKey::new(0), shape)?;
    let adam = Adam::new(AdamOptions { learning_rate: 1e-2, ..Default::default() })?;
    let mut trainer = Trainer::new(&device, Classification::new(model), adam, Options::default());

    let plan = trainer.plan(&train, &test, 20)?; // or Err(DoesNotFit) with the missing bytes
    let score = trainer.fit(&train, &test, 20, &mut [&mut Progress::new()])?;
    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    assert_eq!(peak_bytes, plan.predicted_peak_bytes());
    println!("accuracy {:.4} with a peak of {peak_bytes} bytes", score.accuracy());
    Ok(())
}
