//! Both directions on NVIDIA devices, without scratch. See `max_pool2d.cu`.

use lowtide_allocator::cuda::{Argument, Kernel as Signature, Parameter};

use super::cpu::MaxPool2dShape;
use super::{Backward, Forward};
use crate::cuda::kernels::{MAX_POOL2D, grid};
use crate::cuda::{Cuda, CudaOperands};
use crate::error::Result;

/// `struct Pool`.
const POOL: Parameter = Parameter::Words(13);

/// Enqueues the maxima of f32.
pub(super) fn forward(op: &Forward, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    use Parameter::{Read, Write};
    let kernel = Signature { name: "max_pool2d_f32", parameters: &[Write, Write, Read, POOL] };
    let (y, winners, x) = (operands.write(0), operands.write(1), operands.read(0));
    let words = words(&op.shape);
    let arguments = [y.to_write(), winners.to_write(), x.to_read(), Argument::Words(&words)];
    cuda.launch(MAX_POOL2D, &kernel, grid(op.shape.y_len()), &arguments)
}

/// Enqueues the gradient of f32.
pub(super) fn backward(op: &Backward, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    use Parameter::{Read, Write};
    let parameters = &[Write, Read, Read, POOL];
    let kernel = Signature { name: "max_pool2d_backward_f32", parameters };
    let (dx, dy, winners) = (operands.write(0), operands.read(0), operands.read(1));
    let words = words(&op.shape);
    let arguments = [dx.to_write(), dy.to_read(), winners.to_read(), Argument::Words(&words)];
    cuda.launch(MAX_POOL2D, &kernel, grid(op.shape.x_len()), &arguments)
}

/// `struct Pool`.
fn words(shape: &MaxPool2dShape) -> [u64; 13] {
    let MaxPool2dShape { planes, in_size, out_size, kernel, stride, padding, dilation } = *shape;
    let mut words = [planes as u64; 13];
    let pairs = [in_size, out_size, kernel, stride, padding, dilation];
    for (word, size) in words[1..].iter_mut().zip(pairs.into_iter().flatten()) {
        *word = size as u64;
    }
    words
}
