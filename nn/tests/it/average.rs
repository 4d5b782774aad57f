//! Averages of weights: their formula, the swap with the weights, and the memory.

use lowtide_allocator::{BLOCK_BYTES, Category, Fault, Repeat};
use lowtide_autograd::Gradients;
use lowtide_nn::optim::{Adam, AdamOptions, Averaged, Optimizer, Sgd, SgdOptions, Stateful};
use lowtide_nn::{NnError, NnResult as Result, Parameter, Parameters};
use lowtide_tensor::{DType, Device, Tensor};

use crate::common::{
    Named, Outcome, Pair, all_bits, bits, cpu, f32s, f64s, gradients_are, state_bits,
};

fn step(optimizer: &mut dyn Optimizer, model: &mut Pair, name: &str) -> Result<()> {
    let device = model.0[0].value().device().clone();
    let (a, b) = (f64s(&device, name, [2, 3]), f64s(&device, name, [5]));
    let gradients = gradients_are(&[(&model.0[0], a), (&model.0[1], b)])?;
    optimizer.prepare(model, gradients)?.commit()
}

#[test]
fn average_follows_the_weights_by_its_formula() -> Outcome {
    let device = cpu();
    let mut model = Pair::new(&device);
    let decay = 0.7;
    let mut optimizer = Averaged::new(Sgd::new(SgdOptions::new(0.1))?, decay)?;
    let mut naive: Option<Vec<f64>> = None;
    for name in ["g1", "g2", "g3", "g4"] {
        step(&mut optimizer, &mut model, name)?;
        let values = model.0[1].value().to_vec::<f64>()?;
        // PyTorch's AveragedModel starts with a copy.
        let last = naive.take().unwrap_or_else(|| values.clone());
        let next = last.iter().zip(&values).map(|(a, p)| decay * a + (1.0 - decay) * p);
        let next: Vec<f64> = next.collect();
        let found = optimizer.state(&mut model)?.tensors["b.ema"].to_vec::<f64>()?;
        for (found, expected) in found.iter().zip(&next) {
            assert!((found - expected).abs() < 1e-15, "{name}: {found} {expected}");
        }
        naive = Some(next);
    }
    Ok(())
}

#[test]
fn averaging_leaves_training_alone() -> Outcome {
    let device = cpu();
    let (mut one, mut other) = (Pair::new(&device), Pair::new(&device));
    let mut plain = Adam::new(AdamOptions::default())?;
    let mut averaged = Averaged::new(Adam::new(AdamOptions::default())?, 0.5)?;
    for name in ["g1", "g2", "g3"] {
        step(&mut plain, &mut one, name)?;
        step(&mut averaged, &mut other, name)?;
        // A swap in between does not change the training. After the first update the average equals
        // the weights.
        averaged.swap(&mut other)?;
        assert_eq!(all_bits(&mut other) == all_bits(&mut one), name == "g1");
        averaged.swap(&mut other)?;
        assert_eq!(all_bits(&mut other), all_bits(&mut one));
    }
    Ok(())
}

/// A parameter of each float type, after two updates.
fn trained(
    device: &Device,
) -> std::result::Result<(Named, Averaged<Sgd>), Box<dyn std::error::Error>> {
    let dtypes = [DType::F32, DType::BF16, DType::F64, DType::F16];
    let parameter = |dtype: DType| {
        let value = f64s(device, &dtype.to_string(), [2, 3]).to_dtype(dtype)?;
        Ok((dtype.to_string(), Parameter::new(value)))
    };
    let mut model = Named(dtypes.into_iter().map(parameter).collect::<Result<_>>()?);
    let mut optimizer = Averaged::new(Sgd::new(SgdOptions::new(0.1))?, 0.9)?;
    for name in ["g1", "g2"] {
        let mut gradients = Gradients::default();
        for (_, parameter) in &model.0 {
            let gradient = f64s(device, name, [2, 3]).to_dtype(parameter.value().dtype())?;
            gradients.insert(parameter.id(), gradient);
        }
        optimizer.prepare(&mut model, gradients)?.commit()?;
    }
    Ok((model, optimizer))
}

fn bytes(model: &Named) -> Vec<Vec<u8>> {
    model.0.iter().map(|(_, parameter)| parameter.value().to_bytes().expect("values")).collect()
}

