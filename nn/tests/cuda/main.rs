//! Trains every reference model and runs every layer on an NVIDIA device; the pretend driver can
//! stand in for it.

#[allow(dead_code, reason = "`it` uses the rest")]
#[path = "../it/common.rs"]
mod common;
#[allow(dead_code, reason = "`it` uses the rest")]
#[path = "../it/layer_list.rs"]
mod layer_list;
#[allow(dead_code, reason = "`it` uses the rest")]
#[path = "../it/zoo.rs"]
mod zoo;

use lowtide_allocator::cuda::CudaDevice;
use lowtide_allocator::cuda::pretend::{TestDriver, Turn};
use lowtide_autograd::{Attempt, LeafId, Pass};
use lowtide_nn::optim::{Optimizer, Sgd, SgdOptions};
use lowtide_nn::{Linear, Module, NnResult as Result, Parameters};
use lowtide_tensor::cuda::CudaOptions;
use lowtide_tensor::cuda::pretend::test_driver;
use lowtide_tensor::{DType, Device, Tensor};

use common::{KEY, cpu, f64s};
use layer_list::{Layer, all};
use zoo::{Trained, ZOO, fill};

const DRIVER: TestDriver<'_> = test_driver(env!("CARGO_MANIFEST_DIR"), env!("CARGO_TARGET_TMPDIR"));

/// Types of parameters, with the tolerance between the two devices. The tolerance is relative to
/// the value, and to 1 for smaller values. It covers sums in another order, and for half types a
/// few roundings, which grow over steps and layers.
const TYPES: [(DType, f64); 4] =
    [(DType::F32, 2e-5), (DType::F64, 1e-12), (DType::F16, 8e-3), (DType::BF16, 6e-2)];

fn device(gpu: &Turn) -> Device {
    let device = CudaDevice::of(&gpu.driver, 0).expect("it is there");
    Device::cuda_on(&device, CudaOptions::default()).expect("it has memory")
}

fn wide(x: &Tensor) -> Vec<f64> {
    let bytes = x.to_bytes().expect("readable");
    let here = Tensor::from_bytes(&cpu(), *x.shape(), x.dtype(), &bytes).expect("room");
    here.to_dtype(DType::F64).and_then(|x| x.to_vec()).expect("room")
}

/// Largest difference between two lists of values, relative to the value, and to 1 for smaller
/// values. NaN counts as infinitely far.
fn apart(found: &[Vec<f64>], expected: &[Vec<f64>]) -> f64 {
    let lens = |lists: &[Vec<f64>]| lists.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lens(found), lens(expected));
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    let distances = pairs.map(|(a, b)| (a - b).abs() / b.abs().max(1.0));
    distances.fold(0.0, |most, distance| {
        most.max(if distance.is_nan() { f64::INFINITY } else { distance })
    })
}

/// Trains three steps. On a real device, returns the losses and then the parameters.
fn train(case: &mut dyn Trained, is_real: bool) -> Result<Vec<Vec<f64>>> {
    let mut optimizer = Sgd::new(SgdOptions { momentum: 0.9, ..SgdOptions::new(0.05) })?;
    let mut values = Vec::new();
    for step in 0..3 {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY.step(step), &attempt);
        let loss = case.loss(&pass)?;
        if is_real {
            values.push(wide(loss.value()));
        }
        pass.backward(loss)?;
        optimizer.step(case.model(), attempt)?;
    }
    if is_real {
        case.model().visit(&mut |_, parameter| values.push(wide(parameter.value())));
    }
    Ok(values)
}

/// The complaint about results of the device; `None` if they are near one of `expected`.
fn complaint(
    name: &str,
    found: Result<Vec<Vec<f64>>>,
    expected: &[&[Vec<f64>]],
    tolerance: f64,
) -> Option<String> {
    let least = |found: Vec<_>| {
        expected.iter().map(|list| apart(&found, list)).fold(f64::INFINITY, f64::min)
    };
    match found.map(least) {
        Ok(apart) if apart <= tolerance => None,
        Ok(apart) => Some(format!("{name}: {apart:.1e} apart")),
        Err(error) => Some(format!("{name}: {error}")),
    }
}

