//! Convolutions of small planes: im2col, with products over the pixels of several images.
//!
//! Where a plane has few pixels, vectors over the pixels of one image are half empty, and all
//! weights are read once for each image. This way builds the columns `[K, images · P]` of a *block*
//! of images, and the three products are products of plain matrices:
//!
//! - forward: y = w`[O, K]` · columns
//! - gradient of x: columns = w`[O, K]`ᵀ · dy, then each tap of the columns is added to dx
//! - gradient of w: dw = dy · columnsᵀ, summed over the blocks
//!
//! y and dy of a block are `[O, images · P]`. Copies keep the stored type, so that bf16 is
//! multiplied in pairs; sums have the type of the computation.

mod padded_plane;

use super::Product;
use super::shape::Conv2dShape;
use super::sums::round_weights;
use super::way::Slices;
use crate::cpu::chunk::for_each_chunk;
use crate::cpu::gemm::{Batch, Matrix, MatrixMut, gemm_batched};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::stored::round_slice;
use crate::dtype::{Element, is_same_type, same_type_mut, stored_len};
use crate::write_mode::WriteMode;
use padded_plane::{PADDED_LEN_MAX, PaddedPlane};

/// Largest number of pixels of a plane of x: enough for a small y with the largest usual stride.
const IN_PIXELS_MAX: usize = 1024;

/// Largest number of places of x in the list, which lies on the stack.
const PLACE_COUNT_MAX: usize = 4096;

/// Elements of the columns, unless one image has more: 2 MiB of f32.
const COLUMNS_LEN_MAX: usize = 512 * 1024;

/// Pixels of a block. Larger blocks do not make products faster.
const BLOCK_PIXELS: usize = 256;

/// Channels of x whose columns are one task.
const TASK_CHANNELS: usize = 8;

/// The padding in a list of places.
const NOWHERE: u16 = u16::MAX;

/// A convolution of one group by im2col over several images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    shape: Conv2dShape,
    /// Pixels of a plane of x, and of a plane of y.
    in_pixels: usize,
    pixels: usize,
    taps: usize,
    /// Taps of all channels, K.
    k_len: usize,
    /// Images of a block; the last may have fewer.
    block: usize,
}

/// The place of x that tap t meets for pixel p, at index `t * pixels + p`.
type Places = [u16; PLACE_COUNT_MAX];

/// Consecutive images.
#[derive(Clone, Copy)]
struct Images {
    first: usize,
    count: usize,
}

impl Columns {
    /// A convolution of one group, if its planes of y have at most `pixels_max` pixels.
    pub(super) fn of(shape: &Conv2dShape, pixels_max: usize) -> Option<Self> {
        let pixels = shape.out_height() * shape.out_width();
        let in_pixels = shape.in_height * shape.in_width;
        let taps = shape.kernel[0] * shape.kernel[1];
        let k_len = shape.in_channels * taps;
        let is_small = (1..=pixels_max).contains(&pixels)
            && (1..=IN_PIXELS_MAX).contains(&in_pixels)
            && taps * pixels <= PLACE_COUNT_MAX;
        let has_work = shape.batch > 0 && shape.out_channels > 0 && k_len > 0;
        if !is_small || !has_work || shape.groups != 1 {
            return None;
        }
        let block = (COLUMNS_LEN_MAX / (k_len * pixels)).min(BLOCK_PIXELS / pixels);
        let block = block.clamp(1, shape.batch);
        // Equalizes the blocks.
        let block = shape.batch.div_ceil(shape.batch.div_ceil(block));
        Some(Columns { shape: *shape, in_pixels, pixels, taps, k_len, block })
    }

    /// Elements of scratch of a block: columns of type C, and y or dy of type Y.
    fn block_len<C: Element, Y: Element, T: SimdFloat>(&self) -> usize {
        let len = self.block * self.pixels;
        stored_len::<C, T>(self.k_len * len) + stored_len::<Y, T>(self.shape.out_channels * len)
    }

    /// y = conv(x, w) + b.
    fn forward<E: Element, T: SimdFloat>(&self, pool: &Pool, slices: Slices<'_, E, T>) {
        let Slices { factors: [x, w], bias: b, to: y, workspace } = slices;
        let outs = self.shape.out_channels;
        let places = self.places();
        for images in self.blocks() {
            let len = images.count * self.pixels;
            let (columns, sums) = self.split::<E, T, T>(images, workspace);
            self.gather(pool, &places, x, images, columns);
            let w = Matrix { data: w, row_stride: self.k_len, col_stride: 1 };
            let columns = Matrix { data: &*columns, row_stride: len, col_stride: 1 };
            multiply(pool, [outs, self.k_len, len], w, columns, WriteMode::Overwrite, sums);
            let y = &mut y[images.first * outs * self.pixels..][..sums.len()];
            for_each_chunk(pool, y, outs * self.pixels, |image, y| {
                for (channel, y) in y.chunks_exact_mut(self.pixels).enumerate() {
                    let sums = &sums[channel * len + image * self.pixels..][..self.pixels];
                    match b {
                        None => round_slice(sums, y),
                        Some(b) => {
                            let b: T = b[channel].cast();
                            y.iter_mut().zip(sums).for_each(|(y, &sum)| *y = (sum + b).cast());
                        }
                    }
                }
            });
        }
    }

