//! Convolution on the processor: implicit matrix products over tiles (see `tile.rs`).
//!
//! Letters: N images, C input channels, O output channels, H W input size, P output pixels,
//! K = C/groups · KH · KW taps of one output channel. E is the type in memory, T the one that is
//! computed in: tiles, weights and sums are of T, and the rest is converted on its way.
//!
//! - forward: y`[O, P]` = w`[O, K]` · tile`[K, P]`; y is overwritten.
//! - gradient for x: the same with dy for x and the kernel turned around; dx is overwritten.
//! - gradient for w: see `weight.rs`.

use super::output_tile::{OutputTile, PackWeights, WeightOrder};
use super::shape::Conv2dShape;
use super::tile::{Geometry, TAP_COUNT_MAX, fill, tap_offsets};
use super::units::{Role, Unit, Units};
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::dtype::{Element, convert_slice, is_same_type};
use crate::write_mode::WriteMode;

/// y = conv(x, w) + b.
pub(super) fn forward<E: Element, T: SimdFloat>(
    pool: &Pool,
    shape: &Conv2dShape,
    x: &[E],
    w: &[E],
    b: Option<&[E]>,
    y: &mut [E],
    workspace: &mut [T],
) {
    assert_eq!([x.len(), w.len(), y.len()], [shape.x_len(), shape.w_len(), shape.y_len()]);
    let geometry = Geometry::forward(shape);
    let order = WeightOrder::forward(&geometry);
    convolve(pool, &geometry, order, [x, w], b, y, workspace);
}

/// Elements of scratch that [`forward`] needs.
pub(super) fn forward_workspace_len<E: Element, T: SimdFloat>(shape: &Conv2dShape) -> usize {
    workspace_len::<E, T>(&Geometry::forward(shape))
}

/// dx = the convolution of dy with the kernel turned around, plus `b` for each channel of dx:
/// the transposed convolution.
pub(super) fn backward_input<E: Element, T: SimdFloat>(
    pool: &Pool,
    shape: &Conv2dShape,
    dy: &[E],
    w: &[E],
    b: Option<&[E]>,
    dx: &mut [E],
    workspace: &mut [T],
) {
    assert_eq!([dx.len(), w.len(), dy.len()], [shape.x_len(), shape.w_len(), shape.y_len()]);
    let geometry = Geometry::backward_input(shape);
    let order = WeightOrder::backward_input(&geometry);
    convolve(pool, &geometry, order, [dy, w], b, dx, workspace);
}

/// Elements of scratch that [`backward_input`] needs.
pub(super) fn backward_input_workspace_len<E: Element, T: SimdFloat>(shape: &Conv2dShape) -> usize {
    workspace_len::<E, T>(&Geometry::backward_input(shape))
}

fn output_units<E: Element, T: SimdFloat>(geometry: &Geometry) -> Units {
    let role = if is_same_type::<E, T>() { Role::Output } else { Role::HalfOutput };
    Units::of_output(geometry, role)
}

fn k_len(geometry: &Geometry) -> usize {
    geometry.in_channels * geometry.tap_count()
}

/// The weights in the order of their use, a bias for each channel, and the tasks' tiles.
fn workspace_len<E: Element, T: SimdFloat>(geometry: &Geometry) -> usize {
    let channels = geometry.groups * geometry.out_channels;
    channels * (k_len(geometry) + 1) + output_units::<E, T>(geometry).workspace_len()
}

