//! The simulated device: no values, the same memory, and copies of a device in mid-run.

use lowtide_tensor::{DType, Device, Tensor, TensorError};

use crate::common::{cpu, sim};

#[test]
fn values_are_unavailable_and_the_error_names_op_and_caller() {
    let x = Tensor::zeros(&sim(1), [1], DType::F32).unwrap();
    let errors =
        [("item", x.item::<f32>().unwrap_err()), ("to_vec", x.to_vec::<f32>().unwrap_err())];
    for (name, error) in errors {
        assert!(matches!(error, TensorError::ValueUnavailable { op, .. } if op == name));
        let text = error.to_string();
        assert!(text.starts_with(name) && text.contains(file!()), "{text}");
    }
}

#[test]
fn assumption_is_listed_with_its_site_once() {
    let (real, simulated) = (cpu(1), sim(1));
    let read = |device: &Device| {
        Tensor::full(device, [1], DType::F32, 2.0).unwrap().item_assuming(0.5f32).unwrap()
    };
    assert_eq!([read(&real), read(&simulated), read(&simulated)], [2.0, 0.5, 0.5]);
    assert!(real.assumptions().is_empty());
    let [assumption] = simulated.assumptions()[..] else { panic!("one place, one value") };
    assert_eq!((assumption.value, assumption.site.file()), (0.5, file!()));
}

#[test]
fn assuming_refuses_what_reading_refuses() {
    for device in [cpu(1), sim(1)] {
        let x = Tensor::zeros(&device, [2], DType::F32).unwrap();
        assert!(matches!(x.item_assuming(0.0f32), Err(TensorError::Shape { op: "item", .. })));
        let x = x.narrow(0, 0, 1).unwrap();
        assert!(matches!(x.item_assuming(0.0f64), Err(TensorError::DType { op: "item", .. })));
        assert!(device.assumptions().is_empty());
    }
}

#[test]
fn twins_share_a_storage_exactly_where_the_originals_do() {
    let device = cpu(1);
    let x = Tensor::zeros(&device, [4, 4], DType::F32).unwrap();
    let (view, other) = (x.transpose(0, 1).unwrap(), x.copied().unwrap());
    other.freeze();
    let simulated = device.simulate();
    let [x_twin, view_twin, other_twin] =
        [&x, &view, &other].map(|x| x.simulated_copy(&simulated).unwrap());
    assert!(x_twin.shares_storage(&view_twin) && !x_twin.shares_storage(&other_twin));
    assert_eq!((view_twin.layout(), view_twin.category()), (view.layout(), view.category()));
    assert_eq!(view_twin.device(), &simulated);
    assert!(other_twin.clone().fill_(1.0).is_err(), "the twin is frozen too");
    assert!(x.clone().fill_(1.0).is_ok());

    // Tensors that were made later or elsewhere have no simulated copy, and neither have copies
    // that were dropped.
    assert!(x.copied().unwrap().simulated_copy(&simulated).is_none());
    assert!(x_twin.simulated_copy(&simulated).is_none() && x.simulated_copy(&device).is_none());
    drop((x_twin, view_twin));
    assert!(x.simulated_copy(&simulated).is_none());
}

#[test]
fn tensor_made_later_has_no_twin_even_at_an_address_used_before() {
    let device = cpu(1);
    let x = Tensor::zeros(&device, [4], DType::F32).unwrap();
    let simulated = device.simulate();
    let _twin = x.simulated_copy(&simulated).unwrap();
    drop(x);
    for _ in 0..100 {
        let later = Tensor::zeros(&device, [4], DType::F32).unwrap();
        assert!(later.simulated_copy(&simulated).is_none());
    }
}

/// Live blocks by place; the sites are the same lines of this file.
fn blocks(device: &Device) -> Vec<String> {
    device.allocator().live_blocks().iter().map(|block| format!("{block:?}")).collect()
}

#[test]
fn continuation_takes_the_same_places() {
    let device = cpu(2);
    let make = |device: &Device, len: usize| Tensor::zeros(device, [len], DType::F64).unwrap();
    let mut tensors: Vec<Tensor> =
        [5000, 70, 9000, 300, 40_000].map(|len| make(&device, len)).into();
    // Two holes.
    tensors.remove(2);
    tensors.remove(0);
    let square = Tensor::zeros(&device, [100, 100], DType::F32).unwrap();
    square.matmul(&square).unwrap();

    let simulated = device.simulate();
    assert_eq!(simulated.allocator().statistics(), device.allocator().statistics());
    assert_eq!(blocks(&simulated), blocks(&device));
    let run = |device: &Device, mut tensors: Vec<Tensor>, square: Tensor| {
        let mut trail = Vec::new();
        for len in [4000, 10_000, 100] {
            tensors.push(make(device, len));
            tensors.remove(0);
            let product = square.matmul(&square).unwrap().sum(&[0]).unwrap();
            trail.push((blocks(device), device.allocator().statistics()));
            drop(product);
        }
        trail
    };
    let twins = tensors.iter().map(|x| x.simulated_copy(&simulated).unwrap()).collect();
    let square_twin = square.simulated_copy(&simulated).unwrap();
    assert_eq!(run(&simulated, twins, square_twin), run(&device, tensors, square));
    assert_eq!(simulated.allocator().layout_hash(), device.allocator().layout_hash());
}

#[test]
fn simulation_of_a_simulation_is_one_more() {
    let first = sim(3);
    let x = Tensor::zeros(&first, [10], DType::F32).unwrap();
    let second = first.simulate();
    let twin = x.simulated_copy(&second).unwrap();
    assert_eq!((second.threads(), second.is_simulated()), (3, true));
    assert_eq!(twin.add(&twin).unwrap().device(), &second);
    assert!(second.simulated_seconds() > 0.0);
}