    /// dx, plus the bias of each channel of dx.
    fn backward_input<E: Element, T: SimdFloat>(&self, pool: &Pool, slices: Slices<'_, E, T>) {
        let Slices { factors: [dy, w], bias: b, to: dx, workspace } = slices;
        let Conv2dShape { in_channels, out_channels, .. } = self.shape;
        let places = self.places();
        for images in self.blocks() {
            let len = images.count * self.pixels;
            let (columns, transposed) = self.split::<T, E, T>(images, workspace);
            self.transpose(pool, dy, images, transposed);
            let w = Matrix { data: w, row_stride: 1, col_stride: self.k_len };
            let transposed = Matrix { data: &*transposed, row_stride: len, col_stride: 1 };
            let size = [self.k_len, out_channels, len];
            multiply(pool, size, w, transposed, WriteMode::Overwrite, columns);
            let image_len = in_channels * self.in_pixels;
            let dx = &mut dx[images.first * image_len..][..images.count * image_len];
            let padded = PaddedPlane::of(&self.shape);
            for_each_chunk(pool, dx, image_len, |image, dx| {
                let (mut sums, mut plane) = ([T::ZERO; IN_PIXELS_MAX], [T::ZERO; PADDED_LEN_MAX]);
                let sums = &mut sums[..self.in_pixels];
                let columns = columns.chunks_exact(self.taps * len);
                let planes = dx.chunks_exact_mut(self.in_pixels).zip(columns).enumerate();
                for (channel, (dx, columns)) in planes {
                    sums.fill(b.map_or(T::ZERO, |b| b[channel].cast()));
                    match &padded {
                        Some(padded) => padded.add_up(columns, image, &mut plane, sums),
                        None => self.add_up(&places, columns, image, sums),
                    }
                    round_slice(sums, dx);
                }
            });
        }
    }

    /// dw, summed over the blocks.
    fn backward_weight<E: Element, T: SimdFloat>(&self, pool: &Pool, slices: Slices<'_, E, T>) {
        let Slices { factors: [dy, x], to: dw, workspace, .. } = slices;
        let outs = self.shape.out_channels;
        let places = self.places();
        let (workspace, own_sums) = workspace.split_at_mut(self.block_len::<E, E, T>());
        let is_in_place = is_same_type::<E, T>();
        let sums = match same_type_mut::<E, T>(dw) {
            Some(dw) => dw,
            None => &mut own_sums[..outs * self.k_len],
        };
        for images in self.blocks() {
            let len = images.count * self.pixels;
            let (columns, transposed) = self.split::<E, E, T>(images, workspace);
            self.gather(pool, &places, x, images, columns);
            self.transpose(pool, dy, images, transposed);
            let transposed = Matrix { data: &*transposed, row_stride: len, col_stride: 1 };
            let columns = Matrix { data: &*columns, row_stride: 1, col_stride: len };
            let is_first = images.first == 0;
            let start = if is_first { WriteMode::Overwrite } else { WriteMode::Accumulate };
            multiply(pool, [outs, len, self.k_len], transposed, columns, start, sums);
        }
        if !is_in_place {
            round_weights(pool, own_sums, dw);
        }
    }

    fn blocks(&self) -> impl Iterator<Item = Images> {
        let (batch, block) = (self.shape.batch, self.block);
        let images = move |first: usize| Images { first, count: block.min(batch - first) };
        (0..batch).step_by(block).map(images)
    }

