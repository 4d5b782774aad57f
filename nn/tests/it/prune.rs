//! Pruning of weights: the choice of the weights, and that pruned weights stay zero.

use std::collections::BTreeSet;

use lowtide_allocator::{BLOCK_BYTES, Category, Fault, Repeat};
use lowtide_autograd::{Attempt, Gradients, Pass};
use lowtide_nn::models::Mlp;
use lowtide_nn::optim::{
    Adam, AdamOptions, Averaged, Masked, Momentum, Optimizer, Scheduled, Sgd, SgdOptions, Stateful,
    load_state, save_state,
};
use lowtide_nn::prune::{self, MagnitudeOptions, Masks, Scope};
use lowtide_nn::{Module, NnError, Parameter, Parameters, PruneProblem, WeightsProblem};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::common::{
    Named, Outcome, all_bits, bits, cpu, f32s, f64s, optimizers, state_bits, values,
};

fn named(parameters: Vec<(&str, Tensor)>) -> Named {
    let name = |(name, value): (&str, Tensor)| (name.to_owned(), Parameter::new(value));
    Named(parameters.into_iter().map(name).collect())
}

fn options(fraction: f64, scope: Scope) -> MagnitudeOptions {
    MagnitudeOptions { fraction, scope, ..Default::default() }
}

fn floats(model: &Named, index: usize) -> Vec<f64> {
    let value = model.0[index].1.value().to_dtype(DType::F64).expect("memory");
    value.to_vec().expect("values")
}

#[test]
fn smallest_weights_of_all_or_of_each_parameter_become_zero_and_ties_go_by_place() -> Outcome {
    let device = cpu();
    let model = || {
        let a = Tensor::from_slice(&device, [2, 2], &[-1.0_f64, 8.0, -2.0, 9.0])?;
        let b = Tensor::from_slice(&device, [3, 2], &[3.0, -2.0, f64::NAN, 2.0, 7.0, -0.0])?;
        let bias = Tensor::from_slice(&device, [2], &[0.1_f64, 0.2])?;
        Ok::<_, NnError>(named(vec![("a", a), ("b", b), ("bias", bias)]))
    };
    let mut of_all = model()?;
    // Prunes -0, 1, and the first two of three values of magnitude 2.
    let masks = prune::magnitude(&mut of_all, &options(0.4, Scope::Global))?;
    assert_eq!(floats(&of_all, 0), [0.0, 8.0, 0.0, 9.0]);
    let b = floats(&of_all, 1);
    assert!(b[2].is_nan());
    assert_eq!([b[0], b[1], b[3], b[4], b[5]], [3.0, 0.0, 2.0, 7.0, 0.0]);
    assert!(b[5].is_sign_positive());
    assert_eq!(floats(&of_all, 2), [0.1, 0.2], "biases are left alone");
    let mask = |masks: &Masks, model: &Named, at: usize| {
        let mask = masks.get(model.0[at].1.id()).cloned();
        mask.map(|mask| mask.to_vec::<bool>()).transpose()
    };
    assert_eq!(mask(&masks, &of_all, 0)?, Some(vec![true, false, true, false]));
    assert_eq!((masks.len(), masks.size_bytes()), (2, 10));

    let mut of_each = model()?;
    let masks = prune::magnitude(&mut of_each, &options(0.5, Scope::PerParameter))?;
    assert_eq!(floats(&of_each, 0), [0.0, 8.0, 0.0, 9.0]);
    assert_eq!(mask(&masks, &of_each, 1)?, Some(vec![false, true, false, true, false, true]));
    // Weights that are zero already count.
    let before = all_bits(&mut of_each);
    prune::magnitude(&mut of_each, &options(0.5, Scope::PerParameter))?;
    assert_eq!(all_bits(&mut of_each), before);

    let mut none = model()?;
    assert!(prune::magnitude(&mut none, &options(0.0, Scope::Global))?.is_empty());
    let targets = vec!["b".to_owned()];
    let only_b = MagnitudeOptions { targets, ..options(1.0, Scope::Global) };
    prune::magnitude(&mut none, &only_b)?;
    assert_eq!(floats(&none, 0), [-1.0, 8.0, -2.0, 9.0]);
    assert_eq!(floats(&none, 1), [0.0; 6]);
    Ok(())
}