#[test]
fn swap_exchanges_values_of_every_type_and_back_to_the_same_bits() -> Outcome {
    let device = cpu();
    let (mut model, mut optimizer) = trained(&device)?;
    let before = (bytes(&model), optimizer.state(&mut model)?.tensors);
    let averages: Vec<Vec<u8>> = before.1.values().map(|x| x.to_bytes().unwrap()).collect();
    let live = device.allocator().layout_hash();
    optimizer.swap(&mut model)?;
    assert!(optimizer.is_swapped());
    for (name, parameter) in &model.0 {
        let value = parameter.value();
        let average = Tensor::from_bytes(
            &device,
            [2, 3],
            before.1[&format!("{name}.ema")].dtype(),
            &averages[before.1.keys().position(|key| *key == format!("{name}.ema")).unwrap()],
        )?;
        assert_eq!(value.to_bytes()?, average.to_dtype(value.dtype())?.to_bytes()?, "{name}");
    }
    assert_ne!(bytes(&model), before.0);
    assert!(matches!(optimizer.state(&mut model), Err(NnError::Swapped)));
    let error = optimizer.prepare(&mut model, Gradients::default()).err();
    assert!(matches!(error, Some(NnError::Swapped)));

    optimizer.swap(&mut model)?;
    assert_eq!(bytes(&model), before.0);
    let after = optimizer.state(&mut model)?.tensors;
    let after: Vec<Vec<u8>> = after.values().map(|x| x.to_bytes().unwrap()).collect();
    assert_eq!(after, averages);
    assert_eq!(device.allocator().layout_hash(), live, "nothing is left over");
    Ok(())
}

#[test]
fn a_fault_or_a_frozen_tensor_leaves_nothing_swapped() -> Outcome {
    let device = cpu();
    let memory = device.allocator();
    let (mut model, mut optimizer) = trained(&device)?;
    let before = (bytes(&model), state_bits_of(&mut optimizer), memory.layout_hash());
    let mut failures = 0;
    for nth in 1.. {
        memory.inject_fault(Fault { nth, repeat: Repeat::Once });
        let outcome = optimizer.swap(&mut model);
        memory.clear_fault();
        if outcome.is_ok() {
            break;
        }
        failures += 1;
        assert!(!optimizer.is_swapped());
        let after = (bytes(&model), state_bits_of(&mut optimizer), memory.layout_hash());
        assert_eq!(after, before, "request {nth}");
    }
    // Four allocations can fail: space for the largest f32 and f64, and the copies of two half
    // types.
    assert_eq!(failures, 4);
    optimizer.swap(&mut model)?;
    model.0[3].1.value().freeze();
    assert!(optimizer.swap(&mut model).is_err());
    let after = (bytes(&model), state_bits_of(&mut optimizer), memory.layout_hash());
    assert_eq!(after, before);
    Ok(())
}

fn state_bits_of(optimizer: &mut Averaged<Sgd>) -> Vec<Vec<u64>> {
    state_bits(optimizer)
}

#[test]
fn averages_are_counted_as_optimizer_state() -> Outcome {
    let device = cpu();
    let mut model = Pair::f32(&device);
    let mut optimizer = Averaged::new(Sgd::new(SgdOptions::new(0.1))?, 0.9)?;
    assert_eq!(optimizer.memory(&mut model).state_bytes, 2 * BLOCK_BYTES);
    let (a, b) = (f32s(&device, "ga", [2, 3]), f32s(&device, "gb", [5]));
    let gradients = gradients_are(&[(&model.0[0], a), (&model.0[1], b)])?;
    optimizer.prepare(&mut model, gradients)?.commit()?;
    let statistics = device.allocator().statistics();
    let state = statistics.by_category[Category::OptimizerState];
    assert_eq!(state.current_bytes, 2 * BLOCK_BYTES);
    model.visit(&mut |_, parameter| parameter.freeze());
    assert_eq!(optimizer.memory(&mut model).state_bytes, 0);
    assert!(bits(model.0[0].value()).len() == 6);
    Ok(())
}

#[test]
fn a_decay_out_of_range_is_an_error() -> Outcome {
    for bad in [-0.1, 1.1, f64::NAN] {
        let error = Averaged::new(Sgd::new(SgdOptions::new(0.1))?, bad).unwrap_err();
        assert!(matches!(error, NnError::Option { name: "decay", .. }), "{error}");
    }
    Ok(())
}

#[test]
fn a_parameter_in_two_places_is_averaged_and_counted_once() -> Outcome {
    let device = cpu();
    let tied = Parameter::new(f64s(&device, "tied", [2, 3]));
    let name = |name: &str| (name.to_owned(), tied.clone());
    let mut model = Named(vec![name("embedding.weight"), name("head.weight")]);
    let mut optimizer = Averaged::new(Adam::new(AdamOptions::default())?, 0.5)?;
    assert_eq!(optimizer.memory(&mut model).state_bytes, 3 * BLOCK_BYTES);
    let gradients = || gradients_are(&[(&tied, f64s(&device, "g", [2, 3]))]);
    for _ in 0..2 {
        optimizer.prepare(&mut model, gradients()?)?.commit()?;
    }
    let before = bits(tied.value());
    optimizer.swap(&mut model)?;
    assert_ne!(bits(tied.value()), before);
    optimizer.swap(&mut model)?;
    assert_eq!(bits(tied.value()), before);

    let state = optimizer.state(&mut model)?;
    assert_eq!(state.tensors.len(), 6, "under both names");
    let mut other = Averaged::new(Adam::new(AdamOptions::default())?, 0.5)?;
    other.set_state(&mut model, state)?;
    assert_eq!(state_bits(&mut other), state_bits(&mut optimizer));
    Ok(())
}
