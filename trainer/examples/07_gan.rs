//! Two models with an optimizer each: a generator of digits, and a discriminator that learns to
//! tell generated digits from real ones. Each step trains both in turn, and is committed as a
//! whole.

use lowtide_data::{BatchView, Digits, Loader, LoaderOptions, Sequential};
use lowtide_nn::models::Mlp;
use lowtide_nn::optim::{Adam, AdamOptions, ByModel};
use lowtide_nn::{Loss, Module, bce_with_logits, parameters};
use lowtide_trainer::autograd::Var;
use lowtide_trainer::prelude::*;
use lowtide_trainer::{Result, field, upload};

#[derive(Clone)]
struct Gan {
    discriminator: Mlp,
    generator: Mlp,
}

parameters!(Gan { discriminator, generator });

impl Gan {
    /// Generated images: `[count, 64]`.
    fn generate(&self, pass: &Pass, device: &Device, count: usize) -> Result<Var> {
        let noise = pass.constant(pass.normal(device, [count, 16])?);
        Ok(pass.within("generator", || self.generator.forward(pass, noise))?.sigmoid()?)
    }

    /// The discriminator's loss on images that are all real (truth 1) or all generated (truth 0).
    fn judge(&self, pass: &Pass, images: Var, truth: f64) -> Result<Loss> {
        let logits = pass.within("discriminator", || self.discriminator.forward(pass, images))?;
        let truth = Tensor::full(logits.value().device(), [], DType::F32, truth)?;
        Ok(bce_with_logits(logits, &truth, None)?)
    }
}

impl Task for Gan {
    fn parameters(&mut self) -> &mut dyn Parameters {
        self
    }

    fn turns(&self) -> Vec<String> {
        ["discriminator", "generator"].map(str::to_owned).to_vec()
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        Ok(batch.len() as f64)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        let made_up = self.generate(pass, device, part.len())?;
        if pass.turn().is_some_and(|turn| turn.model() == "generator") {
            return self.judge(pass, made_up, 1.0);
        }
        let real = upload(device, field(part, "images")?)?.reshape([part.len(), 64])?;
        let real = self.judge(pass, pass.constant(real), 1.0)?;
        let made_up = self.judge(pass, made_up, 0.0)?;
        Ok(Loss { sum: real.sum.add(made_up.sum)?, count: real.count })
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        let loss = self.loss(&Pass::eval(), device, part)?;
        Ok(Score::new(f64::from(loss.sum.value().item_assuming(0.0_f32)?), self.count(part)?))
    }
}

fn main() -> Result<()> {
    let (train, test) = Digits::load()?.split();
    let options = LoaderOptions { batch_size: 128, ..Default::default() };
    let train = Loader::new(train, options)?;
    let test = Loader::with_sampler(test, Sequential, options)?;
    let device = Device::cpu(CpuOptions { budget_bytes: Some(4 << 20), ..Default::default() })?;
    let key = RandomKey::new(0);
    let gan = Gan {
        discriminator: Mlp::new(&device, key.op("discriminator"), &[64, 128, 1])?,
        generator: Mlp::new(&device, key.op("generator"), &[16, 128, 64])?,
    };
    let adam = |learning_rate| {
        Adam::new(AdamOptions { learning_rate, betas: [0.5, 0.999], ..Default::default() })
    };
    let optimizer =
        ByModel::new().with("discriminator", adam(4e-4)?).with("generator", adam(1e-3)?);
    let mut trainer = Trainer::new(&device, gan, optimizer, Options::default());
    trainer.fit(&train, &test, 40, &mut [&mut Progress::new()])?;

    let images = trainer.task().generate(&Pass::eval(), &device, 4)?;
    let pixels = images.value().to_vec::<f32>()?;
    for row in 0..8 {
        let shade = |pixel: &f32| [' ', '.', 'o', '#'][(pixel * 3.99) as usize];
        let of = |image: usize| pixels[64 * image + 8 * row..][..8].iter().map(shade).collect();
        println!("{}", (0..4).map(of).collect::<Vec<String>>().join("   "));
    }
    let inked = pixels.iter().filter(|&&pixel| pixel > 0.5).count() as f64 / pixels.len() as f64;
    assert!((0.15..0.5).contains(&inked), "a third of a digit is ink, here {inked}");
    Ok(())
}

#[test]
fn it_runs() -> Result<()> {
    main()
}
