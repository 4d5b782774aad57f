//! Means over windows on NVIDIA devices, see `avg_pool2d.cu`.

use super::{AvgPool2d, Divisor};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{AVG_POOL2D, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands};
use crate::error::Result;
use crate::ops::direction::Direction;
use crate::ops::windows::{Axis, Kind};
use Parameter::{Read, Words, Write};

/// `struct Axis`.
fn words(axis: Axis) -> [u64; 5] {
    let [kernel, stride, padding] = match axis.kind {
        Kind::Stepped { kernel, stride, padding } => [kernel, stride, padding],
        Kind::Adaptive => [0; 3],
    };
    [axis.in_len, axis.out_len, kernel, stride, padding].map(|size| size as u64)
}

pub(super) fn pool(op: &AvgPool2d, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let name = match op.direction {
        Direction::Forward => typed_name!("avg_pool2d", op.dtype),
        Direction::Backward => typed_name!("avg_pool2d_backward", op.dtype),
    };
    let kernel = Signature { name, parameters: &[Write, Read, Words(13)] };
    let (is_inside, exactly) = match op.shape.divisor {
        Divisor::Window => (0, 0),
        Divisor::Inside => (1, 0),
        Divisor::Exactly(number) => (0, number.get() as u64),
    };
    let [rows, columns] = op.shape.axes.map(words);
    let means = [&[op.shape.planes as u64, is_inside, exactly][..], &rows, &columns].concat();
    let (to, from) = (operands.write(0), operands.read(0));
    let arguments = [to.to_write(), from.to_read(), Argument::Words(&means)];
    let len = to.layout().shape().element_count();
    cuda.launch(AVG_POOL2D.of(op.dtype), &kernel, grid(len), &arguments)
}
