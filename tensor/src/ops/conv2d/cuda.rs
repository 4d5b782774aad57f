//! The three products on NVIDIA devices: implicit matrix products in tiles, see `conv2d.cu`.
//! Gradients of weights have few elements, each a sum over all pixels. So several blocks each sum
//! some of the pixels, in scratch memory.

use super::shape::Conv2dShape;
use super::tensor_cores;
use super::way::CudaWay;
use super::{Conv2d, Product};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{CONV2D, divisor, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::error::{Result, TensorError};
use Parameter::{Read, U32, U64, Words, Write};

/// The kernel parameter `struct Conv` of `conv2d.cu`, in words.
const CONV: Parameter = Words(32);

/// `TILE` of `common.cu`.
pub(super) const TILE: usize = 64;

/// `TILE_THREADS` of `common.cu`.
pub(super) const TILE_THREADS: u32 = 256;

/// Largest number of blocks of a grid in its second and third dimension.
pub(super) const BLOCKS_MAX: usize = 65_535;

/// The grid of a product, if the kernels, which count in 32 bits, can compute it.
fn grid_of(conv: &Conv2d, way: &CudaWay) -> Result<Grid> {
    let on_tiles = tiles(&conv.shape, conv.product);
    let grid = match way {
        CudaWay::TensorCores(sizes) => {
            on_tiles.and_then(|_| tensor_cores::cuda::tiles(sizes, conv))
        }
        CudaWay::Library | CudaWay::Implicit => on_tiles,
    };
    grid.ok_or(TensorError::NoKernel { op: conv.op, device: "cuda" })
}

impl OnCuda for Conv2d {
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        grid_of(self, &CudaWay::of(self)).map(drop)
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let way = CudaWay::of(&self);
        let on_tiles = grid_of(&self, &way)?;
        match way {
            CudaWay::TensorCores(sizes) => {
                tensor_cores::cuda::run(&sizes, &self, on_tiles, cuda, operands)
            }
            CudaWay::Library | CudaWay::Implicit => run_implicit(&self, on_tiles, cuda, operands),
        }
    }
}

fn run_implicit(
    conv: &Conv2d,
    on_tiles: Grid,
    cuda: &Cuda,
    operands: &CudaOperands<'_>,
) -> Result<()> {
    let (image, dtype) = (CONV2D.of(conv.dtype), conv.dtype);
    let words = words(&conv.shape);
    let sizes = Argument::Words(&words);
    let [y, scratch] = [0, 1].map(|index| operands.write(index));
    let [a, b] = [0, 1].map(|index| operands.read(index).to_read());
    if conv.product == Product::BackwardWeight {
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
    let bias = operands.read_if(operands.read_count() > 2, 2);
    let kernel = Signature { name, parameters: &[Write, Read, Read, Read, CONV] };
    cuda.launch(image, &kernel, on_tiles, &[y.to_write(), a, b, bias, sizes])
}

/// A block for each tile of the result of each group. `None` if the kernels, which count in 32
/// bits, or a grid cannot have that many.
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

/// The product of `sizes`, if below 2³¹.
pub(super) fn len_of(sizes: &[usize]) -> Option<usize> {
    let len = sizes.iter().try_fold(1usize, |len, &size| len.checked_mul(size))?;
    (len < 1 << 31).then_some(len)
}

/// The words of the kernel parameter `struct Conv` of `conv2d.cu`.
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
