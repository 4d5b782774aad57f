//! Convolution on the processor: implicit matrix products over tiles (see `tile.rs`).
//!
//! Letters: N images, C input channels, O output channels, H W input size, P output pixels,
//! K = C/groups · KH · KW taps of one output channel.
//!
//! - forward: y`[O, P]` = w`[O, K]` · tile`[K, P]`; y is overwritten.
//! - gradient for x: the same with dy for x and the kernel turned around; dx is overwritten.
//! - gradient for w: dw`[O, K]` = Σ over N of dy`[O, P]` · tile`[K, P]`ᵀ; dw and db are
//!   overwritten.

use super::output_tile::{OutputTile, Start};
use super::shape::Conv2dShape;
use super::tile::{Geometry, TAP_COUNT_MAX, Tiling, fill, tap_offsets};
use super::weight_tile::{WeightTile, padded_channels, turn_pixels};
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::pool::Pool;
use crate::cpu::simd::{LANE_COUNT_MAX, SimdFloat};

/// Tasks a convolution is cut into, at most: the workspace grows with it, and results must not
/// depend on the thread count, so it cannot be that.
const TASK_COUNT_MAX: usize = 16;

/// Output channels worth a task of their own when there are few images.
const PART_CHANNELS_MIN: usize = 16;

/// Pixels that a block of dw sums before it goes back to memory; small images are taken together.
const PIXELS_WANTED: usize = 64;

/// Elements that the partial sums of dw may take together if one copy of dw does not need more.
const PARTIALS_LEN_MAX: usize = 512 * 1024;

/// y = conv(x, w) + b.
pub(crate) fn forward<T: SimdFloat>(
    pool: &Pool,
    shape: &Conv2dShape,
    x: &[T],
    w: &[T],
    b: Option<&[T]>,
    y: &mut [T],
    workspace: &mut [T],
) {
    assert_eq!([x.len(), w.len(), y.len()], [shape.x_len(), shape.w_len(), shape.y_len()]);
    assert!(b.is_none_or(|b| b.len() == shape.out_channels), "bias of {:?}", b.map(<[T]>::len));
    convolve(pool, &Geometry::forward(shape), x, w, b, y, workspace);
}

/// Elements of scratch that [`forward`] needs.
pub(crate) fn forward_workspace_len(shape: &Conv2dShape) -> usize {
    Units::of_output(&Geometry::forward(shape)).workspace_len()
}

/// dx = the convolution of dy with the kernel turned around.
pub(crate) fn backward_input<T: SimdFloat>(
    pool: &Pool,
    shape: &Conv2dShape,
    dy: &[T],
    w: &[T],
    dx: &mut [T],
    workspace: &mut [T],
) {
    assert_eq!([dx.len(), w.len(), dy.len()], [shape.x_len(), shape.w_len(), shape.y_len()]);
    let geometry = Geometry::backward_input(shape);
    let (turned, workspace) = workspace.split_at_mut(w.len());
    turn_around(&geometry, w, turned);
    convolve(pool, &geometry, dy, turned, None, dx, workspace);
}

/// Elements of scratch that [`backward_input`] needs.
pub(crate) fn backward_input_workspace_len(shape: &Conv2dShape) -> usize {
    let geometry = Geometry::backward_input(shape);
    shape.w_len() + Units::of_output(&geometry).workspace_len()
}

/// dw and db, summed over the batch.
pub(crate) fn backward_weight<T: SimdFloat>(
    pool: &Pool,
    shape: &Conv2dShape,
    dy: &[T],
    x: &[T],
    dw: &mut [T],
    db: Option<&mut [T]>,
    workspace: &mut [T],
) {
    assert_eq!([x.len(), dw.len(), dy.len()], [shape.x_len(), shape.w_len(), shape.y_len()]);
    let geometry = Geometry::forward(shape);
    let units = Units::of_weight(&geometry);
    if x.is_empty() || dy.is_empty() {
        dw.fill(T::ZERO);
    } else if !dw.is_empty() {
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
        turn_weights(total, k_len, units.channels, dw);
    }
    if let Some(db) = db {
        sum_channels(pool, shape, dy, db);
    }
}

