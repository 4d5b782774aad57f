//! Times one training step of a workload that is also written in PyTorch, burn, candle and dfdx:
//!
//! ```text
//! cargo run --release -p lowtide-nn --example peer -- w1-simplecnn 2
//! ```
//!
//! All programs start from the same numbers, so that equal losses show equal work.

mod cases;
mod measure;
mod ops;
mod steps;
mod sweep;

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions};
use lowtide_nn::{
    Conv2d, Flatten, Linear, MaxPool2d, Module, NnResult as Result, Parameters, ReLU, Sequential,
    cross_entropy,
};
use lowtide_tensor::{Conv2dGeometry, CpuOptions, DType, Device, RandomKey, Tensor};

use measure::{Workload, X, Y, integers, measure, uniform};

/// The name of this program in the reports.
const PEER: &str = "lowtide";

const ADD_LEN: usize = 1 << 24;
const ADD_GB: Option<(&str, f64)> = Some(("gb_per_s", 12.0 * ADD_LEN as f64 / 1e9));
const MATMUL_GFLOP: Option<(&str, f64)> = Some(("gflop_per_s", 2.0 * (1u64 << 30) as f64 / 1e9));

const SOFTMAX_SHAPE: [usize; 2] = [4096, 1024];
const SOFTMAX_GB: Option<(&str, f64)> =
    Some(("gb_per_s", 8.0 * (SOFTMAX_SHAPE[0] * SOFTMAX_SHAPE[1]) as f64 / 1e9));

const WORKLOADS: [Workload; 8] = [
    Workload { name: "w1-simplecnn", batch: 128, steps: 40, giga: None },
    Workload { name: "w2-deepcnn", batch: 64, steps: 20, giga: None },
    Workload { name: "w3-mlp", batch: 128, steps: 200, giga: None },
    Workload { name: "w4-gpt", batch: 16, steps: 25, giga: None },
    Workload { name: "w5-matmul", batch: 1, steps: 40, giga: MATMUL_GFLOP },
    Workload { name: "w5-add", batch: 1, steps: 40, giga: ADD_GB },
    Workload { name: "w5-add-inplace", batch: 1, steps: 200, giga: ADD_GB },
    Workload { name: "w5-softmax", batch: 1, steps: 200, giga: SOFTMAX_GB },
];

const KEY: RandomKey = RandomKey::new(0);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.get(1).and_then(|count| count.parse().ok());
    let (Some(name), Some(threads)) = (arguments.first(), threads) else { usage() };
    let device = Device::cpu(CpuOptions { threads: Some(threads), ..Default::default() })?;
    if name == "sweep" {
        let only = option(&arguments, "--only").unwrap_or_default();
        match arguments.last().map(String::as_str) {
            Some("--list") => sweep::names(only).for_each(|name| println!("{name}")),
            Some("--turns") => sweep::turns(&device, dtype(&arguments))?,
            _ => {
                for name in sweep::names(only) {
                    sweep::measure(&device, dtype(&arguments), &name)?;
                }
            }
        }
        return Ok(());
    }
    if let Some(step) = name.strip_prefix("step-") {
        return steps::run(&device, step, dtype(&arguments));
    }
    let Some(workload) = WORKLOADS.iter().find(|workload| workload.name == name) else {
        return if ops::measure_op(&device, name, threads)? { Ok(()) } else { usage() };
    };
    let adam = || Adam::new(AdamOptions::default());
    match workload.name {
        "w1-simplecnn" => {
            train(&device, workload, threads, cnn(&device, 32, &[16])?, [3, 32, 32], adam()?)
        }
        "w2-deepcnn" => {
            let model = cnn(&device, 64, &[32, 64, 128])?;
            train(&device, workload, threads, model, [3, 64, 64], adam()?)
        }
        "w3-mlp" => {
            let sgd = Sgd::new(SgdOptions { momentum: 0.9, ..SgdOptions::new(0.05) })?;
            train(&device, workload, threads, mlp(&device)?, [784], sgd)
        }
        "w4-gpt" => train_gpt(&device, workload, threads),
        "w5-matmul" => {
            let [a, b] = two(&device, [1024, 1024])?;
            measure(PEER, workload, threads, || a.matmul(&b).map(|_| 0.0))?;
            Ok(())
        }
        "w5-add" => {
            let [a, b] = two(&device, [ADD_LEN])?;
            measure(PEER, workload, threads, || a.add(&b).map(|_| 0.0))?;
            Ok(())
        }
        "w5-softmax" => {
            let [a, _] = two(&device, SOFTMAX_SHAPE)?;
            measure(PEER, workload, threads, || a.softmax(1).map(|_| 0.0))?;
            Ok(())
        }
        _ => {
            let [mut a, b] = two(&device, [ADD_LEN])?;
            measure(PEER, workload, threads, || a.add_(&b).map(|()| 0.0))?;
            Ok(())
        }
    }
}

/// The argument after `name`.
fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.get(at + 1).map(String::as_str)
}

/// The element type in the arguments.
fn dtype(arguments: &[String]) -> DType {
    match option(arguments, "--dtype") {
        None | Some("f32") => DType::F32,
        Some("bf16") => DType::BF16,
        Some(_) => usage(),
    }
}

