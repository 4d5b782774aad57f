//! Twenty training steps with every optimizer against PyTorch; see the fixtures' README.

use std::collections::BTreeSet;

use lowtide_nn::NnResult as Result;
use lowtide_nn::optim::{
    Adafactor, AdafactorOptions, Adagrad, AdagradOptions, Adam, AdamOptions, Lamb, LambOptions,
    Lion, LionOptions, Momentum, Muon, MuonOptions, RmsProp, RmsPropOptions, Sgd, SgdOptions,
    Stateful, WeightDecay,
};
use lowtide_tensor::DType;

use crate::common::{Outcome, cpu, widen};
use crate::runs::Run;
use crate::zoo::{ZOO, fill};

const RUNS: &str = include_str!("../fixtures/optimizer_runs.txt");

type Build = fn(f64) -> Result<Box<dyn Stateful>>;

fn boxed<O: Stateful + 'static>(optimizer: Result<O>) -> Result<Box<dyn Stateful>> {
    Ok(Box::new(optimizer?))
}

/// The runs of `make_optimizers.py` by name, each as a function of the learning rate.
const OPTIMIZERS: [(&str, Build); 11] = [
    ("sgd", |rate| boxed(Sgd::new(SgdOptions::new(rate)))),
    ("momentum", |rate| {
        let options = SgdOptions { momentum: 0.9, dampening: 0.2, ..SgdOptions::new(rate) };
        boxed(Sgd::new(SgdOptions { weight_decay: 0.01, ..options }))
    }),
    ("nesterov", |rate| {
        let options = SgdOptions { momentum: 0.9, ..SgdOptions::new(rate) };
        boxed(Sgd::new(SgdOptions { momentum_kind: Momentum::Nesterov, ..options }))
    }),
    ("adam", |learning_rate| boxed(Adam::new(AdamOptions { learning_rate, ..Default::default() }))),
    ("adamw", |learning_rate| {
        let weight_decay = WeightDecay::Decoupled(0.1);
        boxed(Adam::new(AdamOptions { learning_rate, weight_decay, ..AdamOptions::adamw() }))
    }),
    ("rms_prop", |learning_rate| {
        let options = RmsPropOptions { learning_rate, momentum: 0.9, ..Default::default() };
        boxed(RmsProp::new(options))
    }),
    ("adagrad", |learning_rate| {
        boxed(Adagrad::new(AdagradOptions { learning_rate, ..Default::default() }))
    }),
    ("lion", |learning_rate| {
        let options = LionOptions { learning_rate, weight_decay: 0.1, ..Default::default() };
        boxed(Lion::new(options))
    }),
    ("lamb", |learning_rate| boxed(Lamb::new(LambOptions { learning_rate, ..Default::default() }))),
    ("adafactor", |learning_rate| {
        boxed(Adafactor::new(AdafactorOptions { learning_rate, ..Default::default() }))
    }),
    ("muon", |learning_rate| boxed(Muon::new(MuonOptions { learning_rate, ..Default::default() }))),
];

fn check(dtype: DType, allowed: f64) -> Outcome {
    let mut too_far = Vec::new();
    for (name, build) in OPTIMIZERS {
        let run = Run::read(RUNS, name, dtype);
        let mut case = ZOO[0].1(&cpu(), 0.0)?;
        fill(case.model());
        if dtype == DType::F64 {
            widen(case.model());
        }
        if name == "muon" {
            // PyTorch's Muon takes only matrices.
            case.model().visit(&mut |_, parameter| {
                if parameter.value().shape().len() != 2 {
                    parameter.freeze();
                }
            });
        }
        let mut optimizer = build(run.learning_rate)?;
        let [loss, parameter] = run.errors(name, &mut *case, &mut *optimizer)?;
        println!("{name}: {dtype} losses {loss:.1e} relative, parameters {parameter:.1e}");
        if !(loss <= allowed && parameter <= allowed) {
            too_far.push((name, loss, parameter));
        }
    }
    assert!(too_far.is_empty(), "{too_far:?}");
    Ok(())
}

#[test]
fn every_optimizer_trains_as_in_pytorch() -> Outcome {
    check(DType::F32, 1e-5)
}

#[test]
fn every_optimizer_trains_as_in_pytorch_in_twice_the_precision() -> Outcome {
    check(DType::F64, 1e-10)
}

#[test]
fn the_fixture_has_every_optimizer() {
    let name = |line: &'static str| line.strip_prefix("run ")?.split(' ').next();
    let written: BTreeSet<&str> = RUNS.lines().filter_map(name).collect();
    assert_eq!(written, OPTIMIZERS.map(|(name, _)| name).into());
}