#[test]
fn any_fraction_of_any_type_is_that_of_a_sorted_list() -> Outcome {
    let device = cpu();
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for fraction in [0.001, 0.3, 0.5, 0.97, 1.0] {
            // In steps of 1/64 over many orders of magnitude, so that there are ties.
            let coarse = |name: &str, shape: [usize; 2]| {
                let values = values(name, shape[0] * shape[1]).into_iter();
                let values: Vec<f64> =
                    values.map(|x| (x * 64.0).round() / 64.0 * (x * 9.0).exp()).collect();
                Tensor::from_slice(&device, shape, &values)?.to_dtype(dtype)
            };
            let parameters = vec![("a", coarse("a", [30, 7])?), ("b", coarse("b", [11, 20])?)];
            let mut model = named(parameters);
            let all: Vec<f64> = [floats(&model, 0), floats(&model, 1)].concat();
            let mut order: Vec<usize> = (0..all.len()).collect();
            order.sort_by(|&a, &b| all[a].abs().total_cmp(&all[b].abs()));
            let count = (fraction * all.len() as f64).round() as usize;
            let pruned: BTreeSet<usize> = order[..count].iter().copied().collect();
            prune::magnitude(&mut model, &options(fraction, Scope::Global))?;
            let found = [floats(&model, 0), floats(&model, 1)].concat();
            for (index, (found, value)) in found.into_iter().zip(all).enumerate() {
                let expected = if pruned.contains(&index) { 0.0 } else { value };
                assert_eq!(found, expected, "{dtype} {fraction} {index}");
            }
        }
    }
    Ok(())
}

#[test]
fn n_of_m_keeps_the_largest_of_each_run_along_the_inputs() -> Outcome {
    let device = cpu();
    let parameters =
        vec![("linear", f32s(&device, "l", [3, 8])), ("conv", f32s(&device, "c", [2, 4, 3, 1]))];
    let mut model = named(parameters);
    let before = [floats(&model, 0), floats(&model, 1)];
    prune::n_of_m(&mut model, [2, 4], &["*".to_owned()])?;
    for (at, (inputs, inner)) in [(8, 1), (4, 3)].into_iter().enumerate() {
        let (old, new) = (&before[at], floats(&model, at));
        assert_eq!(new.iter().filter(|x| **x == 0.0).count() * 2, new.len());
        for index in 0..old.len() {
            let (input, inner_at) = (index / inner % inputs, index % inner);
            let row = index / inner / inputs * inputs * inner;
            let run = (input / 4 * 4..input / 4 * 4 + 4).map(|i| old[row + i * inner + inner_at]);
            let larger = run.filter(|x| x.abs() > old[index].abs()).count();
            assert_eq!(new[index], if larger < 2 { old[index] } else { 0.0 }, "{at} {index}");
        }
    }
    let error = prune::n_of_m(&mut model, [2, 3], &["linear".to_owned()]).unwrap_err();
    let NnError::Prune(PruneProblem::Inputs { name, inputs: 8, of: 3 }) = error else {
        panic!("{error}")
    };
    assert_eq!(name, "linear");
    assert!(prune::n_of_m(&mut model, [4, 4], &["*".to_owned()]).is_err());
    Ok(())
}

/// A model with a weight that is large enough for states in 8 bits, and the masks of the model.
fn pruned(device: &Device) -> Result<(Named, Masks), NnError> {
    let mut model = named(vec![
        ("weight", f32s(device, "weight", [64, 80])),
        ("small", f32s(device, "small", [4, 6])),
        ("bias", f32s(device, "bias", [5])),
    ]);
    let masks = prune::magnitude(&mut model, &options(0.6, Scope::PerParameter))?;
    Ok((model, masks))
}

