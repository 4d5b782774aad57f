//! Ten training steps against PyTorch; see the fixtures' README.

use std::path::Path;

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions, Momentum, Optimizer, Sgd, SgdOptions};
use lowtide_nn::{
    Conv2d, Flatten, Linear, MaxPool2d, Module, Parameter, Parameters, ReLU, Sequential,
    cross_entropy,
};
use lowtide_tensor::{Conv2dGeometry, Device, Tensor};
use safetensors::SafeTensors;

use crate::common::{KEY, Outcome, cpu};

const STEPS: u64 = 10;
/// By the fixtures' README, rounding changes a loss by at most 4e-7, and the smallest mistake
/// changes a parameter by 1.6e-4.
const TOLERANCE: f64 = 1e-5;

struct Fixture(Vec<u8>);

impl Fixture {
    fn read() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        Fixture(std::fs::read(file.join("simple_cnn.safetensors")).expect("the fixture is there"))
    }

    fn bytes(&self, name: &str) -> &[u8] {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}")).data()
    }

    fn f32s(&self, name: &str) -> Vec<f64> {
        let words = self.bytes(name).as_chunks().0;
        words.iter().map(|&word| f64::from(f32::from_le_bytes(word))).collect()
    }

    fn f64s(&self, name: &str) -> Vec<f64> {
        self.bytes(name).as_chunks().0.iter().map(|&word| f64::from_le_bytes(word)).collect()
    }
}

/// Converts a parameter name of `model`, which may be a position, to PyTorch's name.
type Rename = fn(&str) -> String;

fn simple_cnn(device: &Device) -> lowtide_nn::NnResult<(Box<dyn Module>, Rename)> {
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: 4, classes: 10 };
    Ok((Box::new(SimpleCnn::new(device, KEY, shape)?), |name| name.to_owned()))
}

fn sequential(device: &Device) -> lowtide_nn::NnResult<(Box<dyn Module>, Rename)> {
    let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
    let model = Sequential::new()
        .then(Conv2d::new(device, KEY.op("0"), [1, 4], [3, 3], geometry)?)
        .then(ReLU)
        .then(MaxPool2d::square(2))
        .then(Flatten)
        .then(Linear::new(device, KEY.op("4"), 64, 10)?);
    Ok((Box::new(model), |name| name.replace("0.", "conv.").replace("4.", "linear.")))
}

fn images(device: &Device) -> lowtide_tensor::TensorResult<Tensor> {
    let pixel = |n: usize, i: usize| ((31 * n + 7 * i) % 17) as f32 / 16.0;
    let pixels: Vec<f32> = (0..16 * 64).map(|at| pixel(at / 64, at % 64)).collect();
    Tensor::from_slice(device, [16, 1, 8, 8], &pixels)
}

fn assert_close(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(error <= TOLERANCE, "{what}[{index}]: {found}, PyTorch {expected}");
    }
}

fn load(model: &mut dyn Parameters, rename: Rename, fixture: &Fixture) {
    model.visit(&mut |name, parameter: &mut Parameter| {
        let bytes = fixture.bytes(&format!("initial.{}", rename(name)));
        parameter.value_mut().set_bytes_(bytes).expect("the same shape");
    });
}

fn check_run<O: Optimizer>(run: &str, new: impl Fn() -> lowtide_nn::NnResult<O>) -> Outcome {
    let fixture = Fixture::read();
    for build in [simple_cnn, sequential] {
        let (device, mut optimizer) = (cpu(), new()?);
        let (mut model, rename) = build(&device)?;
        load(&mut *model, rename, &fixture);
        let x = images(&device)?;
        let labels: Vec<i64> = (0..16).map(|n| 7 * n % 10).collect();
        let labels = Tensor::from_slice(&device, [16], &labels)?;

        let mut losses = Vec::new();
        for step in 0..STEPS {
            let attempt = Attempt::new();
            let pass = Pass::train(KEY.step(step), &attempt);
            let logits = model.forward(&pass, pass.constant(x.clone()))?;
            let loss = cross_entropy(logits, &labels)?.mean()?;
            losses.push(f64::from(loss.value().item::<f32>()?));
            pass.backward(loss)?;
            optimizer.step(&mut *model, attempt)?;
        }
        assert_close("losses", &losses, &fixture.f64s(&format!("{run}.losses")));
        model.visit(&mut |name, parameter| {
            let name = format!("{run}.{}", rename(name));
            let found = parameter.value().to_vec::<f32>().expect("f32 on the CPU");
            let found: Vec<f64> = found.into_iter().map(f64::from).collect();
            assert_close(&name, &found, &fixture.f32s(&name));
        });
    }
    Ok(())
}

#[test]
fn sgd_trains_as_in_pytorch() -> Outcome {
    check_run("sgd", || Sgd::new(SgdOptions::new(0.05)))
}

#[test]
fn sgd_with_nesterov_and_weight_decay_trains_as_in_pytorch() -> Outcome {
    let options = SgdOptions {
        momentum: 0.9,
        weight_decay: 1e-4,
        momentum_kind: Momentum::Nesterov,
        ..SgdOptions::new(0.1)
    };
    check_run("sgd_nesterov", || Sgd::new(options))
}

#[test]
fn adam_trains_as_in_pytorch() -> Outcome {
    let options = AdamOptions { learning_rate: 1e-2, ..AdamOptions::default() };
    check_run("adam", || Adam::new(options))
}

#[test]
fn adamw_trains_as_in_pytorch() -> Outcome {
    let options = AdamOptions { learning_rate: 1e-2, ..AdamOptions::adamw() };
    check_run("adamw", || Adam::new(options))
}

#[test]
fn the_runs_differ_by_more_than_the_tolerance() {
    // Without this distance, the four tests above could not tell the optimizers apart.
    let fixture = Fixture::read();
    let runs = ["sgd", "sgd_nesterov", "adam", "adamw"];
    let weights = runs.map(|run| fixture.f32s(&format!("{run}.linear.weight")));
    for (i, a) in weights.iter().enumerate() {
        for b in &weights[..i] {
            let distance = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(distance > 10.0 * TOLERANCE, "{distance}");
        }
    }
}
