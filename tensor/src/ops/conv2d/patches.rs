//! Convolutions that meet each number of x at most once, as products of matrices.
//!
//! Where no side of the kernel is longer than the stride along it and nothing is padded, what the
//! taps meet of an image is x`[C, H, W]` in another order: columns`[K, P]`, one for each pixel.
//! With one tap and no stride it is x as it lies. The three products are those of plain matrices:
//!
//! - forward: y`[O, P]` = w`[O, K]` · columns
//! - gradient for x: columns = w`[O, K]`ᵀ · dy, which are put back to their places in x
//! - gradient for w: dw = dy · columnsᵀ, added up over the images
//!
//! Columns are made of a *block* at a time: of a few images, or of a *band* of pixels of one. They
//! are in the type that x is stored in; those of the gradient for x are sums, in the one that is
//! computed in.

use std::ops::Range;

use super::shape::Conv2dShape;
use super::tile::fill_row;
use super::units::{PARTIALS_LEN_MAX, TASK_COUNT_MAX};
use super::weight::{add_partials, round_weights};
use super::weight_by_channel::TurnWeights;
use crate::cpu::chunk::for_each_chunk;
use crate::cpu::gemm::{Batch, Matrix, MatrixMut, gemm_batched};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use crate::cpu::stored::narrow;
use crate::cpu::turn::turn_rows;
use crate::dtype::{Element, is_same_type, same_type_mut, stored_len};
use crate::write_mode::WriteMode;

/// Elements of the columns, if a few pixels do not have more: 1 MiB of f32.
const COLUMNS_LEN_MAX: usize = 256 * 1024;

/// Pixels of a band, at least, unless a plane has fewer.
const BAND_PIXELS_MIN: usize = 64;

/// Elements of the columns that are worth a task.
const TASK_LEN: usize = 16 * 1024;

/// Columns of a kernel that are moved as a matrix that is turned.
const TURNED_MIN: usize = 4;

/// Channels of x that fill too few columns of a tile.
const NARROW_MAX: usize = 32;

/// A convolution that meets each number of x at most once.
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
    /// Rows and columns of a band: of some rows, all columns. The last ones may be smaller.
    band: [usize; 2],
    /// Images of a block, more than one only of whole planes.
    images: usize,
}

/// A band of some images.
#[derive(Clone, Debug)]
struct Block {
    images: Range<usize>,
    /// The first row and column, and how many there are.
    first: [usize; 2],
    size: [usize; 2],
}

impl Block {
    /// Pixels of y that it has in each image.
    fn len(&self) -> usize {
        self.size[0] * self.size[1]
    }
}

