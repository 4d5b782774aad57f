//! Packing of masked elements on NVIDIA devices, see `compaction.cu`.

use super::{MaskedScatter, MaskedSelect, Nonzero, Rest, TILE_LEN};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{COMPACTION, WALK_OF_1, WALK_OF_2, grid, walk_of};
use crate::cuda::{Checked, Cuda, CudaOperands, DeviceOperand, OnCuda};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Layout, Nest, RANK_MAX, Shape};
use Parameter::{I64, Read, U64, Words, Write};

/// Threads of a block that takes a tile, and of the block that adds up the counts of all tiles.
const THREADS: u32 = 256;
const ADDING_THREADS: u32 = 512;

/// The kernel parameter `struct Shape`, in words.
const SHAPE: Parameter = Words(1 + RANK_MAX);

fn tiles(len: usize) -> Grid {
    Grid::row(len.div_ceil(TILE_LEN) as u32, THREADS)
}

/// The bits of an element that decide if it is 0.
fn bits(dtype: DType) -> u64 {
    let size_bits = 8 * dtype.size_bytes() as u32;
    u64::MAX >> (64 - size_bits + u32::from(dtype.is_float()))
}

fn name(dtype: DType, names: [&'static str; 4]) -> &'static str {
    names[dtype.size_bytes().ilog2() as usize]
}

/// A mask and its shape. Strides of 0 repeat elements.
#[derive(Clone, Copy)]
struct Mask<'a> {
    place: DeviceOperand<'a>,
    shape: &'a Shape,
    len: usize,
}

impl<'a> Mask<'a> {
    fn new(place: DeviceOperand<'a>) -> Self {
        let shape = place.layout().shape();
        Mask { place, shape, len: shape.element_count() }
    }

    /// Enqueues the number of kept elements before each tile, in `counts`, and the total, in `sum`.
    fn count(
        &self,
        cuda: &Cuda,
        counts: &DeviceOperand<'_>,
        sum: &DeviceOperand<'_>,
    ) -> Result<()> {
        let names = ["count_tiles_1", "count_tiles_2", "count_tiles_4", "count_tiles_8"];
        let dtype = self.place.dtype();
        let kernel =
            Signature { name: name(dtype, names), parameters: &[Write, Read, U64, WALK_OF_1] };
        let walk = walk_of(&Nest::new(self.shape, [self.place.layout().strides()]), self.len);
        let bits = Argument::U64(bits(dtype));
        let arguments = [counts.to_write(), self.place.to_read(), bits, Argument::Words(&walk)];
        cuda.launch(COMPACTION, &kernel, tiles(self.len), &arguments)?;
        add_up(cuda, counts, sum, self.len.div_ceil(TILE_LEN))
    }

    /// `struct Walk<2>` over the mask and another tensor.
    fn walk_with(&self, other: &Layout) -> Vec<u64> {
        let nest = Nest::new(self.shape, [self.place.layout().strides(), other.strides()]);
        walk_of(&nest, self.len)
    }
}

/// Enqueues the prefix sums of the counts of tiles: each count becomes the sum of the counts before
/// it.
pub(crate) fn add_up(
    cuda: &Cuda,
    counts: &DeviceOperand<'_>,
    sum: &DeviceOperand<'_>,
    tiles: usize,
) -> Result<()> {
    let kernel = Signature { name: "add_up_tiles", parameters: &[Write, Write, U64] };
    let arguments = [counts.to_write(), sum.to_write(), Argument::U64(tiles as u64)];
    cuda.launch(COMPACTION, &kernel, Grid::row(1, ADDING_THREADS), &arguments)
}

/// Waits for the sum that [`add_up`] enqueued; `sum` is its place.
pub(crate) fn read_sum(cuda: &Cuda, sum: &DeviceOperand<'_>) -> Result<usize> {
    Ok(cuda.read::<u64>(sum)?[0] as usize)
}

// Enqueues the packing of the kept elements, and waits for their number.
impl OnCuda for MaskedSelect<'_> {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (mask, x) = (Mask::new(operands.read(0)), operands.read(1));
        let [y, counts, sum] = [0, 1, 2].map(|index| operands.write(index));
        mask.count(cuda, &counts, &sum)?;
        let kernel = Signature {
            name: name(self.dtype, ["select_1", "select_2", "select_4", "select_8"]),
            parameters: &[Write, Read, Read, Read, WALK_OF_2],
        };
        let walk = mask.walk_with(x.layout());
        let arguments = [
            y.to_write(),
            counts.to_read(),
            mask.place.to_read(),
            x.to_read(),
            Argument::Words(&walk),
        ];
        cuda.launch(COMPACTION, &kernel, tiles(mask.len), &arguments)?;
        *self.count = read_sum(cuda, &sum)?;
        Ok(())
    }
}

