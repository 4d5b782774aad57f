//! Launches of the kernels in `channels_last.cu`.

use super::ChannelsLast;
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{CHANNELS_LAST, divisor, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands};
use crate::error::Result;
use crate::ops::conv2d::cuda::{BLOCKS_MAX, TILE, TILE_THREADS, len_of};
use crate::ops::conv2d::shape::Conv2dShape;
use crate::ops::conv2d::{Conv2d, Product};
use Parameter::{Read, U32, Words, Write};

/// The kernel parameter `struct Conv`, in words.
const CONV: Parameter = Words(20);

/// Places and channels that a block copies.
const COPY_SIDE: usize = 64;

/// Enqueues copies of the operands with their channels last, and their product.
pub(in super::super) fn run(
    of: &ChannelsLast,
    conv: &Conv2d,
    on_tiles: Grid,
    cuda: &Cuda,
    operands: &CudaOperands<'_>,
) -> Result<()> {
    let (image, dtype, shape) = (CHANNELS_LAST.of(conv.dtype), conv.dtype, &conv.shape);
    let [y, scratch] = [0, 1].map(|index| operands.write(index));
    let [a, b] = [0, 1].map(|index| operands.read(index));
    let [source, other, sums, _] = of.scratch();
    // Copies `[outer, groups, channels, places]` with the channels last.
    let copy = |to: usize, from: Argument<'_>, [outer, groups, channels, places]: [usize; 4]| {
        let name = typed_name!("channels_last", dtype);
        let kernel = Signature { name, parameters: &[Write, Read, U32, U32, U32, U32] };
        let sizes = [outer, groups, channels, places].map(|size| Argument::U32(size as u32));
        let blocks = [places.div_ceil(COPY_SIDE), channels.div_ceil(COPY_SIDE), outer * groups];
        let blocks = [blocks[0] as u32, blocks[1] as u32, blocks[2].min(BLOCKS_MAX) as u32];
        let grid = Grid { blocks, threads: [TILE_THREADS, 1, 1], shared_bytes: 0 };
        let [outer, groups, channels, places] = sizes;
        let arguments = [scratch.to_write_from(to), from, outer, groups, channels, places];
        cuda.launch(image, &kernel, grid, &arguments)
    };
    let (batch, groups) = (shape.batch, shape.groups);
    let [ins, outs] = [shape.in_channels, shape.out_channels].map(|count| count / groups);
    let in_len = shape.in_height * shape.in_width;
    let out_len = shape.out_height() * shape.out_width();
    let taps = shape.kernel[0] * shape.kernel[1];
    let words = words(of, shape);
    let sizes = Argument::Words(&words);
    let is_tall = of.tile_rows > TILE;
    if conv.product == Product::BackwardWeight {
        copy(source, b.to_read(), [batch, groups, ins, in_len])?;
        copy(other, a.to_read(), [batch, groups, outs, out_len])?;
        let name = if is_tall {
            typed_name!("channels_last_tall_backward_weight", dtype)
        } else {
            typed_name!("channels_last_backward_weight", dtype)
        };
        let kernel = Signature { name, parameters: &[Write, Read, Read, U32, CONV] };
        let part_count = Argument::U32(of.parts as u32);
        let [x, dy] = [source, other].map(|at| scratch.to_read_from(at));
        let to_parts = scratch.to_write_from(sums);
        cuda.launch(image, &kernel, on_tiles, &[to_parts, x, dy, part_count, sizes])?;
        let name = typed_name!("channels_last_sum_parts", dtype);
        let parameters = &[Write, Read, U32, U32, U32, Words(2), Words(2)];
        let kernel = Signature { name, parameters };
        let len = of.filters_len;
        let [by_depth, by_taps] = [divisor(of.in_packs(ins)), divisor(taps)];
        let arguments = [
            y.to_write(),
            scratch.to_read_from(sums),
            part_count,
            Argument::U32(ins as u32),
            Argument::U32(len as u32),
            Argument::Words(&by_depth),
            Argument::Words(&by_taps),
        ];
        return cuda.launch(image, &kernel, grid(len), &arguments);
    }
    let name = match (conv.product, is_tall) {
        (Product::Forward, true) => typed_name!("channels_last_tall_conv2d", dtype),
        (Product::Forward, false) => typed_name!("channels_last_conv2d", dtype),
        (_, true) => typed_name!("channels_last_tall_backward_input", dtype),
        (_, false) => typed_name!("channels_last_backward_input", dtype),
    };
    if conv.product == Product::Forward {
        copy(source, a.to_read(), [batch, groups, ins, in_len])?;
        copy(other, b.to_read(), [shape.out_channels, 1, ins, taps])?;
    } else {
        copy(source, a.to_read(), [batch, groups, outs, out_len])?;
        copy(other, b.to_read(), [groups, 1, outs, ins * taps])?;
    }
    let bias = operands.read_if(operands.read_count() > 2, 2);
    let kernel = Signature { name, parameters: &[Write, Read, Read, Read, CONV] };
    let [source, w] = [source, other].map(|at| scratch.to_read_from(at));
    cuda.launch(image, &kernel, on_tiles, &[y.to_write(), source, w, bias, sizes])
}

/// A block for each tile of the result of each group, phase and part. `None` if the kernels, which
/// count in 32 bits, or a grid cannot have that many.
pub(in super::super) fn tiles(of: &ChannelsLast, conv: &Conv2d) -> Option<Grid> {
    let shape = &conv.shape;
    len_of(&[shape.batch, of.places[0], of.places[1]])?;
    len_of(&[shape.batch, shape.groups])?;
    len_of(&[of.filters_len])?;
    len_of(&[shape.groups, of.in_packs(of.source_channels)])?;
    len_of(&[shape.groups, of.in_packs(of.result_channels)])?;
    let [across, down] = of.tiles;
    let layers = shape.groups.checked_mul(of.phases)?.checked_mul(of.parts)?;
    let fits = down <= BLOCKS_MAX && layers <= BLOCKS_MAX;
    let blocks = [across as u32, down as u32, layers as u32];
    fits.then_some(Grid { blocks, threads: [TILE_THREADS, 1, 1], shared_bytes: 0 })
}

/// The words of the kernel parameter `struct Conv` of `channels_last.cu`.
fn words(of: &ChannelsLast, shape: &Conv2dShape) -> Vec<u64> {
    let side = |axis: usize| {
        let Conv2dShape { kernel, stride, padding, dilation, .. } = *shape;
        let lens = [of.source_size[axis], of.result_size[axis]];
        lens.into_iter().chain([kernel, stride, padding, dilation].map(|pair| pair[axis]))
    };
    let counts = [shape.batch, shape.groups, of.source_channels, of.result_channels];
    let sizes = counts.into_iter().chain(side(0)).chain(side(1)).map(|size| size as u64);
    sizes.chain([of.places[0] * of.places[1], of.places[1]].into_iter().flat_map(divisor)).collect()
}
