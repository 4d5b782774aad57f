//! Convolutions that read each number of x at most once: patches do not overlap.
//!
//! If the kernel is at most as long as the stride on both axes and there is no padding, the im2col
//! matrix of an image, columns `[K, P]`, is x `[C, H, W]` in another order. With one tap and no
//! stride the columns are x itself. The three products are products of plain matrices:
//!
//! - forward: y`[O, P]` = w`[O, K]` · columns
//! - gradient of x: columns = w`[O, K]`ᵀ · dy, then the columns are moved to their places in dx
//! - gradient of w: dw = dy · columnsᵀ, summed over the images
//!
//! Columns exist for one *block* at a time: a few images, or a *band* of pixels of one image. The
//! columns have the stored type of x. The columns of dx are sums, in the type of the computation.

mod gather;

use std::ops::Range;

use super::Product;
use super::shape::Conv2dShape;
use super::sums::{TransposeWeights, add_partials, round_weights};
use super::way::{PARTIALS_LEN_MAX, Slices, TASK_COUNT_MAX};
use crate::cpu::chunk::for_each_chunk;
use crate::cpu::gemm::{Batch, Matrix, MatrixMut, gemm_batched};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::dtype::{Element, is_same_type, same_type_mut, stored_len};
use crate::write_mode::WriteMode;
use gather::{Gather, PutBack};

/// Elements of the columns, unless a few pixels have more: 1 MiB of f32.
const COLUMNS_LEN_MAX: usize = 256 * 1024;

/// Smallest number of pixels of a band, unless a plane has fewer.
const BAND_PIXELS_MIN: usize = 64;

/// Elements of the columns in one task, at least.
const TASK_LEN: usize = 16 * 1024;

/// Channels of x up to which a product has too few columns.
const NARROW_MAX: usize = 32;

/// A convolution of one group that reads each number of x at most once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patches {
    shape: Conv2dShape,
    /// Pixels of a plane of x.
    in_pixels: usize,
    /// Rows and columns of a plane of y.
    out_size: [usize; 2],
    taps: usize,
    /// Taps of all channels, K.
    k_len: usize,
    /// Rows and columns of a band. A band of several rows has all columns. The last band may be
    /// smaller.
    band: [usize; 2],
    /// Images of a block: more than 1 only if bands are whole planes.
    images: usize,
}

/// A band of some images.
#[derive(Clone, Debug)]
struct Block {
    images: Range<usize>,
    /// The first row and column of y.
    first: [usize; 2],
    /// Rows and columns of y.
    size: [usize; 2],
}

impl Block {
    /// Pixels of the block in each image.
    fn len(&self) -> usize {
        self.size[0] * self.size[1]
    }
}

impl Patches {
    /// A convolution of one group that has work.
    pub(super) fn of(shape: &Conv2dShape) -> Option<Self> {
        let Conv2dShape { kernel, stride, padding, dilation, .. } = shape;
        let is_apart = |axis: usize| {
            kernel[axis] == 1 || (dilation[axis] == 1 && kernel[axis] <= stride[axis])
        };
        let has_work = shape.x_len() > 0 && shape.y_len() > 0;
        if !has_work || shape.groups != 1 || *padding != [0, 0] || !(is_apart(0) && is_apart(1)) {
            return None;
        }
        let out_size = [shape.out_height(), shape.out_width()];
        let taps = kernel[0] * kernel[1];
        let k_len = shape.in_channels * taps;
        let pixels = out_size[0] * out_size[1];
        let band_len = (COLUMNS_LEN_MAX / k_len).max(BAND_PIXELS_MIN.min(pixels));
        let nearly_equal = |len: usize, most: usize| len.div_ceil(len.div_ceil(most));
        let (band, images) = match band_len / out_size[1] {
            _ if taps == 1 && *stride == [1, 1] => (out_size, shape.batch),
            0 => ([1, nearly_equal(out_size[1], band_len)], 1),
            rows if rows < out_size[0] => ([nearly_equal(out_size[0], rows), out_size[1]], 1),
            _ => (out_size, nearly_equal(shape.batch, band_len / pixels)),
        };
        let in_pixels = shape.in_height * shape.in_width;
        Some(Patches { shape: *shape, in_pixels, out_size, taps, k_len, band, images })
    }