pub(crate) fn gradients(model: &Named, name: &str) -> Gradients {
    let mut gradients = Gradients::default();
    for (own, parameter) in &model.0 {
        let value = parameter.value();
        let values = values(&format!("{name} {own}"), value.element_count());
        let values: Vec<f32> = values.into_iter().map(|x| x as f32).collect();
        let gradient = Tensor::from_slice(value.device(), *value.shape(), &values);
        gradients.insert(parameter.id(), gradient.expect("memory"));
    }
    gradients
}

/// Prepares and commits an update; `name` determines the gradients.
fn update(optimizer: &mut dyn Optimizer, model: &mut Named, name: &str) -> Result<(), NnError> {
    let gradients = gradients(model, name);
    optimizer.prepare(model, gradients)?.commit()
}

/// Every kind of optimizer, and some with states in 8 bits.
fn every_optimizer() -> Vec<(String, Box<dyn Stateful>)> {
    let mut all = Vec::new();
    for (name, optimizer) in optimizers() {
        if let Some(eight_bit) = optimizer.eight_bit() {
            all.push((format!("{name}, 8-bit"), eight_bit));
        }
        all.push((name.to_owned(), optimizer));
    }
    all
}

#[test]
fn pruned_weights_are_exact_zeros_after_ten_steps_of_every_optimizer() -> Outcome {
    let device = cpu();
    for (name, mut plain) in every_optimizer() {
        let (mut model, masks) = pruned(&device)?;
        // The momentum before pruning covers all weights.
        let warm = gradients(&model, "before");
        plain.prepare(&mut model, warm)?.commit()?;
        masks.apply(&mut model)?;
        let before = all_bits(&mut model);
        let mut optimizer = Masked::new(plain, masks.clone());
        for step in 0..10 {
            let gradients = gradients(&model, &step.to_string());
            let update = optimizer.prepare(&mut model, gradients)?;
            let seal = device.allocator().seal();
            update.commit()?;
            drop(seal);
            for (own, parameter) in &model.0 {
                let Some(mask) = masks.get(parameter.id()) else { continue };
                let pairs = bits(parameter.value()).into_iter().zip(mask.to_vec::<bool>()?);
                let moved = pairs.filter(|(bits, pruned)| *pruned && *bits != 0).count();
                assert_eq!(moved, 0, "{name}, {own}, step {step}");
            }
        }
        let after = all_bits(&mut model);
        for ((own, before), (_, after)) in before.iter().zip(&after) {
            let moved = before.iter().zip(after).filter(|(a, b)| a != b).count();
            assert!(moved * 10 >= before.len() * 3, "{name}: {own} is not trained");
        }
    }
    Ok(())
}

#[test]
fn other_weights_are_trained_as_if_pruned_ones_had_no_gradient() -> Outcome {
    let device = cpu();
    for ((name, plain), (_, twin)) in every_optimizer().into_iter().zip(every_optimizer()) {
        let (mut model, masks) = pruned(&device)?;
        let (mut other, other_masks) = pruned(&device)?;
        let (mut masked, mut twin) = (Masked::new(plain, masks), twin);
        for step in 0..5 {
            update(&mut masked, &mut model, &step.to_string())?;
            let mut by_hand = gradients(&other, &step.to_string());
            for (_, parameter) in &other.0 {
                if let Some(mask) = other_masks.get(parameter.id()) {
                    let gradient = by_hand.remove(parameter.id()).expect("there");
                    by_hand.insert(parameter.id(), gradient.masked_fill(mask, 0.0)?);
                }
            }
            twin.prepare(&mut other, by_hand)?.commit()?;
            other_masks.apply(&mut other)?;
            assert_eq!(all_bits(&mut model), all_bits(&mut other), "{name}, step {step}");
        }
    }
    Ok(())
}

