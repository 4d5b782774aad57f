//! A training that only imports the prelude and the crates that the trainer re-exports.

use lowtide_trainer::prelude::*;
use lowtide_trainer::{data, nn};

#[test]
fn program_that_depends_on_the_trainer_alone_can_train() {
    let (train, test) = data::Digits::load().expect("they are inside the crate").split();
    let options = LoaderOptions { batch_size: 256, ..Default::default() };
    let train = Loader::new(train, options).expect("digits to load");
    let test = Loader::with_sampler(test, data::Sequential, options).expect("digits to load");

    let device = Device::cpu(CpuOptions {
        budget_bytes: Some(4 << 20),
        threads: Some(1),
        ..Default::default()
    });
    let device = device.expect("4 MiB of addresses");
    let shape = nn::models::SimpleCnnShape { image: [1, 8, 8], channels: 4, classes: 10 };
    let model = nn::models::SimpleCnn::new(&device, RandomKey::new(0), shape);
    let adam = nn::optim::Adam::new(nn::optim::AdamOptions::default()).expect("sound options");
    let task = Classification::new(model.expect("memory for it"));
    let mut trainer = Trainer::new(&device, task, adam, Options::default());
    let score = trainer.fit(&train, &test, 1, &mut []).expect("memory for it");
    assert!(score.loss().is_finite());
}
