//! Products on NVIDIA devices: by cuBLASLt, or by the tiled kernels of `matmul.cu`.

use lowtide_allocator::Stream;
use lowtide_allocator::cuda::{Argument, Grid, Kernel as Signature, Parameter};

use super::{Batch, MatMul, OperandLayout};
use crate::cuda::gate::{
    Blas, BlasError, MatrixLayout, Order, Precision, Product, ProductOperands,
};
use crate::cuda::kernels::{MATMUL, typed_name};
use crate::cuda::{Cuda, CudaOperands, DeviceOperand};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::write_mode::WriteMode;

/// Rows and columns of the tile that a block computes, and its threads.
const TILE: usize = 64;
const THREADS: u32 = 256;

/// The most blocks of a grid in its second and third dimension.
const BLOCKS_MAX: usize = 65_535;

/// Enqueues a product: each launch by the library where it can do it, else by the tiles.
pub(super) fn product(op: &MatMul, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let no_kernel = || TensorError::NoKernel { op: op.op, device: "cuda" };
    let library = cuda.blas()?;
    let launches = Launches::new(op, cuda, operands);
    let has_tiles = launches.fit_tiles();
    let is_undone = launches.outer.len() == 1 || op.start == WriteMode::Overwrite;
    // What is added cannot be taken back, should the library refuse a later launch.
    if !has_tiles && (library.is_none() || !is_undone) {
        return Err(no_kernel());
    }
    for index in 0..launches.outer.len() {
        let offsets = launches.outer.offsets(index);
        let is_done = match &library {
            Some((blas, precision)) => {
                cuda.by_library(|| launches.by_library(blas, *precision, offsets))?
            }
            None => false,
        };
        if !is_done && !has_tiles {
            return Err(no_kernel());
        }
        if !is_done {
            launches.by_tiles(offsets)?;
        }
    }
    Ok(())
}

/// A product in launches that differ in where the operands begin.
struct Launches<'a> {
    plan: &'a OperandLayout,
    cuda: &'a Cuda,
    operands: &'a CudaOperands<'a>,
    dtype: DType,
    start: WriteMode,
    /// Added to every row.
    bias: Option<DeviceOperand<'a>>,
    /// The innermost dimension of the batch is one of each launch: how many, and how far apart.
    inner: (usize, [usize; 3]),
    /// A launch for each index of the others.
    outer: Batch,
}

impl<'a> Launches<'a> {
    fn new(op: &'a MatMul, cuda: &'a Cuda, operands: &'a CudaOperands<'a>) -> Self {
        let (plan, batch) = (&op.plan, op.plan.batch);
        let (inner, outer) = match batch.last() {
            Some(inner) => (inner, batch.without_last()),
            None => ((1, [0; 3]), batch),
        };
        let bias = (operands.read_count() > 2).then(|| operands.read(2));
        let (dtype, start) = (op.dtype, op.start);
        Launches { plan, cuda, operands, dtype, start, bias, inner, outer }
    }

    /// Whether the tiles can count rows and columns.
    fn fit_tiles(&self) -> bool {
        let [m, k, n] = self.plan.size;
        m <= BLOCKS_MAX * TILE && k.max(n) <= i32::MAX as usize
    }

