//! Every optimizer against PyTorch in f64: parameters and states after five updates, and the names
//! of states.

use std::path::Path;

use lowtide_autograd::Gradients;
use lowtide_nn::optim::{
    Adafactor, AdafactorOptions, Adagrad, AdagradOptions, Adam, AdamOptions, Lamb, LambOptions,
    Momentum, Muon, MuonOptions, Optimizer, RateScale, RmsProp, RmsPropOptions, Sgd, SgdOptions,
    Spread, Stateful, WeightDecay,
};
use lowtide_nn::{NnResult as Result, Parameter};
use lowtide_tensor::{DType, Tensor};
use safetensors::SafeTensors;

use crate::common::{Named, Outcome, cpu, values};

const STEPS: usize = 5;

/// The optimizers of `make_optimizers.py`.
pub(crate) fn cases() -> Result<Vec<(&'static str, Box<dyn Stateful>)>> {
    let sgd = SgdOptions { momentum: 0.9, ..SgdOptions::new(0.1) };
    let dampened = SgdOptions { dampening: 0.2, weight_decay: 0.1, ..sgd };
    let nesterov = SgdOptions { momentum_kind: Momentum::Nesterov, ..sgd };
    let coupled = WeightDecay::Coupled(0.1);
    let adam = AdamOptions { learning_rate: 0.1, weight_decay: coupled, ..Default::default() };
    let adamw = AdamOptions { learning_rate: 0.1, ..AdamOptions::adamw() };
    let rms_prop = RmsPropOptions {
        momentum: 0.9,
        spread: Spread::Variance,
        weight_decay: 0.1,
        ..Default::default()
    };
    let adagrad = AdagradOptions {
        learning_rate: 0.1,
        learning_rate_decay: 0.1,
        initial_sum: 0.1,
        ..Default::default()
    };
    let adafactor = AdafactorOptions { learning_rate: 0.5, ..Default::default() };
    let adafactor_all = AdafactorOptions {
        learning_rate: 0.3,
        beta2_decay: -0.5,
        eps: Some(1e-2),
        scale_min: 0.2,
        clip: 1.5,
        weight_decay: 0.1,
    };
    let lamb = LambOptions { learning_rate: 0.1, ..Default::default() };
    let lamb_all = LambOptions { betas: [0.5, 0.6], eps: 1e-3, weight_decay: 0.0, ..lamb };
    let muon = MuonOptions { learning_rate: 0.1, ..Default::default() };
    let muon_all = MuonOptions {
        weight_decay: 0.0,
        momentum: 0.8,
        momentum_kind: Momentum::Classical,
        coefficients: [2.0, -1.5, 0.5],
        iterations: 4,
        rate_scale: RateScale::MatchRmsAdamW,
        ..muon
    };
    let spectral = MuonOptions { rate_scale: RateScale::SpectralUnclamped, ..muon };
    Ok(vec![
        ("sgd", Box::new(Sgd::new(dampened)?)),
        ("sgd_nesterov", Box::new(Sgd::new(nesterov)?)),
        ("adam", Box::new(Adam::new(adam)?)),
        ("adamw", Box::new(Adam::new(adamw)?)),
        ("rms_prop", Box::new(RmsProp::new(rms_prop)?)),
        ("adagrad", Box::new(Adagrad::new(adagrad)?)),
        ("adafactor", Box::new(Adafactor::new(adafactor)?)),
        ("adafactor_all", Box::new(Adafactor::new(adafactor_all)?)),
        ("lamb", Box::new(Lamb::new(lamb)?)),
        ("lamb_all", Box::new(Lamb::new(lamb_all)?)),
        ("muon", Box::new(Muon::new(muon)?)),
        ("muon_all", Box::new(Muon::new(muon_all)?)),
        ("muon_spectral", Box::new(Muon::new(spectral)?)),
    ])
}