// Enqueues the indices of elements that are not 0. Waits for their number, except when the rest is
// filled.
impl OnCuda for Nonzero<'_> {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let mask = Mask::new(operands.read(0));
        let [y, counts, sum] = [0, 1, 2].map(|index| operands.write(index));
        mask.count(cuda, &counts, &sum)?;
        let kernel = Signature {
            name: name(self.dtype, ["indices_1", "indices_2", "indices_4", "indices_8"]),
            parameters: &[Write, Read, Read, U64, U64, SHAPE, WALK_OF_1],
        };
        let walk = walk_of(&Nest::new(mask.shape, [mask.place.layout().strides()]), mask.len);
        let mut shape = vec![self.shape.len() as u64];
        shape.extend(self.shape.iter().map(|&size| size as u64));
        shape.resize(1 + RANK_MAX, 1);
        let [rows, width] = [y.layout().shape()[0], y.layout().shape()[1]];
        let arguments = [
            y.to_write(),
            counts.to_read(),
            mask.place.to_read(),
            Argument::U64(bits(self.dtype)),
            Argument::U64(rows as u64),
            Argument::Words(&shape),
            Argument::Words(&walk),
        ];
        cuda.launch(COMPACTION, &kernel, tiles(mask.len), &arguments)?;
        let Rest::Filled(value) = self.rest else {
            *self.count = read_sum(cuda, &sum)?;
            return Ok(());
        };
        let kernel = Signature { name: "fill_rest", parameters: &[Write, Read, U64, I64, U64] };
        let [width, len] = [width, rows * width].map(|len| Argument::U64(len as u64));
        let arguments = [y.to_write(), sum.to_read(), width, Argument::I64(value), len];
        cuda.launch(COMPACTION, &kernel, grid(rows * self.shape.len()), &arguments)
    }
}

// Enqueues x with elements of the source where the mask keeps. The next read of a value reports a
// source that has too few elements.
impl OnCuda for MaskedScatter {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let mask = Mask::new(operands.read(0));
        let [x, source] = [1, 2].map(|index| operands.read(index));
        let [y, counts, sum] = [0, 1, 2].map(|index| operands.write(index));
        mask.count(cuda, &counts, &sum)?;
        let source_len = Argument::U64(source.layout().shape().element_count() as u64);
        let number = Checked::Indices("masked_scatter").number().expect("it is one of them");
        let kernel = Signature { name: "check_count", parameters: &[Write, Read, U64, U64] };
        cuda.with_complaint(|complaint| {
            let arguments = [complaint, sum.to_read(), source_len, Argument::U64(number)];
            cuda.launch(COMPACTION, &kernel, Grid::row(1, 32), &arguments)
        })?;
        let kernel = Signature {
            name: name(self.dtype, ["exchange_1", "exchange_2", "exchange_4", "exchange_8"]),
            parameters: &[Write, Read, Read, Read, Read, U64, WALK_OF_2],
        };
        let walk = mask.walk_with(x.layout());
        let arguments = [
            y.to_write(),
            counts.to_read(),
            mask.place.to_read(),
            x.to_read(),
            source.to_read(),
            source_len,
            Argument::Words(&walk),
        ];
        cuda.launch(COMPACTION, &kernel, tiles(self.len), &arguments)
    }
}