    /// Splits the scratch of a block into its columns and `[O, images · P]`.
    fn split<'a, C: Element, Y: Element, T: SimdFloat>(
        &self,
        images: Images,
        workspace: &'a mut [T],
    ) -> (&'a mut [C], &'a mut [Y]) {
        let len = images.count * self.pixels;
        let (columns, rest) = workspace.split_at_mut(stored_len::<C, T>(self.k_len * len));
        let (columns, rest) = (bytemuck::cast_slice_mut(columns), bytemuck::cast_slice_mut(rest));
        (&mut columns[..self.k_len * len], &mut rest[..self.shape.out_channels * len])
    }

    /// The place of x that each tap meets for each pixel.
    fn places(&self) -> Places {
        let Conv2dShape { in_height, in_width, kernel, stride, padding, dilation, .. } = self.shape;
        let (width, mut places) = (self.shape.out_width(), [NOWHERE; PLACE_COUNT_MAX]);
        for (index, place) in places[..self.taps * self.pixels].iter_mut().enumerate() {
            let (tap, pixel) = (index / self.pixels, index % self.pixels);
            let (tap, pixel) = ([tap / kernel[1], tap % kernel[1]], [pixel / width, pixel % width]);
            let at = |axis: usize| {
                let at = pixel[axis] * stride[axis] + tap[axis] * dilation[axis];
                at.checked_sub(padding[axis]).filter(|&at| at < [in_height, in_width][axis])
            };
            if let (Some(row), Some(column)) = (at(0), at(1)) {
                // The place is below `IN_PIXELS_MAX`.
                *place = (row * in_width + column) as u16;
            }
        }
        places
    }

    /// Overwrites the columns of some images: `[C, taps, images, P]`.
    fn gather<E: Element>(
        &self,
        pool: &Pool,
        places: &Places,
        x: &[E],
        images: Images,
        columns: &mut [E],
    ) {
        let len = images.count * self.pixels;
        let image_len = self.shape.in_channels * self.in_pixels;
        let x = &x[images.first * image_len..];
        let padded = PaddedPlane::of(&self.shape);
        for_each_chunk(pool, columns, TASK_CHANNELS * self.taps * len, |task, columns| {
            let mut plane = [E::ZERO; PADDED_LEN_MAX];
            for (nth, columns) in columns.chunks_exact_mut(self.taps * len).enumerate() {
                let plane_at = (task * TASK_CHANNELS + nth) * self.in_pixels;
                match &padded {
                    Some(padded) => {
                        let planes = x[plane_at..].chunks(image_len).take(images.count);
                        padded.gather(planes, &mut plane, columns);
                    }
                    None => {
                        let plane = |image| &x[image * image_len + plane_at..][..self.in_pixels];
                        self.gather_places(places, plane, columns);
                    }
                }
            }
        });
    }

    /// Overwrites the columns of a channel, from its plane of each image.
    fn gather_places<'a, E: Element>(
        &self,
        places: &Places,
        plane: impl Fn(usize) -> &'a [E],
        columns: &mut [E],
    ) {
        let len = columns.len() / self.taps;
        let taps = columns.chunks_exact_mut(len).zip(places.chunks_exact(self.pixels));
        for (columns, places) in taps {
            for (image, columns) in columns.chunks_exact_mut(self.pixels).enumerate() {
                let plane = plane(image);
                for (to, &place) in columns.iter_mut().zip(places) {
                    *to = plane.get(usize::from(place)).copied().unwrap_or(E::ZERO);
                }
            }
        }
    }

    /// Transposes dy of some images, `[images, O, P]`, to `[O, images, P]`.
    fn transpose<E: Element>(&self, pool: &Pool, dy: &[E], images: Images, to: &mut [E]) {
        let (len, image_len) = (images.count * self.pixels, self.shape.out_channels * self.pixels);
        let dy = &dy[images.first * image_len..];
        for_each_chunk(pool, to, TASK_CHANNELS * len, |task, to| {
            for (nth, to) in to.chunks_exact_mut(len).enumerate() {
                let channel_at = (task * TASK_CHANNELS + nth) * self.pixels;
                for (image, to) in to.chunks_exact_mut(self.pixels).enumerate() {
                    to.copy_from_slice(&dy[image * image_len + channel_at..][..self.pixels]);
                }
            }
        });
    }

    /// Adds the columns of a channel to its plane of dx, in the order of the taps.
    fn add_up<T: SimdFloat>(&self, places: &Places, columns: &[T], image: usize, sums: &mut [T]) {
        let len = columns.len() / self.taps;
        for (columns, places) in columns.chunks_exact(len).zip(places.chunks_exact(self.pixels)) {
            let columns = &columns[image * self.pixels..][..self.pixels];
            for (&column, &place) in columns.iter().zip(places) {
                if let Some(sum) = sums.get_mut(usize::from(place)) {
                    *sum += column;
                }
            }
        }
    }
}

impl Columns {
    /// Elements of scratch that [`run`](Self::run) needs.
    pub(super) fn workspace_len<E: Element, T: SimdFloat>(&self, product: Product) -> usize {
        match product {
            Product::Forward => self.block_len::<E, T, T>(),
            // Columns are sums in `T`.
            Product::BackwardInput => self.block_len::<T, E, T>(),
            // If dw is of a half type, its sums need memory of their own.
            Product::BackwardWeight => {
                let sums_len = if is_same_type::<E, T>() { 0 } else { self.shape.w_len() };
                self.block_len::<E, E, T>() + sums_len
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
            Product::BackwardWeight => self.backward_weight(pool, slices),
        }
    }
}

/// y`[M, N]` = or += a · b, where `size` is (M, K, N).
fn multiply<A: Element, B: Element, T: SimdFloat>(
    pool: &Pool,
    size: [usize; 3],
    a: Matrix<'_, A>,
    b: Matrix<'_, B>,
    start: WriteMode,
    y: &mut [T],
) {
    let y = MatrixMut::row_major(y, size[2]);
    gemm_batched::<T, A, B, T>(pool, &Batch::single(), size, a, b, &[], start, y);
}