    fn by_library(
        &self,
        blas: &Blas,
        precision: Precision,
        [a_start, b_start, y_start]: [usize; 3],
    ) -> Result<(), BlasError> {
        let OperandLayout { size: [m, k, n], strides: [a, b, y], .. } = *self.plan;
        let (batch, [a_matrix, b_matrix, y_matrix]) = self.inner;
        let product = Product {
            batch,
            m,
            n,
            k,
            y: layout([m, n], y, y_matrix),
            a: layout([m, k], a, a_matrix),
            b: layout([k, n], b, b_matrix),
            factors: self.dtype,
            result: self.operands.write(0).dtype(),
            precision,
            start: self.start,
            has_bias: self.bias.is_some(),
        };
        let [a, b] = [0, 1].map(|index| self.operands.read(index));
        let y = self.operands.write(0);
        let workspace = (self.operands.writes.len() > 1).then(|| self.operands.write(1));
        let places = ProductOperands {
            y: (y.block(), y.bytes_from(y_start)),
            a: (a.block(), a.bytes_from(a_start)),
            b: (b.block(), b.bytes_from(b_start)),
            bias: self.bias.map(|bias| (bias.block(), bias.bytes())),
            workspace: workspace.map_or((y.block(), 0..0), |bytes| (bytes.block(), bytes.bytes())),
        };
        blas.enqueue(self.cuda.streams(), Stream::DEFAULT, &product, &places)
    }

    fn by_tiles(&self, offsets: [usize; 3]) -> Result<()> {
        let OperandLayout { size: [m, k, n], strides: [a, b, y], .. } = *self.plan;
        let (count, matrix) = self.inner;
        let [a_turned, b_turned] = [a, b].map(|strides| strides[1] != 1);
        let is_wide = self.operands.write(0).dtype() != self.dtype;
        let name = match (is_wide, a_turned, b_turned) {
            (false, false, false) => typed_name!("matmul_nn", self.dtype),
            (false, false, true) => typed_name!("matmul_nt", self.dtype),
            (false, true, false) => typed_name!("matmul_tn", self.dtype),
            (false, true, true) => typed_name!("matmul_tt", self.dtype),
            (true, false, false) => typed_name!("matmul_wide_nn", self.dtype),
            (true, false, true) => typed_name!("matmul_wide_nt", self.dtype),
            (true, true, false) => typed_name!("matmul_wide_tn", self.dtype),
            (true, true, true) => typed_name!("matmul_wide_tt", self.dtype),
        };
        use Parameter::{Read, U32, Words, Write};
        let parameters = &[Write, Read, Read, Read, U32, Words(12)];
        let kernel = Signature { name, parameters };
        let adds = Argument::U32(u32::from(self.start == WriteMode::Accumulate));
        let bias = self.bias.map_or(Argument::Nothing, |bias| bias.to_read());
        let sizes = [m, n, k, a[0], a[1], matrix[0], b[0], b[1], matrix[1], y[0], y[1], matrix[2]];
        let words = sizes.map(|size| size as u64);
        for first in (0..count).step_by(BLOCKS_MAX) {
            let blocks = [n.div_ceil(TILE), m.div_ceil(TILE), (count - first).min(BLOCKS_MAX)];
            let grid = Grid {
                blocks: blocks.map(|count| count as u32),
                threads: [THREADS, 1, 1],
                shared_bytes: 0,
            };
            let [a, b, y] = [0, 1, 2].map(|operand| offsets[operand] + first * matrix[operand]);
            let reads = [self.operands.read(0), self.operands.read(1)];
            let (a, b) = (reads[0].to_read_from(a), reads[1].to_read_from(b));
            let y = self.operands.write(0).to_write_from(y);
            let arguments = [y, a, b, bias, adds, Argument::Words(&words)];
            self.cuda.launch(MATMUL.of(self.dtype), &kernel, grid, &arguments)?;
            self.cuda.count_own_product();
        }
        Ok(())
    }
}

/// How the library takes a matrix with these strides, and the next one: by whatever lies side by
/// side. A dimension of 1 has no stride to speak of.
fn layout(
    [rows, columns]: [usize; 2],
    [row, column]: [usize; 2],
    batch_stride: usize,
) -> MatrixLayout {
    let (order, leading) = if column == 1 || columns == 1 {
        (Order::Rows, if rows == 1 { columns } else { row })
    } else if row == 1 || rows == 1 {
        (Order::Columns, column)
    } else {
        // Rows that reach into each other, which the library does not take.
        (Order::Rows, 0)
    };
    MatrixLayout { order, leading, batch_stride }
}
