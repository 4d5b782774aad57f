//! Adapters of models, against PEFT.

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::optim::Optimizer;
use lowtide_nn::{
    LinearCrossEntropyOptions, LoraOptions, Parameters, Targets, adapt, adapted, cross_entropy,
    load_adapters, merge, save_adapters,
};
use lowtide_pretrained::{BertConfig, Config, Decoder, T5Config, ViTConfig};
use lowtide_tensor::{DType, Device, Tensor};

use crate::common::{CASES, KEY, Outcome, Run, config, cpu, error, f64s, folder, sim};
use crate::parity::{batch, optimizer};

/// The losses of five steps, and the logits of the last step.
fn train(model: &mut Decoder, device: &Device, case: &str) -> Outcome<[Vec<f64>; 2]> {
    let (mut optimizer, run) = (optimizer()?, Run::read(case)?);
    let (mut losses, mut logits) = (Vec::new(), Vec::new());
    for step in 0..5 {
        let [ids, mask, labels] = batch(device, &run, step)?;
        let eval = Pass::no_grad(KEY);
        logits = f64s(model.logits(&eval, eval.constant(ids.clone()), Some(&mask))?.value())?;
        let attempt = Attempt::new();
        let pass = Pass::train(KEY.step(step as u64), &attempt);
        let options = LinearCrossEntropyOptions::default();
        let tokens = pass.constant(ids);
        let loss = model.loss_with_mask(&pass, tokens, &labels, Some(&mask), options)?.mean()?;
        losses.extend(f64s(loss.value())?);
        pass.backward(loss)?;
        optimizer.step(model, attempt)?;
    }
    Ok([losses, logits])
}

#[test]
fn adapters_of_peft_learn_what_they_do_there() -> Outcome {
    for case in ["llama", "gpt2", "neox"] {
        let name = format!("lora-{case}");
        let (device, run) = (cpu(2), Run::read(&name)?);
        for (dtype, tolerance) in [(DType::F64, 1e-10), (DType::F32, 3e-5)] {
            let mut model = config(case)?.load(&device, dtype)?;
            load_adapters(&mut model, &folder(&name))?;
            let [losses, logits] = train(&mut model, &device, case)?;
            for (found, name) in [(losses, "losses"), (logits, "logits")] {
                let error = error(&found, &run.values(name)?);
                assert!(error < tolerance, "{case} {dtype:?} {name}: {error:e}");
            }
        }
    }
    Ok(())
}

/// Adapters that are loaded from saved files, or merged, compute the same results.
#[test]
fn adapters_are_saved_loaded_and_merged_in_every_family() -> Outcome {
    for &case in CASES.iter() {
        let device = cpu(2);
        let options = LoraOptions { rank: 2, targets: Targets::AllLinear, ..Default::default() };
        let mut model = config(case)?.load(&device, DType::F64)?;
        let names = adapt(&mut model, KEY, &options)?;
        assert_eq!(names, adapted(&mut model));
        let layers = model.shape().layers.len();
        assert!(names.len() >= 4 * layers, "{case}: {names:?}");
        train(&mut model, &device, case)?;
        let run = Run::read(case)?;
        let [ids, mask, _] = batch(&device, &run, 0)?;
        let logits = |model: &Decoder| -> Outcome<Vec<f64>> {
            let pass = Pass::eval();
            f64s(model.logits(&pass, pass.constant(ids.clone()), Some(&mask))?.value())
        };
        let expected = logits(&model)?;
        let to = tempfile::tempdir()?;
        save_adapters(&mut model, &options, Some(case), to.path())?;
        let mut again = config(case)?.load(&device, DType::F64)?;
        assert!(error(&logits(&again)?, &expected) > 1e-6, "{case}");
        load_adapters(&mut again, to.path())?;
        assert!(error(&logits(&again)?, &expected) < 1e-12, "{case}");
        merge(&mut again)?;
        assert!(error(&logits(&again)?, &expected) < 1e-12, "{case}");
        lowtide_pretrained::save(&mut again, to.path(), 1 << 30)?;
        let mut merged = config(case)?.decoder(&device, KEY, DType::F64)?;
        lowtide_pretrained::load(&mut merged, to.path())?;
        assert!(error(&logits(&merged)?, &expected) < 1e-12, "{case}");
    }
    Ok(())
}