/// Elements of scratch that [`backward_weight`] needs.
pub(crate) fn backward_weight_workspace_len(shape: &Conv2dShape) -> usize {
    let units = Units::of_weight(&Geometry::forward(shape));
    let k_len = shape.in_channels / shape.groups * shape.kernel[0] * shape.kernel[1];
    units.count * k_len * padded_channels(units.channels) + units.workspace_len()
}

/// The cut of a convolution into equal units, each owning a contiguous run of results, and of the
/// units into tasks, each with a tile of its own.
#[derive(Clone, Copy, Debug)]
struct Units {
    groups: usize,
    /// Cuts of a group's output channels.
    parts: usize,
    /// Output channels of a unit.
    channels: usize,
    /// Cuts of the batch.
    batch_parts: usize,
    /// Images of a cut; the last may have fewer, or none.
    images: usize,
    count: usize,
    per_task: usize,
    tiling: Tiling,
    images_per_tile: usize,
    /// Elements of scratch of one task.
    scratch_len: usize,
}

/// What the units of a convolution compute.
#[derive(Clone, Copy)]
enum Role {
    /// Pixels, from weights.
    Output,
    /// Weights, from pixels: these need dy turned around, a second tile.
    Weight,
}

/// One of the [`Units`].
#[derive(Clone, Copy, Debug)]
struct Unit {
    group: usize,
    /// Its first output channel, counted over all groups.
    first_channel: usize,
    first_image: usize,
    image_count: usize,
}

impl Units {
    /// Units of one image: their results are contiguous in y.
    fn of_output(geometry: &Geometry) -> Self {
        Self::new(geometry, geometry.batch, Role::Output)
    }

    /// Units of several images, whose sums are added up afterwards.
    fn of_weight(geometry: &Geometry) -> Self {
        let dw_len =
            geometry.groups * geometry.out_channels * geometry.in_channels * geometry.tap_count();
        let copies_max = (PARTIALS_LEN_MAX / dw_len.max(1)).clamp(1, TASK_COUNT_MAX);
        let batch_parts = geometry.batch.clamp(1, copies_max);
        Self::new(geometry, batch_parts, Role::Weight)
    }

    fn new(geometry: &Geometry, batch_parts: usize, role: Role) -> Self {
        let groups = geometry.groups;
        // Each part fills the tile again, so there are no more than keep the tasks busy.
        let wanted = TASK_COUNT_MAX.div_ceil((batch_parts * groups).max(1));
        let most = (geometry.out_channels / PART_CHANNELS_MIN).clamp(1, wanted);
        let parts =
            (1..=most).rev().find(|&n| geometry.out_channels.is_multiple_of(n)).unwrap_or(1);
        let count = batch_parts * groups * parts;
        let per_task = count.div_ceil(TASK_COUNT_MAX).max(1);
        let channels = geometry.out_channels / parts;
        let images = geometry.batch.div_ceil(batch_parts.max(1));
        let turned = match role {
            Role::Output => 0,
            Role::Weight => padded_channels(channels),
        };
        let tiling = Tiling::new(geometry, turned);
        let images_per_tile = match role {
            Role::Output => 1,
            Role::Weight => PIXELS_WANTED.div_ceil(geometry.out_plane_len().max(1)).min(images),
        }
        .max(1);
        let pixel_count = images_per_tile * tiling.row_count * geometry.out_size[1];
        let scratch_len = tiling.len(images_per_tile) + pixel_count * turned;
        Self {
            groups,
            parts,
            channels,
            batch_parts,
            images,
            count,
            per_task,
            tiling,
            images_per_tile,
            scratch_len,
        }
    }

    fn workspace_len(&self) -> usize {
        self.count.div_ceil(self.per_task) * self.scratch_len
    }

    fn at(&self, index: usize) -> Unit {
        let (batch_part, block) =
            (index / (self.groups * self.parts), index % (self.groups * self.parts));
        Unit {
            group: block / self.parts,
            first_channel: block * self.channels,
            first_image: batch_part * self.images,
            image_count: self.images,
        }
    }
}

