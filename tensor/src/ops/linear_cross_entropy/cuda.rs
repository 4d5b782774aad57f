//! Launches on NVIDIA devices: the products, and the losses of each chunk, see
//! `linear_cross_entropy.cu`.

use super::{Chunk, LinearCrossEntropyKernel, Sizes};
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{LINEAR_CROSS_ENTROPY, grid, typed_name};
use crate::cuda::{Checked, Cuda, CudaOperands};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::launch::{Kernel, Operands};
use crate::tensor::Tensor;
use crate::write_mode::WriteMode;
use Parameter::{F64, I64, Read, U64, Words, Write};

/// The kernel parameter `struct Rows`, in words.
const ROWS: Parameter = Words(4);

/// Largest number of threads of a block, which takes one row at a time.
const THREADS_MAX: usize = 256;

/// Largest number of blocks of a grid. More rows go to the same blocks.
const BLOCKS_MAX: usize = 1 << 16;

/// The rows that a kernel reads: a chunk, or all of them.
#[derive(Clone, Copy)]
struct Rows {
    op: &'static str,
    dtype: DType,
    rows: usize,
    classes: usize,
    /// Elements between the logits of neighbouring rows.
    row_len: usize,
    ignore_index: i64,
}

impl Rows {
    /// The words of the kernel parameter `struct Rows`.
    fn words(&self) -> [u64; 4] {
        let [rows, classes, row_len] = [self.rows, self.classes, self.row_len].map(|n| n as u64);
        [rows, classes, row_len, self.ignore_index.cast_unsigned()]
    }

    fn threads(len: usize) -> u32 {
        len.next_multiple_of(32).clamp(32, THREADS_MAX) as u32
    }

    fn cost(&self, len: usize) -> Cost {
        let (passes, size_bytes) = (3, self.dtype.computed().size_bytes());
        Cost {
            class: OpClass::Reduction,
            flops: (passes * len) as f64,
            bytes: (passes * len * size_bytes) as f64,
        }
    }

    fn never_there(&self) -> TensorError {
        TensorError::NoKernel { op: self.op, device: "cpu" }
    }
}

/// The losses of a chunk. Reads its labels, and bias and dy if given; writes its logits and losses,
/// and adds to db if wanted.
struct Losses {
    of: Rows,
    smoothing: f64,
    has_bias: bool,
    has_dy: bool,
    has_db: bool,
}

impl Kernel for Losses {
    fn name(&self) -> &'static str {
        self.of.op
    }

    fn cost(&self) -> Cost {
        self.of.cost(self.of.rows * self.of.classes)
    }

    fn cpu(self, _: &Cpu, _: &mut Operands<'_>) -> Result<()> {
        Err(self.of.never_there())
    }

    fn check_cuda(&self, _: &CudaOperands<'_>) -> Result<()> {
        Ok(())
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let Losses { of, smoothing, has_bias, has_dy, has_db } = self;
        let kernel = Signature {
            name: typed_name!("loss_of_logits", of.dtype),
            parameters: &[Write, Write, Read, Read, Read, F64, ROWS],
        };
        let words = of.words();
        let [logits, losses] = [0, 1].map(|index| operands.write(index).to_write());
        let (bias, dy) =
            (operands.read_if(has_bias, 1), operands.read_if(has_dy, 1 + usize::from(has_bias)));
        let (labels, smoothing) = (operands.read(0).to_read(), Argument::F64(smoothing));
        let (image, words) = (LINEAR_CROSS_ENTROPY.of(of.dtype), Argument::Words(&words));
        let arguments = [logits, losses, bias, labels, dy, smoothing, words];
        let lines = Grid::row(of.rows.min(BLOCKS_MAX) as u32, Rows::threads(of.classes));
        cuda.launch(image, &kernel, lines, &arguments)?;
        if !has_db {
            return Ok(());
        }
        let (db, gradients) = (operands.write(2), operands.write(0).to_read());
        let name = if db.dtype() == of.dtype {
            typed_name!("add_columns", of.dtype)
        } else {
            typed_name!("add_columns_wide", of.dtype)
        };
        let kernel = Signature { name, parameters: &[Write, Read, I64, ROWS] };
        let step = Argument::I64(db.layout().strides()[0] as i64);
        cuda.launch(image, &kernel, grid(of.classes), &[db.to_write(), gradients, step, words])
    }
}

/// Reads the losses and the labels of all rows. Writes the sum of the losses, and the number of
/// labels that count.
struct Total(Rows);