fn usage() -> ! {
    let steps = WORKLOADS.iter().map(|workload| workload.name);
    let names: Vec<_> = steps.chain(cases::names()).collect();
    eprintln!("usage: peer WORKLOAD THREADS, WORKLOAD one of {}", names.join(", "));
    eprintln!("       peer sweep THREADS [--dtype f32|bf16] [--only TEXT] [--list|--turns]");
    eprintln!(
        "       peer step-NAME THREADS [--dtype f32|bf16], NAME one of {}",
        steps::NAMES.join(", ")
    );
    std::process::exit(2);
}

/// Blocks of convolution 3x3, ReLU and max pool 2x2, and a linear head for 10 classes.
fn cnn(device: &Device, side: usize, channels: &[usize]) -> Result<Sequential> {
    let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
    let (mut model, mut inputs, mut side) = (Sequential::new(), 3, side);
    for &outputs in channels {
        let conv = Conv2d::new(device, KEY, [inputs, outputs], [3, 3], geometry)?;
        model = model.then(conv).then(ReLU).then(MaxPool2d::square(2));
        (inputs, side) = (outputs, side / 2);
    }
    Ok(model.then(Flatten).then(Linear::new(device, KEY, inputs * side * side, 10)?))
}

fn mlp(device: &Device) -> Result<Sequential> {
    let linear = |inputs, outputs| Linear::new(device, KEY, inputs, outputs);
    let model = Sequential::new().then(linear(784, 512)?).then(ReLU);
    Ok(model.then(linear(512, 512)?).then(ReLU).then(linear(512, 10)?))
}

/// Fills the parameters in order, from the streams 1, 2, 3, ... A bias has the bound of its weight,
/// and an embedding has its own bound. Normalisations keep their ones and zeros.
fn fill(device: &Device, model: &mut impl Parameters) -> Result<()> {
    const EMBEDDING_BOUND: f32 = 0.035;
    let (mut stream, mut bound, mut result) = (0, None, Ok(()));
    model.visit(&mut |name, parameter| {
        let shape = *parameter.value().shape();
        if name.ends_with("weight") {
            let is_embedding = ["tok.", "pos."].iter().any(|table| name.starts_with(table));
            let fan_in = (shape.len() > 1).then(|| shape[1..].iter().product::<usize>());
            bound = fan_in.map(|fan_in| 1.0 / (fan_in as f32).sqrt());
            bound = if is_embedding { Some(EMBEDDING_BOUND) } else { bound };
        }
        let Some(bound) = bound else { return };
        stream += 1;
        let values = uniform(stream, shape.element_count(), bound);
        let copied = Tensor::from_slice(device, shape, &values)
            .and_then(|values| parameter.value_mut().copy_(&values));
        if copied.is_err() {
            result = copied;
        }
    });
    Ok(result?)
}

fn train_gpt(device: &Device, workload: &Workload, threads: usize) -> Result<()> {
    let shape = GptShape { vocabulary: 96, context: 128, width: 128, heads: 4, blocks: 4 };
    let mut model = Gpt::new(device, KEY, shape)?;
    fill(device, &mut model)?;
    let tokens = integers(X, workload.batch * shape.context, shape.vocabulary as u32);
    let next: Vec<i64> =
        tokens.iter().map(|token| (5 * token + 17) % shape.vocabulary as i64).collect();
    let x = Tensor::from_slice(device, [workload.batch, shape.context], &tokens)?;
    let labels = Tensor::from_slice(device, [next.len()], &next)?;
    let mut optimizer = Adam::new(AdamOptions::adamw())?;
    measure(PEER, workload, threads, || {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let logits = model.forward(&pass, pass.constant(x.clone()))?.flatten(0..2)?;
        let loss = cross_entropy(logits, &labels)?.mean()?;
        let value = loss.value().clone();
        pass.backward(loss)?;
        optimizer.step(&mut model, attempt)?;
        Ok(value.item::<f32>()?)
    })
}

fn train<const N: usize>(
    device: &Device,
    workload: &Workload,
    threads: usize,
    mut model: Sequential,
    sample: [usize; N],
    mut optimizer: impl Optimizer,
) -> Result<()> {
    fill(device, &mut model)?;
    let shape = [&[workload.batch], &sample[..]].concat();
    let values = uniform(X, shape.iter().product(), 1.0);
    let x = Tensor::from_slice(device, &shape[..], &values)?;
    let labels = integers(Y, workload.batch, 10);
    let labels = Tensor::from_slice(device, [workload.batch], &labels)?;
    drop(values);
    measure(PEER, workload, threads, || {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let logits = model.forward(&pass, pass.constant(x.clone()))?;
        let loss = cross_entropy(logits, &labels)?.mean()?;
        let value = loss.value().clone();
        pass.backward(loss)?;
        optimizer.step(&mut model, attempt)?;
        Ok(value.item::<f32>()?)
    })
}

/// Two tensors, from the first two streams.
fn two<const N: usize>(device: &Device, shape: [usize; N]) -> Result<[Tensor; 2]> {
    let len = shape.iter().product();
    let of = |stream| Tensor::from_slice(device, shape, &uniform(stream, len, 1.0));
    Ok([of(1)?, of(2)?])
}
