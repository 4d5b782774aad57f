//! This crate and the crates below it can be imported by glob together.

use lowtide_allocator::*;
use lowtide_autograd::*;
use lowtide_nn::*;
use lowtide_tensor::*;

/// `Result` is the standard library's `Result` here.
fn ones(device: &Device) -> Result<Tensor, TensorError> {
    let _scope = device.category(Category::Input);
    Tensor::ones(device, [3, 2], DType::F32)
}

#[test]
fn crates_imported_by_glob_leave_result_alone() -> Result<(), NnError> {
    let device = crate::common::cpu();
    let x = ones(&device).map_err(AutogradError::from)?;
    let linear: NnResult<Linear> = Linear::new(&device, RandomKey::new(1), 2, 4);
    let pass = Pass::eval();
    let y = linear?.forward(&pass, pass.constant(x))?;
    assert_eq!(y.shape()[..], [3, 4]);
    Ok(())
}