    /// True if the columns are x itself.
    fn is_plain(&self) -> bool {
        self.taps == 1 && self.shape.stride == [1, 1]
    }

    fn pixels(&self) -> usize {
        self.out_size[0] * self.out_size[1]
    }

    /// Numbers in the columns of a block.
    fn columns_len(&self) -> usize {
        if self.is_plain() { 0 } else { self.images * self.k_len * self.band[0] * self.band[1] }
    }

    /// y = conv(x, w) + b.
    fn forward<E: Element, T: SimdFloat>(&self, pool: &Pool, slices: Slices<'_, E, T>) {
        let Slices { factors: [x, w], bias: b, to: y, workspace } = slices;
        let outs = self.shape.out_channels;
        let w = Matrix { data: w, row_stride: self.k_len, col_stride: 1 };
        let start = start_with(b);
        if b.is_some() {
            fill_planes(pool, self.pixels(), b, y);
        }
        for block in self.blocks() {
            let size = [outs, self.k_len, block.len()];
            let batch = images_of(&block, [0, self.k_len * block.len(), outs * self.pixels()]);
            let y = &mut y[self.y_place(&block)..];
            let y = MatrixMut { data: y, row_stride: self.pixels(), col_stride: 1 };
            if self.is_plain() {
                let x = Matrix { data: x, row_stride: block.len(), col_stride: 1 };
                gemm_batched::<T, _, _, _>(pool, &batch, size, w, x, &[], start, y);
            } else {
                let data = self.gather(pool, x, &block, workspace);
                let columns = Matrix { data, row_stride: block.len(), col_stride: 1 };
                gemm_batched::<T, _, _, _>(pool, &batch, size, w, columns, &[], start, y);
            }
        }
    }

    /// dx, plus the bias of each channel of dx.
    fn backward_input<E: Element, T: SimdFloat>(&self, pool: &Pool, slices: Slices<'_, E, T>) {
        let Slices { factors: [dy, w], bias: b, to: dx, workspace } = slices;
        let outs = self.shape.out_channels;
        let w = Matrix { data: w, row_stride: 1, col_stride: self.k_len };
        if b.is_some() || !self.is_plain() {
            fill_planes(pool, self.in_pixels, b, dx);
        }
        for block in self.blocks() {
            let size = [self.k_len, outs, block.len()];
            let columns_len = self.k_len * block.len();
            let batch = images_of(&block, [0, outs * self.pixels(), columns_len]);
            let dy = &dy[self.y_place(&block)..];
            let dy = Matrix { data: dy, row_stride: self.pixels(), col_stride: 1 };
            if self.is_plain() {
                let (start, dx) = (start_with(b), MatrixMut::row_major(&mut *dx, block.len()));
                gemm_batched::<T, _, _, _>(pool, &batch, size, w, dy, &[], start, dx);
            } else {
                let columns = &mut workspace[..block.images.len() * columns_len];
                let to = MatrixMut::row_major(&mut *columns, block.len());
                let start = WriteMode::Overwrite;
                gemm_batched::<T, _, _, _>(pool, &batch, size, w, dy, &[], start, to);
                self.put_back(pool, columns, &block, b, dx);
            }
        }
    }

    /// dw, summed over the blocks.
    fn backward_weight<E: Element, T: SimdFloat>(&self, pool: &Pool, slices: Slices<'_, E, T>) {
        let Slices { factors: [dy, x], to: dw, workspace, .. } = slices;
        let outs = self.shape.out_channels;
        let (workspace, own_sums) = workspace.split_at_mut(stored_len::<E, T>(self.columns_len()));
        let is_in_place = is_same_type::<E, T>();
        let sums = match same_type_mut::<E, T>(dw) {
            Some(dw) => dw,
            None => &mut own_sums[..outs * self.k_len],
        };
        for block in self.blocks() {
            let (len, image_len) = (block.len(), self.k_len * block.len());
            let columns =
                if self.is_plain() { &[] } else { self.gather(pool, x, &block, workspace) };
            for (nth, image) in block.images.clone().enumerate() {
                let is_first = image == 0 && block.first == [0, 0];
                let start = if is_first { WriteMode::Overwrite } else { WriteMode::Accumulate };
                let dy = &dy[self.y_place(&Block { images: image..image + 1, ..block })..];
                let dy = Matrix { data: dy, row_stride: self.pixels(), col_stride: 1 };
                let size = [outs, len, self.k_len];
                let sums = MatrixMut::row_major(&mut *sums, self.k_len);
                let one = Batch::single();
                if self.is_plain() {
                    let x = Matrix { data: &x[nth * image_len..], row_stride: 1, col_stride: len };
                    gemm_batched::<T, _, _, _>(pool, &one, size, dy, x, &[], start, sums);
                } else {
                    let data = &columns[nth * image_len..];
                    let columns = Matrix { data, row_stride: 1, col_stride: len };
                    gemm_batched::<T, _, _, _>(pool, &one, size, dy, columns, &[], start, sums);
                }
            }
        }
        if !is_in_place {
            round_weights(pool, own_sums, dw);
        }
    }