#[test]
fn one_parameter_after_the_other_has_the_bits_of_all_at_once() -> Outcome {
    let device = cpu();
    let mut fused_count = 0;
    for ((name, one), (_, other)) in every_optimizer().into_iter().zip(every_optimizer()) {
        let (mut model, masks) = pruned(&device)?;
        let (mut twin, twin_masks) = pruned(&device)?;
        let (mut at_once, mut fused) = (Masked::new(one, masks), Masked::new(other, twin_masks));
        if !fused.can_fuse() {
            continue;
        }
        fused_count += 1;
        for step in 0..3 {
            update(&mut at_once, &mut model, &step.to_string())?;
            let mut gradients = gradients(&twin, &step.to_string());
            let leaves: Vec<_> = twin.0.iter().map(|(_, parameter)| parameter.id()).collect();
            let all = leaves.iter().copied().collect();
            let mut update = fused.fused(&mut twin, &all)?.expect("can");
            for leaf in leaves.into_iter().rev() {
                update.apply(leaf, gradients.remove(leaf).expect("there"))?;
            }
            update.finish()?;
            assert_eq!(all_bits(&mut model), all_bits(&mut twin), "{name}, step {step}");
        }
        assert_eq!(at_once.steps(), fused.steps());
    }
    assert!(fused_count > 10, "{fused_count}");
    Ok(())
}

#[test]
fn dropped_update_leaves_weights_states_and_masks_alone() -> Outcome {
    let device = cpu();
    let (mut model, masks) = pruned(&device)?;
    let mut optimizer = Masked::new(Adam::new(AdamOptions::adamw())?, masks);
    update(&mut optimizer, &mut model, "0")?;
    let mask_bytes = |optimizer: &Masked<Adam>| {
        let masks = optimizer.masks();
        let masks = model.0.iter().filter_map(|(_, parameter)| masks.get(parameter.id()));
        masks.map(|mask| mask.to_bytes().expect("values")).collect::<Vec<_>>()
    };
    let masks_before = mask_bytes(&optimizer);
    let live = device.allocator().layout_hash();
    let before = all_bits(&mut model.clone());
    drop(optimizer.prepare(&mut model.clone(), gradients(&model, "1"))?);
    assert_eq!(all_bits(&mut model.clone()), before);
    assert_eq!(mask_bytes(&optimizer), masks_before);
    assert_eq!((optimizer.steps(), device.allocator().layout_hash()), (1, live));
    // A commit of frozen parameters fails and writes nothing, as at the end of a step.
    model.0[0].1.value().freeze();
    assert!(update(&mut optimizer, &mut model, "1").is_err());
    model.0[0].1.value().unfreeze();
    assert_eq!(all_bits(&mut model), before);
    Ok(())
}

#[test]
fn masks_are_stored_with_the_state_and_training_goes_on_to_the_same_bits() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("optimizer.safetensors");
    let (mut model, masks) = pruned(&device)?;
    let mut optimizer = Masked::new(Adam::new(AdamOptions::adamw())?, masks);
    update(&mut optimizer, &mut model, "0")?;
    save_state(&optimizer, &mut model, &path)?;

    let (mut other, _) = pruned(&device)?;
    for (one, other) in model.0.iter().zip(&mut other.0) {
        other.1.value_mut().copy_(one.1.value())?;
    }
    let mut restored = Masked::new(Adam::new(AdamOptions::adamw())?, Masks::default());
    load_state(&mut restored, &mut other, &path)?;
    assert_eq!(restored.masks().len(), 2);
    for name in ["1", "2"] {
        update(&mut optimizer, &mut model, name)?;
        update(&mut restored, &mut other, name)?;
    }
    assert_eq!(all_bits(&mut other), all_bits(&mut model));

    // A state without masks does not fit a pruned model.
    let mut plain = Adam::new(AdamOptions::adamw())?;
    update(&mut plain, &mut other, "3")?;
    let state = plain.state(&mut other)?;
    let error = restored.set_state(&mut other, state).unwrap_err();
    let NnError::State { name, problem: WeightsProblem::Missing } = error else {
        panic!("{error}")
    };
    assert_eq!((name.as_str(), restored.masks().len()), ("weight.pruned", 2));
    Ok(())
}

