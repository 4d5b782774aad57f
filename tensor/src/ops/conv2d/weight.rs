//! The gradient for w: dw`[O, K]` = Σ over images of dy`[O, P]` · tile`[K, P]`ᵀ, overwritten.

use super::cpu::source_channels;
use super::shape::Conv2dShape;
use super::tile::{Geometry, TAP_COUNT_MAX, TapOffsets, fill};
use super::units::{Role, Unit, Units};
use super::way::Way;
use super::weight_by_channel::{
    ChannelTile, TurnPixels, TurnWeights, padded_channels, turn_pixel_pairs,
};
use super::weight_by_pixel::{PixelTile, Rows, STEP_IN_PAIRS, STEP_ONE_BY_ONE};
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{LANE_COUNT_MAX, has_pairs};
use crate::cpu::stored::round_slice;
use crate::dtype::{DType, Element, convert_slice, is_same_type};

/// What the lanes of a vector stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneAxis {
    /// Output channels: dy has to be turned for them to lie side by side.
    Channels,
    /// Pixels, which do; the lanes of each sum are added up at its end.
    Pixels,
}

impl LaneAxis {
    /// Turning pays where many taps use what was turned, and no lane is left over.
    fn of(geometry: &Geometry) -> LaneAxis {
        const TAPS_MIN: usize = 96;
        const CHANNELS_MIN: usize = 8;
        const PIXELS_MIN: usize = 64;
        let turning_pays = k_len(geometry) > TAPS_MIN && geometry.out_channels >= CHANNELS_MIN;
        if turning_pays || geometry.out_plane_len() < PIXELS_MIN {
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

    /// Elements of the sums of one unit: `[K, O]` with O padded, or `[O, K]`.
    fn unit_len(self, geometry: &Geometry, units: &Units) -> usize {
        let channels = match self {
            LaneAxis::Channels => padded_channels(units.channels),
            LaneAxis::Pixels => units.channels,
        };
        k_len(geometry) * channels
    }
}

fn k_len(geometry: &Geometry) -> usize {
    geometry.in_channels * geometry.tap_count()
}

/// dw, summed over the batch.
pub(super) fn backward_weight<E: Element, T: SimdFloat>(
    pool: &Pool,
    shape: &Conv2dShape,
    dy: &[E],
    x: &[E],
    dw: &mut [E],
    workspace: &mut [T],
) {
    assert_eq!([x.len(), dw.len(), dy.len()], [shape.x_len(), shape.w_len(), shape.y_len()]);
    if x.is_empty() || dy.is_empty() || dw.is_empty() {
        dw.fill(E::default());
        return;
    }
    match Way::of(shape, super::Product::BackwardWeight) {
        Way::Depthwise(way) => return way.backward_weight(pool, [dy, x], dw, workspace),
        Way::Columns(way) => return way.backward_weight(pool, [dy, x], dw, workspace),
        Way::Patches(way) => return way.backward_weight(pool, [dy, x], dw, workspace),
        Way::Tiles => {}
    }
    let geometry = Geometry::forward(shape);
    let lanes = LaneAxis::of(&geometry);
    let units = lanes.units::<E, T>(&geometry);
    let unit_len = lanes.unit_len(&geometry, &units);
    let are_pairs = E::DTYPE == DType::BF16 && has_pairs();
    let product = Product { geometry, lanes, are_pairs, units, dy, x };
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
        LaneAxis::Channels => turn_weights(pool, total, k_len(&geometry), units.channels, dw),
        LaneAxis::Pixels => round_slice(total, dw),
    }
}

/// Elements of scratch that [`backward_weight`] needs.
pub(super) fn backward_weight_workspace_len<E: Element, T: SimdFloat>(
    shape: &Conv2dShape,
) -> usize {
    match Way::of(shape, super::Product::BackwardWeight) {
        Way::Depthwise(way) => return way.backward_weight_workspace_len(),
        Way::Columns(way) => return way.weight_workspace_len::<E, T>(),
        Way::Patches(way) => return way.weight_workspace_len::<E, T>(),
        Way::Tiles => {}
    }
    let geometry = Geometry::forward(shape);
    let lanes = LaneAxis::of(&geometry);
    let units = lanes.units::<E, T>(&geometry);
    units.count * lanes.unit_len(&geometry, &units) + units.workspace_len()
}

/// The operands, and how they are cut.
struct Product<'a, E> {
    geometry: Geometry,
    lanes: LaneAxis,
    /// Whether two pixels are multiplied at once: of bf16.
    are_pairs: bool,
    units: Units,
    dy: &'a [E],
    x: &'a [E],
}

