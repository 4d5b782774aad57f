//! A custom dataset and layer, and an exchange with PyTorch: a network with a trainable sine tells
//! two spirals apart. `08_own_data.py` reads the file in PyTorch.

use std::path::Path;

use lowtide_data::{ElementType, Field, SampleError, SampleSlot, Subset};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_nn::{Linear, NnResult, Sequential, load, parameters, save};
use lowtide_trainer::Result;
use lowtide_trainer::prelude::*;

/// Points of two spirals, half of the points from each; a pure function of the index.
struct Spirals(Vec<Field>);

impl Spirals {
    fn new() -> Self {
        let point = Field::new("points", ElementType::F32, &[2]);
        Spirals(vec![point, Field::new("labels", ElementType::I64, &[])])
    }
}

impl Dataset for Spirals {
    fn len(&self) -> usize {
        1200
    }

    fn fields(&self) -> &[Field] {
        &self.0
    }

    fn write(&self, index: usize, slot: &mut SampleSlot) -> std::result::Result<(), SampleError> {
        let (which, along) = (index % 2, (index / 2) as f32 / 600.0);
        let angle = 9.0 * along + which as f32 * std::f32::consts::PI;
        slot.values::<f32>(0).copy_from_slice(&[along * angle.cos(), along * angle.sin()]);
        slot.values::<i64>(1)[0] = which as i64;
        Ok(())
    }
}

/// `x → sin(frequency · x)`, with a frequency for each feature.
#[derive(Clone)]
struct Sine {
    frequency: Parameter,
}

parameters!(Sine { frequency });

impl Module for Sine {
    fn forward(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        Ok(x.mul(self.frequency.var(pass)?)?.sin()?)
    }
}

fn net(device: &Device, seed: u64) -> Result<Sequential> {
    let linear = |name, from, to| Linear::new(device, RandomKey::new(seed).op(name), from, to);
    let sine = Sine { frequency: Parameter::full(device, [32], 8.0)? };
    Ok(Sequential::new().then(linear("0", 2, 32)?).then(sine).then(linear("2", 32, 2)?))
}

/// Trains, saves the model to `file`, and returns the accuracy.
fn train(file: &Path) -> Result<f64> {
    // Every fourth pair of points is for the test.
    let (test, train): (Vec<usize>, Vec<usize>) = (0..1200).partition(|index| index / 2 % 4 == 0);
    let of = |indices: Vec<usize>| Subset::new(Spirals::new(), indices).expect("there are 1200");
    let options = LoaderOptions { batch_size: 100, ..Default::default() };
    let (train, test) = (Loader::new(of(train), options)?, Loader::new(of(test), options)?);
    let device = Device::cpu(CpuOptions::default())?;
    let adam = Adam::new(AdamOptions { learning_rate: 1e-2, ..Default::default() })?;
    let task = Classification::new(net(&device, 0)?).with_input("points");
    let mut trainer = Trainer::new(&device, task, adam, Options::default());
    let score = trainer.fit(&train, &test, 60, &mut [])?;
    save(trainer.task_mut().parameters(), file)?;

    // Another network has other values until it loads the file.
    let mut other = net(&device, 1)?;
    load(&mut other, file)?;
    let other = Classification::new(other).with_input("points");
    let batch = test.epoch(0).next().expect("300 points")?;
    let scores = [trainer.task(), &other].map(|task| task.score(&device, &batch.view()));
    let [own, loaded] = scores;
    assert_eq!(own?, loaded?);
    Ok(score.accuracy())
}

fn main() -> Result<()> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "spirals.safetensors".to_owned());
    println!("accuracy {:.4}, the model is in {file}", train(file.as_ref())?);
    Ok(())
}

#[test]
fn spirals_are_told_apart() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(train(&folder.path().join("spirals.safetensors"))? > 0.95);
    Ok(())
}
