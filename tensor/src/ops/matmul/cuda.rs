//! Products on NVIDIA devices: by cuBLASLt, or by the tiled kernels of `matmul.cu`.

use lowtide_allocator::Stream;

use super::{Batch, MatMul, OperandLayout};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::gate::{
    Blas, BlasError, Epilogue, MatrixLayout, Order, Precision, Product, ProductOperands,
};
use crate::cuda::kernels::{MATMUL, typed_name};
use crate::cuda::{Cuda, CudaOperands, DeviceOperand, OnCuda};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::write_mode::WriteMode;

/// Rows and columns of the tile that a block computes, and threads of the block.
const TILE: usize = 64;
const THREADS: u32 = 256;

/// Largest number of blocks of a grid in its second and third dimension.
const BLOCKS_MAX: usize = 65_535;

// Enqueues a product. Each launch uses the library if possible, else the tiles.
impl OnCuda for MatMul {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let no_kernel = || TensorError::NoKernel { op: self.op, device: "cuda" };
        let library = cuda.blas()?;
        let launches = Launches::new(&self, cuda, operands);
        let has_tiles = launches.fit_tiles();
        if self.has_row_sums {
            return if has_tiles { launches.with_row_sums(library) } else { Err(no_kernel()) };
        }
        let is_undone = launches.outer.len() == 1 || self.start == WriteMode::Overwrite;
        // If the library refused a later launch, a sum that an earlier launch added to could not be
        // restored.
        if !has_tiles && (library.is_none() || !is_undone) {
            return Err(no_kernel());
        }
        for index in 0..launches.outer.len() {
            let offsets = launches.outer.offsets(index);
            let is_done = match &library {
                Some(library) => launches.by_library(library, launches.epilogue(), offsets)?,
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
}

/// A product as several launches, which differ in the starts of their operands.
struct Launches<'a> {
    plan: &'a OperandLayout,
    cuda: &'a Cuda,
    operands: &'a CudaOperands<'a>,
    dtype: DType,
    start: WriteMode,
    /// The bias, which is added to every row.
    bias: Option<DeviceOperand<'a>>,
    /// The destination of the sums of the rows of a.
    row_sums: Option<DeviceOperand<'a>>,
    /// The innermost dimension of the batch, which one launch takes as a whole: its length and its
    /// strides.
    inner: (usize, [usize; 3]),
    /// The other dimensions of the batch: one launch for each index.
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
        let row_sums = op.has_row_sums.then(|| operands.write(1));
        let (dtype, start) = (op.dtype, op.start);
        Launches { plan, cuda, operands, dtype, start, bias, row_sums, inner, outer }
    }

    /// True if the tiles can count rows and columns.
    fn fit_tiles(&self) -> bool {
        let [m, k, n] = self.plan.size;
        m <= BLOCKS_MAX * TILE && k.max(n) <= i32::MAX as usize
    }

    /// The library's epilogue: with or without a bias.
    fn epilogue(&self) -> Epilogue {
        if self.bias.is_some() { Epilogue::Bias } else { Epilogue::Nothing }
    }

    /// One matrix, with the sums of the rows of a. Both are one launch, unless the library can do
    /// nothing but the product.
    fn with_row_sums(&self, library: Option<(Blas, Precision)>) -> Result<()> {
        let no_offsets = [0; 3];
        if let Some(library) = &library {
            // For a product without columns, the library would not read a.
            let [.., n] = self.plan.size;
            if n > 0 && self.by_library(library, Epilogue::RowSums, no_offsets)? {
                return Ok(());
            }
            if self.by_library(library, Epilogue::Nothing, no_offsets)? {
                return self.row_sums_by_tiles(0);
            }
        }
        self.cuda.count_own_product();
        self.row_sums_by_tiles(self.plan.size[2])
    }

    /// True if the library takes the product.
    fn by_library(
        &self,
        (blas, precision): &(Blas, Precision),
        epilogue: Epilogue,
        offsets: [usize; 3],
    ) -> Result<bool> {
        self.cuda.by_library(|| self.enqueue(blas, *precision, epilogue, offsets))
    }

    fn enqueue(
        &self,
        blas: &Blas,
        precision: Precision,
        epilogue: Epilogue,
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
            epilogue,
        };
        let [a, b] = [0, 1].map(|index| self.operands.read(index));
        let y = self.operands.write(0);
        let result_count = if self.row_sums.is_some() { 2 } else { 1 };
        let has_workspace = self.operands.write_count() > result_count;
        let workspace = has_workspace.then(|| self.operands.write(result_count));
        let vector = match epilogue {
            Epilogue::Nothing => None,
            Epilogue::Bias => self.bias,
            Epilogue::RowSums => self.row_sums,
        };
        let places = ProductOperands {
            y: (y.block(), y.bytes_from(y_start)),
            a: (a.block(), a.bytes_from(a_start)),
            b: (b.block(), b.bytes_from(b_start)),
            vector: vector.map(|vector| (vector.block(), vector.bytes())),
            workspace: workspace.map_or((y.block(), 0..0), |bytes| (bytes.block(), bytes.bytes())),
        };
        blas.enqueue(self.cuda.streams(), Stream::DEFAULT, &product, &places)
    }

    /// Sizes and strides in the form that kernels take.
    fn words(&self, n: usize) -> [u64; 12] {
        let OperandLayout { size: [m, k, _], strides: [a, b, y], .. } = *self.plan;
        let (_, matrix) = self.inner;
        [m, n, k, a[0], a[1], matrix[0], b[0], b[1], matrix[1], y[0], y[1], matrix[2]]
            .map(|size| size as u64)
    }

    /// The product of `n` columns, and the sums of the rows of a.
    fn row_sums_by_tiles(&self, n: usize) -> Result<()> {
        let [a, b] = [0, 1].map(|index| self.operands.read(index));
        let [y, row_sums] = [0, 1].map(|index| self.operands.write(index));
        let blocks = [n.div_ceil(TILE).max(1), self.plan.size[0].div_ceil(TILE), 1];
        let blocks = blocks.map(|count| count as u32);
        let grid = Grid { blocks, threads: [THREADS, 1, 1], shared_bytes: 0 };
        use Parameter::{Read, Words, Write};
        let parameters = &[Write, Write, Read, Read, Words(12)];
        let kernel = Signature { name: typed_name!("matmul_row_sums", self.dtype), parameters };
        let words = self.words(n);
        let written = [y.to_write(), row_sums.to_write()];
        let arguments = [written[0], written[1], a.to_read(), b.to_read(), Argument::Words(&words)];
        self.cuda.launch(MATMUL.of(self.dtype), &kernel, grid, &arguments)
    }

    fn by_tiles(&self, offsets: [usize; 3]) -> Result<()> {
        let OperandLayout { size: [m, _, n], strides: [a, b, _], .. } = *self.plan;
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
        let words = self.words(n);
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

/// The library's layout of a matrix with these strides; `batch_stride` leads to the next matrix.
/// The order follows the contiguous dimension. Strides of dimensions of length 1 are ignored.
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
        // Overlapping rows, which the library does not take.
        (Order::Rows, 0)
    };
    MatrixLayout { order, leading, batch_stride }
}
