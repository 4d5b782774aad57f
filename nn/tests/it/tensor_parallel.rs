//! Models whose heads, hidden features and vocabulary are shared by ranks: the gradients equal
//! those on one rank.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use lowtide_allocator::{Fault, Repeat};
use lowtide_autograd::{Attempt, Pass, SavedPolicy};
use lowtide_nn::models::{Gpt, GptShape, Seq2Seq, Seq2SeqShape, ViT, ViTShape};
use lowtide_nn::parallel::{Sum, share_layers};
use lowtide_nn::{
    Linear, LinearCrossEntropyOptions, Logits, Loss, Module, MultiHeadAttention, MultiHeadOptions,
    NnResult, Parameters, RotaryEmbedding, RotaryPairs, Sequential, TransformerEncoderLayer,
    TransformerOptions, cross_entropy, mse,
};
use lowtide_tensor::{DType, Device, Tensor, TensorError};

use crate::common::{KEY, cpu, f64s, values};

/// The meeting point of ranks in threads, at which values are summed.
#[derive(Debug)]
struct Meeting {
    barrier: Barrier,
    given: Mutex<Vec<Vec<f64>>>,
    count: usize,
}

#[derive(Debug)]
struct ByTurns(Arc<Meeting>, usize);

impl Sum for ByTurns {
    fn sum(&self, x: &mut Tensor) -> NnResult<()> {
        let ByTurns(meeting, index) = self;
        assert!(x.layout().is_contiguous());
        let own = x.to_dtype(DType::F64)?.to_vec::<f64>()?;
        meeting.given.lock().expect("no panic")[*index] = own;
        meeting.barrier.wait();
        let given = meeting.given.lock().expect("no panic").clone();
        meeting.barrier.wait();
        let mut sum = vec![0.0; x.element_count()];
        for of_rank in &given {
            assert_eq!(of_rank.len(), sum.len(), "ranks add up different things");
            sum.iter_mut().zip(of_rank).for_each(|(sum, own)| *sum += own);
        }
        let sum = Tensor::from_slice(x.device(), [sum.len()], &sum)?;
        Ok(x.copy_(&sum.reshape(*x.shape())?.to_dtype(x.dtype())?)?)
    }
}

/// Loss, gradients by name, and the tensor that is compared too.
type Outcome = (f64, BTreeMap<String, Vec<f64>>, Vec<f64>);

/// Returns the loss of a model, and a tensor that is compared too.
type Run<'a, M> = dyn Fn(&M, &Device, &Pass) -> NnResult<(Loss, Tensor)> + 'a;

/// The results of rank `index` of `count`. Gradients have the shapes of whole parameters, with NaN
/// in the shards of other ranks.
fn outcome<M: Parameters>(
    build: &dyn Fn(&Device) -> NnResult<M>,
    (index, count): (usize, usize),
    sum: Arc<dyn Sum>,
    run: &Run<'_, M>,
) -> NnResult<Outcome> {
    let device = cpu();
    let mut model = build(&device)?;
    model.set_dtype(DType::F64)?;
    if count > 1 {
        assert!(share_layers(&mut model, &device, (index, count), &sum)? > 0);
    }
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let (loss, seen) = run(&model, &device, &pass)?;
    let total = loss.sum.value().to_vec::<f64>()?[0];
    pass.backward(loss.sum)?;
    let mut gradients = attempt.into_gradients();
    let mut by_name = BTreeMap::new();
    let mut outcome = Ok(());
    model.visit(&mut |name, parameter| {
        let Some(gradient) = gradients.remove(parameter.id()) else { return };
        assert_eq!(gradient.shape(), parameter.value().shape(), "{name}");
        let whole = match parameter.shard() {
            Some(shard) => {
                let mut whole = Tensor::zeros(&device, *shard.shape(), DType::F64).expect("memory");
                whole.fill_(f64::NAN).expect("floats");
                assert_eq!(shard.shape_of(index), *gradient.shape());
                let back = shard.put(&whole, index, &gradient);
                let again = shard.own_of(&whole).and_then(|own| Ok(own.to_vec::<f64>()?));
                assert_eq!(again.expect("memory"), gradient.to_vec::<f64>().expect("f64"));
                outcome = std::mem::replace(&mut outcome, Ok(())).and(back);
                whole
            }
            None => gradient,
        };
        by_name.insert(name.to_owned(), whole.to_vec::<f64>().expect("f64"));
    });
    outcome?;
    Ok((total, by_name, seen.to_vec::<f64>()?))
}

