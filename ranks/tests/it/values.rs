//! Tensors and timeouts for ranks of any engine.

use std::time::Duration;

use lowtide_ranks::Collectives;
use lowtide_tensor::{CpuOptions, DType, Device, Tensor};

/// A timeout that no test reaches, even on a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(120);

pub(crate) fn cpu() -> Device {
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    Device::cpu(options).expect("a processor")
}

/// Numbers of a rank. Their sums over ranks have to be rounded.
pub(crate) fn numbers(rank: usize, len: usize) -> Vec<f64> {
    (0..len).map(|at| ((rank * 7919 + at * 104_729) % 1009) as f64 / 97.0 - 5.0).collect()
}

pub(crate) fn tensor(device: &Device, values: &[f64], dtype: DType) -> Tensor {
    let tensor = Tensor::from_slice(device, [values.len()], values);
    tensor.and_then(|tensor| tensor.to_dtype(dtype)).expect("memory")
}

pub(crate) fn bits(x: &Tensor) -> Vec<u64> {
    let wide = x.to_dtype(DType::F64).and_then(|x| x.to_vec::<f64>()).expect("values");
    wide.into_iter().map(f64::to_bits).collect()
}

/// The numbers of this rank, as a tensor.
pub(crate) fn own(rank: &dyn Collectives, device: &Device, len: usize, dtype: DType) -> Tensor {
    tensor(device, &numbers(rank.rank().index, len), dtype)
}
