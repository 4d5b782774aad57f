//! Twenty training steps of every reference model against PyTorch; see the fixtures' README.

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::optim::{Optimizer, Sgd, SgdOptions};
use lowtide_tensor::DType;

use crate::common::{KEY, Outcome, cpu, widen};
use crate::zoo::{Trained, ZOO, fill};

const RUNS: &str = include_str!("../fixtures/runs.txt");

/// Tolerance of a loss, relative, and of a parameter whose largest element is near 1.
fn tolerance(name: &str, dtype: DType) -> f64 {
    match (name, dtype) {
        (_, DType::F64) => 1e-10,
        // A rounding can move a maximum to another element, and a narrow bottleneck amplifies this.
        ("resnet50", _) => 2e-3,
        _ => 1e-5,
    }
}

pub(crate) struct Run {
    pub(crate) learning_rate: f64,
    /// The loss before each step.
    losses: Vec<f64>,
    /// The norm and, in f32, some elements of each parameter after the last step.
    parameters: Vec<(&'static str, Vec<f64>)>,
}

fn numbers<'a>(words: impl Iterator<Item = &'a str>) -> Vec<f64> {
    words.map(|word| word.parse().expect("a number")).collect()
}

impl Run {
    /// The run `name` in `text`.
    pub(crate) fn read(text: &'static str, name: &str, dtype: DType) -> Self {
        let head = format!("run {name} ");
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&head));
        let learning_rate = lines.next().expect("the run is there")[head.len()..].parse();
        let mut losses = |prefix| {
            let line = lines.next().and_then(|line| line.strip_prefix(prefix)).expect("losses");
            numbers(line.split(' '))
        };
        let [narrow, wide] = [losses("f32 "), losses("f64 ")];
        let parameter = |line: &'static str| {
            let mut words = line.split(' ');
            let name = words.next().expect("a name");
            let mut values = numbers(words);
            let exact_norm = values.remove(0);
            (name, if dtype == DType::F64 { vec![exact_norm] } else { values })
        };
        Run {
            learning_rate: learning_rate.expect("a number"),
            losses: if dtype == DType::F64 { wide } else { narrow },
            parameters: lines.take_while(|line| !line.starts_with("run ")).map(parameter).collect(),
        }
    }

    /// The largest error of a loss, relative, and of a parameter when `optimizer` trains the model
    /// on the data of this run.
    pub(crate) fn errors(
        &self,
        name: &str,
        case: &mut dyn Trained,
        optimizer: &mut dyn Optimizer,
    ) -> Result<[f64; 2], Box<dyn std::error::Error>> {
        let mut worst = [0.0_f64; 2];
        assert_eq!(self.losses.len(), 20, "{name}");
        for (step, loss) in self.losses.iter().enumerate() {
            let attempt = Attempt::new();
            let pass = Pass::train(KEY.step(step as u64), &attempt);
            let mean = case.loss(&pass)?;
            let found = mean.value().to_dtype(DType::F64)?.item::<f64>()?;
            let error = (found - loss).abs() / loss.abs();
            println!("{name} step {step}: loss {found}, error {error:.1e}");
            worst[0] = worst[0].max(error);
            pass.backward(mean)?;
            optimizer.step(case.model(), attempt)?;
        }
        let mut left = self.parameters.iter();
        case.model().visit(&mut |name, parameter| {
            let (expected_name, expected) = left.next().expect("as many parameters");
            assert_eq!(name, *expected_name);
            let values = parameter.value().to_dtype(DType::F64).and_then(|x| x.to_vec::<f64>());
            for (found, expected) in sampled(&values.expect("on the CPU")).zip(expected) {
                worst[1] = worst[1].max((found - expected).abs() / expected.abs().max(1.0));
            }
        });
        assert!(left.next().is_none(), "as many parameters");
        Ok(worst)
    }
}

/// The norm and six elements, sampled as in the script.
fn sampled(values: &[f64]) -> impl Iterator<Item = f64> {
    let norm = values.iter().map(|x| x * x).sum::<f64>().sqrt();
    [norm].into_iter().chain((0..6).map(|j| values[(7919 * j + 13) % values.len()]))
}

/// The largest errors of the run of a model.
fn errors(index: usize, dtype: DType) -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let (name, build) = ZOO[index];
    let run = Run::read(RUNS, name, dtype);
    let device = cpu();
    let mut case = build(&device, 0.0)?;
    fill(case.model());
    if dtype == DType::F64 {
        widen(case.model());
    }
    let options = SgdOptions { momentum: 0.9, ..SgdOptions::new(run.learning_rate) };
    run.errors(name, &mut *case, &mut Sgd::new(options)?)
}

fn check(dtype: DType) -> Outcome {
    let mut too_far = Vec::new();
    for (index, (name, _)) in ZOO.iter().enumerate() {
        let [loss, parameter] = errors(index, dtype)?;
        println!("{name}: {dtype} losses {loss:.1e} relative, parameters {parameter:.1e}");
        let allowed = tolerance(name, dtype);
        if !(loss <= allowed && parameter <= allowed) {
            too_far.push((name, loss, parameter));
        }
    }
    assert!(too_far.is_empty(), "{too_far:?}");
    Ok(())
}

#[test]
fn models_train_as_in_pytorch() -> Outcome {
    check(DType::F32)
}

#[test]
fn models_train_as_in_pytorch_in_twice_the_precision() -> Outcome {
    check(DType::F64)
}
