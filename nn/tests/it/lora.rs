//! Low-rank adapters against PEFT 0.21.2: `fixtures/make_lora.py`.

use std::path::{Path, PathBuf};

use lowtide_allocator::{Fault, Repeat};
use lowtide_autograd::{Attempt, Pass, SavedPolicy, Var};
use lowtide_nn::models::{Gpt, GptShape, Mlp};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer, Stateful};
use lowtide_nn::{
    AdapterProblem, Linear, LinearCrossEntropyOptions, LoraOptions, LoraScaling, Module, NnError,
    NnResult as Result, Parameters, ReLU, Sequential, Targets, WeightsProblem, adapt, adapted,
    cross_entropy, load_adapters, merge, mse, parameters, remove_adapters, save_adapters,
};
use lowtide_tensor::{CpuOptions, DType, Device, Tensor};
use safetensors::SafeTensors;

use crate::common::{KEY, Outcome, all_bits, cpu, names, widen};
use crate::zoo::{Trained, ZOO, fill};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/lora")
}

/// A model of two named linear layers.
#[derive(Clone)]
struct Model {
    up: Linear,
    down: Linear,
}

parameters!(Model { up, down });

impl Module for Model {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let hidden = pass.within("up", || self.up.forward(pass, x))?.relu()?;
        pass.within("down", || self.down.forward(pass, hidden))
    }
}

/// The input numbers of `make_lora.py`.
fn numbers(device: &Device, seed: usize, shape: &[usize]) -> Tensor {
    let of = |i: usize| ((29 * i + 13 * seed + i * i) % 61) as f64 / 32.0 - 30.0 / 32.0;
    let values: Vec<f64> = (0..shape.iter().product()).map(of).collect();
    Tensor::from_slice(device, shape, &values).expect("memory for a small tensor")
}

fn model(device: &Device) -> Result<Model> {
    let mut model = Model {
        up: Linear::new(device, KEY.op("up"), 6, 8)?,
        down: Linear::without_bias(device, KEY.op("down"), 8, 5)?,
    };
    widen(&mut model);
    let mut seed = 0;
    model.visit(&mut |_, parameter| {
        *parameter.value_mut() = numbers(device, seed, parameter.value().shape());
        seed += 1;
    });
    Ok(model)
}

struct Reference(Vec<u8>);

impl Reference {
    fn read() -> Self {
        Reference(std::fs::read(fixtures().join("runs.safetensors")).expect("it is there"))
    }

    fn values(&self, name: &str) -> Vec<f64> {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let view = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        view.data().as_chunks().0.iter().map(|&word| f64::from_le_bytes(word)).collect()
    }

    #[track_caller]
    fn check(&self, name: &str, found: &Tensor) {
        let found = found.contiguous().and_then(|x| x.to_vec::<f64>()).expect("f64");
        let expected = self.values(name);
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-10, "{name}: {found}, PEFT {expected}");
        }
    }
}

fn options(case: &str) -> LoraOptions {
    let layers = || Targets::Endings(vec!["up".to_owned(), "down".to_owned()]);
    let (rank, alpha, targets) = match case {
        "plain" => (3, 6.0, layers()),
        "stabilised" => (2, 4.0, Targets::Pattern("up|dow.".to_owned())),
        _ => (2, 3.0, layers()),
    };
    let scaling = match case {
        "stabilised" => LoraScaling::RankStabilised,
        _ => LoraScaling::Plain,
    };
    LoraOptions { rank, alpha, targets, scaling, dora: case == "dora", ..Default::default() }
}

/// The output of the model in evaluation.
fn output(model: &Model, device: &Device) -> Result<Tensor> {
    let pass = Pass::eval();
    Ok(model.forward(&pass, pass.constant(numbers(device, 20, &[4, 6])))?.into_value())
}

