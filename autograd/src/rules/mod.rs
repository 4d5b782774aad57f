//! One rule per operation: the value and its derivative side by side.
//!
//! In every formula `y` is the output, `dy` its gradient, and `dx` the gradient of input `x`.

mod convert;
mod elementwise;
mod matmul;
mod network;
mod reduce;
mod view;

use lowtide_tensor::{Shape, Tensor};

use crate::Result;

/// `compute` if the gradient is needed.
fn when(needed: bool, compute: impl FnOnce() -> Result<Tensor>) -> Result<Option<Tensor>> {
    needed.then(compute).transpose()
}

/// The gradient of an operand that was broadcast from `shape`: the sum over what was stretched.
fn unbroadcast(dy: &Tensor, shape: Shape) -> Result<Tensor> {
    Ok(dy.sum_to(shape)?)
}
