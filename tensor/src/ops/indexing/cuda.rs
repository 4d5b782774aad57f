//! Indexing on NVIDIA devices: see `gather.cu` and `scatter.cu`.

use lowtide_allocator::cuda::{Argument, Grid, Kernel as Signature, Parameter};

use super::Gather;
use super::scatter::{Arrival, Scatter};
use crate::cuda::kernels::{
    GATHER, SCATTER, WALK_OF_1, WALK_OF_2, grid, typed_name, walk, walk_of,
};
use crate::cuda::{Checked, Cuda, CudaOperands};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::Nest;
use Parameter::{I64, Read, U64, Write};

/// Threads of a block that looks at all indices, or at all that a part of the sums is made of.
const THREADS: u32 = 256;

/// Rows of the sums that a block looks after.
const BLOCK_ROWS: usize = 32;

/// The most blocks of a grid; each then takes several parts.
const BLOCKS_MAX: usize = 1 << 16;

fn no_kernel(op: &'static str) -> TensorError {
    TensorError::NoKernel { op, device: "cuda" }
}

/// What a kernel that finds a bad index calls the operation.
fn number(op: &'static str) -> Result<u64> {
    Checked::Indices(op).number().ok_or_else(|| no_kernel(op))
}

/// `Ok` if there is a kernel.
pub(super) fn check_gather(op: &Gather) -> Result<()> {
    number(op.name).map(drop)
}

/// Enqueues y, of zeros where an index is no place, of which who reads a value is told.
pub(super) fn gather(op: &Gather, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let [index, x] = [0, 1].map(|place| operands.read(place));
    let len = x.layout().shape()[op.axis] as u64;
    let walk_of_index = walk(index.layout().shape(), [index.layout()]);
    let kernel =
        Signature { name: "check_indices", parameters: &[Write, Read, U64, U64, WALK_OF_1] };
    let counts = [len, number(op.name)?].map(Argument::U64);
    cuda.with_complaint(|complaint| {
        let places = Argument::Words(&walk_of_index);
        let arguments = [complaint, index.to_read(), counts[0], counts[1], places];
        cuda.launch(GATHER, &kernel, Grid::row(1, THREADS), &arguments)
    })?;
    let rank = op.shape.len();
    let nest = Nest::new(&op.shape, [&op.index_strides[..rank], &op.strides[..rank]]);
    let (len_of_y, step) = (op.shape.element_count(), x.layout().strides()[op.axis]);
    let walk = walk_of(&nest, len_of_y);
    let name = match op.dtype.size_bytes() {
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

/// `Ok` if there is a kernel: whole rows that are added up, half types in f32.
pub(super) fn check_scatter(op: &Scatter, operands: &CudaOperands<'_>) -> Result<()> {
    let (source, to) = (operands.read(1), operands.write(0));
    let adds_wide = op.arrival == Arrival::Add
        && op.dtypes[0].is_float()
        && op.dtypes[1] == op.dtypes[0].computed();
    let are_rows = op.axis == 0
        && op.index_strides[1..].iter().all(|&stride| stride == 0)
        && source.layout().is_contiguous()
        && to.layout().is_contiguous();
    // Who gave the indices is told of a bad one: forward has done that for these.
    let is_checked = op.name == "embedding_backward";
    if adds_wide && are_rows && is_checked { Ok(()) } else { Err(no_kernel(op.name)) }
}

/// Enqueues the sums, without what has an index that is no row.
pub(super) fn scatter(op: &Scatter, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let ([index, source], to) = ([0, 1].map(|place| operands.read(place)), operands.write(0));
    let [rows, count] = [&to, &source].map(|of| of.layout().shape()[0]);
    let columns = to.layout().shape()[1..].iter().product::<usize>();
    let dtype: DType = op.dtypes[0];
    let kernel = Signature {
        name: typed_name!("index_add_rows", dtype),
        parameters: &[Write, Read, Read, I64, U64, U64, U64],
    };
    let sizes = [count, rows, columns].map(|size| Argument::U64(size as u64));
    let step = Argument::I64(op.index_strides[0] as i64);
    let operands = [to.to_write(), source.to_read(), index.to_read(), step];
    let blocks = rows.div_ceil(BLOCK_ROWS).min(BLOCKS_MAX) as u32;
    let arguments = [&operands[..], &sizes].concat();
    cuda.launch(SCATTER.of(dtype), &kernel, Grid::row(blocks, THREADS), &arguments)
}
