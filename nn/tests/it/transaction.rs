//! `prepare` can fail and changes nothing, `commit` changes everything and cannot run out of
//! memory.

use lowtide_allocator::{BLOCK_BYTES, Category, Fault, Repeat};
use lowtide_autograd::{AutogradError, Gradients};
use lowtide_nn::optim::{Optimizer, OptimizerMemory, Stateful};
use lowtide_nn::{NnError, NnResult as Result, Parameter, parameters};
use lowtide_tensor::{Device, Tensor, TensorError};

use crate::common::{
    Outcome, Pair, all_bits, bits, cpu, f32s, f64s, gradients_are, optimizers, state_bits,
};

fn gradients(device: &Device, model: &Pair) -> Result<Gradients> {
    let (a, b) = (f64s(device, "ga", [2, 3]), f64s(device, "gb", [5]));
    gradients_are(&[(&model.0[0], a), (&model.0[1], b)])
}

/// All values that an update may change.
type State = (Vec<(String, Vec<u64>)>, Vec<Vec<u64>>, u64, Vec<u64>);

fn state(model: &mut Pair, optimizer: &mut dyn Stateful) -> State {
    let versions = model.0.iter().map(|parameter| parameter.value().version()).collect();
    (all_bits(model), state_bits(optimizer), optimizer.steps(), versions)
}

#[test]
fn an_update_that_is_dropped_leaves_everything_as_it_was() -> Outcome {
    for (name, mut optimizer) in optimizers() {
        let device = cpu();
        let mut model = Pair::new(&device);
        // Two rounds: without states, then with states.
        for round in 0..2 {
            let before = (state(&mut model, &mut *optimizer), device.allocator().layout_hash());
            let gradients = gradients(&device, &model)?;
            drop(optimizer.prepare(&mut model, gradients)?);
            let after = (state(&mut model, &mut *optimizer), device.allocator().layout_hash());
            assert_eq!(after, before, "{name}, round {round}");

            let gradients = self::gradients(&device, &model)?;
            optimizer.prepare(&mut model, gradients)?.commit()?;
            assert_ne!(state(&mut model, &mut *optimizer), before.0, "{name}, round {round}");
        }
    }
    Ok(())
}

#[test]
fn a_dropped_update_does_not_disturb_the_next() -> Outcome {
    let device = cpu();
    for ((name, mut disturbed), (_, mut calm)) in optimizers().into_iter().zip(optimizers()) {
        let (mut one, mut other) = (Pair::new(&device), Pair::new(&device));
        for _ in 0..3 {
            let gradients = gradients_are(&[(&one.0[0], f64s(&device, "other", [2, 3]))])?;
            drop(disturbed.prepare(&mut one, gradients)?);
            let gradients = self::gradients(&device, &one)?;
            disturbed.prepare(&mut one, gradients)?.commit()?;
            let gradients = self::gradients(&device, &other)?;
            calm.prepare(&mut other, gradients)?.commit()?;
        }
        assert_eq!(state(&mut one, &mut *disturbed), state(&mut other, &mut *calm), "{name}");
    }
    Ok(())
}

#[test]
fn a_fault_in_any_request_of_prepare_leaves_everything_as_it_was() -> Outcome {
    for (name, mut optimizer) in optimizers() {
        let device = cpu();
        let memory = device.allocator();
        let mut model = Pair::new(&device);
        // Two rounds: without states, then with states.
        for round in 0..2 {
            let before = (state(&mut model, &mut *optimizer), memory.layout_hash());
            let mut failures = 0;
            for nth in 1.. {
                let gradients = self::gradients(&device, &model)?;
                memory.inject_fault(Fault { nth, repeat: Repeat::Once });
                let outcome = optimizer.prepare(&mut model, gradients).map(drop);
                memory.clear_fault();
                let after = (state(&mut model, &mut *optimizer), memory.layout_hash());
                assert_eq!(after, before, "{name}, round {round}, request {nth}");
                let Err(error) = outcome else { break };
                assert!(error.out_of_memory().is_some_and(|ledger| ledger.injected), "{error}");
                failures += 1;
            }
            // One request for each state of both parameters, and more for scratch memory.
            let OptimizerMemory { state_bytes, scratch_bytes } = optimizer.memory(&mut model);
            let blocks = if round == 0 { state_bytes / BLOCK_BYTES } else { 0 };
            match scratch_bytes {
                0 => assert_eq!(failures, blocks, "{name}, round {round}"),
                _ => assert!(failures > blocks, "{name}: {failures} requests, {blocks} blocks"),
            }
            let gradients = self::gradients(&device, &model)?;
            optimizer.prepare(&mut model, gradients)?.commit()?;
        }
    }
    Ok(())
}

#[test]
fn commit_works_while_the_allocator_is_sealed() -> Outcome {
    for (name, mut optimizer) in optimizers() {
        let device = cpu();
        let mut model = Pair::new(&device);
        let before = all_bits(&mut model);
        let gradients = gradients(&device, &model)?;
        let update = optimizer.prepare(&mut model, gradients)?;
        let requests = device.allocator().request_count();
        {
            let _seal = device.allocator().seal();
            assert!(device.allocator().allocate(1).is_err(), "the seal holds");
            update.commit()?;
        }
        assert_eq!(device.allocator().request_count(), requests, "{name}");
        assert_ne!(all_bits(&mut model), before, "{name}");
    }
    Ok(())
}