fn check_run(case: &str) -> Outcome {
    let (device, reference) = (cpu(), Reference::read());
    let mut model = model(&device)?;
    let before = output(&model, &device)?.to_vec::<f64>()?;
    assert_eq!(adapt(&mut model, KEY, &options(case))?, ["up", "down"]);
    assert_eq!(adapted(&mut model), ["up", "down"]);
    for (found, expected) in output(&model, &device)?.to_vec::<f64>()?.iter().zip(before) {
        assert!((found - expected).abs() < 1e-14, "{case}: an adapter starts as nothing");
    }
    let mut seed = 10;
    model.visit(&mut |name, parameter| {
        if name.contains("lora_") {
            if !name.contains("magnitude") {
                *parameter.value_mut() = numbers(&device, seed, parameter.value().shape());
            }
            reference.check(&format!("{case}.initial.{name}"), parameter.value());
            seed += 1;
        }
    });
    let options = AdamOptions { learning_rate: 0.05, ..AdamOptions::adamw() };
    let mut optimizer = Adam::new(options)?;
    let (x, y) = (numbers(&device, 20, &[4, 6]), numbers(&device, 21, &[4, 5]));
    let mut losses = Vec::new();
    for step in 0..10 {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let loss = mse(model.forward(&pass, pass.constant(x.clone()))?, &y)?.mean()?;
        losses.push(loss.value().item::<f64>()?);
        pass.backward(loss)?;
        if step == 0 {
            let gradients = attempt.into_gradients();
            let mut count = 0;
            model.visit(&mut |name, parameter| match gradients.get(parameter.id()) {
                Some(gradient) => {
                    count += 1;
                    reference.check(&format!("{case}.gradient.{name}"), gradient);
                }
                None => assert!(parameter.is_frozen() && !name.contains("lora_"), "{name}"),
            });
            assert_eq!(count, gradients.len());
            let update = optimizer.prepare(&mut model, gradients)?;
            update.commit()?;
        } else {
            optimizer.step(&mut model, attempt)?;
        }
    }
    let losses = Tensor::from_slice(&device, [10], &losses)?;
    reference.check(&format!("{case}.losses"), &losses);
    model.visit(&mut |name, parameter| {
        if name.contains("lora_") {
            reference.check(&format!("{case}.trained.{name}"), parameter.value());
        }
    });
    reference.check(&format!("{case}.output"), &output(&model, &device)?);
    assert_eq!(merge(&mut model)?, ["up", "down"]);
    assert_eq!(names(&mut model), ["up.weight", "up.bias", "down.weight"]);
    reference.check(&format!("{case}.merged.up"), model.up.weight().value());
    reference.check(&format!("{case}.merged.down"), model.down.weight().value());
    reference.check(&format!("{case}.output"), &output(&model, &device)?);
    Ok(())
}

#[test]
fn ten_steps_are_those_of_peft() -> Outcome {
    ["plain", "stabilised", "dora"].into_iter().try_for_each(check_run)
}

#[test]
fn folder_of_peft_is_read_and_written_again() -> Outcome {
    let (device, reference) = (cpu(), Reference::read());
    let mut model = model(&device)?;
    let read = load_adapters(&mut model, &fixtures().join("saved"))?;
    assert!(read.dora && read.rank == 2 && read.alpha == 3.0, "{read:?}");
    reference.check("dora.output", &output(&model, &device)?);
    model.visit(&mut |name, parameter| {
        assert_eq!(parameter.is_frozen(), !name.contains("lora_"), "{name}");
    });

    let folder = tempfile::tempdir()?;
    let own = folder.path().join("adapters");
    save_adapters(&mut model, &read, Some("base"), &own)?;
    let mut again = self::model(&device)?;
    assert_eq!(load_adapters(&mut again, &own)?, read);
    assert_eq!(all_bits(&mut again), all_bits(&mut model));
    // Loads over existing adapters with another scale.
    let mut other = self::model(&device)?;
    adapt(&mut other, KEY, &LoraOptions { alpha: 9.0, ..read.clone() })?;
    load_adapters(&mut other, &own)?;
    reference.check("dora.output", &output(&other, &device)?);
    // The file has PyTorch's tensor names, in any order.
    let tensors = |path: &Path| -> std::result::Result<Vec<(String, Vec<u8>)>, std::io::Error> {
        let bytes = std::fs::read(path.join("adapter_model.safetensors"))?;
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let all = file.tensors().into_iter();
        let mut all: Vec<_> = all.map(|(name, view)| (name, view.data().to_vec())).collect();
        all.sort();
        Ok(all)
    };
    assert_eq!(tensors(&own)?, tensors(&fixtures().join("saved"))?);
    Ok(())
}