#[test]
fn every_model_trains_as_on_the_processor_in_every_type_and_in_the_planned_memory() {
    let Some(gpu) = DRIVER.take() else { return };
    let mut complaints = Vec::new();
    for (name, build) in ZOO {
        let run_in = |dtype, device: &Device, is_real| {
            let mut case = build(device, 0.1)?;
            fill(case.model());
            case.model().set_dtype(dtype)?;
            train(&mut *case, is_real)
        };
        let exact = run_in(DType::F64, &cpu(), true).expect("on the processor");
        for (dtype, tolerance) in TYPES {
            let run = |device: &Device, is_real| run_in(dtype, device, is_real);
            let name = format!("{name} in {dtype}");
            let there = device(&gpu);
            let expected = run(&cpu(), true).unwrap_or_else(|error| panic!("{name}: {error}"));
            // In deep networks roundings grow: the tolerance is at least twice the error of the
            // CPU.
            let tolerance = match dtype.size_bytes() {
                2 => tolerance.max(2.0 * apart(&expected, &exact)),
                _ => tolerance,
            };
            // If the CPU rounds a value to the other side of a ReLU's kink, the CPU is further from
            // the exact result than the device.
            let expected = [&expected[..], &exact];
            let expected = &expected[..if dtype == DType::F32 { 2 } else { 1 }];
            complaints.extend(complaint(&name, run(&there, true), expected, tolerance));
            let simulated = Device::sim(there.spec()).expect("no memory is needed");
            let _ = run(&simulated, false);
            let [real, sim] =
                [&there, &simulated].map(|device| device.allocator().statistics().reserved);
            assert_eq!(real.peak_bytes, sim.peak_bytes, "{name}");
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// The output of a layer, and the gradients of its input and parameters.
fn pass(layer: Layer, x: &Tensor, dtype: DType) -> Result<Vec<Vec<f64>>> {
    let Layer { mut module, input, .. } = layer;
    module.set_dtype(dtype)?;
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    assert_eq!(x.shape()[..], input[..]);
    let id = LeafId::new();
    let y = module.forward(&pass, pass.leaf(id, x)?)?;
    let weights = f64s(&cpu(), "dy", [y.value().element_count()]).to_dtype(y.value().dtype())?;
    let dy = Tensor::from_bytes(
        y.value().device(),
        *y.shape(),
        y.value().dtype(),
        &weights.to_bytes()?,
    )?;
    let mut found = vec![wide(y.value())];
    pass.backward(y.mul(pass.constant(dy))?.sum_all()?)?;
    let gradients = attempt.into_gradients();
    found.extend(gradients.get(id).map(wide));
    module.visit(&mut |_, parameter| found.extend(gradients.get(parameter.id()).map(wide)));
    Ok(found)
}

#[test]
fn every_layer_and_its_gradients_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = DRIVER.take() else { return };
    let (there, here) = (device(&gpu), cpu());
    let mut complaints = Vec::new();
    for (dtype, tolerance) in TYPES {
        let layers = all(&there).and_then(|there| Ok(there.into_iter().zip(all(&here)?)));
        for (found, expected) in layers.expect("room") {
            let name = format!("{} {:?} in {dtype}", found.kind, found.input);
            let x = f64s(&here, "x", [found.input.iter().product()]);
            let x = x.to_dtype(dtype).and_then(|x| x.reshape(&found.input[..])).expect("room");
            let bytes = x.to_bytes().expect("readable");
            let copy = Tensor::from_bytes(&there, *x.shape(), dtype, &bytes).expect("room");
            let expected = pass(expected, &x, dtype).expect("on the processor");
            complaints.extend(complaint(&name, pass(found, &copy, dtype), &[&expected], tolerance));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn linear_layer_is_one_launch_forward_and_two_backward() {
    let Some(gpu) = DRIVER.pretend() else { return };
    let device = device(&gpu);
    let launches = || gpu.pretend.calls("cuLaunchKernel") + gpu.pretend.calls("cublasLtMatmul");
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let mut layer = Linear::new(&device, KEY, 6, 4).expect("room");
        layer.set_dtype(dtype).expect("room");
        let make = |shape: [usize; 3]| Tensor::ones(&device, shape, dtype).expect("room");
        let (x, dy) = (make([2, 5, 6]), make([2, 5, 4]));
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let before = launches();
        let x = pass.leaf(LeafId::new(), &x).expect("a float");
        let y = layer.forward(&pass, x).expect("room");
        assert_eq!(launches() - before, 1, "forward in {dtype}");
        pass.backward_from(vec![(y, dy)]).expect("room");
        assert_eq!(launches() - before, 3, "forward and backward in {dtype}");
    }
}
