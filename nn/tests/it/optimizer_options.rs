//! Features around an optimizer's formula: schedules, clipping, frozen parameters.

use lowtide_allocator::Category;
use lowtide_autograd::{Attempt, Gradients, Pass};
use lowtide_nn::optim::{
    Adam, AdamOptions, Ascending, Optimizer, Scheduled, Sgd, SgdOptions, Stateful, clip_norm,
    clip_value,
};
use lowtide_nn::{Linear, Module, NnError, Parameters, Schedule, Sequential};
use lowtide_tensor::{DType, Tensor};

use crate::common::{
    KEY, Outcome, Pair, all_bits, bits, cpu, f32s, f64s, gradients_are, optimizers,
};

#[test]
fn a_schedule_moves_all_groups_and_counts_only_what_is_committed() -> Outcome {
    let device = cpu();
    let schedule = Schedule::Cosine { steps: 4, floor: 0.0 }.after_warm_up(0.1, 2);
    let special = SgdOptions { weight_decay: 0.5, ..SgdOptions::new(0.2) };
    let grouped = || Sgd::new(SgdOptions::new(0.1))?.with_group("b", special);
    let mut scheduled = grouped()?.with_schedule(schedule.clone())?;
    let mut by_hand = grouped()?;
    let (mut one, mut other) = (Pair::new(&device), Pair::new(&device));
    for step in 0..8 {
        let rate = schedule.learning_rate(0.1, step);
        assert_eq!(scheduled.learning_rate(), rate);
        by_hand.set_learning_rate(rate);
        let gradients = |model: &Pair| {
            let (a, b) = (f64s(&device, "ga", [2, 3]), f64s(&device, "gb", [5]));
            gradients_are(&[(&model.0[0], a), (&model.0[1], b)])
        };
        let unused = gradients(&one)?;
        drop(scheduled.prepare(&mut one, unused)?);
        let of_step = gradients(&one)?;
        scheduled.prepare(&mut one, of_step)?.commit()?;
        let of_step = gradients(&other)?;
        by_hand.prepare(&mut other, of_step)?.commit()?;
        assert_eq!(all_bits(&mut one), all_bits(&mut other), "step {step}");
    }
    scheduled.set_learning_rate(1.0);
    assert_eq!(scheduled.learning_rate(), schedule.learning_rate(1.0, 8));
    let error = grouped()?.with_schedule(Schedule::Exponential { factor: 2.0 }).unwrap_err();
    assert!(matches!(error, NnError::Option { name: "factor", .. }), "{error}");
    Ok(())
}

fn some_gradients(values: [&[f64]; 2]) -> std::result::Result<(Gradients, Pair), NnError> {
    let device = cpu();
    let model = Pair::new(&device);
    let mut gradients = Gradients::default();
    for (parameter, values) in model.0.iter().zip(values) {
        gradients.insert(parameter.id(), Tensor::from_slice(&device, [values.len()], values)?);
    }
    Ok((gradients, model))
}

#[test]
fn clipping_by_value_bounds_every_element() -> Outcome {
    let (mut gradients, model) = some_gradients([&[0.5, -3.0, f64::NAN], &[2.0, f64::INFINITY]])?;
    let requests = model.0[0].value().device().allocator().request_count();
    clip_value(&mut gradients, 1.5)?;
    assert_eq!(model.0[0].value().device().allocator().request_count(), requests);
    let found = |index: usize| gradients.get(model.0[index].id()).unwrap().to_vec::<f64>().unwrap();
    assert_eq!((&found(0)[..2], found(0)[2].is_nan()), (&[0.5, -1.5][..], true));
    assert_eq!(found(1), [1.5, 1.5]);
    let error = clip_value(&mut gradients, -1.0).unwrap_err();
    assert!(matches!(error, NnError::Option { name: "clip_value", .. }), "{error}");
    Ok(())
}

#[test]
fn clipping_by_norm_shortens_only_what_is_longer() -> Outcome {
    for (limit, scale) in [(10.0, 1.0), (2.5, 2.5 / (5.0 + 1e-6))] {
        let (mut gradients, model) = some_gradients([&[3.0, 0.0], &[-4.0]])?;
        let device = model.0[0].value().device().clone();
        assert_eq!(clip_norm(&device, &mut gradients, limit)?, 5.0);
        let found = gradients.get(model.0[1].id()).unwrap().to_vec::<f64>()?;
        assert_eq!(found, [-4.0 * scale], "{limit}");
    }
    Ok(())
}

