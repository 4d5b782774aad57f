//! Functions that layers of decoders and of other families share: masks, caps, and running a
//! module.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{Module, NnResult};
use lowtide_tensor::{DType, Device, Tensor, bf16, f16};

/// Runs `module` under `name`, by which memory statistics and random numbers are kept.
pub(crate) fn run_in(pass: &Pass, name: &str, module: &impl Module, x: Var) -> NnResult<Var> {
    pass.within(name, || module.forward(pass, x))
}

/// The mask of sequences whose padding has a 0 in `mask: [B, S]`, for all heads and queries.
pub(crate) fn keys_of(mask: &Tensor) -> NnResult<Tensor> {
    Ok(mask.ne_scalar(0.0)?.unsqueeze(1)?.unsqueeze(1)?)
}

/// True where key `j` is less than `window` positions before query `i`, or is after the query, `[1,
/// 1, T, T]`.
pub(super) fn near(device: &Device, len: usize, window: usize) -> NnResult<Tensor> {
    let queries = Tensor::arange(device, 0.0..len as f64, 1.0, DType::I64)?.reshape([len, 1])?;
    let keys = queries.add_scalar(window as f64)?.reshape([1, len])?;
    Ok(keys.gt(&queries)?.reshape([1, 1, len, len])?)
}

/// True where key `j` is not after query `i`, `[1, 1, T, T]`.
pub(crate) fn before(device: &Device, len: usize) -> NnResult<Tensor> {
    let queries = Tensor::arange(device, 0.0..len as f64, 1.0, DType::I64)?.reshape([len, 1])?;
    let keys = queries.reshape([1, len])?;
    Ok(keys.le(&queries)?.reshape([1, 1, len, len])?)
}

/// `cap · tanh(scale · x / cap)`: about `scale · x` near 0, and never beyond the cap.
pub(super) fn capped(x: Var, scale: f64, cap: f64) -> NnResult<Var> {
    Ok(x.mul_scalar(scale / cap)?.tanh()?.mul_scalar(cap)?)
}

/// The nearest number that a type has.
pub(super) fn rounded(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f64(x).to_f64(),
        DType::F16 => f16::from_f64(x).to_f64(),
        DType::F32 => f64::from(x as f32),
        _ => x,
    }
}
