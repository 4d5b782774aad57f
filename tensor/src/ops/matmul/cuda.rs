//! Products on NVIDIA devices, by the tiled kernels of `cuda/kernels/matmul.cu`.

use lowtide_allocator::cuda::{Argument, Grid, Kernel as Signature, Parameter};

use super::{MatMul, Plan, Start};
use crate::cuda::kernels::MATMUL;
use crate::cuda::{Cuda, CudaOperands};
use crate::{DType, Result, TensorError};

/// Rows and columns of the tile that a block computes, and its threads.
const TILE: usize = 64;
const THREADS: u32 = 256;

/// The most blocks of a grid in its second and third dimension.
const BLOCKS_MAX: usize = 65_535;

/// Enqueues a product of f32.
pub(super) fn product(op: &MatMul, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let no_kernel = || TensorError::NoKernel { op: op.op, device: "cuda" };
    let Plan { batch, size, strides: [a, b, y] } = &op.plan;
    let is_f32 = op.dtype == DType::F32 && operands.write(0).dtype() == DType::F32;
    let [m, k, n] = *size;
    let rows_max = BLOCKS_MAX * TILE;
    if !is_f32 || m > rows_max || k > i32::MAX as usize || n > i32::MAX as usize {
        return Err(no_kernel());
    }
    // The innermost dimension of the batch is one of the grid, the others are launches.
    let (count, matrix) = batch.last().unwrap_or((1, [0; 3]));
    let launches = if batch.last().is_some() { batch.without_last() } else { *batch };
    let names = [["matmul_f32_nn", "matmul_f32_nt"], ["matmul_f32_tn", "matmul_f32_tt"]];
    let [a_turned, b_turned] = [a, b].map(|strides| usize::from(strides[1] != 1));
    use Parameter::{Read, U32, Words, Write};
    let parameters = &[Write, Read, Read, Read, U32, Words(12)];
    let kernel = Signature { name: names[a_turned][b_turned], parameters };
    let adds = Argument::U32(u32::from(op.start == Start::Accumulate));
    let bias = match operands.read_count() > 2 {
        true => operands.read(2).to_read(),
        false => Argument::Nothing,
    };
    let sizes = [m, n, k, a[0], a[1], matrix[0], b[0], b[1], matrix[1], y[0], y[1], matrix[2]];
    let words = sizes.map(|size| size as u64);
    for index in 0..launches.len() {
        let offsets = launches.offsets(index);
        for first in (0..count).step_by(BLOCKS_MAX) {
            let blocks = [n.div_ceil(TILE), m.div_ceil(TILE), (count - first).min(BLOCKS_MAX)];
            let grid = Grid {
                blocks: blocks.map(|count| count as u32),
                threads: [THREADS, 1, 1],
                shared_bytes: 0,
            };
            let [a, b, y] = [0, 1, 2].map(|operand| offsets[operand] + first * matrix[operand]);
            let [a, b] = [operands.read(0).to_read_from(a), operands.read(1).to_read_from(b)];
            let y = operands.write(0).to_write_from(y);
            cuda.launch(MATMUL, &kernel, grid, &[y, a, b, bias, adds, Argument::Words(&words)])?;
        }
    }
    Ok(())
}