#[test]
fn a_frozen_parameter_costs_no_memory_and_does_not_move() -> Outcome {
    for (name, mut optimizer) in optimizers() {
        let device = cpu();
        let memory = device.allocator();
        let layer = |key: &str| Linear::new(&device, KEY.op(key), 64, 64);
        let mut model = Sequential::new().then(layer("first")?).then(layer("second")?);
        let of = |category| memory.statistics().by_category[category];
        let state = |optimizer: &mut dyn Optimizer| {
            let mut bytes = 0;
            optimizer.visit_state(&mut |state| bytes += state.size_bytes());
            bytes
        };
        let run = |model: &mut Sequential, optimizer: &mut dyn Optimizer| -> Outcome {
            let attempt = Attempt::new();
            let pass = Pass::train(KEY, &attempt);
            let x = pass.constant(f32s(&device, "x", [8, 64]));
            let loss = model.forward(&pass, x)?.sum_all()?;
            memory.reset_peaks();
            pass.backward(loss)?;
            Ok(optimizer.step(model, attempt)?)
        };
        model.visit(&mut |_, parameter| parameter.freeze());
        assert_eq!(optimizer.memory(&mut model), Default::default(), "{name}");
        run(&mut model, &mut *optimizer).err();
        assert_eq!(of(Category::Gradient).peak_bytes, 0, "{name}");
        assert_eq!(of(Category::OptimizerState).peak_bytes, 0, "{name}");

        // Unfreezes all layers but the first.
        let mut weights = Vec::new();
        model.visit(&mut |_, parameter| weights.push(parameter.clone()));
        weights[2..].iter().for_each(|parameter| parameter.unfreeze());
        let before: Vec<_> = weights.iter().map(|parameter| bits(parameter.value())).collect();
        run(&mut model, &mut *optimizer)?;
        let after: Vec<_> = weights.iter().map(|parameter| bits(parameter.value())).collect();
        assert_eq!(after[..2], before[..2], "{name}");
        assert_ne!(after[2], before[2], "{name}");
        // Gradients of one weight of 64 x 64, one bias and the outputs.
        assert!(of(Category::Gradient).peak_bytes < 2 * 64 * 64 * 4, "{name}");
        let declared = optimizer.memory(&mut model).state_bytes;
        assert_eq!(of(Category::OptimizerState).current_bytes, declared, "{name}");
        assert!(state(&mut *optimizer) <= declared, "{name}");
    }
    Ok(())
}

#[test]
fn freezing_one_handle_freezes_them_all() -> Outcome {
    let device = cpu();
    let model = Pair::new(&device);
    let other = model.0[0].clone();
    model.0[0].freeze();
    assert!(other.is_frozen() && !model.0[1].is_frozen());
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let sum = other.var(&pass)?.sum_all()?.add(model.0[1].var(&pass)?.sum_all()?)?;
    pass.backward(sum)?;
    let gradients = attempt.into_gradients();
    assert_eq!((gradients.len(), gradients.get(other.id()).is_none()), (1, true));
    other.unfreeze();
    assert!(!model.0[0].is_frozen());
    Ok(())
}

#[test]
fn a_gradient_of_a_frozen_parameter_is_not_used() -> Outcome {
    let device = cpu();
    let mut model = Pair::new(&device);
    let mut optimizer = Adam::new(AdamOptions::default())?;
    let gradients = gradients_are(&[(&model.0[0], f64s(&device, "g", [2, 3]))])?;
    model.0[0].freeze();
    let before = all_bits(&mut model);
    optimizer.prepare(&mut model, gradients)?.commit()?;
    assert_eq!(all_bits(&mut model), before);
    assert_eq!(model.0[0].value().dtype(), DType::F64);
    Ok(())
}

#[test]
fn an_ascending_optimizer_gets_the_negatives_of_the_gradients() -> Outcome {
    let device = cpu();
    for (name, optimizer) in optimizers() {
        let (mut up, mut down) = (Ascending(optimizer.clone()), optimizer);
        let (mut one, mut other) = (Pair::new(&device), Pair::new(&device));
        for step in 0..3 {
            let gradients = |model: &Pair, sign: f64| -> Result<Gradients, NnError> {
                let a = f64s(&device, &format!("a{step}"), [2, 3]).mul_scalar(sign)?;
                // A broadcast gradient, like the gradient of a mean.
                let b = Tensor::full(&device, [], DType::F64, 0.5 * sign)?.expand([5])?;
                let mut gradients = Gradients::default();
                gradients.insert(model.0[0].id(), a);
                gradients.insert(model.0[1].id(), b);
                Ok(gradients)
            };
            let (of_one, of_other) = (gradients(&one, 1.0)?, gradients(&other, -1.0)?);
            up.prepare(&mut one, of_one)?.commit()?;
            down.prepare(&mut other, of_other)?.commit()?;
            assert_eq!(all_bits(&mut one), all_bits(&mut other), "{name}, step {step}");
        }
        assert_eq!(up.steps(), 3);
        assert!(!up.can_fuse(), "{name}");
        let states = up.state(&mut one)?.tensors;
        assert_eq!(states.len(), down.state(&mut other)?.tensors.len(), "{name}");
    }
    Ok(())
}
