//! Removing channels and heads from models.

use std::collections::BTreeMap;

use lowtide_allocator::{Category, Fault, Repeat};
use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::models::{
    DeepCnn, DeepCnnShape, Gpt, GptShape, Mlp, ResNet, ResNetBlock, ResNetShape, SimpleCnn,
    SimpleCnnShape, ViT, ViTShape,
};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer};
use lowtide_nn::prune::{self, ChannelOptions, Norm, Prunable};
use lowtide_nn::{
    LoraOptions, Module, NnError, Parameters, PruneProblem, RotaryEmbedding, Targets, adapt,
    cross_entropy, parameters, quantize, save,
};
use lowtide_tensor::{DType, Device, QuantFormat, RandomKey, Tensor};

use crate::common::{Outcome, bits, cpu, f32s, f64s, widen};

const KEY: RandomKey = RandomKey::new(11);
const CNN: SimpleCnnShape = SimpleCnnShape { image: [1, 8, 8], channels: 6, classes: 10 };
const DEEP: DeepCnnShape = DeepCnnShape { image: [3, 8, 8], channels: [6, 8, 10], classes: 3 };
const GPT: GptShape = GptShape { vocabulary: 11, context: 6, width: 12, heads: 4, blocks: 2 };
const VIT: ViTShape = ViTShape {
    image: 8,
    patch: 4,
    width: 8,
    heads: 2,
    hidden: 12,
    blocks: 2,
    classes: 3,
    dropout: 0.0,
};
const RESNET: ResNetShape =
    ResNetShape { block: ResNetBlock::Basic, blocks: [1, 1, 1, 1], width: 4, classes: 3 };

fn tokens(device: &Device) -> Tensor {
    Tensor::from_slice(device, [2, 5], &[1_i64, 2, 3, 4, 5, 10, 9, 8, 7, 6]).expect("memory")
}

/// All tensors that a model stores, by name.
fn stored(model: &mut dyn Parameters) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    model.visit_tensors(&mut |name, value| {
        let bytes = value.to_bytes().expect("values");
        all.insert(name.to_owned(), (value.shape().to_vec(), bytes));
    });
    all
}

fn size_bytes(model: &mut dyn Parameters) -> usize {
    let mut bytes = 0;
    model.visit(&mut |_, parameter| bytes += parameter.value().size_bytes());
    bytes
}

fn output(model: &impl Module, input: &Tensor) -> Result<Vec<f64>, NnError> {
    let pass = Pass::eval();
    Ok(model.forward(&pass, pass.constant(input.clone()))?.value().to_vec::<f64>()?)
}

/// Checks that channels of zeros can be removed from every group without changing the outputs.
#[track_caller]
fn check_zeros<M: Prunable + Module>(mut model: M, input: Tensor, group_count: usize) -> Outcome {
    widen(&mut model);
    assert_eq!(model.groups().len(), group_count);
    // Weights of the next layer stay random: only the weights that compute a channel are set to
    // zero.
    let removed = [0, 2];
    for group in model.groups() {
        for slice in group.made_by.iter().chain(group.followed_by.iter().filter(|s| s.axis == 0)) {
            model.visit_tensors(&mut |name, value| {
                if name == slice.tensor {
                    for channel in removed {
                        let begin = slice.first + channel * slice.width;
                        let part = value.narrow(slice.axis, begin, slice.width);
                        part.and_then(|mut part| part.fill_(0.0)).expect("memory");
                    }
                }
            });
        }
    }
    let before = output(&model, &input)?;
    for group in model.groups() {
        prune::remove(&mut model, &group.name, &removed)?;
    }
    let after = output(&model, &input)?;
    assert!(before.iter().any(|x| *x != before[0]), "constant");
    for (before, after) in before.iter().zip(&after) {
        assert!((before - after).abs() <= 1e-13 * before.abs().max(1.0), "{before} {after}");
    }
    Ok(())
}

