//! BERT, T5, ViT and ResNet: results and training against transformers, and their files.

use std::fs;

use lowtide_autograd::{Attempt, Pass, SavedPolicy, Var};
use lowtide_nn::optim::Optimizer;
use lowtide_nn::{LinearCrossEntropyOptions, Module, NnResult, Parameters, cross_entropy};
use lowtide_pretrained::{
    Bert, BertConfig, BertHead, BertInput, GenerateOptions, ModelConfig, PretrainedError, ResNet,
    ResNetConfig, Shape, Stored, T5, T5Config, ViT, ViTConfig, load_body, save,
};
use lowtide_tensor::{DType, Device, Tensor};

use crate::common::{KEY, Outcome, Run, cpu, error, f64s, folder, sim, small_sim};
use crate::parity::optimizer;

/// The input of a model in a step.
struct Batch<'a> {
    run: &'a Run,
    device: &'a Device,
    dtype: DType,
    step: usize,
}

impl Batch<'_> {
    fn tensor(&self, name: &str) -> Tensor {
        let all = self.run.tensor(self.device, &format!("input.{name}")).expect("is in the file");
        let own = all.select(0, self.step).and_then(|x| x.contiguous()).expect("memory");
        if name == "pixel_values" { own.to_dtype(self.dtype).expect("memory") } else { own }
    }
}

