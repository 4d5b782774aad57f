//! dw by tiles: dw`[O, K]` = Σ over images of dy`[O, P]` · tile`[K, P]`ᵀ, overwritten.

use super::fill::fill;
use super::tiling::{TAP_COUNT_MAX, TapOffsets, Taps};
use super::units::{Role, Unit, Units};
use super::weight_by_channel::{
    ChannelTile, TransposePixels, padded_channels, transpose_pixel_pairs,
};
use super::weight_by_pixel::{PixelRows, PixelTile, STEP_IN_PAIRS, STEP_ONE_BY_ONE};
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{LANE_COUNT_MAX, has_pairs};
use crate::cpu::stored::round_slice;
use crate::dtype::{DType, Element, convert_slice, is_same_type};
use crate::ops::conv2d::geometry::Geometry;
use crate::ops::conv2d::shape::Conv2dShape;
use crate::ops::conv2d::sums::{TransposeWeights, add_partials};
use crate::ops::conv2d::way::Slices;

/// The contents of the lanes of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneAxis {
    /// Output channels. dy is transposed so that they are contiguous.
    Channels,
    /// Pixels, which are contiguous. The lanes of each sum are added up at its end.
    Pixels,
}

impl LaneAxis {
    /// The axis for `geometry`. A transpose pays if many taps use it and channels fill all lanes.
    fn of(geometry: &Geometry) -> LaneAxis {
        const TAPS_MIN: usize = 96;
        const CHANNELS_MIN: usize = 8;
        const PIXELS_MIN: usize = 64;
        let pays = geometry.k_len() > TAPS_MIN && geometry.out_channels >= CHANNELS_MIN;
        if pays || geometry.out_plane_len() < PIXELS_MIN {
            LaneAxis::Channels
        } else {
            LaneAxis::Pixels
        }
    }

    fn units<E: Element, T: SimdFloat>(self, geometry: &Geometry) -> Units {
        let role = match self {
            LaneAxis::Channels => Role::WeightByChannel,
            LaneAxis::Pixels if is_same_type::<E, T>() => Role::WeightByPixel,
            LaneAxis::Pixels => Role::HalfWeightByPixel,
        };
        Units::of_weight(geometry, role)
    }

    /// Elements of the sums of one unit: `[K, O]` with padded O, or `[O, K]`.
    fn unit_len(self, geometry: &Geometry, units: &Units) -> usize {
        let channels = match self {
            LaneAxis::Channels => padded_channels(units.channels),
            LaneAxis::Pixels => units.channels,
        };
        geometry.k_len() * channels
    }
}

/// Overwrites dw with the sum over the batch.
pub(super) fn backward_weight<E: Element, T: SimdFloat>(
    pool: &Pool,
    shape: &Conv2dShape,
    slices: Slices<'_, E, T>,
) {
    let Slices { factors: [dy, x], to: dw, workspace, .. } = slices;
    if x.is_empty() || dy.is_empty() || dw.is_empty() {
        dw.fill(E::default());
        return;
    }
    let geometry = Geometry::forward(shape);
    let lanes = LaneAxis::of(&geometry);
    let units = lanes.units::<E, T>(&geometry);
    let unit_len = lanes.unit_len(&geometry, &units);
    let are_pairs = E::DTYPE == DType::BF16 && has_pairs();
    let product = WeightProduct { geometry, lanes, are_pairs, units, dy, x };
    let (partials, scratch) = workspace.split_at_mut(units.count * unit_len);
    for_each_chunk2(
        pool,
        Chunked::new(partials, units.per_task * unit_len),
        Chunked::new(scratch, units.scratch_len),
        |task, partials, scratch| {
            for (index, dw) in partials.chunks_exact_mut(unit_len).enumerate() {
                product.unit(&units.at(task * units.per_task + index), dw, scratch);
            }
        },
    );
    let (total, others) = partials.split_at_mut(units.count / units.batch_parts * unit_len);
    add_partials(pool, total, others);
    match lanes {
        LaneAxis::Channels => {
            transpose_weights(pool, total, geometry.k_len(), units.channels, dw);
        }
        LaneAxis::Pixels => round_slice(total, dw),
    }
}

/// Elements of scratch that [`backward_weight`] needs.
pub(super) fn workspace_len<E: Element, T: SimdFloat>(shape: &Conv2dShape) -> usize {
    let geometry = Geometry::forward(shape);
    let lanes = LaneAxis::of(&geometry);
    let units = lanes.units::<E, T>(&geometry);
    units.count * lanes.unit_len(&geometry, &units) + units.workspace_len()
}

