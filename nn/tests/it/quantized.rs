//! Quantised linear layers, and adapters over them: QLoRA.

use lowtide_autograd::{Attempt, LeafId, Pass, SavedPolicy};
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer};
use lowtide_nn::{
    Activations, AdapterProblem, Linear, LinearCrossEntropyOptions, LoraOptions, Module, NnError,
    NnResult as Result, Parameters, ReLU, Sequential, Targets, adapt, cross_entropy, load, merge,
    quantize, save, set_activations,
};
use lowtide_tensor::{CpuOptions, DType, Device, QuantFormat, Tensor};

use crate::common::{KEY, Outcome, cpu, f32s, names};

const FORMATS: [QuantFormat; 5] = [
    QuantFormat::Int8Rows,
    QuantFormat::Nf4 { double: false },
    QuantFormat::Nf4 { double: true },
    QuantFormat::Q8_0,
    QuantFormat::Q4_0,
];

fn model(device: &Device) -> Result<Sequential> {
    Ok(Sequential::new()
        .then(Linear::new(device, KEY.op("0"), 64, 96)?)
        .then(ReLU)
        .then(Linear::without_bias(device, KEY.op("2"), 96, 32)?))
}

fn each_linear(model: &mut Sequential, mut change: impl FnMut(&mut Linear) -> Result<()>) {
    model.visit_linears(&mut |name, layer| {
        change(layer).unwrap_or_else(|error| panic!("{name}: {error}"));
    });
}

/// Trains adapters for three AdamW steps. Returns the bits of the output and of the adapters.
fn trained_bits(model: &mut Sequential, x: &Tensor) -> Result<Vec<Vec<u8>>> {
    let mut optimizer = Adam::new(AdamOptions { learning_rate: 0.01, ..AdamOptions::adamw() })?;
    let mut all = Vec::new();
    for _ in 0..3 {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let y = model.forward(&pass, pass.constant(x.clone()))?;
        all.push(y.value().to_bytes()?);
        pass.backward(y.clone().mul(y)?.mean_all()?)?;
        optimizer.step(model, attempt)?;
    }
    model.visit(&mut |name, parameter| {
        if name.contains("lora_") {
            all.push(parameter.value().to_bytes().expect("values"));
        }
    });
    Ok(all)
}

#[test]
fn adapters_over_few_bits_are_those_over_the_decoded_weights() -> Outcome {
    let device = cpu();
    let x = f32s(&device, "x", [5, 64]);
    for format in FORMATS {
        for (dora, dropout) in [(false, 0.0), (false, 0.3), (true, 0.0), (true, 0.3)] {
            let options = LoraOptions { rank: 4, dora, dropout, ..Default::default() };
            let mut few = model(&device)?;
            assert_eq!(quantize(&mut few, &Targets::AllLinear, format)?, ["0", "2"]);
            let mut decoded = few.clone();
            each_linear(&mut decoded, |layer| layer.dequantize(DType::F32));
            adapt(&mut few, KEY, &options)?;
            adapt(&mut decoded, KEY, &options)?;
            let expected = trained_bits(&mut decoded, &x)?;
            assert!(trained_bits(&mut few, &x)? == expected, "{format:?} {dora} {dropout}");
            let found = merge(&mut few);
            let problem = NnError::Adapter(AdapterProblem::Quantized { name: "0".to_owned() });
            assert_eq!(found.expect_err("a merge would round").to_string(), problem.to_string());
            each_linear(&mut few, |layer| layer.dequantize(DType::F32));
            merge(&mut few)?;
            merge(&mut decoded)?;
            let outputs = [&few, &decoded].map(|model| {
                let pass = Pass::eval();
                model.forward(&pass, pass.constant(x.clone())).expect("memory").into_value()
            });
            assert_eq!(outputs[0].to_bytes()?, outputs[1].to_bytes()?);
        }
    }
    Ok(())
}

