//! The gradient for w: dw`[O, K]` = Σ over images of dy`[O, P]` · tile`[K, P]`ᵀ, overwritten.

use super::cpu::source_channels;
use super::shape::Conv2dShape;
use super::tile::{Geometry, TAP_COUNT_MAX, fill, tap_offsets};
use super::units::{Unit, Units};
use super::weight_tile::{TurnPixels, TurnWeights, WeightTile, padded_channels};
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::pool::Pool;
use crate::cpu::simd::{LANE_COUNT_MAX, SimdFloat};
use crate::dtype::Element;

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
    let geometry = Geometry::forward(shape);
    let units = Units::of_weight(&geometry);
    if x.is_empty() || dy.is_empty() || dw.is_empty() {
        dw.fill(E::default());
        return;
    }
    let k_len = geometry.in_channels * geometry.tap_count();
    let unit_len = k_len * padded_channels(units.channels);
    let (partials, scratch) = workspace.split_at_mut(units.count * unit_len);
    for_each_chunk2(
        pool,
        Chunked::new(partials, units.per_task * unit_len),
        Chunked::new(scratch, units.scratch_len),
        |task, partials, scratch| {
            for (index, dw) in partials.chunks_exact_mut(unit_len).enumerate() {
                let unit = units.at(task * units.per_task + index);
                weight_unit(&geometry, &units, unit, dy, x, dw, scratch);
            }
        },
    );
    let (total, others) = partials.split_at_mut(units.count / units.batch_parts * unit_len);
    add_partials(pool, total, others);
    turn_weights(pool, total, k_len, units.channels, dw);
}

/// Elements of scratch that [`backward_weight`] needs.
pub(super) fn backward_weight_workspace_len(shape: &Conv2dShape) -> usize {
    let units = Units::of_weight(&Geometry::forward(shape));
    let k_len = shape.in_channels / shape.groups * shape.kernel[0] * shape.kernel[1];
    units.count * k_len * padded_channels(units.channels) + units.workspace_len()
}

/// dw`[K, O]` of one unit, overwritten with the sum over its images.
fn weight_unit<E: Element, T: SimdFloat>(
    geometry: &Geometry,
    units: &Units,
    unit: Unit,
    dy: &[E],
    x: &[E],
    dw: &mut [T],
    scratch: &mut [T],
) {
    let Units { tiling, channels, images_per_tile, .. } = *units;
    let (tile, turned) = scratch.split_at_mut(tiling.len(images_per_tile));
    let (taps_len, out_len) = (geometry.tap_count(), geometry.out_plane_len());
    let out_channels = geometry.groups * geometry.out_channels;
    dw.fill(T::ZERO);
    for first_image in unit.images.clone().step_by(images_per_tile) {
        let image_count = images_per_tile.min(unit.images.end - first_image);
        for first_row in (0..geometry.out_size[0]).step_by(tiling.row_count) {
            let row_count = tiling.row_count.min(geometry.out_size[0] - first_row);
            let pixel_count = row_count * geometry.out_size[1];
            let turned_len = pixel_count * padded_channels(channels);
            for image in 0..image_count {
                let at = ((first_image + image) * out_channels + unit.first_channel) * out_len;
                let skip = first_row * geometry.out_size[1];
                let dy = &dy[at..][..channels * out_len];
                let turned = &mut turned[image * turned_len..][..turned_len];
                T::dispatch(TurnPixels { dy, out_len, skip, pixel_count, turned });
            }
            for first_channel in (0..geometry.in_channels).step_by(tiling.channel_count) {
                let channel_count = tiling.channel_count.min(geometry.in_channels - first_channel);
                for image in 0..image_count {
                    let at =
                        source_channels(geometry, first_image + image, unit.group, first_channel);
                    let x = &x[at..][..channel_count * geometry.in_plane_len()];
                    let tile = &mut tile[image * tiling.image_len..][..tiling.image_len];
                    fill(geometry, &tiling, x, first_row, tile);
                }
                for first_tap in (0..channel_count * taps_len).step_by(TAP_COUNT_MAX) {
                    let (offsets, tap_count) =
                        tap_offsets(geometry, &tiling, channel_count, first_tap);
                    T::dispatch(WeightTile {
                        dy: &*turned,
                        channels,
                        pixel_count,
                        image_count,
                        tile: &*tile,
                        image_len: tiling.image_len,
                        offsets: &offsets[..tap_count],
                        dw: &mut *dw,
                        first_k: first_channel * taps_len + first_tap,
                    });
                }
            }
        }
    }
}

/// Adds `others`, whole copies of `total` one after the other, to `total` in that order.
fn add_partials<T: SimdFloat>(pool: &Pool, total: &mut [T], others: &[T]) {
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
