//! Times whole training steps of well-known networks, small enough for a CPU:
//!
//! ```text
//! cargo run --release -p lowtide-nn --example peer -- step resnet18 2 [--dtype bf16]
//! ```
//!
//! `torch_steps.py` has the same networks. Parameters with two dimensions or more start uniform.
//! The bound depends on their size, and the stream depends on their name. Biases start at 0 and all
//! other parameters at 1. Equal losses therefore show equal work.
//!
//! The program that compares the two reads the memory of this process from outside. This process
//! therefore waits for a line of input before the first steps, and for another before the timed
//! steps.

mod images;
mod sequences;

use std::io::BufRead;
use std::time::{Duration, Instant};

use lowtide_autograd::{Attempt, Pass, Var};
use lowtide_nn::models::{Gpt, GptShape, LstmModel, LstmModelShape, ResNet, ResNetShape};
use lowtide_nn::models::{UNet, UNetShape};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions};
use lowtide_nn::{Module, NnResult as Result, Nodes, Parameters, Visitor, cross_entropy};
use lowtide_tensor::{DType, Device, Tensor};

use crate::KEY;
use crate::measure::{X, Y, integers, uniform};

/// Names of all networks. `torch_steps.py` has the same names.
pub(crate) const NAMES: [&str; 12] = [
    "resnet18",
    "vgg11",
    "mobilenet-v2",
    "convnext",
    "densenet",
    "unet",
    "dcgan",
    "wavenet",
    "bert",
    "gpt2",
    "llama",
    "lstm",
];

/// Number of first steps, in which memory is measured and losses are compared.
const FIRST_STEPS: usize = 3;

/// Smallest total time and smallest number of the timed steps.
const TIME: Duration = Duration::from_millis(2500);
const STEPS_MIN: usize = 5;

/// A network together with its batch.
trait Trained: Parameters {
    /// The loss of the batch.
    fn loss(&self, pass: &Pass) -> Result<Var>;
}

/// A network that computes logits, with inputs and labels.
struct Labelled<M> {
    model: M,
    x: Tensor,
    labels: Tensor,
}

impl<M: Nodes> Nodes for Labelled<M> {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field("", &mut self.model);
    }
}

impl<M: Module> Trained for Labelled<M> {
    fn loss(&self, pass: &Pass) -> Result<Var> {
        let logits = self.model.forward(pass, pass.constant(self.x.clone()))?;
        // Logits of sequences, [B, T, V], are rows of one batch.
        let logits = if logits.shape().len() == 3 { logits.flatten(0..2)? } else { logits };
        cross_entropy(logits, &self.labels)?.mean()
    }
}

/// The device and the type that a network and its batch are made in.
#[derive(Clone, Copy)]
struct Place<'a> {
    device: &'a Device,
    dtype: DType,
}