    /// True if dw is computed transposed: channels of x as rows, and channels of dy, of which there
    /// are more, as columns.
    fn is_narrow(&self) -> bool {
        let outs = self.shape.out_channels;
        self.is_plain() && self.k_len <= NARROW_MAX && 2 * self.k_len <= outs
    }

    /// Images whose products for a narrow dw are computed in parallel.
    fn weight_parts(&self) -> usize {
        let copies_max = (PARTIALS_LEN_MAX / self.shape.w_len()).clamp(1, TASK_COUNT_MAX);
        self.shape.batch.min(copies_max)
    }

    /// A narrow dw, computed transposed: dwᵀ`[K, O]` = x · dyᵀ.
    fn backward_narrow_weight<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        slices: Slices<'_, E, T>,
    ) {
        let Slices { factors: [dy, x], to: dw, workspace, .. } = slices;
        let Conv2dShape { batch, out_channels: outs, .. } = self.shape;
        let (len, k_len, sums_len) = (self.pixels(), self.k_len, dw.len());
        let sums = &mut workspace[..self.weight_parts() * sums_len];
        for first in (0..batch).step_by(self.weight_parts()) {
            let count = self.weight_parts().min(batch - first);
            let strides = [k_len * len, outs * len, sums_len];
            let images = Batch::new(&[count], strides.each_ref().map(std::slice::from_ref));
            let x = Matrix { data: &x[first * k_len * len..], row_stride: len, col_stride: 1 };
            let dy = Matrix { data: &dy[first * outs * len..], row_stride: 1, col_stride: len };
            let start = if first == 0 { WriteMode::Overwrite } else { WriteMode::Accumulate };
            let to = MatrixMut::row_major(&mut *sums, outs);
            gemm_batched::<T, _, _, _>(pool, &images, [k_len, len, outs], x, dy, &[], start, to);
        }
        let (total, others) = sums.split_at_mut(sums_len);
        add_partials(pool, total, others);
        T::dispatch(TransposeWeights { sums: total, padded: outs, k_len, dw });
    }

    fn blocks(&self) -> impl Iterator<Item = Block> {
        let Patches { out_size, band, images, shape: Conv2dShape { batch, .. }, .. } = *self;
        let firsts = (0..batch).step_by(images).flat_map(move |image| {
            let rows = (0..out_size[0]).step_by(band[0]);
            rows.flat_map(move |row| {
                (0..out_size[1]).step_by(band[1]).map(move |column| (image, [row, column]))
            })
        });
        firsts.map(move |(image, first)| Block {
            images: image..batch.min(image + images),
            first,
            size: [0, 1].map(|axis| band[axis].min(out_size[axis] - first[axis])),
        })
    }

    /// The first element of the block in y.
    fn y_place(&self, block: &Block) -> usize {
        let plane = block.images.start * self.shape.out_channels;
        plane * self.pixels() + block.first[0] * self.out_size[1] + block.first[1]
    }

    /// Fills and returns the columns of a block: `[images, K, pixels]`.
    fn gather<'a, E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        x: &[E],
        block: &Block,
        workspace: &'a mut [T],
    ) -> &'a [E] {
        let plane_len = self.taps * block.len();
        let planes = block.images.len() * self.shape.in_channels;
        let columns = &mut bytemuck::cast_slice_mut(workspace)[..planes * plane_len];
        let per_task = (TASK_LEN / plane_len).max(1);
        let x = &x[block.images.start * self.shape.in_channels * self.in_pixels..];
        for_each_chunk(pool, columns, per_task * plane_len, |task, columns| {
            let x = &x[task * per_task * self.in_pixels..];
            T::dispatch(Gather { patches: self, block, x, columns });
        });
        columns
    }

    /// Adds the columns of a block to their places in dx, which hold the bias of their channel.
    fn put_back<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        columns: &[T],
        block: &Block,
        b: Option<&[E]>,
        dx: &mut [E],
    ) {
        let plane_len = self.taps * block.len();
        let first = block.images.start * self.shape.in_channels;
        let planes = block.images.len() * self.shape.in_channels;
        let dx = &mut dx[first * self.in_pixels..][..planes * self.in_pixels];
        let per_task = (TASK_LEN / plane_len).max(1);
        for_each_chunk(pool, dx, per_task * self.in_pixels, |task, dx| {
            let columns = &columns[task * per_task * plane_len..];
            let first_channel = task * per_task % self.shape.in_channels;
            T::dispatch(PutBack { patches: self, block, columns, b, first_channel, dx });
        });
    }

    /// The rows of the block for each row of the kernel: the index of the row's first column
    /// element, and the first place in a plane of x.
    fn rows(&self, block: &Block) -> impl Iterator<Item = [usize; 2]> {
        let Conv2dShape { kernel, stride, in_width, .. } = self.shape;
        let (len, width, first, count) = (block.len(), block.size[1], block.first, block.size[0]);
        (0..kernel[0]).flat_map(move |kh| {
            (0..count).map(move |row| {
                let place = ((first[0] + row) * stride[0] + kh) * in_width + first[1] * stride[1];
                [kh * kernel[1] * len + row * width, place]
            })
        })
    }
}

