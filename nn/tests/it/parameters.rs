//! Names, sharing and simulation of parameters.

use lowtide_allocator::Category;
use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Optimizer, Scheduled};
use lowtide_nn::{
    Conv2d, Flatten, Linear, MaxPool2d, Module, Parameter, Parameters, ReLU, Sequential,
    cross_entropy,
};
use lowtide_tensor::{Conv2dGeometry, Device, SimSpec, Tensor};

use crate::common::{KEY, Outcome, all_bits, cpu, f32s, names, optimizers};

const SHAPE: SimpleCnnShape = SimpleCnnShape { image: [1, 6, 6], channels: 3, classes: 4 };

fn sequential(device: &Device) -> lowtide_nn::NnResult<Sequential> {
    let geometry = Conv2dGeometry::default();
    let inner = Sequential::new().then(ReLU).then(Linear::new(device, KEY, 4, 4)?);
    Ok(Sequential::new()
        .then(Conv2d::without_bias(device, KEY, [1, 1], [3, 3], geometry)?)
        .then(Flatten)
        .then(inner)
        .then(Linear::new(device, KEY, 4, 2)?))
}

#[test]
fn parameters_have_pytorchs_names_in_a_fixed_order() -> Outcome {
    let device = cpu();
    assert_eq!(names(&mut Linear::new(&device, KEY, 2, 3)?), ["weight", "bias"]);
    assert_eq!(names(&mut Linear::without_bias(&device, KEY, 2, 3)?), ["weight"]);
    let mut cnn = SimpleCnn::new(&device, KEY, SHAPE)?;
    assert_eq!(names(&mut cnn), ["conv.weight", "conv.bias", "linear.weight", "linear.bias"]);
    assert_eq!(
        names(&mut sequential(&device)?),
        ["0.weight", "2.1.weight", "2.1.bias", "3.weight", "3.bias"]
    );
    for mut free in [Sequential::new(), Sequential::new().then(MaxPool2d::square(2)).then(ReLU)] {
        assert!(names(&mut free).is_empty());
    }
    Ok(())
}

#[test]
fn every_parameter_is_visited_once() -> Outcome {
    let device = cpu();
    let mut ids = Vec::new();
    sequential(&device)?.visit(&mut |_, parameter| ids.push(parameter.id()));
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
    Ok(())
}

#[test]
fn parameters_count_as_parameters() -> Outcome {
    let device = cpu();
    let mut cnn = SimpleCnn::new(&device, KEY, SHAPE)?;
    cnn.visit(&mut |name, parameter| {
        assert_eq!(parameter.value().category(), Category::Parameter, "{name}");
    });
    // Four blocks. All are below 512 bytes except the linear layer's weight of 4 · 27 floats.
    let by_category = device.allocator().statistics().by_category;
    assert_eq!(by_category[Category::Parameter].current_bytes, 4 * 512);
    Ok(())
}

#[test]
fn clones_share_values_and_identity() -> Outcome {
    let device = cpu();
    let mut original = sequential(&device)?;
    let mut clone = original.clone();
    clone.visit(&mut |_, parameter| parameter.value_mut().fill_(0.25).expect("not frozen"));
    assert_eq!(all_bits(&mut original), all_bits(&mut clone));

    let mut ids = Vec::new();
    original.visit(&mut |_, parameter| ids.push(parameter.id()));
    let mut of_clone = Vec::new();
    clone.visit(&mut |_, parameter| of_clone.push(parameter.id()));
    assert_eq!(ids, of_clone);

    let parameter = Parameter::new(f32s(&device, "p", [2]));
    assert!(parameter.value().shares_storage(parameter.clone().value()));
    assert_ne!(parameter.id(), Parameter::new(parameter.value().clone()).id());
    Ok(())
}

/// One training step. On a simulated device, only allocations happen.
fn step(
    model: &mut impl Module,
    optimizer: &mut impl Optimizer,
    device: &Device,
) -> lowtide_nn::NnResult<()> {
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let x = pass.constant(Tensor::from_slice(device, [2, 1, 6, 6], &[0.5_f32; 72])?);
    let labels = Tensor::from_slice(device, [2], &[1_i64, 3])?;
    let loss = cross_entropy(model.forward(&pass, x)?, &labels)?.mean()?;
    pass.backward(loss)?;
    optimizer.step(model, attempt)
}

#[test]
fn a_simulated_copy_makes_the_same_allocations_and_touches_nothing_real() -> Outcome {
    use lowtide_nn::optim::{Adam, AdamOptions};
    let device = cpu();
    let mut model = SimpleCnn::new(&device, KEY, SHAPE)?;
    let mut optimizer = Adam::new(AdamOptions::default())?;
    // Two rounds: without optimizer states, then with states.
    for _ in 0..2 {
        let sim = device.simulate();
        let mut copy = model.clone();
        copy.visit(&mut |name, parameter| {
            let of_sim = parameter.value().simulated_copy(&sim);
            let of_sim = of_sim.unwrap_or_else(|| panic!("{name} has a copy"));
            assert_eq!(of_sim.device(), &sim, "{name}");
            *parameter.value_mut() = of_sim;
        });
        let mut optimizer_copy = optimizer.clone();
        optimizer_copy.visit_state(&mut |state| {
            *state = state.simulated_copy(&sim).expect("it is on this device");
        });
        assert_eq!(optimizer_copy.steps(), optimizer.steps());
        assert_eq!(sim.allocator().layout_hash(), device.allocator().layout_hash());

        let before = all_bits(&mut model);
        let real_before = device.allocator().statistics();
        step(&mut copy, &mut optimizer_copy, &sim)?;
        assert_eq!(all_bits(&mut model), before);
        assert_eq!(device.allocator().statistics(), real_before);

        step(&mut model, &mut optimizer, &device)?;
        assert_ne!(all_bits(&mut model), before);
        assert_eq!(sim.allocator().statistics(), device.allocator().statistics());
        assert_eq!(sim.allocator().layout_hash(), device.allocator().layout_hash());
    }
    Ok(())
}

#[test]
fn a_device_that_does_not_simulate_this_one_has_no_copies() -> Outcome {
    let device = cpu();
    let parameter = Parameter::new(f32s(&device, "p", [2]));
    let strangers = [Device::sim(SimSpec::like_this_machine(1 << 20))?, cpu(), cpu().simulate()];
    for stranger in strangers {
        assert!(parameter.value().simulated_copy(&stranger).is_none(), "{stranger:?}");
    }
    Ok(())
}

#[test]
fn an_optimizer_without_state_has_a_copy_anywhere() -> Outcome {
    use lowtide_nn::optim::{Sgd, SgdOptions};
    let options = SgdOptions { momentum: 0.5, ..SgdOptions::new(0.1) };
    let optimizer = Sgd::new(options)?;
    let mut copy = optimizer.clone();
    copy.visit_state(&mut |state| panic!("{state:?} has to be found"));
    assert_eq!(copy.learning_rate(), 0.1);
    for (name, optimizer) in optimizers() {
        assert_eq!(optimizer.steps(), 0, "{name}");
    }
    Ok(())
}