impl Place<'_> {
    /// `model` with filled parameters, as a classifier of images of this shape.
    fn of_images<M: Module + 'static>(
        self,
        model: M,
        shape: [usize; 4],
        label_shape: &[usize],
        classes: usize,
    ) -> Result<Box<dyn Trained>> {
        let x = self.uniform(X, &shape)?;
        let labels = self.integers(Y, label_shape, classes)?;
        self.filled(Labelled { model, x, labels })
    }

    /// `model` with filled parameters, as a predictor of the next token for inputs of this shape.
    fn of_tokens<M: Module + 'static>(
        self,
        model: M,
        [rows, len]: [usize; 2],
        vocabulary: usize,
    ) -> Result<Box<dyn Trained>> {
        let x = self.integers(X, &[rows, len], vocabulary)?;
        let labels = self.integers(Y, &[rows * len], vocabulary)?;
        self.filled(Labelled { model, x, labels })
    }

    fn uniform(self, stream: u64, shape: &[usize]) -> Result<Tensor> {
        let values = uniform(stream, shape.iter().product(), 1.0);
        Ok(Tensor::from_slice(self.device, shape, &values)?.to_dtype(self.dtype)?)
    }

    fn integers(self, stream: u64, shape: &[usize], modulo: usize) -> Result<Tensor> {
        let values = integers(stream, shape.iter().product(), modulo as u32);
        Ok(Tensor::from_slice(self.device, shape, &values)?)
    }

    /// `model` with the initial values that every program gives its parameters.
    fn filled<M: Trained + 'static>(self, mut model: M) -> Result<Box<dyn Trained>> {
        let mut result = Ok(());
        model.visit(&mut |name, parameter| {
            let shape = *parameter.value().shape();
            let value = parameter.value_mut();
            let filled = match shape.len() {
                0 | 1 => value.fill_(if name.contains("bias") { 0.0 } else { 1.0 }),
                _ => {
                    let fan = shape[1..].iter().product::<usize>() as f32;
                    let values = uniform(stream(name), shape.element_count(), (6.0 / fan).sqrt());
                    Tensor::from_slice(self.device, shape, &values)
                        .and_then(|values| value.copy_(&values))
                }
            };
            result = std::mem::replace(&mut result, Ok(())).and(filled);
        });
        result?;
        model.set_dtype(self.dtype)?;
        Ok(Box::new(model))
    }

    /// The network `name` with its batch, and the name of its optimizer.
    fn prepare(self, name: &str) -> Result<(Box<dyn Trained>, &'static str)> {
        let Place { device, .. } = self;
        Ok(match name {
            "resnet18" => {
                let model = ResNet::new(device, KEY, ResNetShape::RESNET18)?;
                (self.of_images(model, [16, 3, 64, 64], &[16], 1000)?, "sgd")
            }
            "unet" => {
                let model = UNet::new(device, KEY, UNetShape { width: 16, ..UNetShape::USUAL })?;
                (self.of_images(model, [4, 3, 128, 128], &[4, 128, 128], 2)?, "adamw")
            }
            "vgg11" => (self.of_images(images::vgg11(device)?, [32, 3, 32, 32], &[32], 10)?, "sgd"),
            "mobilenet-v2" => {
                let model = images::MobileNetV2::new(device)?;
                (self.of_images(model, [16, 3, 64, 64], &[16], 100)?, "sgd")
            }
            "convnext" => {
                let model = images::ConvNeXt::new(device)?;
                (self.of_images(model, [16, 3, 64, 64], &[16], 100)?, "adamw")
            }
            "densenet" => {
                let model = images::DenseNet::new(device)?;
                (self.of_images(model, [32, 3, 32, 32], &[32], 10)?, "sgd")
            }
            "dcgan" => {
                let real = self.uniform(Y, &[32, 3, 64, 64])?;
                let noise = self.uniform(X, &[32, 100, 1, 1])?;
                (self.filled(images::Dcgan::new(device, real, noise)?)?, "adamw")
            }
            "wavenet" => {
                let model = sequences::WaveNet::new(device)?;
                (self.of_tokens(model, [4, 1024], 256)?, "adamw")
            }
            "bert" => (self.of_tokens(sequences::Bert::new(device)?, [8, 128], 8192)?, "adamw"),
            "gpt2" => {
                let shape =
                    GptShape { vocabulary: 8192, context: 128, width: 384, heads: 6, blocks: 6 };
                (self.of_tokens(Gpt::new(device, KEY, shape)?, [8, 128], 8192)?, "adamw")
            }
            "llama" => (self.of_tokens(sequences::Llama::new(device)?, [4, 256], 8192)?, "adamw"),
            "lstm" => {
                let shape = LstmModelShape {
                    vocabulary: 10_000,
                    width: 256,
                    hidden: 256,
                    layers: 2,
                    dropout: 0.0,
                };
                (self.of_tokens(LstmModel::new(device, KEY, shape)?, [32, 64], 10_000)?, "adamw")
            }
            _ => crate::usage(),
        })
    }
}

/// The stream of a parameter's random numbers: the FNV-1a hash of its name (Fowler, Noll and Vo).
fn stream(name: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    name.bytes().fold(0xCBF2_9CE4_8422_2325, mix)
}

/// Trains the network `name`, and prints lines of JSON.
pub(crate) fn run(device: &Device, name: &str, dtype: DType) -> Result<()> {
    let (mut model, optimizer) = Place { device, dtype }.prepare(name)?;
    let mut optimizer: Box<dyn Optimizer> = match optimizer {
        "sgd" => Box::new(Sgd::new(SgdOptions { momentum: 0.9, ..SgdOptions::new(0.001) })?),
        _ => Box::new(Adam::new(AdamOptions::adamw())?),
    };
    let mut step = || -> Result<f32> {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let loss = model.loss(&pass)?;
        let value = loss.value().clone();
        pass.backward(loss)?;
        optimizer.step(model.as_mut(), attempt)?;
        Ok(value.to_dtype(DType::F32)?.item::<f32>()?)
    };
    // Cached memory from making the network must not count as memory of the steps.
    device.allocator().trim();
    println!("{{\"ready\":true}}");
    wait();
    let losses = (0..FIRST_STEPS).map(|_| step()).collect::<Result<Vec<f32>>>()?;
    println!("{{\"losses\":{losses:?}}}");
    wait();
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < STEPS_MIN || begin.elapsed() < TIME {
        let start = Instant::now();
        step()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let (least, median, steps) = (times[0], times[times.len() / 2], times.len());
    println!("{{\"min_ms\":{least:.4},\"median_ms\":{median:.4},\"runs\":{steps}}}");
    Ok(())
}

/// Waits for a line of input, or its end.
fn wait() {
    let _ = std::io::stdin().lock().lines().next();
}