#[test]
fn channels_that_are_zero_leave_with_the_outputs_unchanged() -> Outcome {
    let device = cpu();
    let image = f64s(&device, "image", [2, 1, 8, 8]);
    let colour = f64s(&device, "colour", [2, 3, 8, 8]);
    check_zeros(SimpleCnn::new(&device, KEY, CNN)?, image, 1)?;
    check_zeros(DeepCnn::new(&device, KEY, DEEP)?, colour.clone(), 3)?;
    check_zeros(Mlp::new(&device, KEY, &[5, 7, 6, 3])?, f64s(&device, "x", [4, 5]), 2)?;
    check_zeros(Gpt::new(&device, KEY, GPT)?, tokens(&device), 4)?;
    check_zeros(Gpt::gpt2(&device, KEY, GPT)?, tokens(&device), 4)?;
    let wide = GptShape { width: 16, ..GPT };
    let rotary = Gpt::new(&device, KEY, wide)?
        .with_rotary(RotaryEmbedding::new(lowtide_nn::RotaryPairs::HalfSplit))?;
    check_zeros(rotary, tokens(&device), 4)?;
    check_zeros(ResNet::new(&device, KEY, RESNET)?, f64s(&device, "large", [2, 3, 32, 32]), 4)?;
    let bottleneck = ResNetShape { block: ResNetBlock::Bottleneck, ..RESNET };
    let resnet = ResNet::new(&device, KEY, bottleneck)?;
    check_zeros(resnet, f64s(&device, "large", [2, 3, 32, 32]), 8)?;
    let mut vit = ViT::new(&device, KEY, VIT)?;
    // The last layer starts with zeros, so it gets random weights.
    vit.visit(&mut |name, own| {
        if name == "heads.head.weight" {
            *own.value_mut() = f32s(&device, "head", [3, 8]);
        }
    });
    check_zeros(vit, colour, 2)
}

