//! A training that is interrupted in the middle of an epoch, and resumed with the same bits.

use lowtide_data::{Digits, Loader, LoaderOptions, Sequential};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::observers::{CheckpointEvery, Checkpoints};
use lowtide_trainer::{
    CheckpointFolder, Classification, Fit, Options, Result, Trainer, checkpoints_in,
};

fn trainer() -> Result<Trainer<Classification<SimpleCnn>, Adam>> {
    let device = Device::cpu(CpuOptions::default())?;
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: 32, classes: 10 };
    let model = SimpleCnn::new(&device, RandomKey::new(0), shape)?;
    let adam = Adam::new(AdamOptions { learning_rate: 1e-2, ..Default::default() })?;
    let options = Options { background_checkpoints: true, ..Default::default() };
    Ok(Trainer::new(&device, Classification::new(model), adam, options))
}

fn main() -> Result<()> {
    let (train, test) = Digits::load()?.split();
    let options = LoaderOptions { batch_size: 128, ..Default::default() };
    let train = Loader::new(train, options)?;
    let test = Loader::with_sampler(test, Sequential, options)?;
    let folder = std::env::temp_dir().join(format!("lowtide-resume-{}", std::process::id()));

    // 30 steps with a checkpoint every ten; an epoch has 12 steps.
    let mut first = trainer()?;
    let kept = CheckpointFolder::new(&folder).keep_last(3);
    let mut checkpoints = Checkpoints::new(kept, CheckpointEvery::Steps(10));
    first.run(&Fit::new(&train).steps(30), &mut [&mut checkpoints])?;

    // Another process would do the same.
    let mut second = trainer()?;
    let (step, path) = &checkpoints_in(&folder)?[1];
    second.load(path)?;
    println!("goes on after step {step}, in epoch {}", second.position().epoch + 1);
    let score = second.run(&Fit::new(&train).evaluate("test", &test).steps(30 - step), &mut [])?;

    let hashes = [first.state_hash()?, second.state_hash()?];
    println!("accuracy {:.4}, state {:016x} and {:016x}", score.accuracy(), hashes[0], hashes[1]);
    assert_eq!(hashes[0], hashes[1]);
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}

#[test]
fn it_runs() -> Result<()> {
    main()
}