#[test]
fn adapters_that_do_not_fit_change_nothing() -> Outcome {
    let device = cpu();
    let mut model = model(&device)?;
    let before = all_bits(&mut model);
    let folder = tempfile::tempdir()?;
    let saved = fixtures().join("saved");
    let config = std::fs::read_to_string(saved.join("adapter_config.json"))?;
    let weights = std::fs::read(saved.join("adapter_model.safetensors"))?;
    std::fs::write(folder.path().join("adapter_model.safetensors"), &weights)?;
    let mut load = |from: &str, to: &str| {
        assert!(config.contains(from), "{from}");
        let path = folder.path().join("adapter_config.json");
        std::fs::write(path, config.replace(from, to)).expect("room");
        let found = load_adapters(&mut model, folder.path());
        assert_eq!(all_bits(&mut model), before);
        model.visit(&mut |name, parameter| assert!(!parameter.is_frozen(), "{name}"));
        found
    };
    let unknown = load("\"bias\": \"none\"", "\"bias\": \"all\"");
    assert!(matches!(
        unknown,
        Err(NnError::Adapter(AdapterProblem::Unsupported { field: "bias", .. }))
    ));
    let unknown = load("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"");
    assert!(matches!(unknown, Err(NnError::Adapter(AdapterProblem::Unsupported { .. }))));
    let broken = load("{", "");
    assert!(matches!(broken, Err(NnError::Adapter(AdapterProblem::Json { .. }))));
    let shape = load("\"r\": 2", "\"r\": 3");
    let problem = |found| match found {
        Err(NnError::Weights { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    assert!(matches!(problem(shape), WeightsProblem::Shape { .. }));
    let magnitudes = load("\"use_dora\": true", "\"use_dora\": false");
    assert_eq!(problem(magnitudes), WeightsProblem::Unknown);
    let mut other = Mlp::new(&device, KEY, &[6, 8, 5])?;
    assert_eq!(problem(load_adapters(&mut other, &saved)), WeightsProblem::Unknown);
    Ok(())
}

#[test]
fn targets_are_named_as_in_peft_and_none_is_an_error() -> Outcome {
    let device = cpu();
    let shape = GptShape { vocabulary: 11, context: 8, width: 16, heads: 2, blocks: 2 };
    let found = |targets: Targets| -> Result<Vec<String>> {
        let mut model = Gpt::new(&device, KEY, shape)?;
        adapt(&mut model, KEY, &LoraOptions { targets, ..Default::default() })
    };
    let endings = |endings: &[&str]| {
        Targets::Endings(endings.iter().map(|&ending| ending.to_owned()).collect())
    };
    let all = found(Targets::AllLinear)?;
    assert_eq!(all.len(), 8);
    assert_eq!(all[..2], ["blocks.0.qkv", "blocks.0.proj"]);
    assert_eq!(found(endings(&["qkv"]))?, ["blocks.0.qkv", "blocks.1.qkv"]);
    assert_eq!(found(endings(&["1.up", "head"]))?, ["blocks.1.up", "head"]);
    assert_eq!(found(r"blocks\.0\..*".into())?.len(), 4);
    assert_eq!(found("all-linear".into())?, all);
    for lost in [endings(&["qkv", "kv"]), "qkv".into(), endings(&[])] {
        let Err(NnError::Adapter(AdapterProblem::NoMatch { target, layers })) = found(lost.clone())
        else {
            panic!("{lost:?} matches nothing");
        };
        assert!(layers.len() == 9 && !target.contains("blocks"), "{target}: {layers:?}");
    }
    let wrong = found("(".into());
    assert!(matches!(wrong, Err(NnError::Adapter(AdapterProblem::Pattern { .. }))));
    let mut model = model(&device)?;
    for options in [
        LoraOptions { rank: 0, ..Default::default() },
        LoraOptions { alpha: f64::NAN, ..Default::default() },
        LoraOptions { dropout: 1.0, ..Default::default() },
    ] {
        let found = adapt(&mut model, KEY, &options);
        assert!(matches!(found, Err(NnError::Option { .. })), "{options:?}");
    }
    adapt(&mut model, KEY, &LoraOptions::default())?;
    let twice = adapt(&mut model, KEY, &LoraOptions::default());
    assert!(matches!(twice, Err(NnError::Adapter(AdapterProblem::Present { .. }))));
    remove_adapters(&mut model);
    let absent = merge(&mut model);
    assert!(matches!(absent, Err(NnError::Adapter(AdapterProblem::Absent))));
    Ok(())
}

fn requested_bytes(device: &Device) -> usize {
    device.allocator().statistics().requested.current_bytes
}

#[test]
fn frozen_weights_cost_no_state_and_keep_no_inputs() -> Outcome {
    const ROWS: usize = 512;
    let device = cpu();
    let kept = |adapts: bool| -> Result<(usize, usize)> {
        let mut model = Sequential::new();
        for index in 0..4 {
            model = model.then(Linear::new(&device, KEY.op(&index.to_string()), 64, 64)?);
        }
        if adapts {
            let targets = Targets::Endings(vec!["0".to_owned()]);
            adapt(&mut model, KEY, &LoraOptions { rank: 4, targets, ..Default::default() })?;
        }
        let x = Tensor::zeros(&device, [ROWS, 64], DType::F32)?;
        let before = requested_bytes(&device);
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let y = model.forward(&pass, pass.constant(x.clone()))?.sum_all()?;
        let kept = requested_bytes(&device) - before;
        pass.backward(y)?;
        let memory = Adam::new(AdamOptions::adamw())?.memory(&mut model);
        Ok((kept, memory.state_bytes))
    };
    let (kept_all, state_all) = kept(false)?;
    let (kept_adapted, state_adapted) = kept(true)?;
    // The inputs of three layers. The input of the first layer is the caller's tensor.
    assert!(kept_all >= 3 * ROWS * 64 * 4, "{kept_all}");
    // The output of A, and the sum.
    assert!(kept_adapted <= ROWS * 4 * 4 + 1024, "{kept_adapted}");
    // Two moments for 2 · 4 · 64 numbers.
    assert_eq!(state_adapted, 2 * 2 * 4 * 64 * 4);
    assert!(state_all > 10 * state_adapted, "{state_all}");
    Ok(())
}

/// The bits of a step of an adapted model: loss and gradients.
fn step_bits(case: &dyn Trained) -> Result<Vec<Vec<u8>>> {
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let loss = case.loss(&pass)?;
    let mut all = vec![loss.value().to_bytes()?];
    pass.backward(loss)?;
    for gradient in attempt.into_gradients().iter() {
        all.push(gradient.to_bytes()?);
    }
    Ok(all)
}

fn memory_bytes(case: &dyn Trained, device: &Device) -> Result<[usize; 2]> {
    let memory = device.allocator();
    let before = requested_bytes(device);
    memory.reset_peaks();
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let loss = case.loss(&pass)?;
    let after = requested_bytes(device);
    pass.backward(loss)?;
    Ok([after - before, memory.statistics().requested.peak_bytes - before])
}

fn adapted_case(
    build: fn(&Device, f64) -> Result<Box<dyn Trained>>,
    device: &Device,
    dora: bool,
) -> Result<Option<Box<dyn Trained>>> {
    let mut case = build(device, 0.2)?;
    fill(case.model());
    let targets = Targets::Pattern(".*".to_owned());
    let options = LoraOptions { rank: 2, dropout: 0.3, targets, dora, ..Default::default() };
    match adapt(case.model(), KEY, &options) {
        Ok(_) => {}
        Err(NnError::Adapter(AdapterProblem::NoMatch { .. })) => return Ok(None),
        Err(error) => return Err(error),
    }
    // With a nonzero B, A has a gradient too.
    case.model().visit(&mut |name, parameter| {
        if name.ends_with("lora_B.weight") {
            parameter.value_mut().fill_(0.125).expect("writable");
        }
    });
    Ok(Some(case))
}

#[test]
fn every_model_of_linear_layers_is_adapted_alike_under_all_policies_and_in_simulation() -> Outcome {
    let mut checked = 0;
    for (name, build) in ZOO {
        for dora in [false, true] {
            let device = cpu();
            let sim = device.simulate();
            let Some(mut case) = adapted_case(build, &device, dora)? else { continue };
            let mut simulated = adapted_case(build, &sim, dora)?.expect("the same model");
            let expected = step_bits(&*case)?;
            assert!(expected.len() > 2, "{name}");
            for policy in [None, Some(SavedPolicy::Recompute)] {
                case.model().set_policy(policy.clone());
                simulated.model().set_policy(policy.clone());
                assert!(step_bits(&*case)? == expected, "{name} {policy:?}");
                let found = memory_bytes(&*case, &device)?;
                assert_eq!(memory_bytes(&*simulated, &sim)?, found, "{name} {policy:?}");
            }
            for threads in [1, 3] {
                let options = CpuOptions { threads: Some(threads), ..Default::default() };
                let case = adapted_case(build, &Device::cpu(options)?, dora)?;
                assert!(step_bits(&*case.expect("the same"))? == expected, "{name} {threads}");
            }
            checked += 1;
        }
    }
    assert!(checked >= 24, "{checked}");
    Ok(())
}

#[test]
fn merge_that_fails_anywhere_leaves_the_model_as_it_was() -> Outcome {
    for case in ["plain", "dora"] {
        let device = cpu();
        let memory = device.allocator();
        let adapted = || -> Result<Model> {
            let mut model = model(&device)?;
            adapt(&mut model, KEY, &options(case))?;
            model.visit(&mut |name, parameter| {
                if name.ends_with("lora_B.weight") {
                    parameter.value_mut().fill_(0.5).expect("writable");
                }
            });
            Ok(model)
        };
        let mut model = adapted()?;
        let start = memory.request_count();
        merge(&mut model)?;
        let requests = memory.request_count() - start;
        assert!(requests >= 4, "{requests}");
        let mut model = adapted()?;
        let before = (all_bits(&mut model), memory.live_blocks());
        for nth in 1..=requests {
            memory.inject_fault(Fault { nth, repeat: Repeat::Once });
            let error = merge(&mut model).expect_err("a request failed");
            memory.clear_fault();
            assert!(error.out_of_memory().is_some(), "{error}");
            assert!((all_bits(&mut model), memory.live_blocks()) == before, "request {nth}");
        }
        model.down.weight().value().freeze();
        assert!(merge(&mut model).is_err());
        model.down.weight().value().unfreeze();
        assert!(all_bits(&mut model) == before.0);
        merge(&mut model)?;
    }
    Ok(())
}

/// A layer whose weight is also an embedding table.
#[derive(Clone)]
struct Tied {
    layer: Linear,
    again: Linear,
}

parameters!(Tied { layer, again });

#[test]
fn tied_weights_are_not_merged() -> Outcome {
    let layer = Linear::new(&cpu(), KEY, 3, 4)?;
    let mut model = Tied { again: layer.clone(), layer };
    let targets = Targets::Endings(vec!["again".to_owned()]);
    adapt(&mut model, KEY, &LoraOptions { targets, ..Default::default() })?;
    let found = merge(&mut model);
    assert!(matches!(found, Err(NnError::Adapter(AdapterProblem::Shared { .. }))));
    assert_eq!(adapted(&mut model), ["again"]);
    Ok(())
}

#[test]
fn adapted_head_of_a_chunked_loss_is_that_of_the_logits() -> Outcome {
    let device = cpu();
    let shape = GptShape { vocabulary: 11, context: 8, width: 16, heads: 2, blocks: 1 };
    for dora in [false, true] {
        let mut model = Gpt::new(&device, KEY, shape)?;
        widen(&mut model);
        let targets = Targets::Endings(vec!["head".to_owned()]);
        adapt(&mut model, KEY, &LoraOptions { targets, dora, ..Default::default() })?;
        model.visit(&mut |name, parameter| {
            if name.ends_with("lora_B.weight") {
                parameter.value_mut().uniform_(KEY, -1.0, 1.0).expect("writable");
            }
        });
        let tokens = Tensor::from_slice(&device, [2, 4], &[3_i64, 1, 4, 1, 5, 9, 2, 6])?;
        let gradients = |chunked: bool| -> Result<Vec<f64>> {
            let attempt = Attempt::new();
            let pass = Pass::train(KEY, &attempt);
            let x = pass.constant(tokens.clone());
            let loss = if chunked {
                model.loss(&pass, x, &tokens, LinearCrossEntropyOptions::default())?.mean()?
            } else {
                let logits = model.forward(&pass, x)?.flatten(0..2)?;
                cross_entropy(logits, &tokens.reshape([8])?)?.mean()?
            };
            let mut all = vec![loss.value().item::<f64>()?];
            pass.backward(loss)?;
            for gradient in attempt.into_gradients().iter() {
                all.extend(gradient.contiguous()?.to_vec::<f64>()?);
            }
            Ok(all)
        };
        let (one, other) = (gradients(true)?, gradients(false)?);
        assert_eq!(one.len(), other.len());
        for (one, other) in one.iter().zip(&other) {
            assert!((one - other).abs() < 1e-12, "{one} {other}");
        }
    }
    Ok(())
}

#[test]
fn half_types_train_adapters_in_f32_and_merge_with_one_rounding() -> Outcome {
    let device = cpu();
    for dora in [false, true] {
        let mut model = Sequential::new()
            .then(Linear::new(&device, KEY.op("0"), 12, 16)?)
            .then(ReLU)
            .then(Linear::new(&device, KEY.op("2"), 16, 4)?);
        model.set_dtype(DType::BF16)?;
        adapt(&mut model, KEY, &LoraOptions { rank: 2, dora, ..Default::default() })?;
        let x = Tensor::ones(&device, [4, 12], DType::BF16)?;
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let y = model.forward(&pass, pass.constant(x.clone()))?;
        assert_eq!(y.value().dtype(), DType::BF16);
        pass.backward(y.sum_all()?)?;
        Adam::new(AdamOptions::adamw())?.step(&mut model, attempt)?;
        let mut count = 0;
        model.visit(&mut |name, parameter| {
            let dtype = if name.contains("lora_") { DType::F32 } else { DType::BF16 };
            assert_eq!(parameter.value().dtype(), dtype, "{name}");
            count += usize::from(name.contains("lora_"));
        });
        assert_eq!(count, if dora { 6 } else { 4 });
        merge(&mut model)?;
        let pass = Pass::eval();
        assert_eq!(model.forward(&pass, pass.constant(x))?.value().dtype(), DType::BF16);
    }
    Ok(())
}

#[test]
fn dropout_that_drops_nothing_changes_nothing_and_other_dropout_only_what_a_sees() -> Outcome {
    let device = cpu();
    let x = numbers(&device, 20, &[4, 6]);
    for case in ["plain", "dora"] {
        let output = |dropout: f64, is_training: bool| -> Result<Vec<f64>> {
            let mut model = model(&device)?;
            adapt(&mut model, KEY, &LoraOptions { dropout, ..options(case) })?;
            model.visit(&mut |name, parameter| {
                if name.ends_with("lora_B.weight") {
                    parameter.value_mut().fill_(0.5).expect("writable");
                }
            });
            let attempt = Attempt::new();
            let pass = if is_training { Pass::train(KEY, &attempt) } else { Pass::eval() };
            Ok(model.forward(&pass, pass.constant(x.clone()))?.value().to_vec::<f64>()?)
        };
        let expected = output(0.0, true)?;
        for (found, expected) in output(1e-13, true)?.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-10, "{case}: {found} {expected}");
        }
        assert_eq!(output(0.5, false)?, output(0.0, false)?);
        assert_ne!(output(0.5, true)?, expected);
    }
    Ok(())
}

#[test]
fn output_layers_are_known_by_the_ends_of_their_names() {
    for name in ["lm_head", "embed_out", "model.head", "bert.classifier"] {
        assert!(lowtide_nn::is_output_layer(name), "{name}");
    }
    for name in ["heads", "layers.0.lm_head_proj", "layers.0.q_proj", ""] {
        assert!(!lowtide_nn::is_output_layer(name), "{name}");
    }
}
