//! Passes over gradients on NVIDIA devices.

use super::{
    AddSquares, AddSquaresAll, PARTIAL_LEN_MIN, ScaleAndCheck, ScaleAndCheckAll, TENSORS_MAX,
    partial_count,
};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{FINITE, WALK_OF_1, grid, typed_name, walk};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use Parameter::{F64, Pointers, Read, U64, Words, Write};

/// Threads of a block.
const THREADS: u32 = 256;
const _: () = assert!(PARTIAL_LEN_MIN == THREADS as usize);

/// Largest number of blocks of a grid that walks over tensors. Each block takes a part of every
/// tensor.
const BLOCKS_MAX: usize = 1 << 10;

/// Bytes of a tile of `scale_and_check_all`.
const TILE_BYTES: usize = 1024 * 16;

/// The kernel parameters `struct Tensors`, in pointers, and `struct Lens`, in words.
const TENSORS: Parameter = Pointers(TENSORS_MAX);
const LENS: Parameter = Words(TENSORS_MAX);

// Enqueues the scaling and the check of one tensor.
impl OnCuda for ScaleAndCheck {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let [found, x] = [operands.write(0), operands.write(1)];
        let walk = walk(x.layout().shape(), [x.layout()]);
        let name = typed_name!("scale_and_check", self.dtype);
        let kernel = Signature { name, parameters: &[Write, Write, F64, WALK_OF_1] };
        let scale = Argument::F64(self.scale);
        let arguments = [found.to_write(), x.to_write(), scale, Argument::Words(&walk)];
        cuda.launch(FINITE.of(self.dtype), &kernel, grid(self.len), &arguments)
    }
}

/// Pointers and lengths in the form that kernels take.
fn tensors_and_lens<'a>(
    all: impl Iterator<Item = Argument<'a>>,
    lens: &[usize],
) -> (Vec<Argument<'a>>, [u64; TENSORS_MAX]) {
    let mut pointers: Vec<Argument<'a>> = all.collect();
    pointers.resize(TENSORS_MAX, Argument::Nothing);
    let mut words = [0; TENSORS_MAX];
    words.iter_mut().zip(lens).for_each(|(word, &len)| *word = len as u64);
    (pointers, words)
}

// Enqueues the scaling and the check of tensors, in one launch.
impl OnCuda for ScaleAndCheckAll {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let writes = (0..self.lens.len()).map(|index| operands.write(1 + index).to_write());
        let (pointers, lens) = tensors_and_lens(writes, &self.lens);
        let name = typed_name!("scale_and_check_all", self.dtype);
        let kernel = Signature { name, parameters: &[Write, TENSORS, LENS, U64, F64] };
        let tile_len = TILE_BYTES / self.dtype.size_bytes();
        let tiles: usize = self.lens.iter().map(|len| len.div_ceil(tile_len)).sum();
        let arguments = [
            operands.write(0).to_write(),
            Argument::Pointers(&pointers),
            Argument::Words(&lens),
            Argument::U64(self.lens.len() as u64),
            Argument::F64(self.scale),
        ];
        let grid = Grid::row(tiles.clamp(1, BLOCKS_MAX) as u32, THREADS);
        cuda.launch(FINITE.of(self.dtype), &kernel, grid, &arguments)
    }
}

// Enqueues the sum of squares of several tensors: partial sums, then the sum of each tensor, then
// the sum of all.
impl OnCuda for AddSquaresAll {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let reads = (0..self.lens.len()).map(|index| operands.read(index).to_read());
        let (pointers, lens) = tensors_and_lens(reads, &self.lens);
        let (sum, scratch, image) = (operands.write(0), operands.write(1), FINITE.of(self.dtype));
        let [lens, count] = [Argument::Words(&lens), Argument::U64(self.lens.len() as u64)];
        let partials: usize = self.lens.iter().map(|&len| partial_count(len)).sum();
        let name = typed_name!("squares_all", self.dtype);
        let kernel = Signature { name, parameters: &[Write, TENSORS, LENS, U64] };
        let arguments = [scratch.to_write(), Argument::Pointers(&pointers), lens, count];
        let grid = Grid::row(partials.clamp(1, BLOCKS_MAX) as u32, THREADS);
        cuda.launch(image, &kernel, grid, &arguments)?;
        // The sums of the tensors follow the partial sums.
        let at = Argument::U64(partials as u64);
        let name = typed_name!("sum_partials", self.dtype);
        let kernel = Signature { name, parameters: &[Write, U64, LENS] };
        let grid = Grid::row(self.lens.len() as u32, THREADS);
        cuda.launch(image, &kernel, grid, &[scratch.to_write(), at, lens])?;
        let name = typed_name!("add_in_order", self.dtype);
        let kernel = Signature { name, parameters: &[Write, Read, U64, U64] };
        let arguments = [sum.to_write(), scratch.to_read(), at, count];
        cuda.launch(image, &kernel, Grid::row(1, 1), &arguments)
    }
}

// Enqueues the sum of squares of one tensor, with partial sums.
impl OnCuda for AddSquares {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (x, [sum, partials]) = (operands.read(0), [operands.write(0), operands.write(1)]);
        let blocks = partial_count(self.len) as u32;
        let (image, parameters) = (FINITE.of(self.dtype), &[Write, Read, U64]);
        let kernel = Signature { name: typed_name!("squares", self.dtype), parameters };
        let len = Argument::U64(self.len as u64);
        let arguments = [partials.to_write(), x.to_read(), len];
        cuda.launch(image, &kernel, Grid::row(blocks, THREADS), &arguments)?;
        let kernel = Signature { name: typed_name!("add_partials", self.dtype), parameters };
        let count = Argument::U64(u64::from(blocks));
        let arguments = [sum.to_write(), partials.to_read(), count];
        cuda.launch(image, &kernel, Grid::row(1, THREADS), &arguments)
    }
}