#[test]
fn quantised_layers_have_buffers_instead_of_weights_and_cost_no_gradient() -> Outcome {
    let device = cpu();
    let format = QuantFormat::Nf4 { double: true };
    let mut model = model(&device)?;
    let before = device.allocator().statistics().requested.current_bytes;
    let targets = Targets::Endings(vec!["0".to_owned()]);
    quantize(&mut model, &targets, format)?;
    let after = device.allocator().statistics().requested.current_bytes;
    // Each element takes 4 bits and its share of the scales, instead of 32 bits.
    assert!(before - after > 64 * 96 * 4 - 64 * 96 / 2 - 2048, "{before} {after}");
    assert_eq!(names(&mut model), ["0.bias", "2.weight"]);
    let mut buffers = Vec::new();
    model.visit_buffers(&mut |name, _| buffers.push(name.to_owned()));
    let parts = ["codes", "scales", "nested_scales", "nested_map", "offset"];
    assert_eq!(buffers, parts.map(|part| format!("0.weight.{part}")));

    let x = f32s(&device, "x", [512, 64]);
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let before = device.allocator().statistics().requested.current_bytes;
    let y = model.forward(&pass, pass.constant(x))?.sum_all()?;
    let kept = device.allocator().statistics().requested.current_bytes - before;
    // The bias and the second layer have gradients. The output of ReLU is saved once.
    assert!(kept <= 512 * 96 * 4 + 4096, "{kept}");
    pass.backward(y)?;
    assert_eq!(attempt.into_gradients().len(), 2);

    // A second call changes nothing, and a file stores the quantised weights.
    quantize(&mut model, &targets, format)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    save(&mut model, &path)?;
    let mut other = self::model(&device)?;
    quantize(&mut other, &targets, format)?;
    other.visit_tensors(&mut |_, tensor| tensor.zero_().expect("writable"));
    load(&mut other, &path)?;
    let mut all = Vec::new();
    model.visit_tensors(&mut |_, tensor| all.push(tensor.to_bytes().expect("values")));
    let mut found = all.into_iter();
    other.visit_tensors(&mut |name, tensor| {
        assert!(found.next() == tensor.to_bytes().ok(), "{name}");
    });
    Ok(())
}

#[test]
fn rows_that_are_no_blocks_change_nothing() -> Outcome {
    let device = cpu();
    let mut model = Sequential::new()
        .then(Linear::new(&device, KEY, 64, 40)?)
        .then(Linear::new(&device, KEY, 40, 8)?);
    assert!(quantize(&mut model, &Targets::AllLinear, QuantFormat::Q8_0).is_err());
    let all = ["0.weight", "0.bias", "1.weight", "1.bias"];
    assert_eq!(names(&mut model), all);
    let none = quantize(&mut model, &"x".into(), QuantFormat::Int8Rows);
    assert!(matches!(none, Err(NnError::Adapter(AdapterProblem::NoMatch { .. }))));
    assert_eq!(names(&mut model), all);
    Ok(())
}

fn gpt(device: &Device, dtype: DType) -> Result<Gpt> {
    let shape = GptShape { vocabulary: 32, context: 8, width: 32, heads: 2, blocks: 2 };
    let mut model = Gpt::new(device, KEY, shape)?;
    model.set_dtype(dtype)?;
    let targets = Targets::Pattern(".*".to_owned());
    quantize(&mut model, &targets, QuantFormat::Nf4 { double: true })?;
    adapt(&mut model, KEY, &LoraOptions { rank: 2, dropout: 0.1, ..Default::default() })?;
    model.visit(&mut |name, parameter| {
        if name.ends_with("lora_B.weight") {
            parameter.value_mut().fill_(0.125).expect("writable");
        }
    });
    Ok(model)
}

/// The loss and the gradients of a step, the bytes that forward keeps, and the peak of the step.
fn step(model: &Gpt, device: &Device) -> Result<(Vec<Vec<u8>>, [usize; 2])> {
    let tokens = Tensor::from_slice(device, [2, 8], &[3_i64; 16])?;
    let memory = device.allocator();
    let before = memory.statistics().requested.current_bytes;
    memory.reset_peaks();
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let x = pass.constant(tokens.clone());
    let loss = model.loss(&pass, x, &tokens, LinearCrossEntropyOptions::default())?.mean()?;
    let kept = memory.statistics().requested.current_bytes - before;
    let value = loss.value().clone();
    pass.backward(loss)?;
    let peak = memory.statistics().requested.peak_bytes - before;
    let mut all = Vec::new();
    if !device.is_simulated() {
        all.push(value.to_bytes()?);
        for gradient in attempt.into_gradients().iter() {
            all.push(gradient.to_bytes()?);
        }
    }
    Ok((all, [kept, peak]))
}

#[test]
fn a_step_is_the_same_for_any_threads_and_policies_and_foreseen() -> Outcome {
    for dtype in [DType::F32, DType::BF16] {
        let device = cpu();
        let sim = device.simulate();
        let (mut real, mut simulated) = (gpt(&device, dtype)?, gpt(&sim, dtype)?);
        let (expected, _) = step(&real, &device)?;
        assert!(expected.len() > 8, "{}", expected.len());
        for policy in [None, Some(SavedPolicy::Recompute)] {
            real.set_policy(policy.clone());
            simulated.set_policy(policy.clone());
            let (found, bytes) = step(&real, &device)?;
            assert!(found == expected, "{policy:?}");
            assert_eq!(step(&simulated, &sim)?.1, bytes, "{policy:?}");
        }
        for threads in [1, 3] {
            let device = Device::cpu(CpuOptions { threads: Some(threads), ..Default::default() })?;
            assert!(step(&gpt(&device, dtype)?, &device)?.0 == expected, "{threads}");
        }
    }
    Ok(())
}

