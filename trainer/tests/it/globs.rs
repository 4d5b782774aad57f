//! All crates can be imported by glob together. The only `Result` is the trainer's.

#![expect(unused_imports, reason = "importing them is the test")]

use lowtide_allocator::*;
use lowtide_amp::*;
use lowtide_autograd::*;
use lowtide_data::*;
use lowtide_nn::*;
use lowtide_tensor::*;
use lowtide_trainer::*;

/// The mean of ones, with the trainer's `Result`.
fn mean(device: &Device) -> Result<f32> {
    let mean = || Tensor::ones(device, [3], DType::F32)?.mean(&[-1])?.item();
    Ok(mean().map_err(|error: TensorError| NnError::from(AutogradError::from(error)))?)
}

#[test]
fn result_is_the_trainers_where_all_crates_are_imported_by_glob() {
    let options =
        CpuOptions { budget_bytes: Some(1 << 20), threads: Some(1), ..Default::default() };
    let device = Device::cpu(options).expect("1 MiB of addresses");
    let found: std::result::Result<f32, TrainError> = mean(&device);
    assert_eq!(found.expect("memory for it"), 1.0);
}