#[test]
fn kept_channels_hold_their_exact_values() -> Outcome {
    let device = cpu();
    let mut model = Gpt::new(&device, KEY, GPT)?;
    let full = stored(&mut model);
    prune::remove(&mut model, "blocks.0.heads", &[3, 1])?;
    prune::remove(&mut model, "blocks.1.up", &[0, 47])?;
    let cut = stored(&mut model);
    let rows = |all: &BTreeMap<String, (Vec<usize>, Vec<u8>)>, name: &str| {
        let (shape, bytes) = all[name].clone();
        let row_bytes = bytes.len() / shape[0];
        bytes.chunks(row_bytes).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    // Heads have three features. Heads 0 and 2 of the queries, keys and values stay.
    let kept: Vec<usize> =
        (0..3).flat_map(|part| [0, 1, 2, 6, 7, 8].map(|at| 12 * part + at)).collect();
    for own in ["blocks.0.qkv.weight", "blocks.0.qkv.bias"] {
        let (old, new) = (rows(&full, own), rows(&cut, own));
        assert_eq!(new, kept.iter().map(|&at| old[at].clone()).collect::<Vec<_>>(), "{own}");
    }
    for (old, new) in
        rows(&full, "blocks.0.proj.weight").iter().zip(rows(&cut, "blocks.0.proj.weight"))
    {
        let columns: Vec<&[u8]> = old.chunks(4).collect();
        assert_eq!(new, [0, 1, 2, 6, 7, 8].map(|at| columns[at]).concat());
    }
    assert_eq!(rows(&cut, "blocks.1.up.weight"), rows(&full, "blocks.1.up.weight")[1..47]);
    assert_eq!(cut["blocks.1.down.weight"].0, [12, 46]);
    let changed = ["blocks.0.qkv", "blocks.0.proj.weight", "blocks.1.up", "blocks.1.down.weight"];
    for (name, value) in &full {
        let is_cut = changed.iter().any(|begin| name.starts_with(begin));
        assert_eq!(cut[name] == *value, !is_cut, "{name}");
    }
    Ok(())
}

#[test]
fn least_norms_go_by_l1_or_l2_and_ties_by_place() -> Outcome {
    let device = cpu();
    let model = || {
        let mut model = Mlp::new(&device, KEY, &[2, 4, 2])?;
        // Norms of the rows. L1: 4, 3.5, 4, 9; L2: 2.8, 3.5, 4, 6.4
        let rows = [2.0_f32, 2.0, 0.0, 3.5, 4.0, 0.0, 5.0, 4.0];
        let weight = Tensor::from_slice(&device, [4, 2], &rows)?;
        model.visit(&mut |name, own| match name {
            "0.weight" => *own.value_mut() = weight.clone(),
            "0.bias" => own.value_mut().fill_(0.0).expect("memory"),
            _ => {}
        });
        Ok::<_, NnError>(model)
    };
    for (norm, fraction, expected) in [
        (Norm::L1, 0.49, vec![0, 2, 3]),
        (Norm::L1, 0.5, vec![2, 3]),
        (Norm::L2, 0.49, vec![1, 2, 3]),
        (Norm::L2, 0.5, vec![2, 3]),
        (Norm::L2, 0.75, vec![3]),
        // At least one channel stays.
        (Norm::L1, 1.0, vec![3]),
        (Norm::L1, 0.0, vec![0, 1, 2, 3]),
    ] {
        let options = ChannelOptions { fraction, norm, ..Default::default() };
        let cuts = prune::channels(&mut model()?, &options)?;
        assert_eq!(cuts.len(), 1);
        assert_eq!((cuts[0].group.as_str(), cuts[0].len), ("0", 4));
        assert_eq!(cuts[0].kept, expected, "{norm:?} {fraction}");
    }
    Ok(())
}

#[test]
fn sizes_shrink_as_the_formula_says() -> Outcome {
    let device = cpu();
    let half = ChannelOptions::default();
    let cnn_bytes = |channels: usize| 4 * (channels * 9 + channels + 10 * channels * 16 + 10);
    let mut cnn = SimpleCnn::new(&device, KEY, CNN)?;
    assert_eq!(size_bytes(&mut cnn), cnn_bytes(6));
    let in_use = || {
        let statistics = device.allocator().statistics();
        statistics.by_category[Category::Parameter].current_bytes
    };
    prune::channels(&mut cnn, &half)?;
    assert_eq!(size_bytes(&mut cnn), cnn_bytes(3));
    // The bytes of a new model of that shape.
    let cut = in_use();
    drop(cnn);
    let _fresh = SimpleCnn::new(&device, KEY, SimpleCnnShape { channels: 3, ..CNN })?;
    assert_eq!(in_use(), cut);

    let GptShape { vocabulary, context, width, blocks, .. } = GPT;
    let gpt_bytes = |heads: usize, hidden: usize| {
        let features = heads * 3;
        let attention = 3 * features * (width + 1) + width * (features + 1);
        let layer = hidden * (width + 1) + width * (hidden + 1);
        let ends = (2 * vocabulary + context + 2) * width;
        4 * (blocks * (attention + layer + 4 * width) + ends)
    };
    let mut gpt = Gpt::new(&device, KEY, GPT)?;
    assert_eq!(size_bytes(&mut gpt), gpt_bytes(4, 48));
    prune::channels(&mut gpt, &half)?;
    assert_eq!(size_bytes(&mut gpt), gpt_bytes(2, 24));
    let groups = vec!["*.heads".to_owned()];
    let cuts = prune::channels(&mut gpt, &ChannelOptions { groups, ..half })?;
    assert_eq!(cuts.iter().map(|cut| cut.kept.len()).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(size_bytes(&mut gpt), gpt_bytes(1, 24));
    Ok(())
}

#[test]
fn pruned_model_is_saved_and_read_into_one_of_the_original_shape() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let mut gpt = Gpt::new(&device, KEY, GPT)?;
    widen(&mut gpt);
    prune::channels(&mut gpt, &ChannelOptions { fraction: 0.3, ..Default::default() })?;
    prune::remove(&mut gpt, "blocks.1.heads", &[0])?;
    save(&mut gpt, &path)?;
    let mut other = Gpt::new(&device, RandomKey::new(99), GPT)?;
    widen(&mut other);
    prune::load(&mut other, &path)?;
    assert_eq!(stored(&mut other), stored(&mut gpt));
    assert_eq!(output(&other, &tokens(&device))?, output(&gpt, &tokens(&device))?);

    let mut resnet = ResNet::new(&device, KEY, RESNET)?;
    prune::channels(&mut resnet, &ChannelOptions::default())?;
    save(&mut resnet, &path)?;
    let mut other = ResNet::new(&device, RandomKey::new(99), RESNET)?;
    prune::load(&mut other, &path)?;
    assert_eq!(stored(&mut other), stored(&mut resnet));
    // The file of another model.
    let error = prune::load(&mut SimpleCnn::new(&device, KEY, CNN)?, &path).unwrap_err();
    assert!(matches!(error, NnError::Weights { .. }), "{error}");
    Ok(())
}

#[test]
fn pruned_models_are_trained_by_a_new_optimizer() -> Outcome {
    let device = cpu();
    let mut model = ResNet::new(&device, KEY, RESNET)?;
    let x = f32s(&device, "x", [4, 3, 32, 32]);
    let labels = Tensor::from_slice(&device, [4], &[0_i64, 1, 2, 1])?;
    let mut optimizer = Adam::new(AdamOptions { learning_rate: 1e-2, ..Default::default() })?;
    let mut losses = Vec::new();
    for step in 0..12 {
        if step == 2 {
            // The optimizer continues. Parameters that were cut start without states.
            prune::channels(&mut model, &ChannelOptions::default())?;
        }
        let attempt = Attempt::new();
        let pass = Pass::train(KEY.step(step), &attempt);
        let loss =
            cross_entropy(model.forward(&pass, pass.constant(x.clone()))?, &labels)?.mean()?;
        losses.push(loss.value().item::<f32>()?);
        pass.backward(loss)?;
        optimizer.step(&mut model, attempt)?;
    }
    assert!(losses[11] < losses[2], "{losses:?}");
    Ok(())
}

#[test]
fn handles_of_before_keep_the_old_values_and_identities_are_new() -> Outcome {
    let device = cpu();
    let mut model = SimpleCnn::new(&device, KEY, CNN)?;
    let mut clone = model.clone();
    let before = stored(&mut model);
    model.visit(&mut |name, own| {
        if name == "conv.bias" {
            own.freeze();
        }
    });
    prune::channels(&mut model, &ChannelOptions::default())?;
    assert_eq!(stored(&mut clone), before);
    let mut ids = BTreeMap::new();
    clone.visit(&mut |name, own| _ = ids.insert(name.to_owned(), own.id()));
    model.visit(&mut |name, own| {
        assert_eq!(own.id() == ids[name], name == "linear.bias", "{name}");
        assert_eq!(own.is_frozen(), name == "conv.bias", "{name}");
    });
    Ok(())
}

#[test]
fn what_cannot_be_cut_is_an_error_that_changes_nothing() -> Outcome {
    let device = cpu();
    let mut model = Mlp::new(&device, KEY, &[64, 64, 64, 2])?;
    let before = stored(&mut model);
    let problem = |error: NnError| match error {
        NnError::Prune(problem) => problem,
        other => panic!("{other}"),
    };
    let error = problem(prune::remove(&mut model, "1", &[0]).unwrap_err());
    assert_eq!(error.to_string(), "nothing to prune is called `1`; there are 0, 2");
    let error = problem(prune::remove(&mut model, "0", &[63, 64]).unwrap_err());
    assert_eq!(error.to_string(), "0: there is no channel 64 of 64");
    let all: Vec<usize> = (0..64).collect();
    let error = problem(prune::remove(&mut model, "2", &all).unwrap_err());
    assert_eq!(error.to_string(), "2: one of the 64 channels has to stay");
    let groups = vec!["*".to_owned(), "conv".to_owned()];
    let options = ChannelOptions { groups, ..Default::default() };
    let error = problem(prune::channels(&mut model, &options).unwrap_err());
    assert!(matches!(error, PruneProblem::NoMatch { .. }));
    let options = ChannelOptions { fraction: 1.5, ..Default::default() };
    assert!(matches!(prune::channels(&mut model, &options), Err(NnError::Option { .. })));
    assert_eq!(stored(&mut model), before);

    let targets = Targets::Endings(vec!["2".to_owned()]);
    adapt(&mut model, KEY, &LoraOptions { targets: targets.clone(), ..Default::default() })?;
    let adapted = stored(&mut model);
    let error = problem(prune::channels(&mut model, &ChannelOptions::default()).unwrap_err());
    assert_eq!(error.to_string(), "2 has an adapter or is quantised; prune before that");
    assert_eq!(stored(&mut model), adapted);
    lowtide_nn::remove_adapters(&mut model);
    quantize(&mut model, &targets, QuantFormat::Nf4 { double: false })?;
    let error = problem(prune::remove(&mut model, "0", &[1]).unwrap_err());
    assert!(matches!(error, PruneProblem::Layer { .. }), "{error}");
    Ok(())
}

/// A model with groups that do not fit its tensors.
struct Wrong(Mlp);

parameters!(Wrong { 0 as "" });

impl Prunable for Wrong {
    fn groups(&self) -> Vec<prune::Group> {
        let slice = prune::Slice::new;
        let mut groups = self.0.groups();
        groups[0].followed_by.push(slice("norm.weight", 0));
        groups.push(prune::Group::new("far", 9, [slice("0.weight", 1)]));
        groups.push(prune::Group::new("deep", 1, [slice("0.weight", 2)]));
        groups
    }
}

#[test]
fn group_that_does_not_fit_the_model_is_an_error() -> Outcome {
    let device = cpu();
    let mut model = Wrong(Mlp::new(&device, KEY, &[8, 4, 2])?);
    let before = stored(&mut model);
    for (group, message) in [
        ("0", "0: norm.weight is not of 4 channels along dimension 0"),
        ("far", "far: 0.weight is not of 9 channels along dimension 1"),
    ] {
        let error = prune::remove(&mut model, group, &[0]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    assert!(prune::channels(&mut model, &ChannelOptions::default()).is_err());
    assert_eq!(stored(&mut model), before);
    Ok(())
}

#[test]
fn fault_leaves_the_model_and_the_memory_as_before() -> Outcome {
    let device = cpu();
    let memory = device.allocator();
    let mut model = ResNet::new(&device, KEY, RESNET)?;
    model.set_dtype(DType::BF16)?;
    let before = (stored(&mut model), memory.layout_hash());
    let mut failures = 0;
    for nth in 1.. {
        memory.inject_fault(Fault { nth, repeat: Repeat::Once });
        let outcome = prune::channels(&mut model, &ChannelOptions::default());
        memory.clear_fault();
        if outcome.is_ok() {
            break;
        }
        failures += 1;
        assert_eq!((stored(&mut model), memory.layout_hash()), before, "request {nth}");
    }
    assert!(failures > 20, "{failures}");
    let mut weight = Vec::new();
    model.visit(&mut |name, own| {
        if name == "layer1.0.conv1.weight" {
            weight = own.value().shape().to_vec();
        }
    });
    assert_eq!(weight, [2, 4, 3, 3]);
    Ok(())
}

#[test]
fn mapped_model_is_cut_without_its_file() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let mut model = SimpleCnn::new(&device, KEY, CNN)?;
    save(&mut model, &path)?;
    let mut mapped = SimpleCnn::new(&device, RandomKey::new(99), CNN)?;
    lowtide_nn::map(&mut mapped, &path)?;
    let file = std::fs::read(&path)?;
    for model in [&mut model, &mut mapped] {
        prune::channels(model, &ChannelOptions::default())?;
    }
    assert_eq!(stored(&mut mapped), stored(&mut model));
    assert_eq!(std::fs::read(&path)?, file);
    model.visit(&mut |_, own| assert!(!bits(own.value()).is_empty()));
    Ok(())
}