#[test]
fn parameters_and_states_are_pytorchs_after_five_updates() -> Outcome {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/optimizers.safetensors");
    let bytes = std::fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let device = cpu();
    let tensor = |name: &str| -> std::result::Result<Tensor, Box<dyn std::error::Error>> {
        let view = file.tensor(name)?;
        Ok(Tensor::from_bytes(&device, view.shape(), DType::F64, view.data())?)
    };
    for (case, mut optimizer) in cases()? {
        let names = ["a", "b", "c", "d", "e"];
        let names: Vec<&str> = names
            .into_iter()
            .filter(|name| file.tensor(&format!("{case}.{name}")).is_ok())
            .collect();
        let start = |name: &&str| {
            Ok(((*name).to_owned(), Parameter::new(tensor(&format!("values.{name}.0"))?)))
        };
        let start =
            names.iter().map(start).collect::<std::result::Result<_, Box<dyn std::error::Error>>>();
        let mut model = Named(start?);
        for step in 1..=STEPS {
            let mut gradients = Gradients::default();
            for (name, parameter) in &model.0 {
                gradients.insert(parameter.id(), tensor(&format!("values.{name}.{step}"))?);
            }
            optimizer.prepare(&mut model, gradients)?.commit()?;
        }
        let mut found = optimizer.state(&mut model)?.tensors;
        found.extend(
            model.0.iter().map(|(name, parameter)| (name.clone(), parameter.value().clone())),
        );
        let prefix = format!("{case}.");
        let mut expected: Vec<&str> =
            file.names().into_iter().filter_map(|name| name.strip_prefix(&prefix)).collect();
        expected.sort_unstable();
        assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), expected, "{case}");
        for (name, found) in &found {
            let expected = tensor(&format!("{case}.{name}"))?;
            assert_eq!(found.shape(), expected.shape(), "{case}.{name}");
            for (x, y) in found.to_vec::<f64>()?.into_iter().zip(expected.to_vec::<f64>()?) {
                // Values are below 4, and the orders of operations differ. Newton-Schulz doubles an
                // error several times.
                assert!((x - y).abs() <= 1e-12, "{case}.{name}: {x}, not {y}");
            }
        }
    }
    Ok(())
}

/// The parameters after three updates in `dtype`, with gradients of `gradient_dtype`.
fn narrow_run(
    optimizer: &mut dyn Stateful,
    dtype: DType,
    gradient_dtype: DType,
) -> std::result::Result<Vec<f64>, Box<dyn std::error::Error>> {
    let device = cpu();
    let shapes = [("a", &[7, 5][..]), ("b", &[4, 9]), ("c", &[2, 3, 4]), ("d", &[11]), ("e", &[])];
    let make = |name: &str, shape: &[usize], dtype| {
        let numbers = values(name, shape.iter().product());
        Tensor::from_slice(&device, shape, &numbers)?.to_dtype(dtype)
    };
    let start = |(name, shape): (&str, &[usize])| {
        Ok((name.to_owned(), Parameter::new(make(name, shape, dtype)?)))
    };
    let mut model = Named(shapes.into_iter().map(start).collect::<Result<_>>()?);
    for step in 0..3 {
        let mut gradients = Gradients::default();
        for (name, parameter) in &model.0 {
            let shape = *parameter.value().shape();
            let gradient = make(&format!("{name}{step}"), &shape, gradient_dtype)?;
            gradients.insert(parameter.id(), gradient);
        }
        optimizer.prepare(&mut model, gradients)?.commit()?;
    }
    let mut all = Vec::new();
    for (_, parameter) in &model.0 {
        all.extend(parameter.value().to_dtype(DType::F64)?.to_vec::<f64>()?);
    }
    Ok(all)
}

#[test]
fn parameters_of_other_types_follow_those_of_f64() -> Outcome {
    let types = [
        (DType::F32, DType::F32, 1e-4),
        // The parameter is rounded in each step, and the gradient may be rounded too.
        (DType::BF16, DType::BF16, 4.0 / 128.0),
        (DType::BF16, DType::F32, 4.0 / 128.0),
        (DType::F16, DType::F16, 4.0 / 1024.0),
    ];
    for (dtype, gradient_dtype, allowed) in types {
        for ((case, mut exact), (_, mut narrow)) in cases()?.into_iter().zip(cases()?) {
            // Adafactor's epsilon depends on the type.
            if case == "adafactor" && dtype != DType::F32 {
                continue;
            }
            let exact = narrow_run(&mut *exact, DType::F64, DType::F64)?;
            let found = narrow_run(&mut *narrow, dtype, gradient_dtype)?;
            for (index, (x, y)) in found.iter().zip(&exact).enumerate() {
                assert!((x - y).abs() <= allowed, "{case}, {dtype}, {index}: {x}, not {y}");
            }
        }
    }
    Ok(())
}