/// What a tile covers: some rows of a few images.
struct Piece {
    /// The unit's, and so is every channel below.
    group: usize,
    first_channel: usize,
    first_image: usize,
    image_count: usize,
    first_row: usize,
    pixel_count: usize,
}

impl<E: Element> Product<'_, E> {
    /// dw of one unit, overwritten with the sum over its images.
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

    /// Turns the rows of dy if channels are the lanes, or converts them if they are of a half type.
    fn prepare<T: SimdFloat>(&self, piece: &Piece, prepared: &mut [T]) {
        let (channels, pixel_count) = (self.units.channels, piece.pixel_count);
        let out_len = self.geometry.out_plane_len();
        let skip = piece.first_row * self.geometry.out_size[1];
        for image in 0..piece.image_count {
            let dy = &self.dy[self.dy_start(piece, image)..][..channels * out_len];
            match self.lanes {
                LaneAxis::Channels if self.are_pairs => {
                    let turned_len = pixel_count.div_ceil(2) * padded_channels(channels);
                    let turned = &mut prepared[image * turned_len..][..turned_len];
                    turn_pixel_pairs(dy, out_len, [skip, pixel_count], turned);
                }
                LaneAxis::Channels => {
                    let turned_len = pixel_count * padded_channels(channels);
                    let turned = &mut prepared[image * turned_len..][..turned_len];
                    T::dispatch(TurnPixels { dy, out_len, skip, pixel_count, turned });
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

    /// Where the unit's channels of an image of the piece begin in dy.
    fn dy_start(&self, piece: &Piece, image: usize) -> usize {
        let out_channels = self.geometry.groups * self.geometry.out_channels;
        let channel = (piece.first_image + image) * out_channels + piece.first_channel;
        channel * self.geometry.out_plane_len()
    }

    /// Adds the products of a piece, whose dy is prepared, to dw.
    fn add_piece<T: SimdFloat>(
        &self,
        piece: &Piece,
        prepared: &[T],
        tile: &mut [T],
        offsets: &mut TapOffsets,
        dw: &mut [T],
    ) {
        let Product { geometry, units, .. } = self;
        let &Piece { image_count, pixel_count, .. } = piece;
        let &Units { tiling, channels, .. } = units;
        let image_len = tiling.image_len;
        let taps_len = geometry.tap_count();
        for first_channel in (0..geometry.in_channels).step_by(tiling.plane_count) {
            let channel_count = tiling.plane_count.min(geometry.in_channels - first_channel);
            match self.are_pairs {
                true => {
                    let tile = bytemuck::cast_slice_mut::<T, E>(tile);
                    self.fill(piece, [first_channel, channel_count], tile);
                }
                false => self.fill(piece, [first_channel, channel_count], tile),
            }
            for first_tap in (0..channel_count * taps_len).step_by(TAP_COUNT_MAX) {
                let tile = &*tile;
                let offsets = offsets.of(geometry, &tiling, channel_count, first_tap);
                let first_k = first_channel * taps_len + first_tap;
                let runs = tiling.runs(geometry, pixel_count / geometry.out_size[1]);
                match self.lanes {
                    LaneAxis::Channels if self.are_pairs => {
                        T::dispatch_pairs(ChannelTile::<E, T, 2> {
                            dy: prepared,
                            channels,
                            runs,
                            image_count,
                            tile: bytemuck::cast_slice(tile),
                            image_len,
                            offsets,
                            dw: &mut *dw,
                            first_k,
                        });
                    }
                    LaneAxis::Channels => T::dispatch(ChannelTile::<T, T, 1> {
                        dy: prepared,
                        channels,
                        runs,
                        image_count,
                        tile,
                        image_len,
                        offsets,
                        dw: &mut *dw,
                        first_k,
                    }),
                    LaneAxis::Pixels if self.are_pairs => PixelTile::<E, T, STEP_IN_PAIRS> {
                        dy: self.rows_in_place(piece),
                        channels,
                        pixel_count,
                        image_count,
                        tile: bytemuck::cast_slice(tile),
                        image_len,
                        offsets,
                        dw: &mut *dw,
                        k_len: k_len(geometry),
                        first_k,
                    }
                    .add(),
                    LaneAxis::Pixels => PixelTile::<T, T, STEP_ONE_BY_ONE> {
                        dy: self.rows(piece, prepared),
                        channels,
                        pixel_count,
                        image_count,
                        tile,
                        image_len,
                        offsets,
                        dw: &mut *dw,
                        k_len: k_len(geometry),
                        first_k,
                    }
                    .add(),
                }
            }
        }
    }

    /// The tile of some source channels of a piece, as its elements are stored or as they are
    /// computed in.
    fn fill<C: Element>(&self, piece: &Piece, [first, count]: [usize; 2], tile: &mut [C]) {
        let Product { geometry, units: Units { tiling, .. }, x, .. } = self;
        let tiles = tile.chunks_exact_mut(tiling.image_len).take(piece.image_count);
        for (image, tile) in tiles.enumerate() {
            let at = source_channels(geometry, piece.first_image + image, piece.group, first);
            let x = &x[at..][..count * geometry.in_plane_len()];
            fill(geometry, tiling, x, piece.first_row, tile);
        }
    }

    /// The rows of dy, one for each channel and image, where they lie or were converted to.
    fn rows<'a, T: SimdFloat>(&'a self, piece: &Piece, prepared: &'a [T]) -> Rows<'a, T> {
        if is_same_type::<E, T>() {
            let Rows { elements, row_step, image_step } = self.rows_in_place(piece);
            Rows { elements: bytemuck::cast_slice(elements), row_step, image_step }
        } else {
            let row_step = piece.pixel_count;
            Rows { elements: prepared, row_step, image_step: self.units.channels * row_step }
        }
    }

    fn rows_in_place(&self, piece: &Piece) -> Rows<'_, E> {
        let geometry = &self.geometry;
        let skip = piece.first_row * geometry.out_size[1];
        let out_len = geometry.out_plane_len();
        Rows {
            elements: &self.dy[self.dy_start(piece, 0) + skip..],
            row_step: out_len,
            image_step: geometry.groups * geometry.out_channels * out_len,
        }
    }
}

/// Sums of dw to dw, of another type, with all threads.
pub(super) fn round_weights<E: Element, T: SimdFloat>(pool: &Pool, sums: &[T], dw: &mut [E]) {
    const CHUNK_LEN: usize = 16 * 1024;
    for_each_chunk(pool, dw, CHUNK_LEN, |chunk, dw| {
        round_slice(&sums[chunk * CHUNK_LEN..][..dw.len()], dw);
    });
}

/// Adds `others`, whole copies of `total` one after the other, to `total` in that order.
pub(super) fn add_partials<T: SimdFloat>(pool: &Pool, total: &mut [T], others: &[T]) {
    const CHUNK_LEN: usize = 4096;
    let total_len = total.len();
    for_each_chunk(pool, total, CHUNK_LEN, |chunk, total| {
        for other in others.chunks_exact(total_len) {
            let other = &other[chunk * CHUNK_LEN..][..total.len()];
            total.iter_mut().zip(other).for_each(|(total, &other)| *total += other);
        }
    });
}

/// From the units' `[K, O]` with O padded to the `[O, K]` of dw.
fn turn_weights<E: Element, T: SimdFloat>(
    pool: &Pool,
    units: &[T],
    k_len: usize,
    channels: usize,
    dw: &mut [E],
) {
    let padded = padded_channels(channels);
    // A vector of channels is a task if they are whole vectors, else a unit.
    let task_channels = if channels == padded { LANE_COUNT_MAX } else { channels };
    for_each_chunk(pool, dw, task_channels * k_len, |task, dw| {
        let channel = task * task_channels;
        let sums = &units[channel / channels * k_len * padded + channel % channels..];
        T::dispatch(TurnWeights { sums, padded, k_len, dw });
    });
}
