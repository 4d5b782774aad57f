//! Preferred answers: the loss, its reference, and the memory.

use std::sync::Arc;

use lowtide_autograd::{Attempt, Pass};
use lowtide_data::{Bytes, Loader, LoaderOptions, PreferenceLines, Sequential};
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::{LoraOptions, Module, Parameters, adapt};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};
use lowtide_trainer::{Options, Preference, Result, Task, Trainer, upload};

use crate::common::{Kind, Run, first_batch};

const BETA: f64 = 0.3;

fn gpt(device: &Device, seed: u64) -> Gpt {
    let shape = GptShape { vocabulary: 257, context: 16, width: 16, heads: 2, blocks: 2 };
    Gpt::new(device, RandomKey::new(seed), shape).expect("memory")
}

/// A model whose adapters are not zero.
fn adapted(device: &Device, seed: u64) -> Gpt {
    let mut model = gpt(device, seed);
    adapt(&mut model, RandomKey::new(3), &LoraOptions { rank: 2, ..Default::default() })
        .expect("memory");
    model.visit(&mut |name, own| {
        if name.ends_with("lora_B.weight") {
            let key = RandomKey::new(4).op(name);
            own.value_mut().uniform_(key, -0.3, 0.3).expect("memory");
        }
    });
    model
}

/// Pairs of sums in which the right answer was chosen.
fn pairs(count: usize, batch_size: usize) -> Loader {
    let line = |at: usize| {
        let (a, b) = (at % 7, at % 5);
        format!(r#"{{"prompt": "{a}+{b}=", "chosen": "{}", "rejected": "{}{b}"}}"#, a + b, a)
    };
    let text: Vec<String> = (0..count).map(line).collect();
    let file = tempfile::NamedTempFile::with_suffix(".jsonl").expect("a folder");
    std::fs::write(file.path(), text.join("\n")).expect("a disk");
    let lines = PreferenceLines::new(Arc::new(Bytes::new().with_special("<|endoftext|>")));
    let rows = lines.read(&[file.path()]).expect("of the format").rows(10, 0).expect("a context");
    let options = LoaderOptions { batch_size, ..Default::default() };
    Loader::with_sampler(rows, Sequential, options).expect("valid options")
}

/// The log-likelihood of each row's labels, from whole logits.
fn naive(model: &Gpt, tokens: &Tensor, labels: &Tensor) -> Vec<f64> {
    let pass = Pass::eval();
    let logits = model.forward(&pass, pass.constant(tokens.clone())).expect("memory");
    let [rows, len, classes] = [0, 1, 2].map(|axis| logits.shape()[axis]);
    let logits = logits.value().to_vec::<f64>().expect("f64");
    let labels = labels.to_vec::<i64>().expect("labels");
    let one = |row: usize| {
        let places = (0..len).map(|at| row * len + at).filter(|&at| labels[at] >= 0);
        let of_place = places.map(|at| {
            let x = &logits[at * classes..(at + 1) * classes];
            x[labels[at] as usize] - x.iter().map(|x| x.exp()).sum::<f64>().ln()
        });
        of_place.sum::<f64>()
    };
    (0..rows).map(one).collect()
}

#[test]
fn loss_is_the_papers_formula_for_both_kinds_of_reference() -> Result<()> {
    let device = Run::default().device(None);
    let loader = pairs(5, 5);
    let batch = first_batch(&loader);
    let view = batch.view();
    let read = |name: &str, len: Option<usize>| -> Result<Tensor> {
        let all = upload(&device, view.field(name).expect("it is"))?;
        Ok(match len {
            Some(len) => all.narrow(1, 0, len)?.contiguous()?,
            None => all,
        })
    };
    let labels = [read("chosen.labels", None)?, read("rejected.labels", None)?];
    let tokens = [read("chosen", Some(10))?, read("rejected", Some(10))?];
    for with_adapters in [true, false] {
        let mut model = if with_adapters { adapted(&device, 1) } else { gpt(&device, 1) };
        let mut reference = if with_adapters { gpt(&device, 1) } else { gpt(&device, 2) };
        model.set_dtype(DType::F64)?;
        reference.set_dtype(DType::F64)?;
        let expected = {
            let of = |model: &Gpt, at: usize| naive(model, &tokens[at], &labels[at]);
            let [c, r] = [0, 1].map(|at| of(&model, at));
            let [c0, r0] = [0, 1].map(|at| of(&reference, at));
            let margin = |at: usize| BETA * ((c[at] - c0[at]) - (r[at] - r0[at]));
            (0..5).map(|at| (1.0 + (-margin(at)).exp()).ln()).sum::<f64>()
        };
        let task: Box<dyn Task> = if with_adapters {
            Box::new(Preference::of_adapters(model.clone(), BETA)?)
        } else {
            Box::new(Preference::with_reference(model.clone(), reference.clone(), BETA)?)
        };
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(0), &attempt);
        let loss = task.loss(&pass, &device, &view)?;
        let found = loss.sum.value().item::<f64>()?;
        assert!((found - expected).abs() < 1e-10 * expected, "{found} {expected}");
        assert_eq!(task.count(&view)?, 5.0);
        pass.backward(loss.sum)?;
        let gradients = attempt.into_gradients();
        let (mut trained, mut frozen) = (0, 0);
        model.visit(&mut |name, own| match gradients.get(own.id()) {
            Some(_) => {
                trained += 1;
                assert!(!with_adapters || name.contains("lora"), "{name}");
            }
            None => frozen += 1,
        });
        assert!(trained > 0 && (frozen > 0) == with_adapters, "{trained} {frozen}");
        reference.visit(&mut |name, own| {
            assert!(gradients.get(own.id()).is_none(), "{name} of the reference");
        });
    }
    Ok(())
}

