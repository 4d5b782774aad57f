//! Batches of lowtide's loader for a model of candle: shuffled by a seed, built by workers while
//! the model computes, and resumed in the middle of an epoch.

use anyhow::{Context, Result};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{AdamW, Optimizer, VarBuilder, VarMap, linear, loss::cross_entropy, seq};
use lowtide_data::{Batch, Digits, Loader, LoaderOptions, Sequential};

/// A batch as candle's tensors: pixels in rows, and labels. candle copies the pixels, and dropping
/// the batch returns its buffer to the loader.
fn tensors(batch: &Batch, device: &Device) -> Result<(Tensor, Tensor)> {
    let pixels = batch.field("images").and_then(|field| field.values::<f32>());
    let labels = batch.field("labels").and_then(|field| field.values::<i64>());
    let (pixels, labels) = (pixels.context("pixels of f32")?, labels.context("labels of i64")?);
    let rows = (batch.len(), pixels.len() / batch.len());
    Ok((Tensor::from_slice(pixels, rows, device)?, Tensor::new(labels, device)?))
}

fn main() -> Result<()> {
    let device = Device::Cpu;
    let (train, test) = Digits::load()?.split();
    let options = LoaderOptions { batch_size: 64, workers: 1, ..Default::default() };
    let train = Loader::new(train, options)?;
    let test = Loader::with_sampler(test, Sequential, options)?;

    let variables = VarMap::new();
    let builder = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let model = seq()
        .add(linear(64, 128, builder.pp("hidden"))?)
        .add_fn(|x| x.relu())
        .add(linear(128, 10, builder.pp("output"))?);
    let mut adam = AdamW::new_lr(variables.all_vars(), 3e-3)?;
    for number in 0..15 {
        let mut epoch = train.epoch(number);
        for batch in epoch.by_ref().take(10) {
            let (pixels, labels) = tensors(&batch?, &device)?;
            adam.backward_step(&cross_entropy(&model.forward(&pixels)?, &labels)?)?;
        }
        // The position in the epoch is a few integers. Save them to continue here at any time.
        let state = epoch.state();
        drop(epoch);
        for batch in train.resume(state)? {
            let (pixels, labels) = tensors(&batch?, &device)?;
            adam.backward_step(&cross_entropy(&model.forward(&pixels)?, &labels)?)?;
        }
    }
    let mut right = 0.0;
    for batch in test.epoch(0) {
        let (pixels, labels) = tensors(&batch?, &device)?;
        let predicted = model.forward(&pixels)?.argmax(D::Minus1)?.to_dtype(DType::I64)?;
        right += predicted.eq(&labels)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
    }
    let accuracy = right / test.dataset().len() as f32;
    println!("accuracy on {} digits: {accuracy:.3}", test.dataset().len());
    anyhow::ensure!(accuracy > 0.9, "a model that learns has more than 0.9");
    Ok(())
}
