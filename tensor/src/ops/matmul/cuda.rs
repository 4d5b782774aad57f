//! Products on NVIDIA devices: by cuBLASLt, or by the tiled kernels of `cuda/kernels/matmul.cu`.

use lowtide_allocator::Stream;
use lowtide_allocator::cuda::{
    Argument, Blas, Grid, Kernel as Signature, MatrixLayout, Order, Parameter, Precision, Product,
    ProductOperands, Start as BlasStart,
};

use super::{MatMul, Plan, Start};
use crate::cuda::kernels::{FILL, MATMUL, WALK_OF_2, grid, walk};
use crate::cuda::{Cuda, CudaOperands, Place};
use crate::{DType, Result, TensorError};

/// Rows and columns of the tile that a block computes, and its threads.
const TILE: usize = 64;
const THREADS: u32 = 256;

/// The most blocks of a grid in its second and third dimension.
const BLOCKS_MAX: usize = 65_535;

/// Enqueues a product of f32, by the library where it can do it.
pub(super) fn product(op: &MatMul, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let dtypes = [op.dtype, operands.write(0).dtype()];
    if dtypes != [DType::F32; 2] {
        return Err(TensorError::NoKernel { op: op.op, device: "cuda" });
    }
    if let Some((blas, precision)) = cuda.blas()? {
        match by_library(op, cuda, operands, (&blas, precision)) {
            // The kernel below overwrites what has been written.
            Err(TensorError::Product(error)) if error.is_unsupported() => {}
            done => return done,
        }
    }
    by_tiles(op, cuda, operands)
}

/// How the library takes a matrix of rows and columns with these strides, and the next one. A
/// dimension of 1 has no stride to speak of.
fn layout([rows, columns]: [usize; 2], [row, column]: [usize; 2], matrix: usize) -> MatrixLayout {
    if column == 1 || columns == 1 {
        let leading = if rows == 1 { columns } else { row };
        return MatrixLayout { order: Order::Rows, leading, batch_stride: matrix };
    }
    // Neither side by side: rows that reach into each other, which the library does not take.
    let leading = match (row == 1 || rows == 1, columns) {
        (false, _) => 0,
        (true, 1) => rows,
        (true, _) => column,
    };
    MatrixLayout { order: Order::Columns, leading, batch_stride: matrix }
}

fn by_library(
    op: &MatMul,
    cuda: &Cuda,
    operands: &CudaOperands<'_>,
    (blas, precision): (&Blas, Precision),
) -> Result<()> {
    let Plan { batch, size: [m, k, n], strides: [a, b, y] } = op.plan;
    let (count, matrix) = batch.last().unwrap_or((1, [0; 3]));
    let launches = if batch.last().is_some() { batch.without_last() } else { batch };
    let mut start = match op.start {
        Start::Overwrite => BlasStart::Overwrite,
        Start::Accumulate => BlasStart::Accumulate,
    };
    if operands.read_count() > 2 {
        repeat_row(cuda, operands.read(2), operands.write(0))?;
        start = BlasStart::Accumulate;
    }
    let product = Product {
        batch: count,
        m,
        n,
        k,
        y: layout([m, n], y, matrix[2]),
        a: layout([m, k], a, matrix[0]),
        b: layout([k, n], b, matrix[1]),
        precision,
        start,
    };
    let to = operands.write(0);
    for index in 0..launches.len() {
        let [a, b, y] = launches.offsets(index);
        let places = ProductOperands {
            y: (to.block(), to.bytes_from(y)),
            a: (operands.read(0).block(), operands.read(0).bytes_from(a)),
            b: (operands.read(1).block(), operands.read(1).bytes_from(b)),
            workspace: (to.block(), 0..0),
        };
        blas.enqueue(cuda.streams(), Stream::DEFAULT, &product, &places)?;
    }
    Ok(())
}

/// Each row of `y` a copy of `row`.
fn repeat_row(cuda: &Cuda, row: Place<'_>, y: Place<'_>) -> Result<()> {
    let shape = *y.layout().shape();
    let source = row.layout().expand(shape).expect("a bias is as long as a row");
    let walk = walk(&shape, [y.layout(), &source]);
    let kernel =
        Signature { name: "copy_4", parameters: &[Parameter::Write, Parameter::Read, WALK_OF_2] };
    let arguments = [y.to_write(), row.to_read(), Argument::Words(&walk)];
    cuda.launch(FILL, &kernel, grid(shape.element_count()), &arguments)
}

fn by_tiles(op: &MatMul, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let no_kernel = || TensorError::NoKernel { op: op.op, device: "cuda" };
    let Plan { batch, size, strides: [a, b, y] } = &op.plan;
    let [m, k, n] = *size;
    let rows_max = BLOCKS_MAX * TILE;
    if m > rows_max || k > i32::MAX as usize || n > i32::MAX as usize {
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