#[test]
fn a_frozen_parameter_is_an_error_and_nothing_is_written() -> Outcome {
    for (name, mut optimizer) in optimizers() {
        let device = cpu();
        let mut model = Pair::new(&device);
        // Only the last parameter is frozen: the parameters before it must not be written either.
        model.0.last().unwrap().value().freeze();
        let before = state(&mut model, &mut *optimizer);
        let gradients = gradients(&device, &model)?;
        let error = optimizer.prepare(&mut model, gradients)?.commit().unwrap_err();
        let NnError::Autograd(AutogradError::Tensor(TensorError::Frozen { .. })) = &error else {
            panic!("{name}: {error}");
        };
        assert_eq!(state(&mut model, &mut *optimizer), before, "{name}");

        model.0.iter().for_each(|parameter| parameter.value().unfreeze());
        let gradients = self::gradients(&device, &model)?;
        optimizer.prepare(&mut model, gradients)?.commit()?;
        assert_ne!(state(&mut model, &mut *optimizer), before, "{name}");
    }
    Ok(())
}

#[test]
fn a_gradient_of_another_shape_is_an_error_naming_the_parameter() -> Outcome {
    for (name, mut optimizer) in optimizers() {
        let device = cpu();
        let mut model = Pair::new(&device);
        let gradients = gradients(&device, &model)?;
        // The parameter gets a value that its gradient does not fit.
        *model.0[1].value_mut() = f64s(&device, "longer", [6]);
        let before = (state(&mut model, &mut *optimizer), device.allocator().layout_hash());
        let error = optimizer.prepare(&mut model, gradients).err().expect("5 is not 6");
        let NnError::Gradient { name: parameter, found, expected } = &error else {
            panic!("{name}: {error}");
        };
        assert_eq!((parameter.as_str(), &found[..], &expected[..]), ("b", &[5][..], &[6][..]));
        let text = error.to_string();
        assert!(text.contains("[5]") && text.contains("[6]"), "{text}");
        assert_eq!(state(&mut model, &mut *optimizer), before.0, "{name}");
    }
    Ok(())
}

#[test]
fn a_gradient_of_another_type_is_an_error_naming_the_parameter() -> Outcome {
    for (name, mut optimizer) in optimizers() {
        let device = cpu();
        let mut model = Pair::new(&device);
        let gradients = gradients(&device, &model)?;
        *model.0[0].value_mut() = f32s(&device, "narrower", [2, 3]);
        let error = optimizer.prepare(&mut model, gradients).err().expect("f64 is not f32");
        let NnError::Gradient { name: parameter, .. } = &error else { panic!("{name}: {error}") };
        assert_eq!(parameter, "a");
    }
    Ok(())
}

#[test]
fn memory_tells_what_an_update_takes() -> Outcome {
    for (name, mut optimizer) in optimizers() {
        let device = cpu();
        let memory = device.allocator();
        // Sizes around a block of 512 bytes: 1, 129 and 0 elements of f32, and an odd matrix.
        let sizes = [&[1][..], &[129], &[0], &[33, 17], &[]];
        let parameters =
            sizes.map(|shape| Tensor::zeros(&device, shape, lowtide_tensor::DType::F32));
        let parameters =
            parameters.into_iter().collect::<lowtide_tensor::TensorResult<Vec<_>>>()?;
        let mut model = List(parameters.into_iter().map(Parameter::new).collect());
        let OptimizerMemory { state_bytes, scratch_bytes } = optimizer.memory(&mut model);

        let gradients = |model: &List| -> Result<Gradients> {
            let attempt = lowtide_autograd::Attempt::new();
            for parameter in &model.0 {
                let pass = lowtide_autograd::Pass::train(crate::common::KEY, &attempt);
                pass.backward(parameter.var(&pass)?.sum_all()?)?;
            }
            Ok(attempt.into_gradients())
        };
        let gradients = gradients(&model)?;
        assert_eq!(gradients.len(), sizes.len());
        memory.reset_peaks();
        let before = memory.statistics();
        let update = optimizer.prepare(&mut model, gradients)?;
        let peak_bytes = memory.statistics().allocated.peak_bytes;
        let taken = peak_bytes - before.allocated.current_bytes;
        assert_eq!(taken, state_bytes + scratch_bytes, "{name}");
        update.commit()?;
        let state = memory.statistics().by_category[Category::OptimizerState];
        assert_eq!(state.current_bytes, state_bytes, "{name}");
        let held = before.by_category[Category::OptimizerState].current_bytes;
        assert_eq!(held, 0, "{name}");
        drop(optimizer);
        let state = memory.statistics().by_category[Category::OptimizerState];
        assert_eq!(state.current_bytes, 0, "{name}");
    }
    Ok(())
}

/// A module of parameters that are named by position.
struct List(Vec<Parameter>);

parameters!(List { 0 as "" });

#[test]
fn gradients_are_freed_by_commit() -> Outcome {
    for (name, mut optimizer) in optimizers() {
        let device = cpu();
        let mut model = Pair::f32(&device);
        let of_gradients =
            || device.allocator().statistics().by_category[Category::Gradient].current_bytes;
        let weights = f32s(&device, "ga", [2, 3]);
        let gradients = gradients_are(&[(&model.0[0], weights.clone())])?;
        assert_eq!(of_gradients(), BLOCK_BYTES, "{name}");
        optimizer.prepare(&mut model, gradients)?.commit()?;
        assert_eq!(of_gradients(), 0, "{name}");
        assert_ne!(bits(model.0[0].value()), bits(Pair::f32(&device).0[0].value()), "{name}");
    }
    Ok(())
}