/// The product of `w` and the tiles of `source`, overwriting `y`.
fn convolve<T: SimdFloat>(
    pool: &Pool,
    geometry: &Geometry,
    source: &[T],
    w: &[T],
    b: Option<&[T]>,
    y: &mut [T],
    workspace: &mut [T],
) {
    if y.is_empty() {
        return;
    }
    let units = Units::of_output(geometry);
    let unit_len = units.channels * geometry.out_plane_len();
    if source.is_empty() {
        for (plane, y) in y.chunks_exact_mut(geometry.out_plane_len()).enumerate() {
            y.fill(b.map_or(T::ZERO, |b| b[plane % b.len()]));
        }
        return;
    }
    for_each_chunk2(
        pool,
        Chunked::new(y, units.per_task * unit_len),
        Chunked::new(workspace, units.scratch_len),
        |task, y, tile| {
            for (index, y) in y.chunks_exact_mut(unit_len).enumerate() {
                let unit = units.at(task * units.per_task + index);
                output_unit(geometry, &units, unit, source, w, b, y, tile);
            }
        },
    );
}

#[expect(clippy::too_many_arguments, reason = "the operands of one product")]
fn output_unit<T: SimdFloat>(
    geometry: &Geometry,
    units: &Units,
    unit: Unit,
    source: &[T],
    w: &[T],
    b: Option<&[T]>,
    y: &mut [T],
    tile: &mut [T],
) {
    let Units { tiling, channels, .. } = *units;
    let k_len = geometry.in_channels * geometry.tap_count();
    let w = &w[unit.first_channel * k_len..][..channels * k_len];
    let b = b.map(|b| &b[unit.first_channel..][..channels]);
    let out_len = geometry.out_plane_len();
    for first_row in (0..geometry.out_size[0]).step_by(tiling.row_count) {
        let row_count = tiling.row_count.min(geometry.out_size[0] - first_row);
        for first_channel in (0..geometry.in_channels).step_by(tiling.channel_count) {
            let channel_count = tiling.channel_count.min(geometry.in_channels - first_channel);
            let from = source_channels(geometry, unit.first_image, unit.group, first_channel);
            let source = &source[from..][..channel_count * geometry.in_plane_len()];
            fill(geometry, &tiling, source, first_row, tile);
            for first_tap in (0..geometry.tap_count()).step_by(TAP_COUNT_MAX) {
                let (offsets, tap_count) = tap_offsets(geometry, &tiling, first_tap);
                T::dispatch(OutputTile {
                    w,
                    k_len,
                    first_k: first_channel * geometry.tap_count() + first_tap,
                    taps_len: geometry.tap_count(),
                    tile: &tile[..channel_count * tiling.plane_len + LANE_COUNT_MAX],
                    plane_len: tiling.plane_len,
                    offsets: &offsets[..tap_count],
                    b,
                    y: &mut *y,
                    out_len,
                    first_pixel: first_row * geometry.out_size[1],
                    pixel_count: row_count * geometry.out_size[1],
                    start: if first_channel == 0 && first_tap == 0 {
                        Start::Overwrite
                    } else {
                        Start::Accumulate
                    },
                });
            }
        }
    }
}

/// Where the planes of a group's channels begin in the source.
fn source_channels(geometry: &Geometry, image: usize, group: usize, channel: usize) -> usize {
    ((image * geometry.groups + group) * geometry.in_channels + channel) * geometry.in_plane_len()
}

/// The kernel of the gradient for x: channels exchanged within a group, taps in reverse order.
fn turn_around<T: SimdFloat>(geometry: &Geometry, w: &[T], turned: &mut [T]) {
    let (from, to, taps) = (geometry.in_channels, geometry.out_channels, geometry.tap_count());
    let group_len = (from * to * taps).max(1);
    for (w, turned) in w.chunks_exact(group_len).zip(turned.chunks_exact_mut(group_len)) {
        for (index, turned) in turned.chunks_exact_mut(taps).enumerate() {
            let (channel, source) = (index / from, index % from);
            let w = &w[(source * to + channel) * taps..][..taps];
            turned.iter_mut().zip(w.iter().rev()).for_each(|(turned, &w)| *turned = w);
        }
    }
}

