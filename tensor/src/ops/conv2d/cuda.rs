//! The three products on NVIDIA devices: implicit matrix products in tiles. Gradients of weights
//! have few elements that are sums over all pixels, so several blocks each add up some of the
//! pixels, in scratch memory. See `conv2d.cu`, and `channels_last.cu` for what tensor cores take.

use super::channels_last::{self, ChannelsLast};
use super::shape::Conv2dShape;
use super::{Conv2d, Product};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{CHANNELS_LAST, CONV2D, divisor, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands};
use crate::error::{Result, TensorError};
use Parameter::{Read, U32, U64, Words, Write};

/// `struct Conv` of `conv2d.cu`.
const CONV: Parameter = Words(32);

/// `struct Conv` of `channels_last.cu`.
const CHANNELS_LAST_CONV: Parameter = Words(20);

/// Places and channels that a block copies.
const COPY_SIDE: usize = 64;

/// `TILE` and `TILE_THREADS` of `common.cu`.
const TILE: usize = 64;
const TILE_THREADS: u32 = 256;

/// Blocks of a grid in its second and third direction.
const BLOCKS_MAX: usize = 65_535;

/// `Ok` if the kernels, which count in 32 bits, can do the product.
pub(super) fn check(conv: &Conv2d) -> Result<()> {
    grid_of(conv).map(drop)
}

fn grid_of(conv: &Conv2d) -> Result<Grid> {
    let grid = match channels_last::is_used(conv) {
        true => tiles(&conv.shape, conv.product).and_then(|_| channels_last_tiles(conv)),
        false => tiles(&conv.shape, conv.product),
    };
    grid.ok_or(TensorError::NoKernel { op: conv.op, device: "cuda" })
}

/// Enqueues a product.
pub(super) fn run(conv: &Conv2d, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    if channels_last::is_used(conv) {
        return run_channels_last(conv, cuda, operands);
    }
    let (on_tiles, image, dtype) = (grid_of(conv)?, CONV2D.of(conv.dtype), conv.dtype);
    let words = words(&conv.shape);
    let sizes = Argument::Words(&words);
    let [y, scratch] = [0, 1].map(|index| operands.write(index));
    let [a, b] = [0, 1].map(|index| operands.read(index).to_read());
    if let Product::BackwardWeight = conv.product {
        let parts = conv.shape.weight_parts();
        let name = typed_name!("conv2d_backward_weight", dtype);
        let kernel = Signature { name, parameters: &[Write, Write, Read, Read, U32, CONV] };
        let part_count = Argument::U32(parts as u32);
        let to_parts = if parts > 1 { scratch.to_write() } else { Argument::Nothing };
        cuda.launch(image, &kernel, on_tiles, &[y.to_write(), to_parts, b, a, part_count, sizes])?;
        if parts == 1 {
            return Ok(());
        }
        let name = typed_name!("conv2d_sum_parts", dtype);
        let kernel = Signature { name, parameters: &[Write, Read, U32, U64] };
        let len = conv.shape.w_len();
        let arguments = [y.to_write(), scratch.to_read(), part_count, Argument::U64(len as u64)];
        return cuda.launch(image, &kernel, grid(len), &arguments);
    }
    let name = match conv.product {
        Product::Forward => typed_name!("conv2d", dtype),
        _ => typed_name!("conv2d_backward_input", dtype),
    };
    let bias =
        if operands.read_count() > 2 { operands.read(2).to_read() } else { Argument::Nothing };
    let kernel = Signature { name, parameters: &[Write, Read, Read, Read, CONV] };
    cuda.launch(image, &kernel, on_tiles, &[y.to_write(), a, b, bias, sizes])
}