#[test]
fn quantised_head_of_a_chunked_loss_is_that_of_the_logits() -> Outcome {
    let device = cpu();
    let model = gpt(&device, DType::F32)?;
    let tokens = Tensor::from_slice(&device, [2, 4], &[3_i64, 1, 4, 1, 5, 9, 2, 6])?;
    let pass = Pass::eval();
    let x = || pass.constant(tokens.clone());
    let options = LinearCrossEntropyOptions::default();
    let chunked = model.loss(&pass, x(), &tokens, options)?.mean()?.value().item::<f32>()?;
    let logits = model.forward(&pass, x())?.flatten(0..2)?;
    let whole = cross_entropy(logits, &tokens.reshape([8])?)?.mean()?.value().item::<f32>()?;
    assert!((chunked - whole).abs() < 1e-5, "{chunked} {whole}");
    Ok(())
}

#[test]
fn int8_activations_give_products_of_integers_and_the_gradients_of_floats() -> Outcome {
    let device = cpu();
    let x = f32s(&device, "x", [5, 64]);
    let mut model = model(&device)?;
    // No weight is in int8 yet.
    assert!(set_activations(&mut model, Activations::Int8).is_empty());
    quantize(&mut model, &Targets::AllLinear, QuantFormat::Int8Rows)?;
    let step = |model: &Sequential| -> Result<_> {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let input = LeafId::new();
        let y = model.forward(&pass, pass.leaf(input, &x)?)?;
        let value = y.value().clone();
        pass.backward(y.sum_all()?)?;
        let gradients = attempt.into_gradients();
        let dx = gradients.get(input).expect("x has one").clone();
        Ok([value, dx])
    };
    let floats = step(&model)?;
    assert_eq!(set_activations(&mut model, Activations::Int8), ["0", "2"]);
    let integers = step(&model)?;
    let mut layers = Vec::new();
    each_linear(&mut model, |layer| {
        layers.push((layer.quantized().expect("in int8")?, layer.bias().cloned()));
        Ok(())
    });
    let mut expected = x.clone();
    for (w, bias) in &layers {
        let bias = bias.as_ref().map(|bias| bias.value());
        expected = expected.linear_int8(w, bias)?;
        if bias.is_some() {
            expected = expected.relu()?;
        }
    }
    assert!(integers[0].to_bytes()? == expected.to_bytes()?);
    assert!(integers[0].to_bytes()? != floats[0].to_bytes()?);
    // The gradient is straight-through: the weights are the same, and ReLU is open at nearly the
    // same places.
    let [far, all] = [integers[1].sub(&floats[1])?, floats[1].clone()].map(|x| x.mul(&x));
    let [far, all] = [far?, all?].map(|x| x.sum_all()?.item::<f32>());
    assert!(far? < 0.05 * all?);

    assert_eq!(set_activations(&mut model, Activations::Float), ["0", "2"]);
    assert!(step(&model)?[0].to_bytes()? == floats[0].to_bytes()?);
    Ok(())
}

#[test]
fn int8_activations_are_for_weights_in_int8() -> Outcome {
    let device = cpu();
    for format in &FORMATS[1..] {
        let mut model = model(&device)?;
        quantize(&mut model, &Targets::AllLinear, *format)?;
        assert!(set_activations(&mut model, Activations::Int8).is_empty());
        each_linear(&mut model, |layer| {
            let refused = layer.set_activations(Activations::Int8).expect_err("another format");
            assert!(refused.to_string().contains("Int8Rows"), "{refused}");
            layer.set_activations(Activations::Float)
        });
    }
    let mut layer = Linear::new(&device, KEY, 8, 8)?;
    layer.set_activations(Activations::Float)?;
    let refused = layer.set_activations(Activations::Int8).expect_err("floats");
    assert!(refused.to_string().contains("f32"), "{refused}");
    // Decoding the weight resets the activations.
    layer.quantize(QuantFormat::Int8Rows)?;
    layer.set_activations(Activations::Int8)?;
    layer.dequantize(DType::F32)?;
    layer.quantize(QuantFormat::Int8Rows)?;
    let x = f32s(&device, "x", [3, 8]);
    let pass = Pass::eval();
    let y = layer.forward(&pass, pass.constant(x.clone()))?.into_value();
    let bias = layer.bias().map(|bias| bias.value());
    let expected = x.linear_quantized(&layer.quantized().expect("in int8")?, bias)?;
    assert!(y.to_bytes()? == expected.to_bytes()?);
    Ok(())
}