#[test]
fn masks_take_a_byte_for_each_weight_and_count_as_state() -> Outcome {
    let device = cpu();
    let state_bytes = || {
        let statistics = device.allocator().statistics();
        statistics.by_category[Category::OptimizerState].current_bytes
    };
    let (mut model, masks) = pruned(&device)?;
    assert_eq!(masks.size_bytes(), 64 * 80 + 4 * 6);
    let block = |bytes: usize| bytes.next_multiple_of(BLOCK_BYTES);
    let mask_bytes = block(64 * 80) + block(4 * 6);
    assert_eq!(state_bytes(), mask_bytes);
    let plain = Sgd::new(SgdOptions { momentum: 0.9, ..SgdOptions::new(0.1) })?;
    let momentum_bytes = plain.memory(&mut model).state_bytes;
    let mut optimizer = Masked::new(plain, masks);
    assert_eq!(optimizer.memory(&mut model).state_bytes, mask_bytes + momentum_bytes);
    update(&mut optimizer, &mut model, "0")?;
    assert_eq!(state_bytes(), mask_bytes + momentum_bytes);
    Ok(())
}

#[test]
fn averages_are_masked_while_they_are_evaluated() -> Outcome {
    let device = cpu();
    let mut model = named(vec![("weight", f64s(&device, "weight", [6, 8]))]);
    let averaged = Averaged::new(Sgd::new(SgdOptions::new(0.1))?, 0.9)?;
    let mut averaged = averaged;
    let gradient = |name: &str, model: &Named| {
        let mut gradients = Gradients::default();
        gradients.insert(model.0[0].1.id(), f64s(&device, name, [6, 8]));
        gradients
    };
    let gradients = gradient("0", &model);
    averaged.prepare(&mut model, gradients)?.commit()?;
    let masks = prune::magnitude(&mut model, &options(0.5, Scope::Global))?;
    let mask = masks.get(model.0[0].1.id()).expect("half").to_vec::<bool>()?;
    let mut optimizer = Masked::new(averaged, masks);
    let gradients = gradient("1", &model);
    optimizer.prepare(&mut model, gradients)?.commit()?;
    let before = all_bits(&mut model);
    for is_average in [true, false] {
        assert!(optimizer.swap_averages(&mut model)?);
        for (bits, pruned) in bits(model.0[0].1.value()).into_iter().zip(&mask) {
            assert_eq!(bits == 0, *pruned);
        }
        assert_eq!(all_bits(&mut model) != before, is_average);
    }
    Ok(())
}

#[test]
fn fault_leaves_the_model_and_the_memory_as_before() -> Outcome {
    let device = cpu();
    let memory = device.allocator();
    let mut model = named(vec![
        ("a", f32s(&device, "a", [4, 6])),
        ("half", f32s(&device, "half", [4, 6]).to_dtype(DType::BF16)?),
    ]);
    let bytes = |model: &Named| -> Vec<Vec<u8>> {
        model.0.iter().map(|(_, own)| own.value().to_bytes().expect("values")).collect()
    };
    let before = (bytes(&model), memory.layout_hash());
    let mut failures = 0;
    for nth in 1.. {
        memory.inject_fault(Fault { nth, repeat: Repeat::Once });
        let outcome = prune::magnitude(&mut model, &MagnitudeOptions::default());
        memory.clear_fault();
        if outcome.is_ok() {
            break;
        }
        failures += 1;
        drop(outcome);
        assert_eq!((bytes(&model), memory.layout_hash()), before, "request {nth}");
    }
    assert!(failures >= 2, "{failures}");
    model.0[1].1.value().freeze();
    let before = bytes(&model);
    assert!(prune::magnitude(&mut model, &options(0.9, Scope::Global)).is_err());
    assert_eq!(bytes(&model), before);
    Ok(())
}

