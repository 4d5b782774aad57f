//! The three products on NVIDIA devices: implicit matrix products in tiles, which take no scratch.
//! See `conv2d.cu`.

use lowtide_allocator::cuda::{Argument, Grid, Kernel as Signature, Parameter};

use super::shape::Conv2dShape;
use super::{Conv2d, Product};
use crate::cuda::kernels::CONV2D;
use crate::cuda::{Cuda, CudaOperands};
use crate::dtype::DType;
use crate::error::{Result, TensorError};

/// `struct Conv`.
const CONV: Parameter = Parameter::Words(16);

/// `TILE` and `TILE_THREADS` of `common.cu`.
const TILE: usize = 64;
const TILE_THREADS: u32 = 256;

/// Blocks of a grid in its second and third direction.
const BLOCKS_MAX: usize = 65_535;

/// `Ok` if the kernels, which are of f32 and count in 32 bits, can do the product.
pub(super) fn check(conv: &Conv2d) -> Result<()> {
    grid_of(conv).map(drop)
}

fn grid_of(conv: &Conv2d) -> Result<Grid> {
    let grid = grid(&conv.shape, conv.product).filter(|_| conv.dtype == DType::F32);
    grid.ok_or(TensorError::NoKernel { op: conv.op, device: "cuda" })
}

/// Enqueues a product of f32.
pub(super) fn run(conv: &Conv2d, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let grid = grid_of(conv)?;
    use Parameter::{Read, Write};
    let (name, parameters): (_, &[_]) = match conv.product {
        Product::Forward => ("conv2d_f32", &[Write, Read, Read, Read, CONV]),
        Product::BackwardInput => ("conv2d_backward_input_f32", &[Write, Read, Read, Read, CONV]),
        Product::BackwardWeight => ("conv2d_backward_weight_f32", &[Write, Read, Read, CONV]),
    };
    let words = words(&conv.shape);
    let [y, a, b] =
        [operands.write(0).to_write(), operands.read(0).to_read(), operands.read(1).to_read()];
    let bias =
        if operands.read_count() > 2 { operands.read(2).to_read() } else { Argument::Nothing };
    let words = Argument::Words(&words);
    let kernel = Signature { name, parameters };
    match conv.product {
        Product::BackwardWeight => cuda.launch(CONV2D, &kernel, grid, &[y, b, a, words]),
        _ => cuda.launch(CONV2D, &kernel, grid, &[y, a, b, bias, words]),
    }
}

/// A block for each tile of the result of each group. `None` where the kernels, which count in 32
/// bits, or a grid end.
fn grid(shape: &Conv2dShape, product: Product) -> Option<Grid> {
    let (images, groups) = (shape.batch, shape.groups);
    let [ins, outs] = [shape.in_channels, shape.out_channels].map(|count| count / groups);
    let taps = len_of(&[ins, shape.kernel[0], shape.kernel[1]])?;
    len_of(&[outs, shape.kernel[0], shape.kernel[1]])?;
    let pixels = len_of(&[images, shape.in_height, shape.in_width])?;
    let out_pixels = len_of(&[images, shape.out_height(), shape.out_width()])?;
    let (rows, columns) = match product {
        Product::Forward => (outs, out_pixels),
        Product::BackwardInput => (ins, pixels),
        Product::BackwardWeight => (outs, taps),
    };
    let (rows, columns) = (rows.div_ceil(TILE), columns.div_ceil(TILE));
    let fits = rows <= BLOCKS_MAX && groups <= BLOCKS_MAX;
    let blocks = [columns as u32, rows as u32, groups as u32];
    fits.then_some(Grid { blocks, threads: [TILE_THREADS, 1, 1], shared_bytes: 0 })
}

/// A product of sizes, if it is below 2³¹.
fn len_of(sizes: &[usize]) -> Option<usize> {
    let len = sizes.iter().try_fold(1usize, |len, &size| len.checked_mul(size))?;
    (len < 1 << 31).then_some(len)
}

/// `struct Conv`.
fn words(shape: &Conv2dShape) -> [u64; 16] {
    let [ins, outs] = [shape.in_channels, shape.out_channels].map(|count| count / shape.groups);
    let Conv2dShape { kernel, stride, padding, dilation, .. } = *shape;
    let sizes = [
        [shape.batch, shape.groups],
        [ins, outs],
        [shape.in_height, shape.in_width],
        [shape.out_height(), shape.out_width()],
        kernel,
        stride,
        padding,
        dilation,
    ];
    std::array::from_fn(|index| sizes[index / 2][index % 2] as u64)
}