impl Patches {
    /// For a convolution of one group that has work.
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
        let as_equal_as_can_be = |len: usize, most: usize| len.div_ceil(len.div_ceil(most));
        let (band, images) = match band_len / out_size[1] {
            _ if taps == 1 && *stride == [1, 1] => (out_size, shape.batch),
            0 => ([1, as_equal_as_can_be(out_size[1], band_len)], 1),
            rows if rows < out_size[0] => ([as_equal_as_can_be(out_size[0], rows), out_size[1]], 1),
            _ => (out_size, as_equal_as_can_be(shape.batch, band_len / pixels)),
        };
        let in_pixels = shape.in_height * shape.in_width;
        Some(Patches { shape: *shape, in_pixels, out_size, taps, k_len, band, images })
    }

    /// Whether the columns are x as it lies.
    fn is_plain(&self) -> bool {
        self.taps == 1 && self.shape.stride == [1, 1]
    }

    fn pixels(&self) -> usize {
        self.out_size[0] * self.out_size[1]
    }

    /// Elements of scratch of y: the columns of a block.
    pub(super) fn forward_workspace_len<E: Element, T: SimdFloat>(&self) -> usize {
        stored_len::<E, T>(self.backward_input_workspace_len())
    }

    /// That of the gradient for x, whose columns are sums.
    pub(super) fn backward_input_workspace_len(&self) -> usize {
        match self.is_plain() {
            true => 0,
            false => self.images * self.k_len * self.band[0] * self.band[1],
        }
    }

    /// That of the gradient for w, whose sums need a place of their own if they are of a half type.
    pub(super) fn weight_workspace_len<E: Element, T: SimdFloat>(&self) -> usize {
        if self.is_narrow() {
            return self.weight_parts() * self.shape.w_len();
        }
        let sums_len = if is_same_type::<E, T>() { 0 } else { self.shape.w_len() };
        self.forward_workspace_len::<E, T>() + sums_len
    }

    /// y = conv(x, w) + b.
    pub(super) fn forward<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        [x, w]: [&[E]; 2],
        b: Option<&[E]>,
        y: &mut [E],
        workspace: &mut [T],
    ) {
        let outs = self.shape.out_channels;
        let w = Matrix { data: w, row_stride: self.k_len, col_stride: 1 };
        let start = match b {
            Some(_) => WriteMode::Accumulate,
            None => WriteMode::Overwrite,
        };
        if b.is_some() {
            fill_planes(pool, self.pixels(), b, y);
        }
        for block in self.blocks() {
            let size = [outs, self.k_len, block.len()];
            let strides = [0, self.k_len * block.len(), outs * self.pixels()];
            let batch =
                Batch::new(&[block.images.len()], strides.each_ref().map(std::slice::from_ref));
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

    /// The gradient for x, plus `b` for each of its channels.
    pub(super) fn backward_input<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        [dy, w]: [&[E]; 2],
        b: Option<&[E]>,
        dx: &mut [E],
        workspace: &mut [T],
    ) {
        let outs = self.shape.out_channels;
        let w = Matrix { data: w, row_stride: 1, col_stride: self.k_len };
        if b.is_some() || !self.is_plain() {
            fill_planes(pool, self.in_pixels, b, dx);
        }
        for block in self.blocks() {
            let size = [self.k_len, outs, block.len()];
            let strides = [0, outs * self.pixels(), self.k_len * block.len()];
            let batch =
                Batch::new(&[block.images.len()], strides.each_ref().map(std::slice::from_ref));
            let dy = &dy[self.y_place(&block)..];
            let dy = Matrix { data: dy, row_stride: self.pixels(), col_stride: 1 };
            if self.is_plain() {
                let start = if b.is_some() { WriteMode::Accumulate } else { WriteMode::Overwrite };
                let dx = MatrixMut::row_major(&mut *dx, block.len());
                gemm_batched::<T, _, _, _>(pool, &batch, size, w, dy, &[], start, dx);
            } else {
                let columns = &mut workspace[..block.images.len() * strides[2]];
                let to = MatrixMut::row_major(&mut *columns, block.len());
                gemm_batched::<T, _, _, _>(
                    pool,
                    &batch,
                    size,
                    w,
                    dy,
                    &[],
                    WriteMode::Overwrite,
                    to,
                );
                self.put_back(pool, columns, &block, b, dx);
            }
        }
    }

    /// The gradient for w.
    pub(super) fn backward_weight<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        [dy, x]: [&[E]; 2],
        dw: &mut [E],
        workspace: &mut [T],
    ) {
        if self.is_narrow() {
            return self.backward_narrow_weight(pool, [dy, x], dw, workspace);
        }
        let outs = self.shape.out_channels;
        let (workspace, own_sums) = workspace.split_at_mut(self.forward_workspace_len::<E, T>());
        let is_in_place = is_same_type::<E, T>();
        let sums = match same_type_mut::<E, T>(dw) {
            Some(dw) => dw,
            None => &mut own_sums[..outs * self.k_len],
        };
        for block in self.blocks() {
            let (len, image_len) = (block.len(), self.k_len * block.len());
            let columns = match self.is_plain() {
                true => &[],
                false => self.gather(pool, x, &block, workspace),
            };
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

    /// Whether the channels of x are rows of a product for w, and those of dy, which are more, its
    /// columns.
    fn is_narrow(&self) -> bool {
        let outs = self.shape.out_channels;
        self.is_plain() && self.k_len <= NARROW_MAX && 2 * self.k_len <= outs
    }

    /// Images whose products for narrow w are computed side by side.
    fn weight_parts(&self) -> usize {
        let copies_max = (PARTIALS_LEN_MAX / self.shape.w_len()).clamp(1, TASK_COUNT_MAX);
        self.shape.batch.min(copies_max)
    }

    /// The gradient for narrow w: dwᵀ`[K, O]` = x · dyᵀ.
    fn backward_narrow_weight<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        [dy, x]: [&[E]; 2],
        dw: &mut [E],
        workspace: &mut [T],
    ) {
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
        T::dispatch(TurnWeights { sums: total, padded: outs, k_len, dw });
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

    /// Where the block begins in y.
    fn y_place(&self, block: &Block) -> usize {
        let plane = block.images.start * self.shape.out_channels;
        plane * self.pixels() + block.first[0] * self.out_size[1] + block.first[1]
    }

    /// The columns of a block: `[images, K, pixels]`.
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

    /// Adds the columns of a block to what is in their places of dx.
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

    /// What a row of a block meets: for each row of the kernel, the first of its columns and the
    /// first of its places in a plane of x.
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

/// Each plane the bias of its channel, or 0 without one.
fn fill_planes<E: Element>(pool: &Pool, pixels: usize, b: Option<&[E]>, y: &mut [E]) {
    let per_task = (TASK_LEN / pixels).max(1);
    for_each_chunk(pool, y, per_task * pixels, |task, y| {
        for (nth, plane) in y.chunks_exact_mut(pixels).enumerate() {
            plane.fill(b.map_or(E::ZERO, |b| b[(task * per_task + nth) % b.len()]));
        }
    });
}

/// Planes of x to their columns.
struct Gather<'a, E> {
    patches: &'a Patches,
    block: &'a Block,
    x: &'a [E],
    columns: &'a mut [E],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for Gather<'_, E> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let Gather { patches, block, x, columns } = self;
        let (len, width) = (block.len(), block.size[1]);
        let Conv2dShape { kernel: [_, taps], stride: [_, stride], .. } = patches.shape;
        let columns = columns.chunks_exact_mut(patches.taps * len);
        for (x, columns) in x.chunks_exact(patches.in_pixels).zip(columns) {
            for [at, place] in patches.rows(block) {
                let x = &x[place..][..(width - 1) * stride + taps];
                let columns = &mut columns[at..][..(taps - 1) * len + width];
                if [taps, stride] == [4, 4] && width >= LANE_COUNT_MAX {
                    split_steps::<E, 4>(x, width, columns, len);
                    continue;
                }
                if taps >= TURNED_MIN {
                    turn_rows(simd, (x, stride), [width, taps], (columns, len), carry, carried);
                    continue;
                }
                for (kw, columns) in columns.chunks_mut(len).enumerate() {
                    fill_row(&x[kw..], stride, 0, &mut columns[..width]);
                }
            }
        }
    }
}

