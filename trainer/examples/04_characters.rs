//! A small GPT that learns the characters of a text and writes a text of its own.
//!
//! `cargo run --release --example 04_characters [FILE]`

use lowtide_autograd::Pass;
use lowtide_data::{Loader, LoaderOptions, Sequential, Text};
use lowtide_nn::Module;
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_tensor::{CpuOptions, Device, RandomKey, Tensor};
use lowtide_trainer::{LanguageModel, Options, Progress, Result, Trainer};

const CONTEXT: usize = 32;
const LICENSE: &str = include_str!("../LICENSE-APACHE");

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        Some(file) => train(&Text::read(file.as_ref(), CONTEXT)?),
        None => train(&Text::new(LICENSE, CONTEXT)?),
    }
}

fn train(text: &Text) -> Result<()> {
    let (train, test) = text.split()?;
    let options = LoaderOptions { batch_size: 32, ..Default::default() };
    let train = Loader::new(train, options)?;
    let test = Loader::with_sampler(test, Sequential, options)?;

    let device = Device::cpu(CpuOptions { budget_bytes: Some(16 << 20), ..Default::default() })?;
    let vocabulary = text.vocabulary().len();
    let shape = GptShape { vocabulary, context: CONTEXT, width: 48, heads: 4, blocks: 2 };
    let model = Gpt::new(&device, RandomKey::new(0), shape)?.with_dropout(0.1)?;
    let adam = Adam::new(AdamOptions { learning_rate: 5e-3, ..Default::default() })?;
    let options = Options { clip_norm: Some(1.0), ..Default::default() };
    let mut trainer = Trainer::new(&device, LanguageModel::new(model), adam, options);
    let score = trainer.fit(&train, &test, 10, &mut [&mut Progress::new()])?;

    println!("perplexity {:.2} of {vocabulary}", score.value("perplexity").unwrap_or(f64::NAN));
    println!("{}", write(trainer.task().model(), text, &device, 200)?);
    assert!(score.loss() < (vocabulary as f64).ln());
    Ok(())
}

/// Writes `count` characters, each drawn from the predicted probabilities.
fn write(model: &Gpt, text: &Text, device: &Device, count: u64) -> Result<String> {
    let (pass, key) = (Pass::eval(), RandomKey::new(1));
    let mut tokens = vec![0_i64];
    for index in 0..count {
        let seen = &tokens[tokens.len().saturating_sub(CONTEXT)..];
        let input = Tensor::from_slice(device, [1, seen.len()], seen)?;
        let logits = model.forward(&pass, pass.constant(input))?;
        let last = logits.value().select(1, seen.len() - 1)?;
        let probabilities = last.softmax(-1)?.to_vec::<f32>()?;
        let mut left = key.uniform(index);
        let drawn = probabilities.iter().position(|&probability| {
            left -= probability;
            left < 0.0
        });
        tokens.push(drawn.unwrap_or(probabilities.len() - 1) as i64);
    }
    Ok(text.decode(&tokens[1..]))
}

#[test]
fn it_runs() -> Result<()> {
    train(&Text::new(LICENSE, CONTEXT)?)
}