/// Runs `run` on one rank and on several. Compares loss, tensor and gradients. Gradients of
/// parameters that every rank has as a whole must have equal bits on all ranks.
fn check<M: Parameters>(
    counts: &[usize],
    build: impl Fn(&Device) -> NnResult<M> + Sync,
    run: impl Fn(&M, &Device, &Pass) -> NnResult<(Loss, Tensor)> + Sync,
) {
    let ran = |index: usize, count: usize, meeting: &Arc<Meeting>| {
        let sum = Arc::new(ByTurns(Arc::clone(meeting), index));
        outcome(&build, (index, count), sum, &run).expect("memory")
    };
    let meeting_of = |count: usize| {
        let (barrier, given) = (Barrier::new(count), Mutex::new(vec![Vec::new(); count]));
        Arc::new(Meeting { barrier, given, count })
    };
    let (loss, gradients, seen) = ran(0, 1, &meeting_of(1));
    for &count in counts {
        let meeting = meeting_of(count);
        assert_eq!(meeting.count, count);
        let outcomes: Vec<Outcome> = thread::scope(|scope| {
            let start = |index| {
                let (ran, meeting) = (&ran, &meeting);
                scope.spawn(move || ran(index, count, meeting))
            };
            let started: Vec<_> = (0..count).map(start).collect();
            started.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        let is_near = |a: f64, b: f64| (a - b).abs() <= 1e-11 * (1.0 + b.abs());
        for (own_loss, own, own_seen) in &outcomes {
            assert!(is_near(*own_loss, loss), "{count} ranks: {own_loss} and {loss}");
            assert_eq!(own.keys().collect::<Vec<_>>(), gradients.keys().collect::<Vec<_>>());
            assert!(own_seen.iter().zip(&seen).all(|(&a, &b)| is_near(a, b)));
            assert_eq!(own_seen.len(), seen.len());
        }
        for (name, whole) in &gradients {
            for (at, &expected) in whole.iter().enumerate() {
                let found: Vec<f64> = outcomes
                    .iter()
                    .map(|(_, own, _)| own[name][at])
                    .filter(|x| !x.is_nan())
                    .collect();
                assert!(!found.is_empty() && (found.len() == 1 || found.len() == count));
                assert!(
                    found.iter().all(|&own| is_near(own, expected)),
                    "{count} ranks, {name} at {at}: {found:?} and {expected}"
                );
                assert!(found.iter().all(|own| own.to_bits() == found[0].to_bits()), "{name}");
            }
        }
    }
}

const SHAPE: GptShape = GptShape { vocabulary: 29, context: 9, width: 24, heads: 4, blocks: 2 };

fn tokens(device: &Device, name: &str, shape: [usize; 2], below: usize) -> Tensor {
    let numbers = values(name, shape[0] * shape[1]);
    let numbers = numbers.into_iter().map(|x| ((x + 1.0) / 2.0 * below as f64) as i64);
    Tensor::from_slice(device, shape, &numbers.collect::<Vec<_>>()).expect("memory")
}

fn gpt_loss(
    model: &Gpt,
    device: &Device,
    pass: &Pass,
    options: LinearCrossEntropyOptions,
) -> NnResult<(Loss, Tensor)> {
    let input = tokens(device, "input", [3, 7], SHAPE.vocabulary);
    let labels = tokens(device, "labels", [3, 7], SHAPE.vocabulary);
    labels.narrow(1, 0, 2)?.fill_(-100.0)?;
    let loss = model.loss(pass, pass.constant(input.clone()), &labels, options)?;
    let unrecorded = Pass::eval();
    let logits = model.forward(&unrecorded, unrecorded.constant(input))?;
    Ok((loss, logits.value().contiguous()?))
}

#[test]
fn a_gpt_on_several_ranks_has_the_gradients_of_one() {
    let plain = LinearCrossEntropyOptions::default();
    let smoothed = LinearCrossEntropyOptions { label_smoothing: 0.1, ..plain };
    let with_heads =
        |model: &Gpt, device: &Device, pass: &Pass| gpt_loss(model, device, pass, plain);
    check(&[2, 3, 4], |device| Gpt::new(device, KEY, SHAPE), with_heads);
    let of_table =
        |model: &Gpt, device: &Device, pass: &Pass| gpt_loss(model, device, pass, smoothed);
    check(&[2, 3, 4], |device| Gpt::gpt2(device, KEY, SHAPE), of_table);
    let recomputed = |device: &Device| {
        let mut model = Gpt::gpt2(device, KEY, SHAPE)?;
        model = model.with_rotary(RotaryEmbedding::new(RotaryPairs::HalfSplit))?;
        model.set_policy(Some(SavedPolicy::Recompute));
        Ok(model)
    };
    check(&[2, 4], recomputed, with_heads);
}

#[test]
fn with_fewer_heads_than_ranks_each_has_all_of_them() {
    let run = |model: &Gpt, device: &Device, pass: &Pass| {
        gpt_loss(model, device, pass, LinearCrossEntropyOptions::default())
    };
    check(&[5], |device| Gpt::new(device, KEY, SHAPE), run);
}

#[test]
fn logits_of_a_shared_vocabulary_are_those_of_the_whole_one() {
    // Returns a loss that takes all logits, and likelihoods of sequences.
    let run = |model: &Gpt, device: &Device, pass: &Pass| {
        let input = tokens(device, "input", [3, 7], SHAPE.vocabulary);
        let labels = tokens(device, "labels", [3, 7], SHAPE.vocabulary);
        let logits = model.forward(pass, pass.constant(input.clone()))?;
        let loss = Logits::Whole(logits).cross_entropy(&labels)?;
        let unrecorded = Pass::eval();
        let logits = model.logits(&unrecorded, unrecorded.constant(input))?;
        assert_eq!(logits.classes(), SHAPE.vocabulary);
        let likelihoods = logits.log_likelihoods(&labels)?;
        Ok((loss, likelihoods.value().contiguous()?))
    };
    check(&[2, 3], |device| Gpt::gpt2(device, KEY, SHAPE), run);
}

#[test]
fn a_token_outside_a_shared_vocabulary_is_an_error() {
    for (index, bad) in [(0, 29_i64), (1, 29), (0, -1), (1, 40)] {
        let meeting =
            Meeting { barrier: Barrier::new(1), given: Mutex::new(vec![Vec::new(); 2]), count: 2 };
        let device = cpu();
        let mut model = Gpt::gpt2(&device, KEY, SHAPE).expect("memory");
        let sum: Arc<dyn Sum> = Arc::new(ByTurns(Arc::new(meeting), index));
        share_layers(&mut model, &device, (index, 2), &sum).expect("memory");
        let pass = Pass::eval();
        let input = Tensor::from_slice(&device, [1, 1], &[bad]).expect("memory");
        let found = model.forward(&pass, pass.constant(input)).map(drop);
        let error = found.expect_err("there is no such token").to_string();
        assert!(error.contains("index"), "{error}");
    }
}

#[test]
fn an_image_model_on_several_ranks_has_the_gradients_of_one() {
    let shape = ViTShape {
        image: 8,
        patch: 4,
        width: 12,
        heads: 3,
        hidden: 20,
        blocks: 2,
        classes: 5,
        dropout: 0.0,
    };
    let build =
        |device: &Device| {
            let mut model = ViT::new(device, KEY, shape)?;
            // The head and the class token start with zeros and would pass no gradient on.
            let mut outcome = Ok(());
            model.visit(&mut |name, parameter| {
                outcome = std::mem::replace(&mut outcome, Ok(()))
                    .and(parameter.value_mut().normal_(KEY.op(name), 0.0, 0.3));
            });
            outcome?;
            Ok(model)
        };
    check(&[2, 3], build, |model: &ViT, device, pass| {
        let logits = model.forward(pass, pass.constant(f64s(device, "x", [2, 3, 8, 8])))?;
        let labels = Tensor::from_slice(device, [2], &[1i64, 4])?;
        let seen = logits.value().contiguous()?;
        Ok((cross_entropy(logits, &labels)?, seen))
    });
}

#[test]
fn a_translation_model_on_several_ranks_has_the_gradients_of_one() {
    let options = TransformerOptions { hidden: 10, dropout: 0.0, ..TransformerOptions::new(12, 4) };
    let shape = Seq2SeqShape {
        source_vocabulary: 11,
        target_vocabulary: 13,
        context: 8,
        layers: [2, 2],
        options,
    };
    check(
        &[2, 3],
        |device| Seq2Seq::new(device, KEY, shape),
        |model: &Seq2Seq, device, pass| {
            let source = tokens(device, "source", [2, 6], 11);
            let target = tokens(device, "target", [2, 5], 13);
            let logits = model.logits(pass, [&source, &target], [None, None])?;
            let seen = logits.value().contiguous()?;
            let labels = tokens(device, "labels", [2, 5], 13);
            Ok((Logits::Whole(logits).cross_entropy(&labels)?, seen))
        },
    );
}

#[test]
fn layers_of_a_chain_are_shared_with_the_gradients_of_one_rank() {
    let options = TransformerOptions { hidden: 10, dropout: 0.0, ..TransformerOptions::new(12, 4) };
    let build = |device: &Device| {
        let layer = |key: &str| TransformerEncoderLayer::new(device, KEY.op(key), options);
        Ok(Sequential::new().then(layer("first")?).then(layer("second")?))
    };
    let mut chain = build(&cpu()).expect("memory");
    let (barrier, given) = (Barrier::new(1), Mutex::default());
    let sum: Arc<dyn Sum> = Arc::new(ByTurns(Arc::new(Meeting { barrier, given, count: 2 }), 0));
    let shared = share_layers(&mut chain, &cpu(), (0, 2), &sum).expect("memory");
    assert_eq!(shared, 4, "the heads and the hidden features of each layer");
    check(&[2, 3], build, |model: &Sequential, device, pass| {
        let y = model.forward(pass, pass.constant(f64s(device, "x", [2, 5, 12])))?;
        let seen = y.value().contiguous()?;
        Ok((mse(y, &f64s(device, "t", [2, 5, 12]))?, seen))
    });
}

#[test]
fn groups_of_heads_go_to_ranks_together() {
    let options = MultiHeadOptions { groups: 3, zero_key: true, ..MultiHeadOptions::new(24, 6) };
    let build = |device: &Device| MultiHeadAttention::new(device, KEY, options);
    check(&[2, 3], build, |model: &MultiHeadAttention, device, pass| {
        let (x, memory) = (f64s(device, "x", [2, 4, 24]), f64s(device, "memory", [2, 5, 24]));
        let [x, memory] = [x, memory].map(|x| pass.constant(x));
        let (y, weights) = model.attend_with_weights(pass, x.clone(), memory.clone(), None)?;
        let z = model.attend(pass, x.clone(), memory, None)?.add(model.forward(pass, x)?)?;
        drop(weights);
        let seen = y.value().contiguous()?;
        Ok((mse(y.add(z)?, &f64s(device, "t", [2, 4, 24]))?, seen))
    });
}

#[test]
fn what_cannot_be_shared_stays_whole_and_memory_that_lacks_changes_nothing()
-> Result<(), TensorError> {
    let device = cpu();
    let sum = || -> Arc<dyn Sum> {
        let (barrier, given) = (Barrier::new(1), Mutex::default());
        Arc::new(ByTurns(Arc::new(Meeting { barrier, given, count: 2 }), 0))
    };
    let mut plain = Linear::new(&device, KEY, 4, 4).expect("memory");
    assert_eq!(share_layers(&mut plain, &device, (0, 2), &sum()).expect("memory"), 0);
    let mut model = Gpt::new(&device, KEY, SHAPE).expect("memory");
    let learned = MultiHeadOptions { learned_key: true, ..MultiHeadOptions::new(8, 2) };
    let mut attention = MultiHeadAttention::new(&device, KEY, learned).expect("memory");
    assert_eq!(share_layers(&mut attention, &device, (0, 2), &sum()).expect("memory"), 0);

    let mut before = Vec::new();
    model.visit(&mut |_, parameter| before.push(parameter.value().to_vec::<f32>()));
    let nth = 7;
    device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
    let error = share_layers(&mut model, &device, (0, 2), &sum()).expect_err("memory fails");
    assert!(error.out_of_memory().is_some_and(|ledger| ledger.injected), "{error}");
    let mut after = Vec::new();
    model.visit(&mut |_, parameter| {
        assert!(parameter.shard().is_none());
        after.push(parameter.value().to_vec::<f32>());
    });
    assert_eq!(before.len(), after.len());
    for (before, after) in before.into_iter().zip(after) {
        assert_eq!(before?, after?);
    }
    // A file of one rank would not hold the model.
    share_layers(&mut model, &device, (0, 2), &sum()).expect("memory");
    let error = lowtide_nn::to_safetensors(&mut model).expect_err("it has parts");
    assert!(error.to_string().contains("divided among ranks"), "{error}");
    Ok(())
}
