//! A custom model, loss and score: an autoencoder of the digits, in closures.

use lowtide_autograd::Pass;
use lowtide_data::{BatchView, Digits, Loader, LoaderOptions, Sequential};
use lowtide_nn::models::Mlp;
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_nn::{Loss, Module, mse};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::observers::{EarlyStopping, Watched};
use lowtide_trainer::{FnTask, Metric, Options, Progress, Result, Score, Trainer, field, upload};

/// Encodes 64 pixels as 8 numbers, and decodes these again.
fn loss(model: &Mlp, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
    let images = upload(device, field(part, "images")?)?.reshape([part.len(), 64])?;
    Ok(mse(model.forward(pass, pass.constant(images.clone()))?, &images)?)
}

/// Every pixel counts.
fn count(batch: &BatchView<'_>) -> Result<f64> {
    Ok(64.0 * batch.len() as f64)
}

fn main() -> Result<()> {
    let (train, test) = Digits::load()?.split();
    let options = LoaderOptions { batch_size: 128, ..Default::default() };
    let train = Loader::new(train, options)?;
    let test = Loader::with_sampler(test, Sequential, options)?;

    let device = Device::cpu(CpuOptions { budget_bytes: Some(2 << 20), ..Default::default() })?;
    let model = Mlp::new(&device, RandomKey::new(0), &[64, 32, 8, 32, 64])?;
    let score = |model: &Mlp, device: &Device, part: &BatchView<'_>| {
        let loss = loss(model, &Pass::eval(), device, part)?;
        // The planner runs this on a simulated device, which has no values.
        let squares = f64::from(loss.sum.value().item_assuming(0.0_f32)?);
        let pixels = count(part)?;
        let metric = Metric::root_mean_square("distance", "of white", squares, pixels);
        Ok(Score::new(squares, pixels).with(metric))
    };
    let task = FnTask::new(model, loss).with_count(count).with_score(score);
    let adam = Adam::new(AdamOptions { learning_rate: 1e-2, ..Default::default() })?;
    let mut trainer = Trainer::new(&device, task, adam, Options::default());

    let mut patience = EarlyStopping::new(Watched::new("test", "loss"), 3);
    let score = trainer.fit(&train, &test, 20, &mut [&mut Progress::new(), &mut patience])?;
    let distance = score.value("distance").unwrap_or(f64::NAN);
    println!("a pixel is {distance:.4} off on average");
    assert!(distance < 0.25);
    Ok(())
}

#[test]
fn it_runs() -> Result<()> {
    main()
}