/// dw`[K, O]` of one unit, overwritten with the sum over its images.
fn weight_unit<T: SimdFloat>(
    geometry: &Geometry,
    units: &Units,
    unit: Unit,
    dy: &[T],
    x: &[T],
    dw: &mut [T],
    scratch: &mut [T],
) {
    let Units { tiling, channels, images_per_tile, .. } = *units;
    let (tile, turned) = scratch.split_at_mut(tiling.len(images_per_tile));
    let (taps_len, out_len) = (geometry.tap_count(), geometry.out_plane_len());
    let out_channels = geometry.groups * geometry.out_channels;
    let image_end = (unit.first_image + unit.image_count).min(geometry.batch);
    dw.fill(T::ZERO);
    for first_image in (unit.first_image..image_end).step_by(images_per_tile) {
        let image_count = images_per_tile.min(image_end - first_image);
        for first_row in (0..geometry.out_size[0]).step_by(tiling.row_count) {
            let row_count = tiling.row_count.min(geometry.out_size[0] - first_row);
            let pixel_count = row_count * geometry.out_size[1];
            let turned_len = pixel_count * padded_channels(channels);
            for image in 0..image_count {
                let at = ((first_image + image) * out_channels + unit.first_channel) * out_len;
                let skip = first_row * geometry.out_size[1];
                let dy = &dy[at..][..channels * out_len];
                let turned = &mut turned[image * turned_len..][..turned_len];
                turn_pixels(dy, out_len, skip, pixel_count, turned);
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
                for first_tap in (0..taps_len).step_by(TAP_COUNT_MAX) {
                    let (offsets, tap_count) = tap_offsets(geometry, &tiling, first_tap);
                    T::dispatch(WeightTile {
                        dy: &*turned,
                        channels,
                        pixel_count,
                        image_count,
                        tile: &*tile,
                        image_len: tiling.image_len,
                        plane_len: tiling.plane_len,
                        plane_count: channel_count,
                        offsets: &offsets[..tap_count],
                        dw: &mut *dw,
                        first_k: first_channel * taps_len + first_tap,
                        taps_len,
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
fn turn_weights<T: SimdFloat>(units: &[T], k_len: usize, channels: usize, dw: &mut [T]) {
    let padded = padded_channels(channels);
    let units = units.chunks_exact(k_len * padded);
    for (unit, dw) in units.zip(dw.chunks_exact_mut(k_len * channels)) {
        for (channel, dw) in dw.chunks_exact_mut(k_len).enumerate() {
            let column = unit[channel..].iter().step_by(padded);
            dw.iter_mut().zip(column).for_each(|(dw, &sum)| *dw = sum);
        }
    }
}

/// db = Σ over images and pixels of dy, in f64: there are as many terms as pixels in a batch.
fn sum_channels<T: SimdFloat>(pool: &Pool, shape: &Conv2dShape, dy: &[T], db: &mut [T]) {
    let out_len = shape.out_height() * shape.out_width();
    let channels = shape.out_channels;
    assert_eq!(db.len(), channels);
    for_each_chunk(pool, db, channels.div_ceil(TASK_COUNT_MAX), |chunk, db| {
        let first = chunk * channels.div_ceil(TASK_COUNT_MAX);
        for (channel, db) in db.iter_mut().enumerate() {
            let mut lanes = [0.0; 8];
            for image in 0..shape.batch {
                let dy = &dy[(image * channels + first + channel) * out_len..][..out_len];
                let (whole, rest) = dy.as_chunks::<8>();
                for dy in whole {
                    lanes.iter_mut().zip(dy).for_each(|(lane, dy)| *lane += dy.to_f64());
                }
                lanes.iter_mut().zip(rest).for_each(|(lane, dy)| *lane += dy.to_f64());
            }
            *db = T::from_f64(lanes.iter().sum());
        }
    });
}

#[cfg(test)]
#[path = "cpu_tests.rs"]
mod tests;
