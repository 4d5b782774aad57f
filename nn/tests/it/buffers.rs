//! Running statistics, and layers that are random only in training.

use lowtide_autograd::{Attempt, Pass, SavedPolicy, Var};
use lowtide_nn::optim::{Optimizer, Sgd, SgdOptions};
use lowtide_nn::{
    BatchNorm1d, Buffer, Dropout, Flatten, InstanceNorm1d, Linear, Module, Parameters, Segment,
    Sequential, commit_buffers, parameters,
};
use lowtide_tensor::{DType, Device, Tensor};

use crate::common::{KEY, Outcome, cpu, f32s, f64s, widen};

fn buffers(model: &mut dyn Parameters) -> lowtide_tensor::TensorResult<Vec<(String, Vec<f64>)>> {
    let mut all = Vec::new();
    model.visit_buffers(&mut |name, buffer| {
        let values = buffer.value().to_dtype(DType::F64).and_then(|wide| wide.to_vec::<f64>());
        all.push(values.map(|values| (name.to_owned(), values)));
    });
    all.into_iter().collect()
}

fn close(found: &[f64], expected: &[f64]) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6;
    assert!(found.iter().zip(expected).all(near), "{found:?}, not {expected:?}");
}

/// A batch of four samples with two channels: means 2 and 0, unbiased variances 20/3 and 2/3.
fn batch(device: &Device) -> lowtide_tensor::TensorResult<Tensor> {
    Tensor::from_slice(device, [4, 2], &[-1.0_f32, 1.0, 1.0, -1.0, 3.0, 0.0, 5.0, 0.0])
}

#[test]
fn running_statistics_move_once_for_each_pass_of_an_attempt_that_is_committed() -> Outcome {
    let device = cpu();
    let mut model = Sequential::new().then(Flatten).then(BatchNorm1d::new(&device, 2)?);
    let start = buffers(&mut model)?;
    let names: Vec<&str> = start.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["1.running_mean", "1.running_var", "1.num_batches_tracked"]);
    let run = |model: &Sequential, attempt: &Attempt| -> lowtide_nn::NnResult<()> {
        let pass = Pass::train(KEY, attempt);
        let y = model.forward(&pass, pass.constant(batch(&device)?))?;
        Ok(pass.backward(y.sum_all()?)?)
    };
    let attempt = Attempt::new();
    run(&model, &attempt)?;
    drop(attempt);
    assert_eq!(buffers(&mut model)?, start, "an attempt that was dropped");

    let attempt = Attempt::new();
    run(&model, &attempt)?;
    run(&model, &attempt)?;
    assert_eq!(buffers(&mut model)?, start, "before the commit");
    commit_buffers(&mut model, &attempt.take_buffer_updates())?;
    // r = 0.9 r + 0.1 · batch, twice.
    let twice = |start: f64, batch: f64| 0.81 * start + 0.19 * batch;
    let after = buffers(&mut model)?;
    close(&after[0].1, &[twice(0.0, 2.0), 0.0]);
    close(&after[1].1, &[twice(1.0, 20.0 / 3.0), twice(1.0, 2.0 / 3.0)]);
    assert_eq!(after[2].1, [2.0]);
    Ok(())
}

#[test]
fn a_step_of_an_optimizer_commits_buffers_and_checks_them_first() -> Outcome {
    let device = cpu();
    let mut model = Sequential::new()
        .then(Linear::new(&device, KEY, 2, 2)?)
        .then(BatchNorm1d::new(&device, 2)?);
    let mut sgd = Sgd::new(SgdOptions::new(0.1))?;
    let attempt = || -> lowtide_nn::NnResult<Attempt> {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let y = model.forward(&pass, pass.constant(batch(&device)?))?;
        pass.backward(y.mul_scalar(2.0)?.sum_all()?)?;
        Ok(attempt)
    };
    let (first, second) = (attempt()?, attempt()?);
    sgd.step(&mut model, first)?;
    assert_eq!(buffers(&mut model)?[2].1, [1.0]);

    let (parameters, statistics) = (crate::common::all_bits(&mut model), buffers(&mut model)?);
    model.visit_buffers(&mut |name, buffer| {
        if name == "1.running_var" {
            buffer.value().freeze();
        }
    });
    assert!(sgd.step(&mut model, second).is_err(), "a frozen buffer");
    assert_eq!(crate::common::all_bits(&mut model), parameters);
    assert_eq!(buffers(&mut model)?, statistics);
    Ok(())
}

#[test]
fn evaluation_uses_the_running_statistics_and_changes_nothing() -> Outcome {
    let device = cpu();
    let mut model = BatchNorm1d::new(&device, 2)?.with_eps(0.0);
    model.visit_buffers(&mut |name, buffer| {
        let value = if name == "running_mean" { 1.0 } else { 4.0 };
        buffer.value_mut().fill_(value).expect("not frozen");
    });
    let pass = Pass::eval();
    let y = model.forward(&pass, pass.constant(batch(&device)?))?;
    let expected = [-1.0, 0.0, 0.0, -1.0, 1.0, -0.5, 2.0, -0.5];
    close(&y.value().to_dtype(DType::F64)?.to_vec::<f64>()?, &expected);
    Ok(())
}