/// `to[j * to_stride + i] = from[i * N + j]` for `i` below `width`, at least the lanes of a vector,
/// and `j` below N: in blocks whose size the compiler knows, the last with some before it again.
#[inline(always)]
fn split_steps<E: Element, const N: usize>(
    from: &[E],
    width: usize,
    to: &mut [E],
    to_stride: usize,
) {
    let (steps, _) = from.as_chunks::<N>();
    for at in (0..width).step_by(LANE_COUNT_MAX) {
        let at = at.min(width - LANE_COUNT_MAX);
        let steps = &steps[at..][..LANE_COUNT_MAX];
        for j in 0..N {
            let to = &mut to[j * to_stride + at..][..LANE_COUNT_MAX];
            for (to, step) in to.iter_mut().zip(steps) {
                *to = step[j];
            }
        }
    }
}

/// The bits of x in a number of the type that is computed in, which has room for them.
#[inline(always)]
fn carry<E: Element, T: SimdFloat>(x: E) -> T {
    match is_same_type::<E, T>() {
        true => bytemuck::cast(x),
        false => bytemuck::cast([x, E::ZERO]),
    }
}

/// What was given to [`carry`].
#[inline(always)]
fn carried<E: Element, T: SimdFloat>(x: T) -> E {
    match is_same_type::<E, T>() {
        true => bytemuck::cast(x),
        false => bytemuck::cast::<T, [E; 2]>(x)[0],
    }
}

/// Columns to their planes of dx.
struct PutBack<'a, E, T> {
    patches: &'a Patches,
    block: &'a Block,
    columns: &'a [T],
    b: Option<&'a [E]>,
    /// The channel of the first plane.
    first_channel: usize,
    /// What no tap meets keeps its bias.
    dx: &'a mut [E],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for PutBack<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let PutBack { patches, block, columns, b, first_channel, dx } = self;
        let (len, width) = (block.len(), block.size[1]);
        let Conv2dShape { kernel: [_, taps], stride: [_, stride], .. } = patches.shape;
        let columns = columns.chunks_exact(patches.taps * len);
        let planes = dx.chunks_exact_mut(patches.in_pixels).zip(columns).enumerate();
        for (nth, (dx, columns)) in planes {
            let bias = b.map_or(T::ZERO, |b| b[(first_channel + nth) % b.len()].cast());
            for [at, place] in patches.rows(block) {
                let dx = &mut dx[place..][..(width - 1) * stride + taps];
                let columns = &columns[at..][..(taps - 1) * len + width];
                if [taps, stride] == [2, 2] {
                    let columns = [&columns[..width], &columns[len..][..width]];
                    put_back_pairs(simd, columns, bias, dx.as_chunks_mut().0);
                    continue;
                }
                for (kw, columns) in columns.chunks(len).enumerate() {
                    let places = dx[kw..].iter_mut().step_by(stride);
                    for (dx, &column) in places.zip(&columns[..width]) {
                        *dx = (dx.cast::<T>() + column).cast();
                    }
                }
            }
        }
    }
}

/// Two columns, each with a bias added, to places that take turns: both at once, in vectors.
#[inline(always)]
fn put_back_pairs<E: Element, T: SimdFloat, S: Simd<T>>(
    simd: S,
    [even, odd]: [&[T]; 2],
    bias: T,
    dx: &mut [[E; 2]],
) {
    const LEN: usize = 4 * LANE_COUNT_MAX;
    let mut sums = [T::ZERO; LEN];
    let mut rounded = [[E::ZERO; LEN]; 2];
    for ((even, odd), dx) in even.chunks(LEN).zip(odd.chunks(LEN)).zip(dx.chunks_mut(LEN)) {
        for (column, rounded) in [even, odd].into_iter().zip(&mut rounded) {
            let sums = &mut sums[..column.len()];
            sums.iter_mut().zip(column).for_each(|(sum, &x)| *sum = x + bias);
            narrow(simd, sums, &mut rounded[..column.len()]);
        }
        let [even, odd] = &rounded;
        for (dx, (&even, &odd)) in dx.iter_mut().zip(even.iter().zip(odd)) {
            *dx = [even, odd];
        }
    }
}