impl Kernel for Total {
    fn name(&self) -> &'static str {
        self.0.op
    }

    fn cost(&self) -> Cost {
        self.0.cost(self.0.rows)
    }

    fn cpu(self, _: &Cpu, _: &mut Operands<'_>) -> Result<()> {
        Err(self.0.never_there())
    }

    fn check_cuda(&self, _: &CudaOperands<'_>) -> Result<()> {
        Ok(())
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let of = self.0;
        let kernel = Signature {
            name: typed_name!("sum_of_losses", of.dtype),
            parameters: &[Write, Write, Write, Read, Read, U64, ROWS],
        };
        let words = of.words();
        let number = Checked::Labels(of.op).number().expect("it is one of them");
        let [sum, count] = [0, 1].map(|index| operands.write(index).to_write());
        let [losses, labels] = [0, 1].map(|index| operands.read(index).to_read());
        cuda.with_complaint(|complaint| {
            let (number, words) = (Argument::U64(number), Argument::Words(&words));
            let arguments = [sum, count, complaint, losses, labels, number, words];
            // One block adds in a fixed order.
            let grid = Grid::row(1, THREADS_MAX as u32);
            cuda.launch(LINEAR_CROSS_ENTROPY.of(of.dtype), &kernel, grid, &arguments)
        })
    }
}

/// The gradients to compute.
pub(super) struct Gradients<'a> {
    /// The gradient of the sum of the losses.
    pub(super) dy: &'a Tensor,
    /// The gradient of x, which is overwritten.
    pub(super) dx: &'a Tensor,
    /// The gradient of w, if wanted. The kernel adds to the tensor.
    pub(super) dw: Option<&'a Tensor>,
    /// The gradient of b, if wanted. The kernel adds to the tensor.
    pub(super) db: Option<&'a Tensor>,
}

impl LinearCrossEntropyKernel {
    /// The classes of each product: the first class and their number. The library's kernels for
    /// tensor cores take whole vectors of half types, so the last few classes have a product of
    /// their own.
    fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        const VECTOR_LEN: usize = 8;
        let classes = self.sizes.classes;
        let whole = match self.dtype.size_bytes() {
            2 => classes / VECTOR_LEN * VECTOR_LEN,
            _ => classes,
        };
        [(0, whole), (whole, classes - whole)].into_iter().filter(|&(_, count)| count > 0)
    }

    /// Launches everything. Each chunk of rows has its logits, their losses and gradients, and the
    /// products with the gradients. Logits use the workspace; losses are of all rows.
    #[track_caller]
    pub(super) fn launch_chunks(
        &self,
        [x, w, labels]: [&Tensor; 3],
        bias: Option<&Tensor>,
        gradients: Option<&Gradients<'_>>,
        [sum, count, logits, losses]: [&Tensor; 4],
    ) -> Result<()> {
        let (op, device, Sizes { rows, classes, .. }) = (self.op, x.device(), self.sizes);
        let Chunk { rows: chunk_rows, row_len } = self.sizes.chunk(device.kind());
        let (dtype, ignore_index) = (self.dtype, self.options.ignore_index);
        let all = Rows { op, dtype, rows, classes, row_len, ignore_index };
        let turned = w.transpose(0, 1)?;
        for first in (0..rows).step_by(chunk_rows.max(1)) {
            let rows = chunk_rows.min(rows - first);
            let logits = logits.narrow(0, 0, rows * row_len)?.reshape([rows, row_len])?;
            let logits = logits.narrow(1, 0, classes)?;
            let [x, labels, losses] = [x, labels, losses].map(|of| of.narrow(0, first, rows));
            let (x, labels, losses) = (x?, labels?, losses?);
            for (first, count) in self.parts() {
                let turned = turned.narrow(1, first, count)?;
                logits.narrow(1, first, count)?.multiply(op, &x, &turned, WriteMode::Overwrite)?;
            }
            let kernel = Losses {
                of: Rows { rows, ..all },
                smoothing: self.options.label_smoothing,
                has_bias: bias.is_some(),
                has_dy: gradients.is_some(),
                has_db: gradients.is_some_and(|gradients| gradients.db.is_some()),
            };
            let (dy, db) = gradients.map_or((None, None), |of| (Some(of.dy), of.db));
            let reads: Vec<&Tensor> = [Some(&labels), bias, dy].into_iter().flatten().collect();
            let writes: Vec<&Tensor> = [&logits, &losses].into_iter().chain(db).collect();
            device.launch(kernel, &reads, &writes)?;
            let Some(Gradients { dx, dw, .. }) = gradients else { continue };
            let logits = logits.front_of_rows(self.dtype);
            let dx = dx.narrow(0, first, rows)?;
            let mut start = WriteMode::Overwrite;
            for (first, count) in self.parts() {
                let logits = logits.narrow(1, first, count)?;
                dx.multiply(op, &logits, &w.narrow(0, first, count)?, start)?;
                start = WriteMode::Accumulate;
                let Some(dw) = dw else { continue };
                let (dw, logits) = (dw.narrow(0, first, count)?, logits.transpose(0, 1)?);
                dw.multiply(op, &logits, &x, WriteMode::Accumulate)?;
            }
        }
        device.launch(Total(all), &[losses, labels], &[sum, count])
    }
}