#[test]
fn a_batch_in_parts_loses_the_elements_that_the_whole_does() -> Outcome {
    let device = cpu();
    let model = Sequential::new().then(Dropout::new(0.5)?).then(Dropout::new(0.25)?);
    let x = f32s(&device, "x", [6, 10]);
    let run = |start: usize, len: usize| -> lowtide_nn::NnResult<Vec<f32>> {
        let pass = Pass::no_grad(KEY).with_first_sample(start as u64);
        let y = model.forward(&pass, pass.constant(x.narrow(0, start, len)?))?;
        Ok(y.value().to_vec::<f32>()?)
    };
    let whole = run(0, 6)?;
    let kept = whole.iter().filter(|x| **x != 0.0).count();
    assert!((10..40).contains(&kept), "{kept} of 60 kept, 22 expected");
    for cut in 1..6 {
        assert_eq!([run(0, cut)?, run(cut, 6 - cut)?].concat(), whole, "cut at {cut}");
    }
    let pass = Pass::eval();
    let y = model.forward(&pass, pass.constant(x.clone()))?;
    assert_eq!(y.value().to_vec::<f32>()?, x.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn files_hold_buffers_under_their_names() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("norm.safetensors");
    let mut model = Sequential::new().then(BatchNorm1d::new(&device, 2)?);
    let attempt = Attempt::new();
    let pass = Pass::buffers_only(KEY, &attempt);
    model.forward(&pass, pass.constant(batch(&device)?))?;
    commit_buffers(&mut model, &attempt.take_buffer_updates())?;
    lowtide_nn::save(&mut model, &file)?;
    let mut other = Sequential::new().then(BatchNorm1d::new(&device, 2)?);
    lowtide_nn::load(&mut other, &file)?;
    assert_eq!(buffers(&mut other)?, buffers(&mut model)?);
    assert_eq!(buffers(&mut other)?[2].1, [1.0]);
    Ok(())
}

/// `2 · (5 · i mod modulus - ⌊modulus / 2⌋) / modulus`
fn counted(len: usize, modulus: usize) -> Vec<f64> {
    let number = |i| ((i * 5 % modulus) as f64 - (modulus / 2) as f64) / modulus as f64 * 2.0;
    (0..len).map(number).collect()
}

#[test]
fn running_statistics_of_instances_are_those_of_pytorch() -> Outcome {
    let device = cpu();
    let layer = InstanceNorm1d::new(2).with_running_statistics(&device)?.with_momentum(0.3);
    let mut model = Sequential::new().then(layer);
    widen(&mut model);
    for step in [0.0, 1.0] {
        let numbers: Vec<f64> = counted(18, 11).iter().map(|x| x * (step + 1.0) + step).collect();
        let x = Tensor::from_slice(&device, [3, 2, 3], &numbers)?;
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        model.forward(&pass, pass.constant(x))?;
        commit_buffers(&mut model, &attempt.take_buffer_updates())?;
    }
    let after = buffers(&mut model)?;
    let names: Vec<&str> = after.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["0.running_mean", "0.running_var", "0.num_batches_tracked"]);
    close(&after[0].1, &[0.398181818182, 0.267272727273]);
    close(&after[1].1, &[1.19953168044, 0.971652892562]);
    assert_eq!(after[2].1, [0.0]);
    let pass = Pass::eval();
    let x = Tensor::from_slice(&device, [1, 2, 3], &counted(6, 7))?;
    let y = model.forward(&pass, pass.constant(x))?.value().to_vec::<f64>()?;
    let expected = [
        -1.14616830341,
        0.158182134984,
        -0.363558040375,
        -0.850843149967,
        0.598409660444,
        0.0187085362798,
    ];
    assert_eq!(y.len(), expected.len());
    close(&y, &expected);
    Ok(())
}

/// A module that multiplies its input by a buffer.
#[derive(Clone)]
struct Scaled {
    scale: Buffer,
}

parameters!(Scaled { scale });

impl Module for Scaled {
    fn forward(&self, pass: &Pass, input: Var) -> lowtide_nn::NnResult<Var> {
        Ok(input.mul(pass.constant(self.scale.current(pass)))?)
    }
}

#[test]
fn a_recomputed_segment_reads_each_buffer_that_its_first_run_read() -> Outcome {
    let device = cpu();
    let mut chain = Sequential::new()
        .then(Linear::new(&device, KEY, 2, 3)?)
        .then(BatchNorm1d::new(&device, 3)?)
        .then(Scaled { scale: Buffer::new(f64s(&device, "scale", [3])) });
    widen(&mut chain);
    let mut segment = Segment::new(chain);
    let gradients = |segment: &mut dyn Module, policy: SavedPolicy| -> lowtide_nn::NnResult<_> {
        segment.set_policy(Some(policy));
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let y = segment.forward(&pass, pass.constant(f64s(&device, "x", [4, 2])))?;
        let weights = pass.constant(f64s(&device, "weights", [4, 3]));
        pass.backward(y.mul(weights)?.sum_all()?)?;
        let mut ids = Vec::new();
        segment.visit(&mut |_, parameter| ids.push(parameter.id()));
        let gradients = attempt.into_gradients();
        let values = ids.into_iter().map(|id| {
            let gradient = gradients.get(id).expect("every parameter counts");
            gradient.to_vec::<f64>()
        });
        Ok(values.collect::<Result<Vec<_>, _>>()?)
    };
    let kept = gradients(&mut segment, SavedPolicy::Keep)?;
    assert_eq!(gradients(&mut segment, SavedPolicy::Recompute)?, kept);
    Ok(())
}