/// A model of any kind, with its logits and its mean loss.
trait Tried: Stored {
    fn step(&self, pass: &Pass, batch: &Batch<'_>) -> NnResult<[Var; 2]>;
}

impl Tried for Bert {
    fn step(&self, pass: &Pass, batch: &Batch<'_>) -> NnResult<[Var; 2]> {
        let [tokens, mask, types] =
            ["input_ids", "attention_mask", "token_type_ids"].map(|name| batch.tensor(name));
        let input = BertInput { tokens, mask: Some(mask), types: Some(types) };
        let options = LinearCrossEntropyOptions::default();
        let loss = self.loss(pass, &input, &batch.tensor("labels"), options)?.mean()?;
        let eval = Pass::no_grad(KEY);
        Ok([self.logits(&eval, &input)?, loss])
    }
}

impl Tried for T5 {
    fn step(&self, pass: &Pass, batch: &Batch<'_>) -> NnResult<[Var; 2]> {
        let [tokens, mask, labels] =
            ["input_ids", "attention_mask", "labels"].map(|name| batch.tensor(name));
        let options = LinearCrossEntropyOptions::default();
        let loss = self.loss(pass, &tokens, &labels, Some(&mask), options)?.mean()?;
        let eval = Pass::no_grad(KEY);
        Ok([self.logits(&eval, &tokens, &self.shifted(&labels)?, Some(&mask))?, loss])
    }
}

fn classified(model: &impl Module, pass: &Pass, batch: &Batch<'_>) -> NnResult<[Var; 2]> {
    let logits = model.forward(pass, pass.constant(batch.tensor("pixel_values")))?;
    let loss = cross_entropy(logits.clone(), &batch.tensor("labels"))?.mean()?;
    Ok([logits, loss])
}

impl Tried for ViT {
    fn step(&self, pass: &Pass, batch: &Batch<'_>) -> NnResult<[Var; 2]> {
        classified(self, pass, batch)
    }
}

impl Tried for ResNet {
    fn step(&self, pass: &Pass, batch: &Batch<'_>) -> NnResult<[Var; 2]> {
        classified(self, pass, batch)
    }
}

/// Greedy text of a T5 equals the text of transformers, token for token, up to the end token.
#[test]
fn t5_writes_what_transformers_writes() -> Outcome {
    const END: i64 = 1;
    for case in ["t5", "t5-1.1"] {
        let (device, run) = (cpu(2), Run::read(case)?);
        let batch = Batch { run: &run, device: &device, dtype: DType::F64, step: 0 };
        let model = T5Config::open(folder(case))?.load(&device, DType::F64)?;
        let expected = run.tensor(&device, "generated")?;
        let len = expected.shape()[1] - 1;
        let options = GenerateOptions { stop_tokens: vec![END], ..GenerateOptions::greedy(len) };
        let (tokens, mask) = (batch.tensor("input_ids"), batch.tensor("attention_mask"));
        let found = model.generate(&tokens, Some(&mask), &options)?;
        let expected = expected.to_vec::<i64>()?;
        for (found, expected) in found.iter().zip(expected.chunks(len + 1)) {
            let end = expected.iter().position(|&token| token == END).map_or(len, |at| at);
            assert_eq!(*found, expected[1..=end], "{case}");
            assert_eq!(expected[0], model.shape().start);
        }
        assert!(model.generate(&tokens, None, &GenerateOptions::greedy(0))?[0].is_empty());
    }
    Ok(())
}

/// The results of three steps.
#[derive(Default)]
struct Trained {
    losses: Vec<f64>,
    logits: Vec<f64>,
    gradients: Vec<(String, Vec<f64>)>,
}

/// The computed values of a step are read, or left on the device.
#[derive(Clone, Copy, PartialEq)]
enum Values {
    Read,
    Left,
}

fn train<M: Tried>(
    model: &mut M,
    device: &Device,
    (run, dtype): (&Run, DType),
    values: Values,
) -> Outcome<Trained> {
    let (mut optimizer, mut trained) = (optimizer()?, Trained::default());
    for step in 0..3 {
        let batch = Batch { run, device, dtype, step };
        let attempt = Attempt::new();
        let pass = Pass::train(KEY.step(step as u64), &attempt);
        let [logits, loss] = model.step(&pass, &batch)?;
        if values == Values::Read {
            trained.losses.extend(f64s(loss.value())?);
            trained.logits.extend(f64s(logits.value())?);
        }
        drop(logits);
        pass.backward(loss)?;
        if values == Values::Read && step == 0 {
            model.visit(&mut |name, parameter| {
                if let Some(gradient) = attempt.gradient(parameter.id()) {
                    let values = f64s(&gradient).expect("values of the processor");
                    trained.gradients.push((name.to_owned(), values));
                }
            });
        }
        optimizer.step(model, attempt)?;
    }
    Ok(trained)
}

fn bits(model: &mut dyn Parameters) -> Vec<Vec<u8>> {
    let mut bits = Vec::new();
    model.visit_tensors(&mut |_, value| {
        bits.push(value.to_bytes().expect("values of the processor"));
    });
    bits
}

/// All laws of a case.
fn check<S: Shape>(case: &str) -> Outcome
where
    S::Model: Tried,
{
    let (run, config) = (Run::read(case)?, ModelConfig::<S>::open(folder(case))?);
    // A batch of few numbers has small variances, and dividing by a small variance enlarges
    // rounding errors.
    let narrow = if case.starts_with("resnet") { 1e-3 } else { 3e-5 };
    for (dtype, tolerance) in [(DType::F64, 1e-10), (DType::F32, narrow)] {
        let device = cpu(2);
        let mut model = config.load(&device, dtype)?;
        let found = train(&mut model, &device, (&run, dtype), Values::Read)?;
        for (found, name) in [(&found.losses, "losses"), (&found.logits, "logits")] {
            let error = error(found, &run.values(name)?);
            assert!(error < tolerance, "{case} {dtype:?} {name}: {error:e}");
        }
        let theirs = run.names("gradient.")?;
        assert_eq!(theirs.len(), found.gradients.len(), "{case}");
        for (name, gradient) in &found.gradients {
            let theirs = run.values(&format!("gradient.{name}"))?;
            // A bias of keys changes no attention weight: its gradient is 0 apart from rounding.
            let size = theirs.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
            let error = error(gradient, &theirs) * (size / 1e-2).min(1.0);
            assert!(error < tolerance, "{case} {dtype:?} gradient of {name}: {error:e}");
        }
        let mut buffers = Vec::new();
        model.visit_buffers(&mut |name, buffer| {
            buffers.push((name.to_owned(), f64s(buffer.value()).expect("values")));
        });
        assert_eq!(buffers.len(), run.names("buffer.")?.len(), "{case}");
        for (name, values) in buffers {
            let theirs = run.tensor(&device, &format!("buffer.{name}"))?;
            let error = error(&values, &f64s(&theirs)?);
            assert!(error < tolerance, "{case} {dtype:?} {name}: {error:e}");
        }
    }
    check_bits::<S>(case, &run, &config)?;
    check_files::<S>(case, &config)
}

/// Checks that threads and policies change no bit, and that a simulated device has equal peaks.
fn check_bits<S: Shape>(case: &str, run: &Run, config: &ModelConfig<S>) -> Outcome
where
    S::Model: Tried,
{
    let dtype = DType::F32;
    let after = |threads: usize, policy: Option<SavedPolicy>| -> Outcome<_> {
        let device = cpu(threads);
        let mut model = config.load(&device, dtype)?;
        model.set_policy(policy);
        train(&mut model, &device, (run, dtype), Values::Left)?;
        Ok(bits(&mut model))
    };
    let expected = after(2, None)?;
    assert!(after(1, None)? == expected && after(3, None)? == expected, "{case}");
    for policy in [SavedPolicy::Recompute, SavedPolicy::RecomputeWithPrevious] {
        assert!(after(2, Some(policy.clone()))? == expected, "{case} {policy:?}");
    }
    let peaks = |device: Device| -> Outcome<_> {
        let mut model = config.load(&device, dtype)?;
        train(&mut model, &device, (run, dtype), Values::Left)?;
        Ok(device.allocator().statistics().allocated)
    };
    assert_eq!(peaks(cpu(2))?, peaks(small_sim(2))?, "{case}");
    Ok(())
}

fn check_files<S: Shape>(case: &str, config: &ModelConfig<S>) -> Outcome
where
    S::Model: Tried,
{
    let to = tempfile::tempdir()?;
    let mut model = config.load(&cpu(2), DType::F32)?;
    save(&mut model, to.path(), 1 << 30)?;
    let [ours, theirs] =
        [to.path(), &folder(case)].map(|at| fs::read(at.join("model.safetensors")));
    let (ours, theirs) = (ours?, theirs?);
    let [ours, theirs] = [&ours, &theirs].map(|bytes| safetensors::SafeTensors::deserialize(bytes));
    let (ours, theirs) = (ours?, theirs?);
    assert_eq!(ours.len(), theirs.len(), "{case}");
    for (name, view) in theirs.iter() {
        assert_eq!(ours.tensor(name)?, view, "{case}: {name}");
    }
    config.save(to.path())?;
    let mut again = ModelConfig::<S>::open(to.path())?.load(&cpu(1), DType::F32)?;
    assert!(bits(&mut again) == bits(&mut model), "{case}");
    let mut fresh = config.model(&cpu(1), KEY, DType::F32)?;
    let mut count = 0;
    fresh.visit(&mut |_, parameter| count += parameter.value().element_count());
    assert_eq!(config.parameter_count(), count as u128, "{case}");
    Ok(())
}

macro_rules! cases {
    ($($name:ident: $config:ty, $case:literal;)*) => {
        $(#[test]
        fn $name() -> Outcome {
            <$config as Checked>::check($case)
        })*
    };
}

/// [`check`] for the type of the configuration.
trait Checked {
    fn check(case: &str) -> Outcome;
}

impl<S: Shape> Checked for ModelConfig<S>
where
    S::Model: Tried,
{
    fn check(case: &str) -> Outcome {
        check::<S>(case)
    }
}

cases! {
    bert_is_that_of_transformers: BertConfig, "bert";
    bert_with_classes_is_that_of_transformers: BertConfig, "bert-classes";
    t5_is_that_of_transformers: T5Config, "t5";
    t5_of_version_1_1_is_that_of_transformers: T5Config, "t5-1.1";
    vit_is_that_of_transformers: ViTConfig, "vit";
    vit_on_larger_images_is_that_of_transformers: ViTConfig, "vit-larger-images";
    basic_resnet_is_that_of_transformers: ResNetConfig, "resnet-basic";
    resnet_with_bottlenecks_is_that_of_transformers: ResNetConfig, "resnet-bottleneck";
}

/// A model that predicts tokens becomes a model of classes, and a model of three classes becomes a
/// model of five.
#[test]
fn a_body_gets_a_new_head() -> Outcome {
    let device = cpu(1);
    for from in ["bert", "bert-classes"] {
        let config = BertConfig::open(folder("bert"))?.with_classes(5);
        assert_eq!(config.shape().head, BertHead::Classes(5));
        let mut model = config.model(&device, KEY, DType::F32)?;
        let fresh = bits(&mut model);
        let strict = lowtide_pretrained::load(&mut model, folder(from));
        assert!(matches!(strict, Err(PretrainedError::Weights { .. })));
        assert!(bits(&mut model) == fresh);
        load_body(&mut model, folder(from))?;
        let (now, mut names) = (bits(&mut model), Vec::new());
        model.visit(&mut |name, _| names.push(name.to_owned()));
        for ((name, before), after) in names.iter().zip(&fresh).zip(&now) {
            let is_kept = name.starts_with("classifier")
                || (name.starts_with("bert.pooler") && from == "bert");
            // Initial zeros or ones could equal values of the file, but none do here.
            assert_eq!(before == after, is_kept, "{from}: {name}");
        }
    }
    // A model with a new head is saved with this head.
    let (to, config) = (tempfile::tempdir()?, BertConfig::open(folder("bert"))?.with_classes(5));
    let mut model = config.model(&device, KEY, DType::F32)?;
    save(&mut model, to.path(), 1 << 30)?;
    config.save(to.path())?;
    let again = BertConfig::open(to.path())?;
    assert_eq!(again.architecture(), "BertForSequenceClassification");
    assert_eq!(again.shape(), config.shape());
    assert!(bits(&mut again.load(&device, DType::F32)?) == bits(&mut model));
    for case in ["vit", "resnet-basic"] {
        let other = match case {
            "vit" => {
                let mut model = ViTConfig::open(folder(case))?.with_classes(7).model(
                    &device,
                    KEY,
                    DType::F32,
                )?;
                load_body(&mut model, folder(case))
            }
            _ => {
                let config = ResNetConfig::open(folder(case))?.with_classes(7);
                load_body(&mut config.model(&device, KEY, DType::F32)?, folder(case))
            }
        };
        other?;
    }
    Ok(())
}

/// Published models with the number of their parameters.
#[test]
fn published_models_have_as_many_parameters_as_they_were_published_with() -> Outcome {
    let device = sim(2, 1 << 40);
    let count = |model: &mut dyn Parameters| {
        let mut count = 0;
        model.visit(&mut |_, parameter| count += parameter.value().element_count());
        count
    };
    let labels = |count: usize| {
        let names = (0..count).map(|class| (class.to_string(), format!("LABEL_{class}").into()));
        serde_json::Value::Object(names.collect())
    };
    let bert = |hidden: usize, layers: usize, heads: usize, intermediate: usize| {
        serde_json::json!({
            "architectures": ["BertForSequenceClassification"], "vocab_size": 30522,
            "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "intermediate_size": intermediate, "hidden_act": "gelu",
            "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
            "position_embedding_type": "absolute", "gradient_checkpointing": false,
        })
    };
    for (json, expected) in [
        // BERT base and large without a head have 109,482,240 and 335,141,888.
        (bert(768, 12, 12, 3072), 109_482_240 + 2 * 769),
        (bert(1024, 24, 16, 4096), 335_141_888 + 2 * 1025),
    ] {
        let config = BertConfig::from_text("bert", json.to_string())?;
        assert_eq!(count(&mut config.model(&device, KEY, DType::BF16)?), expected);
    }
    let vit = serde_json::json!({
        "architectures": ["ViTForImageClassification"], "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "image_size": 224, "patch_size": 16, "num_channels": 3,
        "layer_norm_eps": 1e-12, "qkv_bias": true, "id2label": labels(1000),
    });
    let vit = ViTConfig::from_text("vit", vit.to_string())?;
    assert_eq!(count(&mut vit.model(&device, KEY, DType::BF16)?), 86_567_656);
    let resnet = serde_json::json!({
        "architectures": ["ResNetForImageClassification"], "depths": [3, 4, 6, 3],
        "embedding_size": 64, "hidden_act": "relu", "hidden_sizes": [256, 512, 1024, 2048],
        "layer_type": "bottleneck", "num_channels": 3, "id2label": labels(1000),
    });
    let resnet = ResNetConfig::from_text("resnet", resnet.to_string())?;
    assert_eq!(count(&mut resnet.model(&device, KEY, DType::BF16)?), 25_557_032);
    let t5 = |d_model: usize, d_ff: usize, layers: usize, heads: usize| {
        serde_json::json!({
            "architectures": ["T5ForConditionalGeneration"], "vocab_size": 32128,
            "d_model": d_model, "d_ff": d_ff, "d_kv": 64, "num_layers": layers,
            "num_heads": heads, "relative_attention_num_buckets": 32, "n_positions": 512,
            "decoder_start_token_id": 0, "pad_token_id": 0, "dropout_rate": 0.1,
            "layer_norm_epsilon": 1e-6,
        })
    };
    for (json, expected) in
        [(t5(512, 2048, 6, 8), 60_506_624), (t5(768, 3072, 12, 12), 222_903_552)]
    {
        let config = T5Config::from_text("t5", json.to_string())?;
        assert_eq!(count(&mut config.model(&device, KEY, DType::BF16)?), expected);
    }
    Ok(())
}