/// The loss in chunks equals the loss of the logits, also with an adapted output layer.
#[test]
fn an_adapted_output_layer_is_part_of_the_loss() -> Outcome {
    let (device, run) = (cpu(2), Run::read("llama")?);
    let mut model = config("llama")?.load(&device, DType::F64)?;
    let options = LoraOptions {
        rank: 2,
        targets: Targets::Endings(vec!["lm_head".to_owned()]),
        ..Default::default()
    };
    assert_eq!(adapt(&mut model, KEY, &options)?, ["lm_head"]);
    train(&mut model, &device, "llama")?;
    let [ids, mask, labels] = batch(&device, &run, 0)?;
    let pass = Pass::eval();
    let tokens = || pass.constant(ids.clone());
    let logits = model.logits(&pass, tokens(), Some(&mask))?;
    let (rows, classes) = (labels.element_count(), logits.shape()[2]);
    let expected = cross_entropy(logits.reshape([rows, classes])?, &labels.reshape([rows])?)?;
    let options = LinearCrossEntropyOptions::default();
    let found = model.loss_with_mask(&pass, tokens(), &labels, Some(&mask), options)?;
    assert!(error(&f64s(found.sum.value())?, &f64s(expected.sum.value())?) < 1e-12);
    Ok(())
}

/// A linear layer has the name of its weight.
#[test]
fn every_linear_layer_is_shown_under_the_name_of_its_weight() -> Outcome {
    let device = cpu(1);
    let check = |model: &mut dyn Parameters, count: usize, case: &str| {
        let (mut weights, mut layers) = (Vec::new(), Vec::new());
        model.visit(&mut |name, _| weights.push(name.to_owned()));
        model.visit_linears(&mut |name, _| layers.push(name.to_owned()));
        assert_eq!(layers.len(), count, "{case}: {layers:?}");
        for name in layers {
            assert!(weights.contains(&format!("{name}.weight")), "{case}: {name}");
        }
    };
    for &case in CASES.iter() {
        let mut model = config(case)?.load(&device, DType::F32)?;
        let shape = model.shape().clone();
        let inputs = match shape.attention.projections {
            lowtide_pretrained::Projections::Separate => 3,
            _ => 1,
        };
        let hidden = if shape.feed_forward.is_gated { 3 } else { 2 };
        let count = shape.layers.len() * (inputs + 1 + hidden) + usize::from(!shape.is_tied);
        check(&mut model, count, case);
    }
    check(&mut BertConfig::open(folder("bert"))?.load(&device, DType::F32)?, 2 * 6 + 1, "bert");
    let classes = BertConfig::open(folder("bert-classes"))?;
    check(&mut classes.load(&device, DType::F32)?, 2 * 6 + 2, "bert-classes");
    check(&mut T5Config::open(folder("t5"))?.load(&device, DType::F32)?, 2 * 6 + 10, "t5");
    check(&mut ViTConfig::open(folder("vit"))?.load(&device, DType::F32)?, 6 + 1, "vit");
    Ok(())
}

/// A frozen base has no gradients, so the peak is far below the peak of full training.
#[test]
fn adapters_of_eight_billion_parameters_are_planned_at_once() -> Outcome {
    let config = Config::published("meta-llama/Llama-3.1-8B")?.ok_or("not there")?;
    let device = sim(2, 1 << 40);
    let mut model = config.decoder(&device, KEY, DType::BF16)?;
    let targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let targets = Targets::Endings(targets.map(str::to_owned).to_vec());
    adapt(&mut model, KEY, &LoraOptions { rank: 16, targets, ..Default::default() })?;
    let mut trained = 0;
    model.visit(&mut |_, parameter| {
        trained += if parameter.is_frozen() { 0 } else { parameter.value().element_count() };
    });
    // PEFT prints this number for the model.
    assert_eq!(trained, 41_943_040);
    let before = device.allocator().statistics().allocated.current_bytes;
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let tokens = pass.constant(Tensor::full(&device, [1, 512], DType::I64, 1.0)?);
    let labels = Tensor::full(&device, [1, 512], DType::I64, 2.0)?;
    let options = LinearCrossEntropyOptions::default();
    pass.backward(model.loss(&pass, tokens, &labels, options)?.mean()?)?;
    let peak_bytes = device.allocator().statistics().allocated.peak_bytes - before;
    assert!(peak_bytes < 8 << 30, "{peak_bytes}");
    Ok(())
}