#[test]
fn model_that_is_its_reference_has_the_loss_of_a_coin() -> Result<()> {
    let device = Run::default().device(None);
    let loader = pairs(4, 4);
    let mut model = gpt(&device, 1);
    adapt(&mut model, RandomKey::new(3), &LoraOptions::default())?;
    let task = Preference::of_adapters(model, 0.1)?;
    let score = task.score(&device, &first_batch(&loader).view())?;
    assert!((score.loss() - 2.0_f64.ln()).abs() < 1e-6, "{}", score.loss());
    Ok(())
}

#[test]
fn adapters_learn_what_is_preferred_beside_one_copy_of_the_model() {
    let (train, test) = (pairs(30, 10), pairs(10, 10));
    let run = |with_reference: bool| {
        let device = Run::default().device(None);
        let model = adapted(&device, 1);
        let kept: Vec<f32> = {
            let mut base = model.clone();
            lowtide_nn::remove_adapters(&mut base);
            let mut all = Vec::new();
            base.visit(&mut |_, own| all.extend(own.value().to_vec::<f32>().expect("f32")));
            all
        };
        let task = if with_reference {
            let reference = gpt(&device, 1);
            Preference::with_reference(model, reference, 0.5).expect("its own")
        } else {
            Preference::of_adapters(model, 0.5).expect("adapted")
        };
        let before = device.allocator().statistics().reserved.current_bytes;
        let optimizer = Kind::Adam.build(0.01);
        let mut trainer = Trainer::new(&device, task, optimizer, Options::default());
        let plan = trainer.plan(&train, &test, 6).expect("fits");
        let score = trainer.fit(&train, &test, 6, &mut []).expect("fits");
        let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
        assert_eq!(peak_bytes, plan.predicted_peak_bytes());
        let mut base = trainer.task().model().clone();
        lowtide_nn::remove_adapters(&mut base);
        let mut all = Vec::new();
        base.visit(&mut |_, own| all.extend(own.value().to_vec::<f32>().expect("f32")));
        assert!(all == kept, "the base is as it was");
        (score, before, trainer.state_hash().expect("cpu"))
    };
    let (score, before, _) = run(false);
    assert_eq!(score.accuracy(), 1.0);
    assert!(score.loss() < 0.5, "{}", score.loss());
    let (other, with_two, _) = run(true);
    // The reference has the values of the adapted model's base.
    assert_eq!((other.loss(), other.accuracy()), (score.loss(), score.accuracy()));
    assert!(with_two > before, "{with_two} {before}");
}

#[test]
fn references_that_cannot_be_are_errors() {
    let device = Run::default().device(None);
    let text = Preference::of_adapters(gpt(&device, 1), 0.1).unwrap_err().to_string();
    assert!(text.contains("no adapters"), "{text}");
    let model = gpt(&device, 1);
    let shared = Preference::with_reference(model.clone(), model.clone(), 0.1);
    let text = shared.unwrap_err().to_string();
    assert!(text.contains("shares parameters"), "{text}");
    let mut model = model;
    model.visit(&mut |name, own| assert!(!own.is_frozen(), "{name}"));
    for beta in [0.0, -1.0, f64::INFINITY] {
        assert!(Preference::with_reference(model.clone(), gpt(&device, 2), beta).is_err());
    }
    let mut task = Preference::with_reference(model, gpt(&device, 2), 0.1).expect("its own");
    let mut names = Vec::new();
    task.parameters().visit(&mut |name, own| names.push((name.to_owned(), own.is_frozen())));
    assert!(names.contains(&("tok.weight".to_owned(), false)));
    assert!(names.contains(&("reference.tok.weight".to_owned(), true)));
}