impl Patches {
    /// Elements of scratch that [`run`](Self::run) needs.
    pub(super) fn workspace_len<E: Element, T: SimdFloat>(&self, product: Product) -> usize {
        match product {
            Product::Forward => stored_len::<E, T>(self.columns_len()),
            // Columns are sums in `T`.
            Product::BackwardInput => self.columns_len(),
            Product::BackwardWeight if self.is_narrow() => self.weight_parts() * self.shape.w_len(),
            // If dw is of a half type, its sums need memory of their own.
            Product::BackwardWeight => {
                let sums_len = if is_same_type::<E, T>() { 0 } else { self.shape.w_len() };
                stored_len::<E, T>(self.columns_len()) + sums_len
            }
        }
    }

    /// Overwrites the result of a product: see `way::run`.
    pub(super) fn run<E: Element, T: SimdFloat>(
        &self,
        product: Product,
        pool: &Pool,
        slices: Slices<'_, E, T>,
    ) {
        match product {
            Product::Forward => self.forward(pool, slices),
            Product::BackwardInput => self.backward_input(pool, slices),
            Product::BackwardWeight if self.is_narrow() => {
                self.backward_narrow_weight(pool, slices);
            }
            Product::BackwardWeight => self.backward_weight(pool, slices),
        }
    }
}

/// The mode of the first product: accumulates if the result already holds its bias.
fn start_with<E>(bias: Option<&[E]>) -> WriteMode {
    if bias.is_some() { WriteMode::Accumulate } else { WriteMode::Overwrite }
}

/// The images of a block as a batch of products; `strides` separate the operands of neighbouring
/// images.
fn images_of(block: &Block, strides: [usize; 3]) -> Batch {
    Batch::new(&[block.images.len()], strides.each_ref().map(std::slice::from_ref))
}

/// Fills each plane with the bias of its channel, or with 0.
fn fill_planes<E: Element>(pool: &Pool, pixels: usize, b: Option<&[E]>, y: &mut [E]) {
    let per_task = (TASK_LEN / pixels).max(1);
    for_each_chunk(pool, y, per_task * pixels, |task, y| {
        for (nth, plane) in y.chunks_exact_mut(pixels).enumerate() {
            plane.fill(b.map_or(E::ZERO, |b| b[(task * per_task + nth) % b.len()]));
        }
    });
}