#[test]
fn target_that_matches_nothing_and_fraction_out_of_range_are_errors() -> Outcome {
    let device = cpu();
    let mut model = Mlp::new(&device, RandomKey::new(0), &[4, 8, 2])?;
    let targets = vec!["0.weight".to_owned(), "*.bias".to_owned()];
    let wrong = MagnitudeOptions { targets, ..Default::default() };
    let error = prune::magnitude(&mut model, &wrong).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing to prune is called `*.bias`; there are 0.weight, 2.weight"
    );
    for fraction in [-0.1, 1.1, f64::NAN] {
        let error = prune::magnitude(&mut model, &options(fraction, Scope::Global)).unwrap_err();
        assert!(matches!(error, NnError::Option { name: "fraction", .. }), "{error}");
    }
    Ok(())
}

#[test]
fn tied_parameter_is_pruned_and_masked_once() -> Outcome {
    let device = cpu();
    let tied = Parameter::new(f32s(&device, "tied", [6, 6]));
    let name = |name: &str| (name.to_owned(), tied.clone());
    let mut model = Named(vec![name("embedding.weight"), name("head.weight")]);
    let masks = prune::magnitude(&mut model, &MagnitudeOptions::default())?;
    assert_eq!((masks.len(), masks.size_bytes()), (1, 36));
    let zeros = bits(tied.value()).into_iter().filter(|bits| *bits == 0).count();
    assert_eq!(zeros, 18);
    let nesterov =
        SgdOptions { momentum: 0.9, momentum_kind: Momentum::Nesterov, ..SgdOptions::new(0.1) };
    let mut optimizer = Masked::new(Sgd::new(nesterov)?, masks);
    let mut gradients = Gradients::default();
    gradients.insert(tied.id(), f32s(&device, "g", [6, 6]));
    optimizer.prepare(&mut model, gradients)?.commit()?;
    let state = optimizer.state(&mut model)?;
    assert_eq!(state.tensors.len(), 4, "under both names");
    let mut other = Masked::new(Sgd::new(nesterov)?, Masks::default());
    other.set_state(&mut model, state)?;
    assert_eq!(state_bits_of(&mut other), state_bits_of(&mut optimizer));
    Ok(())
}

fn state_bits_of(optimizer: &mut Masked<Sgd>) -> (Vec<Vec<u64>>, usize) {
    let masks = optimizer.masks().len();
    let mut inner = optimizer.optimizer().clone();
    (state_bits(&mut inner), masks)
}

#[test]
fn pruned_model_learns_through_the_step_of_an_optimizer() -> Outcome {
    let (device, key) = (cpu(), RandomKey::new(5));
    let mut model = Mlp::new(&device, key, &[4, 32, 2])?;
    let masks = prune::magnitude(&mut model, &MagnitudeOptions::default())?;
    let mut optimizer = Masked::new(Adam::new(AdamOptions::adamw())?, masks);
    let (x, labels) = (f32s(&device, "x", [16, 4]), [0_i64, 1].repeat(8));
    let labels = Tensor::from_slice(&device, [16], &labels)?;
    let mut losses = Vec::new();
    for step in 0..50 {
        let attempt = Attempt::new();
        let pass = Pass::train(key.step(step), &attempt);
        let loss =
            lowtide_nn::cross_entropy(model.forward(&pass, pass.constant(x.clone()))?, &labels)?;
        let loss = loss.mean()?;
        losses.push(loss.value().item::<f32>()?);
        pass.backward(loss)?;
        optimizer.step(&mut model, attempt)?;
    }
    assert!(losses[49] < losses[0], "{losses:?}");
    let mut zeros = 0;
    model.visit(&mut |_, own| zeros += bits(own.value()).iter().filter(|bits| **bits == 0).count());
    assert_eq!(zeros, (4 * 32 + 32 * 2) / 2);
    Ok(())
}