/// The product of `w` and the tiles of `source`, overwriting `y`.
fn convolve<E: Element, T: SimdFloat>(
    pool: &Pool,
    geometry: &Geometry,
    order: WeightOrder,
    [source, w]: [&[E]; 2],
    b: Option<&[E]>,
    y: &mut [E],
    workspace: &mut [T],
) {
    if y.is_empty() {
        return;
    }
    let units = output_units::<E, T>(geometry);
    let (bias, workspace) = workspace.split_at_mut(geometry.groups * geometry.out_channels);
    match b {
        Some(b) => convert_slice(b, bias),
        None => bias.fill(T::ZERO),
    }
    if source.is_empty() || w.is_empty() {
        for (plane, y) in y.chunks_exact_mut(geometry.out_plane_len()).enumerate() {
            y.fill(bias[plane % bias.len()].cast());
        }
        return;
    }
    let (packed, tiles) = workspace.split_at_mut(w.len());
    for_each_chunk(pool, packed, units.channels * k_len(geometry), |part, to| {
        let first = part * units.channels;
        T::dispatch(PackWeights { w, order, first, channels: units.channels, to });
    });
    let unit_len = units.channels * geometry.out_plane_len();
    for_each_chunk2(
        pool,
        Chunked::new(y, units.per_task * unit_len),
        Chunked::new(tiles, units.scratch_len),
        |task, y, scratch| {
            for (index, y) in y.chunks_exact_mut(unit_len).enumerate() {
                let unit = units.at(task * units.per_task + index);
                output_unit(geometry, &units, unit, source, [&*packed, &*bias], y, scratch);
            }
        },
    );
}

fn output_unit<E: Element, T: SimdFloat>(
    geometry: &Geometry,
    units: &Units,
    unit: Unit,
    source: &[E],
    [w, b]: [&[T]; 2],
    y: &mut [E],
    scratch: &mut [T],
) {
    let Units { tiling, channels, .. } = *units;
    let (tile, sums) = scratch.split_at_mut(tiling.len(1));
    let w = &w[unit.first_channel * k_len(geometry)..][..channels * k_len(geometry)];
    let b = &b[unit.first_channel..][..channels];
    let (width, out_len) = (geometry.out_size[1], geometry.out_plane_len());
    let taps_len = geometry.tap_count();
    for first_row in (0..geometry.out_size[0]).step_by(tiling.row_count) {
        let row_count = tiling.row_count.min(geometry.out_size[0] - first_row);
        let mut product = |first_channel, y: &mut [T], out_len, first_pixel| {
            let channel_count = tiling.channel_count.min(geometry.in_channels - first_channel);
            let from = source_channels(geometry, unit.images.start, unit.group, first_channel);
            let source = &source[from..][..channel_count * geometry.in_plane_len()];
            fill(geometry, &tiling, source, first_row, tile);
            for first_tap in (0..channel_count * taps_len).step_by(TAP_COUNT_MAX) {
                let (offsets, tap_count) = tap_offsets(geometry, &tiling, channel_count, first_tap);
                let first_k = first_channel * taps_len + first_tap;
                T::dispatch(OutputTile {
                    w,
                    k_len: k_len(geometry),
                    first_k,
                    tile,
                    offsets: &offsets[..tap_count],
                    b,
                    y: &mut *y,
                    out_len,
                    first_pixel,
                    pixel_count: row_count * width,
                    start: if first_k == 0 { WriteMode::Overwrite } else { WriteMode::Accumulate },
                });
            }
        };
        let first_channels = (0..geometry.in_channels).step_by(tiling.channel_count);
        let (first_pixel, pixel_count) = (first_row * width, row_count * width);
        if is_same_type::<E, T>() {
            let y = bytemuck::cast_slice_mut(y);
            first_channels.for_each(|channel| product(channel, y, out_len, first_pixel));
            continue;
        }
        let sums = &mut sums[..channels * pixel_count];
        first_channels.for_each(|channel| product(channel, sums, pixel_count, 0));
        for (y, sums) in y.chunks_exact_mut(out_len).zip(sums.chunks_exact(pixel_count)) {
            convert_slice(sums, &mut y[first_pixel..][..pixel_count]);
        }
    }
}

/// Where the planes of a group's channels begin in the source.
pub(super) fn source_channels(
    geometry: &Geometry,
    image: usize,
    group: usize,
    channel: usize,
) -> usize {
    ((image * geometry.groups + group) * geometry.in_channels + channel) * geometry.in_plane_len()
}
