//! Twenty training steps of every reference model against PyTorch; see the fixtures' README.

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::optim::{Optimizer, Sgd, SgdOptions};

use crate::common::{KEY, Outcome, cpu};
use crate::zoo::{ZOO, fill};

const RUNS: &str = include_str!("../fixtures/runs.txt");
/// Of a loss, and of a parameter beside its largest element of order 1. Rounding moves them by
/// 2e-6 at most (the script prints it); see the fixtures' README.
const TOLERANCE: f64 = 1e-5;

struct Run {
    learning_rate: f64,
    losses: Vec<f64>,
    /// Norm and elements of each parameter after the last step.
    parameters: Vec<(&'static str, Vec<f64>)>,
}

fn numbers<'a>(words: impl Iterator<Item = &'a str>) -> Vec<f64> {
    words.map(|word| word.parse().expect("a number")).collect()
}

fn run(name: &str) -> Run {
    let head = format!("run {name} ");
    let mut lines = RUNS.lines().skip_while(|line| !line.starts_with(&head));
    let learning_rate = lines.next().expect("the run is there")[head.len()..].parse();
    let losses = lines.next().and_then(|line| line.strip_prefix("losses ")).expect("losses");
    let parameter = |line: &'static str| {
        let mut words = line.split(' ');
        (words.next().expect("a name"), numbers(words))
    };
    Run {
        learning_rate: learning_rate.expect("a number"),
        losses: numbers(losses.split(' ')),
        parameters: lines.take_while(|line| !line.starts_with("run ")).map(parameter).collect(),
    }
}

/// As the script samples them.
fn sampled(values: &[f32]) -> Vec<f64> {
    let norm = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let at = |j: usize| f64::from(values[(7919 * j + 13) % values.len()]);
    [norm].into_iter().chain((0..6).map(at)).collect()
}

/// The largest errors of a loss and of a parameter.
fn errors(index: usize) -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let (name, build) = ZOO[index];
    let expected = run(name);
    let device = cpu();
    let mut case = build(&device, 0.0)?;
    fill(case.model());
    let options = SgdOptions { momentum: 0.9, ..SgdOptions::new(expected.learning_rate) };
    let mut optimizer = Sgd::new(options)?;
    let mut worst = [0.0_f64; 2];
    for (step, loss) in expected.losses.iter().enumerate() {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY.step(step as u64), &attempt);
        let mean = case.loss(&pass)?;
        let found = f64::from(mean.value().item::<f32>()?);
        worst[0] = worst[0].max((found - loss).abs() / loss.abs());
        pass.backward(mean)?;
        optimizer.step(&mut *case.model(), attempt)?;
    }
    let mut left = expected.parameters.iter();
    case.model().visit(&mut |name, parameter| {
        let (expected_name, expected) = left.next().expect("as many parameters");
        assert_eq!(name, *expected_name);
        let found = sampled(&parameter.value().to_vec::<f32>().expect("f32 on the CPU"));
        for (found, expected) in found.iter().zip(expected) {
            worst[1] = worst[1].max((found - expected).abs() / expected.abs().max(1.0));
        }
    });
    assert!(left.next().is_none(), "as many parameters");
    Ok(worst)
}

#[test]
fn models_train_as_in_pytorch() -> Outcome {
    let mut too_far = Vec::new();
    for (index, (name, _)) in ZOO.iter().enumerate() {
        let [loss, parameter] = errors(index)?;
        println!("{name}: losses {loss:.1e} relative, parameters {parameter:.1e}");
        if !(loss <= TOLERANCE && parameter <= TOLERANCE) {
            too_far.push((name, loss, parameter));
        }
    }
    assert!(too_far.is_empty(), "{too_far:?}");
    Ok(())
}
