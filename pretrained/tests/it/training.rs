//! Laws that a trainer relies on: policies of layers, dropout, parts of a batch.

use lowtide_autograd::{Attempt, Offload, Pass, SavedPolicy};
use lowtide_nn::{LinearCrossEntropyOptions, Parameters};
use lowtide_pretrained::{Config, Decoder};
use lowtide_tensor::{DType, Device, Tensor};
use serde_json::Value;

use crate::common::{CASES, KEY, Outcome, Run, config, cpu, error, f64s, folder, sim};
use crate::parity::batch;

/// The configuration of a case with dropout everywhere.
fn with_dropout(case: &str) -> Outcome<Config> {
    let text = std::fs::read_to_string(folder(case).join("config.json"))?;
    let mut entries: Value = serde_json::from_str(&text)?;
    for (name, value) in entries.as_object_mut().ok_or("no object")? {
        if name.ends_with("_dropout") || name.ends_with("_pdrop") {
            *value = 0.3.into();
        }
    }
    Ok(Config::from_text(folder(case), entries.to_string())?)
}

/// Bits of the loss and of all gradients of a step over the rows from `first` on.
fn step(
    model: &mut Decoder,
    device: &Device,
    run: &Run,
    (first, count): (usize, usize),
) -> Outcome<Vec<Tensor>> {
    let [ids, mask, labels] = batch(device, run, 0)?;
    let [ids, mask, labels] = [ids, mask, labels].map(|x| x.narrow(0, first, count));
    let (ids, mask, labels) = (ids?.contiguous()?, mask?.contiguous()?, labels?.contiguous()?);
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt).with_first_sample(first as u64);
    let options = LinearCrossEntropyOptions::default();
    let tokens = pass.constant(ids);
    let loss = model.loss_with_mask(&pass, tokens, &labels, Some(&mask), options)?.sum;
    let mut all = vec![loss.value().clone()];
    pass.backward(loss)?;
    model.visit(&mut |_, parameter| all.extend(attempt.gradient(parameter.id())));
    Ok(all)
}

fn bits(tensors: &[Tensor]) -> Outcome<Vec<Vec<u8>>> {
    Ok(tensors.iter().map(Tensor::to_bytes).collect::<Result<_, _>>()?)
}

#[test]
fn every_policy_gives_the_same_bits() -> Outcome {
    let host = cpu(1);
    let to_host = Offload { size_bytes_min: 0, ..Offload::to(&host) };
    let policies = [
        SavedPolicy::Keep,
        SavedPolicy::Recompute,
        SavedPolicy::RecomputeWithPrevious,
        SavedPolicy::Offload(to_host.clone()),
        SavedPolicy::RecomputeFrom(to_host),
    ];
    for &case in CASES.iter() {
        let (device, run) = (cpu(2), Run::read(case)?);
        let mut model = with_dropout(case)?.load(&device, DType::F32)?;
        let mut count = 0;
        model.visit_policies(&mut |_| count += 1);
        assert_eq!(count, model.shape().layers.len());
        let expected = bits(&step(&mut model, &device, &run, (0, 2))?)?;
        for policy in &policies {
            model.set_policy(Some(policy.clone()));
            let found = bits(&step(&mut model, &device, &run, (0, 2))?)?;
            assert!(found == expected, "{case} {policy:?}");
        }
    }
    Ok(())
}

/// Dropout depends only on the key and the sample, so that micro-batches drop the same values as
/// the whole batch.
#[test]
fn parts_of_a_batch_add_up_to_it_with_dropout() -> Outcome {
    for &case in CASES.iter() {
        let (device, run) = (cpu(2), Run::read(case)?);
        let mut model = with_dropout(case)?.load(&device, DType::F64)?;
        let whole = step(&mut model, &device, &run, (0, 2))?;
        let parts = [0, 1].map(|first| step(&mut model, &device, &run, (first, 1)));
        let [first, second] = parts;
        for ((whole, first), second) in whole.iter().zip(first?).zip(second?) {
            let error = error(&f64s(&first.add(&second)?)?, &f64s(whole)?);
            assert!(error < 1e-12, "{case}: {error:e}");
        }
        let mut without = config(case)?.load(&device, DType::F64)?;
        let other = step(&mut without, &device, &run, (0, 2))?;
        assert_ne!(f64s(&other[0])?, f64s(&whole[0])?, "{case}");
    }
    Ok(())
}

#[test]
fn nothing_is_dropped_in_evaluation() -> Outcome {
    for &case in CASES.iter() {
        let (device, run) = (cpu(2), Run::read(case)?);
        let [ids, mask, _] = batch(&device, &run, 0)?;
        let logits = |config: Config| -> Outcome<Vec<f64>> {
            let (model, pass) = (config.load(&device, DType::F32)?, Pass::eval());
            f64s(model.logits(&pass, pass.constant(ids.clone()), Some(&mask))?.value())
        };
        assert_eq!(logits(with_dropout(case)?)?, logits(config(case)?)?, "{case}");
    }
    Ok(())
}

/// Bytes at the peak of a step of a model on a simulated device, in addition to its parameters.
fn peak_bytes(config: &Config, policy: SavedPolicy, [rows, len]: [usize; 2]) -> Outcome<usize> {
    let device = sim(2, 1 << 40);
    let mut model = config.decoder(&device, KEY, DType::BF16)?;
    model.set_policy(Some(policy));
    let before = device.allocator().statistics().allocated.current_bytes;
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let tokens = pass.constant(Tensor::full(&device, [rows, len], DType::I64, 1.0)?);
    let labels = Tensor::full(&device, [rows, len], DType::I64, 2.0)?;
    let loss = model.loss(&pass, tokens, &labels, LinearCrossEntropyOptions::default())?;
    pass.backward(loss.mean()?)?;
    Ok(device.allocator().statistics().allocated.peak_bytes - before)
}

#[test]
fn a_billion_parameters_are_planned_at_once_and_recomputation_saves_memory() -> Outcome {
    let config = Config::published("meta-llama/Llama-3.2-1B")?.ok_or("not there")?;
    let keep = peak_bytes(&config, SavedPolicy::Keep, [4, 1024])?;
    let recompute = peak_bytes(&config, SavedPolicy::Recompute, [4, 1024])?;
    let gradients = 2 * config.shape().parameter_count() as usize;
    println!("keep {keep}, recompute {recompute}, gradients {gradients}");
    assert!(recompute - gradients < (keep - gradients) / 3, "{recompute} of {keep}");
    Ok(())
}
