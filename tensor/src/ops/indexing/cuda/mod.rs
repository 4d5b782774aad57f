//! Indexing on NVIDIA devices: see `gather.cu` and `scatter.cu`.

mod arrivals;

use super::scatter::Scatter;
use super::{Gather, OneHot};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{
    GATHER, ONE_HOT, SCATTER, WALK_OF_1, WALK_OF_2, bits_of, grid, typed_name, walk, walk_of,
};
use crate::cuda::{Checked, Cuda, CudaOperands, DeviceOperand, OnCuda};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::Nest;
use Parameter::{I64, Read, U64, Write};

/// Threads of a block that checks all indices, or finds the rows for a part of the sums.
const THREADS: u32 = 256;

/// Rows of the sums in a part, which one block computes.
const BLOCK_ROWS: usize = 32;

/// Largest number of blocks of a grid. More parts go to the same blocks.
const BLOCKS_MAX: usize = 1 << 16;

fn no_kernel(op: &'static str) -> TensorError {
    TensorError::NoKernel { op, device: "cuda" }
}

/// The operation's number for a kernel that finds a bad index.
fn number(op: &'static str) -> Result<u64> {
    Checked::Indices(op).number().ok_or_else(|| no_kernel(op))
}

/// Enqueues a check of all indices: the next read of a value reports the first one that is not
/// below `len`.
pub(super) fn check_indices(
    op: &'static str,
    cuda: &Cuda,
    index: &DeviceOperand<'_>,
    len: usize,
) -> Result<()> {
    let walk = walk(index.layout().shape(), [index.layout()]);
    let kernel =
        Signature { name: "check_indices", parameters: &[Write, Read, U64, U64, WALK_OF_1] };
    let [len, number] = [len as u64, number(op)?].map(Argument::U64);
    cuda.with_complaint(|complaint| {
        let arguments = [complaint, index.to_read(), len, number, Argument::Words(&walk)];
        cuda.launch(GATHER, &kernel, Grid::row(1, THREADS), &arguments)
    })
}

// Enqueues rows with a one at the index. A row stays zero if its index is no class; the next read
// of a value reports this.
impl OnCuda for OneHot {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (index, y) = (operands.read(0), operands.write(0));
        check_indices("one_hot", cuda, &index, self.class_count)?;
        let walk = walk(index.layout().shape(), [index.layout()]);
        let kernel = Signature {
            name: ["one_hot_1", "one_hot_2", "one_hot_4", "one_hot_8"]
                [self.dtype.size_bytes().ilog2() as usize],
            parameters: &[Write, Read, U64, U64, WALK_OF_1],
        };
        let counts = [bits_of(self.dtype, 1.0), self.class_count as u64].map(Argument::U64);
        let arguments =
            [y.to_write(), index.to_read(), counts[0], counts[1], Argument::Words(&walk)];
        cuda.launch(ONE_HOT, &kernel, grid(self.out_len), &arguments)
    }
}

// Enqueues y, with zeros where an index is out of range. The next read of a value reports such an
// index.
impl OnCuda for Gather {
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        number(self.name).map(drop)
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let [index, x] = [0, 1].map(|place| operands.read(place));
        let len = x.layout().shape()[self.axis];
        check_indices(self.name, cuda, &index, len)?;
        let len = len as u64;
        let rank = self.shape.len();
        let nest = Nest::new(&self.shape, [&self.index_strides[..rank], &self.strides[..rank]]);
        let (len_of_y, step) = (self.shape.element_count(), x.layout().strides()[self.axis]);
        let walk = walk_of(&nest, len_of_y);
        let name = match self.dtype.size_bytes() {
            1 => "gather_1",
            2 => "gather_2",
            4 => "gather_4",
            _ => "gather_8",
        };
        let kernel = Signature { name, parameters: &[Write, Read, Read, I64, U64, WALK_OF_2] };
        let arguments = [
            operands.write(0).to_write(),
            x.to_read(),
            index.to_read(),
            Argument::I64(step as i64),
            Argument::U64(len),
            Argument::Words(&walk),
        ];
        cuda.launch(GATHER, &kernel, grid(len_of_y), &arguments)
    }
}

/// Enqueues the sums of whole rows. An index that is no row adds nothing. The next read of a value
/// reports such an index, unless forward has checked the indices.
fn add_rows(op: &Scatter, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let ([index, source], to) = ([0, 1].map(|place| operands.read(place)), operands.write(0));
    if !op.line.is_trusted() {
        check_indices(op.line.name, cuda, &index, to.layout().shape()[0])?;
    }
    let [rows, count] = [&to, &source].map(|of| of.layout().shape()[0]);
    let columns = to.layout().shape()[1..].iter().product::<usize>();
    let dtype: DType = op.dtypes[0];
    let kernel = Signature {
        name: typed_name!("index_add_rows", dtype),
        parameters: &[Write, Read, Read, I64, U64, U64, U64],
    };
    let sizes = [count, rows, columns].map(|size| Argument::U64(size as u64));
    let step = Argument::I64(op.line.index_strides[0] as i64);
    let operands = [to.to_write(), source.to_read(), index.to_read(), step];
    let blocks = rows.div_ceil(BLOCK_ROWS).min(BLOCKS_MAX) as u32;
    let arguments = [&operands[..], &sizes].concat();
    cuda.launch(SCATTER.of(dtype), &kernel, Grid::row(blocks, THREADS), &arguments)
}

impl OnCuda for Scatter {
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        if self.line.is_trusted() { Ok(()) } else { arrivals::check(self.line.name) }
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (source, to) = (operands.reads[1], operands.writes[0]);
        if self.is_of_rows(source, to) {
            return add_rows(&self, cuda, operands);
        }
        arrivals::arrive(&self.line, self.arrival.into(), self.dtypes, cuda, operands)
    }
}
