//! Logits, losses, gradients and ten steps of AdamW, against transformers.

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer, WeightDecay};
use lowtide_nn::{LinearCrossEntropyOptions, Parameters};
use lowtide_pretrained::Decoder;
use lowtide_tensor::{DType, Device, Tensor};

use crate::common::{CASES, KEY, Outcome, Run, config, cpu, error, f64s, small_sim};

/// The computed values of a step are read, or left on the device.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Values {
    Read,
    Left,
}

/// The results of ten steps.
#[derive(Default)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f64>,
    pub(crate) logits: [Vec<f64>; 2],
    pub(crate) gradients: Vec<(String, Vec<f64>)>,
}

/// A batch of a run: tokens, mask, and the labels shifted by one place.
pub(crate) fn batch(device: &Device, run: &Run, step: usize) -> Outcome<[Tensor; 3]> {
    let part = |name| -> Outcome<Tensor> { Ok(run.tensor(device, name)?.select(0, step)?) };
    let labels = part("labels")?;
    let (rows, len) = (labels.shape()[0], labels.shape()[1]);
    // The last position has no token after it.
    let none = Tensor::full(device, [rows, 1], DType::I64, -100.0)?;
    let labels = Tensor::cat(&[&labels.narrow(1, 1, len - 1)?, &none], 1)?;
    Ok([part("ids")?.contiguous()?, part("mask")?.contiguous()?, labels])
}

pub(crate) fn optimizer() -> Outcome<Adam> {
    let (betas, eps) = ([0.9, 0.999], 1e-8);
    let weight_decay = WeightDecay::Decoupled(0.01);
    Ok(Adam::new(AdamOptions { learning_rate: 1e-3, betas, eps, weight_decay })?)
}

/// Trains ten steps. Reading values allocates, and a simulated device has no values.
pub(crate) fn train(
    device: &Device,
    model: &mut Decoder,
    run: &Run,
    values: Values,
) -> Outcome<Trained> {
    let (mut optimizer, mut trained) = (optimizer()?, Trained::default());
    let has_values = values == Values::Read;
    for step in 0..10 {
        let [ids, mask, labels] = batch(device, run, step)?;
        if has_values && (step == 0 || step == 9) {
            let eval = Pass::eval();
            let logits = model.logits(&eval, eval.constant(ids.clone()), Some(&mask))?;
            trained.logits[usize::from(step == 9)] = f64s(logits.value())?;
        }
        let attempt = Attempt::new();
        let pass = Pass::train(KEY.step(step as u64), &attempt);
        let options = LinearCrossEntropyOptions::default();
        let tokens = pass.constant(ids);
        let loss = model.loss_with_mask(&pass, tokens, &labels, Some(&mask), options)?.mean()?;
        if has_values {
            trained.losses.extend(f64s(loss.value())?);
        }
        pass.backward(loss)?;
        if has_values && step == 0 {
            model.visit(&mut |name, parameter| {
                let gradient = attempt.gradient(parameter.id()).expect("every one has its part");
                let values = f64s(&gradient).expect("values of the processor");
                trained.gradients.push((name.to_owned(), values));
            });
        }
        optimizer.step(model, attempt)?;
    }
    Ok(trained)
}

fn check(case: &str, dtype: DType, tolerance: f64) -> Outcome {
    let (device, run) = (cpu(2), Run::read(case)?);
    let mut model = config(case)?.load(&device, dtype)?;
    let found = train(&device, &mut model, &run, Values::Read)?;
    for (logits, name) in found.logits.iter().zip(["logits.first", "logits.last"]) {
        let error = error(logits, &run.values(name)?);
        assert!(error < tolerance, "{case} {dtype:?} {name}: {error:e}");
    }
    let error_of_losses = error(&found.losses, &run.values("losses")?);
    assert!(error_of_losses < tolerance, "{case} {dtype:?} losses: {error_of_losses:e}");
    for (name, gradient) in &found.gradients {
        // The parameter of the output layer has the name of its file.
        let theirs = format!("gradient.{}", name.replace("embed_out", "lm_head"));
        if !run.has(&theirs) {
            continue;
        }
        let error = error(gradient, &in_memory(&run, &theirs)?);
        assert!(error < tolerance, "{case} {dtype:?} gradient of {name}: {error:e}");
    }
    println!("{case} {dtype:?}: losses off by {error_of_losses:.1e}");
    Ok(())
}

/// A gradient in the layout of the parameter in memory.
fn in_memory(run: &Run, name: &str) -> Outcome<Vec<f64>> {
    let gradient = run.tensor(&cpu(1), name)?;
    let is_conv1d = name.contains(".h.") && gradient.shape().len() == 2;
    if is_conv1d {
        return f64s(&gradient.t()?.contiguous()?);
    }
    f64s(&gradient)
}

#[test]
fn models_compute_and_learn_in_f64_what_those_of_transformers_do() -> Outcome {
    CASES.iter().try_for_each(|case| check(case, DType::F64, 1e-10))
}

#[test]
fn models_compute_and_learn_in_f32_what_those_of_transformers_do() -> Outcome {
    CASES.iter().try_for_each(|case| check(case, DType::F32, 3e-5))
}

#[test]
fn threads_do_not_change_the_bits() -> Outcome {
    for &case in CASES.iter() {
        let bits = |threads| -> Outcome<Vec<Vec<u8>>> {
            let (device, run) = (cpu(threads), Run::read(case)?);
            let mut model = config(case)?.load(&device, DType::F32)?;
            train(&device, &mut model, &run, Values::Left)?;
            let mut bytes = Vec::new();
            model.visit(&mut |_, parameter| {
                bytes.push(parameter.value().to_bytes().expect("values of the processor"));
            });
            Ok(bytes)
        };
        let two = bits(2)?;
        assert!(bits(1)? == two && bits(3)? == two, "{case}");
    }
    Ok(())
}

#[test]
fn a_simulated_device_makes_the_same_allocations() -> Outcome {
    for &case in CASES.iter() {
        let peak = |device: Device| -> Outcome<_> {
            let run = Run::read(case)?;
            let mut model = config(case)?.load(&device, DType::F32)?;
            train(&device, &mut model, &run, Values::Left)?;
            let statistics = device.allocator().statistics();
            Ok((statistics.allocated, statistics.reserved))
        };
        assert_eq!(peak(cpu(2))?, peak(small_sim(2))?, "{case}");
    }
    Ok(())
}
