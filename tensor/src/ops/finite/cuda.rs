//! Passes over gradients on NVIDIA devices.

use lowtide_allocator::cuda::{Argument, Grid, Kernel as Signature, Parameter};

use super::{AddSquares, PARTIALS_MAX, ScaleAndCheck};
use crate::cuda::kernels::{FINITE, WALK_OF_1, grid, typed_name, walk};
use crate::cuda::{Cuda, CudaOperands};
use crate::error::Result;
use Parameter::{F64, Read, U64, Write};

/// Threads of a block.
const THREADS: u32 = 256;

/// Enqueues the scaling and the check of one tensor.
pub(super) fn scale_and_check(
    op: &ScaleAndCheck,
    cuda: &Cuda,
    operands: &CudaOperands<'_>,
) -> Result<()> {
    let [found, x] = [operands.write(0), operands.write(1)];
    let walk = walk(x.layout().shape(), [x.layout()]);
    let name = typed_name!("scale_and_check", op.dtype);
    let kernel = Signature { name, parameters: &[Write, Write, F64, WALK_OF_1] };
    let scale = Argument::F64(op.scale);
    let arguments = [found.to_write(), x.to_write(), scale, Argument::Words(&walk)];
    cuda.launch(FINITE.of(op.dtype), &kernel, grid(op.len), &arguments)
}

/// Enqueues the sum of squares of one tensor, by way of partial sums.
pub(super) fn add_squares(op: &AddSquares, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let (x, [sum, partials]) = (operands.read(0), [operands.write(0), operands.write(1)]);
    let blocks = op.len.div_ceil(THREADS as usize).min(PARTIALS_MAX) as u32;
    let (image, parameters) = (FINITE.of(op.dtype), &[Write, Read, U64]);
    let kernel = Signature { name: typed_name!("squares", op.dtype), parameters };
    let len = Argument::U64(op.len as u64);
    let arguments = [partials.to_write(), x.to_read(), len];
    cuda.launch(image, &kernel, Grid::row(blocks, THREADS), &arguments)?;
    let kernel = Signature { name: typed_name!("add_partials", op.dtype), parameters };
    let count = Argument::U64(u64::from(blocks));
    let arguments = [sum.to_write(), partials.to_read(), count];
    cuda.launch(image, &kernel, Grid::row(1, THREADS), &arguments)
}
