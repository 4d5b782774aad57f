//! Softmax and its gradients on NVIDIA devices, see `softmax.cu`.

use super::Rows;
use crate::cpu::lines::Blocks;
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{LineGroups, SOFTMAX, typed_name};
use crate::cuda::{Cuda, CudaOperands};
use crate::error::{Result, TensorError};
use crate::ops::direction::Direction;
use Parameter::{Read, U32, Words, Write};

/// `struct Blocks`.
const BLOCKS: Parameter = Words(3);

/// The most blocks of a grid; each then takes several lines.
const BLOCKS_MAX: u32 = 1 << 16;

/// `Ok` if there is a kernel: for operands that lie in order.
pub(super) fn check(op: &Rows, operands: &CudaOperands<'_>) -> Result<()> {
    let mut all = operands.reads.iter().chain(operands.writes);
    match all.all(|operand| operand.layout().is_contiguous()) {
        true => Ok(()),
        false => Err(TensorError::NoKernel { op: op.softmax.name, device: "cuda" }),
    }
}

pub(super) fn softmax(op: &Rows, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let Blocks { outer, len, inner } = op.blocks;
    let is_backward = op.softmax.direction == Direction::Backward;
    let source_count = operands.read_count() - usize::from(is_backward);
    let to = operands.write(0).to_write();
    let source = match source_count {
        1 => operands.read(0).to_read(),
        _ => Argument::Nothing,
    };
    let words = [outer, len, inner].map(|size| size as u64);
    let (is_log, sizes) = (Argument::U32(u32::from(op.softmax.is_log)), Argument::Words(&words));
    let (image, dtype) = (SOFTMAX.of(op.dtype), op.dtype);
    let groups = LineGroups::of(op.blocks, dtype, BLOCKS_MAX);
    let (grid, lanes) = (groups.grid(), Argument::U32(groups.lanes));
    if is_backward {
        let kernel = Signature {
            name: typed_name!("softmax_backward", dtype),
            parameters: &[Write, Read, Read, U32, BLOCKS, U32],
        };
        let y = operands.read(source_count).to_read();
        return cuda.launch(image, &kernel, grid, &[to, source, y, is_log, sizes, lanes]);
    }
    let kernel = Signature {
        name: typed_name!("softmax", dtype),
        parameters: &[Write, Read, U32, BLOCKS, U32],
    };
    cuda.launch(image, &kernel, grid, &[to, source, is_log, sizes, lanes])
}