/// A product for tensor cores: copies of the operands with their channels last, and what they give.
fn run_channels_last(conv: &Conv2d, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let (on_tiles, image, dtype) = (grid_of(conv)?, CHANNELS_LAST.of(conv.dtype), conv.dtype);
    let (of, shape) = (ChannelsLast::of(conv), &conv.shape);
    let [y, scratch] = [0, 1].map(|index| operands.write(index));
    let [a, b] = [0, 1].map(|index| operands.read(index));
    let [source, other, sums, _] = of.scratch();
    // `[outer, groups, channels, places]` with the channels last.
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
    let words = channels_last_words(&of, shape);
    let sizes = Argument::Words(&words);
    let is_tall = of.tile_rows > TILE;
    if let Product::BackwardWeight = conv.product {
        copy(source, b.to_read(), [batch, groups, ins, in_len])?;
        copy(other, a.to_read(), [batch, groups, outs, out_len])?;
        let name = match is_tall {
            true => typed_name!("channels_last_tall_backward_weight", dtype),
            false => typed_name!("channels_last_backward_weight", dtype),
        };
        let kernel = Signature { name, parameters: &[Write, Read, Read, U32, CHANNELS_LAST_CONV] };
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
    if let Product::Forward = conv.product {
        copy(source, a.to_read(), [batch, groups, ins, in_len])?;
        copy(other, b.to_read(), [shape.out_channels, 1, ins, taps])?;
    } else {
        copy(source, a.to_read(), [batch, groups, outs, out_len])?;
        copy(other, b.to_read(), [groups, 1, outs, ins * taps])?;
    }
    let bias =
        if operands.read_count() > 2 { operands.read(2).to_read() } else { Argument::Nothing };
    let kernel = Signature { name, parameters: &[Write, Read, Read, Read, CHANNELS_LAST_CONV] };
    let [source, w] = [source, other].map(|at| scratch.to_read_from(at));
    cuda.launch(image, &kernel, on_tiles, &[y.to_write(), source, w, bias, sizes])
}

/// A block for each tile, see [`tiles`].
fn channels_last_tiles(conv: &Conv2d) -> Option<Grid> {
    let (of, shape) = (ChannelsLast::of(conv), &conv.shape);
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

/// `struct Conv` of `channels_last.cu`.
fn channels_last_words(of: &ChannelsLast, shape: &Conv2dShape) -> Vec<u64> {
    let side = |axis: usize| {
        let Conv2dShape { kernel, stride, padding, dilation, .. } = *shape;
        let lens = [of.source_size[axis], of.result_size[axis]];
        lens.into_iter().chain([kernel, stride, padding, dilation].map(|pair| pair[axis]))
    };
    let counts = [shape.batch, shape.groups, of.source_channels, of.result_channels];
    let sizes = counts.into_iter().chain(side(0)).chain(side(1)).map(|size| size as u64);
    sizes.chain([of.places[0] * of.places[1], of.places[1]].into_iter().flat_map(divisor)).collect()
}

/// A block for each tile of the result of each group. `None` where the kernels, which count in 32
/// bits, or a grid end.
fn tiles(shape: &Conv2dShape, product: Product) -> Option<Grid> {
    let (images, groups) = (shape.batch, shape.groups);
    let [ins, outs] = [shape.in_channels, shape.out_channels].map(|count| count / groups);
    let taps = len_of(&[ins, shape.kernel[0], shape.kernel[1]])?;
    len_of(&[outs, shape.kernel[0], shape.kernel[1]])?;
    let pixels = len_of(&[images, shape.in_height, shape.in_width])?;
    let out_pixels = len_of(&[images, shape.out_height(), shape.out_width()])?;
    len_of(&[shape.in_channels, shape.in_height, shape.in_width])?;
    len_of(&[shape.out_channels, shape.out_height(), shape.out_width()])?;
    let padded = |len: usize, axis: usize| len.checked_add(2 * shape.padding[axis]);
    len_of(&[padded(shape.in_height, 0)?, padded(shape.in_width, 1)?])?;
    let (rows, columns, parts) = match product {
        Product::Forward => (outs, out_pixels, 1),
        Product::BackwardInput => (ins, pixels, 1),
        Product::BackwardWeight => (outs, taps, shape.weight_parts()),
    };
    let (rows, columns) = (rows.div_ceil(TILE), columns.div_ceil(TILE));
    let layers = groups * parts;
    let fits = rows <= BLOCKS_MAX && layers <= BLOCKS_MAX;
    let blocks = [columns as u32, rows as u32, layers as u32];
    fits.then_some(Grid { blocks, threads: [TILE_THREADS, 1, 1], shared_bytes: 0 })
}

/// A product of sizes, if it is below 2³¹.
fn len_of(sizes: &[usize]) -> Option<usize> {
    let len = sizes.iter().try_fold(1usize, |len, &size| len.checked_mul(size))?;
    (len < 1 << 31).then_some(len)
}

/// `struct Conv` of `conv2d.cu`.
fn words(shape: &Conv2dShape) -> Vec<u64> {
    let [ins, outs] = [shape.in_channels, shape.out_channels].map(|count| count / shape.groups);
    let Conv2dShape { kernel, stride, padding, dilation, .. } = *shape;
    let [in_size, out_size] =
        [[shape.in_height, shape.in_width], [shape.out_height(), shape.out_width()]];
    let counts = [[shape.batch, shape.groups], [ins, outs]];
    let sizes = [in_size, out_size, kernel, stride, padding, dilation];
    let sizes = counts.into_iter().chain(sizes).flatten().map(|size| size as u64);
    let by_plane = |[rows, columns]: [usize; 2]| [rows * columns, columns];
    let divisors = [by_plane(kernel), by_plane(in_size), by_plane(out_size), stride];
    sizes.chain(divisors.into_iter().flatten().flat_map(divisor)).collect()
}
