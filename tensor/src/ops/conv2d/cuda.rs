//! The three products on NVIDIA devices: implicit matrix products in tiles. Gradients of weights
//! have few elements that are sums over all pixels, so several blocks each add up some of the
//! pixels, in scratch memory. See `conv2d.cu`.

use lowtide_allocator::cuda::{Argument, Grid, Kernel as Signature, Parameter};

use super::shape::Conv2dShape;
use super::{Conv2d, Product};
use crate::cuda::kernels::{CONV2D, divisor, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands};
use crate::error::{Result, TensorError};
use Parameter::{Read, U32, U64, Words, Write};

/// `struct Conv`.
const CONV: Parameter = Words(32);

/// `TILE`, `TALL_TILE` and `TILE_THREADS` of `common.cu`.
const TILE: usize = 64;
const TALL_TILE: usize = 128;
const TILE_THREADS: u32 = 256;

/// Blocks of a grid in its second and third direction.
const BLOCKS_MAX: usize = 65_535;

/// `Ok` if the kernels, which count in 32 bits, can do the product.
pub(super) fn check(conv: &Conv2d) -> Result<()> {
    grid_of(conv).map(drop)
}

fn grid_of(conv: &Conv2d) -> Result<Grid> {
    let grid = tiles(&conv.shape, conv.product, rows_of_tile(conv));
    grid.ok_or(TensorError::NoKernel { op: conv.op, device: "cuda" })
}

/// Tensor cores multiply faster than elements are loaded: each is loaded for more rows, where there
/// are as many.
fn rows_of_tile(conv: &Conv2d) -> usize {
    let Conv2dShape { in_channels, out_channels, groups, .. } = conv.shape;
    let rows = match conv.product {
        Product::BackwardInput => in_channels / groups,
        Product::Forward | Product::BackwardWeight => out_channels / groups,
    };
    if conv.dtype.size_bytes() == 2 && rows > TILE { TALL_TILE } else { TILE }
}

/// Enqueues a product.
pub(super) fn run(conv: &Conv2d, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let (on_tiles, image, dtype) = (grid_of(conv)?, CONV2D.of(conv.dtype), conv.dtype);
    let is_tall = rows_of_tile(conv) == TALL_TILE;
    let words = words(&conv.shape);
    let sizes = Argument::Words(&words);
    let [y, scratch] = [0, 1].map(|index| operands.write(index));
    let [a, b] = [0, 1].map(|index| operands.read(index).to_read());
    if let Product::BackwardWeight = conv.product {
        let parts = conv.shape.weight_parts();
        let name = match is_tall {
            true => typed_name!("conv2d_tall_backward_weight", dtype),
            false => typed_name!("conv2d_backward_weight", dtype),
        };
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
    let name = match (conv.product, is_tall) {
        (Product::Forward, true) => typed_name!("conv2d_tall", dtype),
        (Product::Forward, false) => typed_name!("conv2d", dtype),
        (_, true) => typed_name!("conv2d_tall_backward_input", dtype),
        (_, false) => typed_name!("conv2d_backward_input", dtype),
    };
    let bias =
        if operands.read_count() > 2 { operands.read(2).to_read() } else { Argument::Nothing };
    let kernel = Signature { name, parameters: &[Write, Read, Read, Read, CONV] };
    cuda.launch(image, &kernel, on_tiles, &[y.to_write(), a, b, bias, sizes])
}

/// A block for each tile of the result of each group. `None` where the kernels, which count in 32
/// bits, or a grid end.
fn tiles(shape: &Conv2dShape, product: Product, rows_of_tile: usize) -> Option<Grid> {
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
    let (rows, columns) = (rows.div_ceil(rows_of_tile), columns.div_ceil(TILE));
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

/// `struct Conv`.
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
