use lowtide_allocator::{Action, Category};
use lowtide_tensor::{DType, Device, Tensor, TensorResult as Result};

use crate::storage::cpu;

/// A copy on another device.
pub(crate) fn on(device: &Device, x: &Tensor) -> Tensor {
    Tensor::from_bytes(device, *x.shape(), x.dtype(), &x.to_bytes().unwrap()).unwrap()
}

/// Every float type with a tolerance for values of 1: the given tolerances for f32 and f64, and
/// some roundings for the half types, because results are stored in them.
pub(crate) fn each_float([of_f32, of_f64]: [f64; 2]) -> [(DType, f64); 4] {
    let of_halves = [(DType::F16, 10), (DType::BF16, 7)];
    let [f16, bf16] = of_halves.map(|(dtype, bits)| (dtype, 4.0 * 0.5_f64.powi(bits)));
    [(DType::F32, of_f32), (DType::F64, of_f64), f16, bf16]
}

/// Fails unless shape, type and elements agree. Floats agree if they are at most `tolerance` apart,
/// relative to the larger of their size and 1. Other elements agree if they are equal.
#[track_caller]
pub(crate) fn assert_close(name: &str, found: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(found.shape(), expected.shape(), "{name}");
    assert_eq!(found.dtype(), expected.dtype(), "{name}");
    if !found.dtype().is_float() {
        return assert_eq!(found.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{name}");
    }
    let wide = |x: &Tensor| on(&cpu(), x).to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    for (index, (a, b)) in wide(found).into_iter().zip(wide(expected)).enumerate() {
        let near = (a - b).abs() <= tolerance * b.abs().max(1.0);
        assert!(near || a == b || (a.is_nan() && b.is_nan()), "{name}[{index}]: {a}, not {b}");
    }
}

/// The allocator's events while `run` ran.
fn moves(device: &Device, run: impl FnOnce()) -> Vec<(Action, Category, usize, usize)> {
    let last = device.allocator().history().records().last().map(|record| record.sequence);
    run();
    let history = device.allocator().history();
    let records = history.records();
    let since = records.iter().filter(|record| Some(record.sequence) > last);
    since.map(|r| (r.action, r.category, r.offset, r.requested_bytes)).collect()
}

/// Checks that `f` has the same results on `device` as on the processor, and takes the same memory
/// at the same places on a simulation of `device`. `inputs` are copied to each device; `f` may
/// change them.
#[track_caller]
pub(crate) fn assert_alike(
    device: &Device,
    name: &str,
    inputs: &[&Tensor],
    tolerance: f64,
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) {
    let there: Vec<Tensor> = inputs.iter().map(|x| on(device, x)).collect();
    let processor = cpu();
    let here: Vec<Tensor> = inputs.iter().map(|x| on(&processor, x)).collect();
    let simulation = device.simulate();
    let twins: Vec<Tensor> = there.iter().map(|x| x.simulated_copy(&simulation).unwrap()).collect();
    let mut found = Vec::new();
    let real = moves(device, || found = f(&there).unwrap());
    let mut pretended = Vec::new();
    let planned = moves(&simulation, || pretended = f(&twins).unwrap());
    assert_eq!(planned, real, "{name}: the memory of the simulation and of the device");
    let expected = f(&here).unwrap();
    assert_eq!(found.len(), expected.len());
    found.iter().zip(&expected).for_each(|(x, y)| assert_close(name, x, y, tolerance));
    // Inputs that `f` has changed in place.
    there.iter().zip(&here).for_each(|(x, y)| assert_close(name, x, y, tolerance));
}