/// The operands and the cut of the product for dw.
struct WeightProduct<'a, E> {
    geometry: Geometry,
    lanes: LaneAxis,
    /// True if two pixels of bf16 are multiplied at once.
    are_pairs: bool,
    units: Units,
    dy: &'a [E],
    x: &'a [E],
}

/// The pixels of a tile: some rows of a few images.
struct Piece {
    /// The group and the first output channel of the unit.
    group: usize,
    first_channel: usize,
    first_image: usize,
    image_count: usize,
    first_row: usize,
    pixel_count: usize,
}

impl<E: Element> WeightProduct<'_, E> {
    /// Overwrites dw of one unit with the sum over its images.
    fn unit<T: SimdFloat>(&self, unit: &Unit, dw: &mut [T], scratch: &mut [T]) {
        let Units { tiling, images_per_tile, .. } = self.units;
        let [height, width] = self.geometry.out_size;
        let (tile, prepared) = scratch.split_at_mut(tiling.len(images_per_tile));
        let mut offsets = TapOffsets::new();
        dw.fill(T::ZERO);
        for first_image in unit.images.clone().step_by(images_per_tile) {
            for first_row in (0..height).step_by(tiling.row_count) {
                let piece = Piece {
                    group: unit.group,
                    first_channel: unit.first_channel,
                    first_image,
                    image_count: images_per_tile.min(unit.images.end - first_image),
                    first_row,
                    pixel_count: tiling.row_count.min(height - first_row) * width,
                };
                self.prepare(&piece, prepared);
                self.add_piece(&piece, prepared, tile, &mut offsets, dw);
            }
        }
    }

    /// Transposes the rows of dy if channels are the lanes; else converts rows of a half type.
    fn prepare<T: SimdFloat>(&self, piece: &Piece, prepared: &mut [T]) {
        let (channels, pixel_count) = (self.units.channels, piece.pixel_count);
        let out_len = self.geometry.out_plane_len();
        let skip = piece.first_row * self.geometry.out_size[1];
        for image in 0..piece.image_count {
            let dy = &self.dy[self.dy_start(piece, image)..][..channels * out_len];
            match self.lanes {
                LaneAxis::Channels if self.are_pairs => {
                    let len = pixel_count.div_ceil(2) * padded_channels(channels);
                    let transposed = &mut prepared[image * len..][..len];
                    transpose_pixel_pairs(dy, out_len, [skip, pixel_count], transposed);
                }
                LaneAxis::Channels => {
                    let len = pixel_count * padded_channels(channels);
                    let transposed = &mut prepared[image * len..][..len];
                    T::dispatch(TransposePixels { dy, out_len, skip, pixel_count, transposed });
                }
                LaneAxis::Pixels if is_same_type::<E, T>() || self.are_pairs => {}
                LaneAxis::Pixels => {
                    let to = &mut prepared[image * channels * pixel_count..];
                    let rows = dy.chunks_exact(out_len).zip(to.chunks_exact_mut(pixel_count));
                    rows.for_each(|(dy, to)| convert_slice(&dy[skip..][..pixel_count], to));
                }
            }
        }
    }

    /// The element of dy where the unit's channels of an image of the piece begin.
    fn dy_start(&self, piece: &Piece, image: usize) -> usize {
        let out_channels = self.geometry.groups * self.geometry.out_channels;
        let channel = (piece.first_image + image) * out_channels + piece.first_channel;
        channel * self.geometry.out_plane_len()
    }

    /// Adds the products of a piece to dw. dy of the piece is prepared.
    fn add_piece<T: SimdFloat>(
        &self,
        piece: &Piece,
        prepared: &[T],
        tile: &mut [T],
        offsets: &mut TapOffsets,
        dw: &mut [T],
    ) {
        let WeightProduct { geometry, units: Units { tiling, .. }, .. } = self;
        let taps_len = geometry.tap_count();
        for first_channel in (0..geometry.in_channels).step_by(tiling.plane_count) {
            let channel_count = tiling.plane_count.min(geometry.in_channels - first_channel);
            if self.are_pairs {
                let tile = bytemuck::cast_slice_mut::<T, E>(tile);
                self.fill(piece, [first_channel, channel_count], tile);
            } else {
                self.fill(piece, [first_channel, channel_count], tile);
            }
            for first_tap in (0..channel_count * taps_len).step_by(TAP_COUNT_MAX) {
                let taps = Taps {
                    tile: &*tile,
                    image_count: piece.image_count,
                    image_len: tiling.image_len,
                    offsets: offsets.of(geometry, tiling, channel_count, first_tap),
                    first_k: first_channel * taps_len + first_tap,
                };
                match self.lanes {
                    LaneAxis::Channels => self.add_by_channel(piece, prepared, taps, dw),
                    LaneAxis::Pixels => self.add_by_pixel(piece, prepared, taps, dw),
                }
            }
        }
    }

    /// Adds the products of some taps with the transposed dy.
    fn add_by_channel<T: SimdFloat>(
        &self,
        piece: &Piece,
        dy: &[T],
        taps: Taps<'_, T>,
        dw: &mut [T],
    ) {
        let Units { tiling, channels, .. } = self.units;
        let row_count = piece.pixel_count / self.geometry.out_size[1];
        let runs = tiling.runs(&self.geometry, row_count);
        if self.are_pairs {
            let taps = taps.of_stored();
            T::dispatch_pairs(ChannelTile::<E, T, 2> { dy, channels, runs, taps, dw });
        } else {
            T::dispatch(ChannelTile::<T, T, 1> { dy, channels, runs, taps, dw });
        }
    }

    /// Adds the products of some taps with dy. `prepared` holds the rows of dy if they were
    /// converted.
    fn add_by_pixel<T: SimdFloat>(
        &self,
        piece: &Piece,
        prepared: &[T],
        taps: Taps<'_, T>,
        dw: &mut [T],
    ) {
        let (channels, k_len) = (self.units.channels, self.geometry.k_len());
        let pixel_count = piece.pixel_count;
        if self.are_pairs {
            let (dy, taps) = (self.rows_in_place(piece), taps.of_stored());
            PixelTile::<E, T, STEP_IN_PAIRS> { dy, channels, pixel_count, taps, dw, k_len }.add();
        } else {
            let dy = self.rows(piece, prepared);
            PixelTile::<T, T, STEP_ONE_BY_ONE> { dy, channels, pixel_count, taps, dw, k_len }.add();
        }
    }

    /// Fills the tile with some source channels of a piece, in the stored type or in the type of
    /// the computation.
    fn fill<C: Element>(&self, piece: &Piece, [first, count]: [usize; 2], tile: &mut [C]) {
        let WeightProduct { geometry, units: Units { tiling, .. }, x, .. } = self;
        let tiles = tile.chunks_exact_mut(tiling.image_len).take(piece.image_count);
        for (image, tile) in tiles.enumerate() {
            let at = geometry.source_start(piece.first_image + image, piece.group, first);
            let x = &x[at..][..count * geometry.in_plane_len()];
            fill(geometry, tiling, x, piece.first_row, tile);
        }
    }

    /// The rows of dy, one for each channel and image. `prepared` holds them if they were
    /// converted.
    fn rows<'a, T: SimdFloat>(&'a self, piece: &Piece, prepared: &'a [T]) -> PixelRows<'a, T> {
        if is_same_type::<E, T>() {
            let PixelRows { elements, row_step, image_step } = self.rows_in_place(piece);
            PixelRows { elements: bytemuck::cast_slice(elements), row_step, image_step }
        } else {
            let row_step = piece.pixel_count;
            PixelRows { elements: prepared, row_step, image_step: self.units.channels * row_step }
        }
    }

    fn rows_in_place(&self, piece: &Piece) -> PixelRows<'_, E> {
        let geometry = &self.geometry;
        let skip = piece.first_row * geometry.out_size[1];
        let out_len = geometry.out_plane_len();
        PixelRows {
            elements: &self.dy[self.dy_start(piece, 0) + skip..],
            row_step: out_len,
            image_step: geometry.groups * geometry.out_channels * out_len,
        }
    }
}

/// Transposes the units' sums, `[K, O]` with padded O, to dw`[O, K]`.
fn transpose_weights<E: Element, T: SimdFloat>(
    pool: &Pool,
    units: &[T],
    k_len: usize,
    channels: usize,
    dw: &mut [E],
) {
    let padded = padded_channels(channels);
    // A task is a vector of channels if channels fill whole vectors; otherwise it is a unit.
    let task_channels = if channels == padded { LANE_COUNT_MAX } else { channels };
    for_each_chunk(pool, dw, task_channels * k_len, |task, dw| {
        let channel = task * task_channels;
        let sums = &units[channel / channels * k_len * padded + channel % channels..];
        T::dispatch(TransposeWeights { sums, padded, k_len, dw });
    });
}
