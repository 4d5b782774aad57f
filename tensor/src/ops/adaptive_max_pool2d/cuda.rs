//! Both directions on NVIDIA devices, see `adaptive_max_pool2d.cu`.

use super::AdaptiveMaxPool2d;
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{ADAPTIVE_MAX_POOL2D, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use crate::ops::direction::Direction;
use Parameter::{Read, U64, Words, Write};

/// The kernel parameter `struct Size`, in words.
const SIZE: Parameter = Words(1);

impl AdaptiveMaxPool2d {
    /// Words of `struct Size` for the image and for its windows. Both sizes fit in 32 bits.
    fn sizes(&self) -> [u64; 2] {
        let [rows, columns] = self.axes;
        let packed = |rows: usize, columns: usize| rows as u64 | (columns as u64) << 32;
        [packed(rows.in_len, columns.in_len), packed(rows.out_len, columns.out_len)]
    }
}

/// Enqueues the forward kernel, which writes the largest values and their places.
fn forward(op: &AdaptiveMaxPool2d, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let (x, [y, winners]) = (operands.read(0), [0, 1].map(|index| operands.write(index)));
    let (sizes, len) = (op.sizes(), y.layout().shape().element_count());
    let kernel = Signature {
        name: typed_name!("adaptive_max_pool2d", op.dtype),
        parameters: &[Write, Write, Read, SIZE, SIZE, U64],
    };
    let arguments = [
        y.to_write(),
        winners.to_write(),
        x.to_read(),
        Argument::Words(&sizes[..1]),
        Argument::Words(&sizes[1..]),
        Argument::U64(len as u64),
    ];
    cuda.launch(ADAPTIVE_MAX_POOL2D.of(op.dtype), &kernel, grid(len), &arguments)
}

/// Enqueues the gradient.
fn backward(op: &AdaptiveMaxPool2d, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let ([dy, winners], dx) = ([0, 1].map(|index| operands.read(index)), operands.write(0));
    let (sizes, len) = (op.sizes(), dx.layout().shape().element_count());
    let kernel = Signature {
        name: typed_name!("adaptive_max_pool2d_backward", op.dtype),
        parameters: &[Write, Read, Read, SIZE, SIZE, U64],
    };
    let arguments = [
        dx.to_write(),
        dy.to_read(),
        winners.to_read(),
        Argument::Words(&sizes[..1]),
        Argument::Words(&sizes[1..]),
        Argument::U64(len as u64),
    ];
    cuda.launch(ADAPTIVE_MAX_POOL2D.of(op.dtype), &kernel, grid(len), &arguments)
}

impl OnCuda for AdaptiveMaxPool2d {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        match self.direction {
            Direction::Forward => forward(&self, cuda, operands),
            Direction::Backward => backward(&self, cuda, operands),
        }
    }
}
