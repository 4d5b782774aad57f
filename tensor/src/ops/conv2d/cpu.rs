//! Convolution on the processor: implicit matrix products over tiles (see `tile.rs`), unless the
//! shape has a better way (see `way.rs`).
//!
//! Letters: N images, C input channels, O output channels, H W input size, P output pixels,
//! K = C/groups · KH · KW taps of one output channel. E is the type in memory, T the one that is
//! computed in: tiles, weights and sums are of T, and the rest is converted on its way. Where the
//! processor multiplies bf16 in pairs, an element of a tile and of the weights is a pair, of two
//! channels of the source; sums are as near to what is exact, but for subnormal numbers, which
//! count as 0.
//!
//! - forward: y`[O, P]` = w`[O, K]` · tile`[K, P]`; y is overwritten.
//! - gradient for x: the same with dy for x and the kernel turned around, in phases (`phases.rs`);
//!   dx is overwritten.
//! - gradient for w: see `weight.rs`.

use super::Product;
use super::output_tile::{OutputTile, PackWeights};
use super::phases::{Phase, Phases};
use super::shape::Conv2dShape;
use super::tile::{Geometry, TAP_COUNT_MAX, TapOffsets, Tiling, fill_planes};
use super::units::{Role, Unit, Units};
use super::way::Way;
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel, has_pairs};
use crate::cpu::stored::{RoundSlice, narrow};
use crate::dtype::{DType, Element, convert_slice, is_same_type};
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
    match Way::of(shape, Product::Forward) {
        Way::Depthwise(way) => way.forward(pool, [x, w], b, y, workspace),
        Way::Columns(way) => way.forward(pool, [x, w], b, y, workspace),
        Way::Patches(way) => way.forward(pool, [x, w], b, y, workspace),
        Way::Tiles => convolve(pool, Phases::forward(shape), [x, w], b, y, workspace),
    }
}

/// Elements of scratch that [`forward`] needs.
pub(super) fn forward_workspace_len<E: Element, T: SimdFloat>(shape: &Conv2dShape) -> usize {
    match Way::of(shape, Product::Forward) {
        Way::Depthwise(way) => way.forward_workspace_len(),
        Way::Columns(way) => way.forward_workspace_len::<E, T>(),
        Way::Patches(way) => way.forward_workspace_len::<E, T>(),
        Way::Tiles => workspace_len::<E, T>(Phases::forward(shape)),
    }
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
    match Way::of(shape, Product::BackwardInput) {
        Way::Depthwise(way) => way.backward_input(pool, [dy, w], b, dx, workspace),
        Way::Columns(way) => way.backward_input(pool, [dy, w], b, dx, workspace),
        Way::Patches(way) => way.backward_input(pool, [dy, w], b, dx, workspace),
        Way::Tiles => convolve(pool, Phases::backward_input(shape), [dy, w], b, dx, workspace),
    }
}

/// Elements of scratch that [`backward_input`] needs.
pub(super) fn backward_input_workspace_len<E: Element, T: SimdFloat>(shape: &Conv2dShape) -> usize {
    match Way::of(shape, Product::BackwardInput) {
        Way::Depthwise(way) => way.backward_input_workspace_len(),
        Way::Columns(way) => way.backward_input_workspace_len::<E, T>(),
        Way::Patches(way) => way.backward_input_workspace_len(),
        Way::Tiles => workspace_len::<E, T>(Phases::backward_input(shape)),
    }
}

/// The cut of a phase: that of every phase of a result but for tiles.
fn output_units<E: Element, T: SimdFloat>(phases: &Phases, phase: &Phase) -> Units {
    let is_in_place = is_same_type::<E, T>() && phases.is_one();
    let role = if is_in_place { Role::Output } else { Role::PlacedOutput };
    Units::of_output(&phase.geometry.first_piece(), role)
}

/// The phases with a tap, which their weights stand in the order of.
fn phases_with_taps(phases: &Phases) -> impl Iterator<Item = Phase> {
    phases.iter().filter(|phase| phase.geometry.tap_count() > 0)
}

/// What any processor needs, those included that multiply in pairs.
fn workspace_len<E: Element, T: SimdFloat>(phases: Phases) -> usize {
    let len = phases_workspace_len::<E, T>(&phases);
    match E::DTYPE {
        DType::BF16 => len.max(phases_workspace_len::<E, T>(&phases.in_pairs())),
        _ => len,
    }
}

/// A bias for each channel, the weights in the order of their use, and the tasks' tiles.
fn phases_workspace_len<E: Element, T: SimdFloat>(phases: &Phases) -> usize {
    let mut weights_len = 0;
    let mut tiles_len = 0;
    for phase in phases_with_taps(phases) {
        weights_len += phases.channels() * phase.k_len();
        tiles_len = tiles_len.max(output_units::<E, T>(phases, &phase).workspace_len());
    }
    phases.channels() + weights_len + tiles_len
}

/// The product of `w` and the tiles of `source`, overwriting `y`.
fn convolve<E: Element, T: SimdFloat>(
    pool: &Pool,
    phases: Phases,
    [source, w]: [&[E]; 2],
    b: Option<&[E]>,
    y: &mut [E],
    workspace: &mut [T],
) {
    if y.is_empty() {
        return;
    }
    let are_pairs = E::DTYPE == DType::BF16 && has_pairs();
    let phases = &if are_pairs { phases.in_pairs() } else { phases };
    let (bias, workspace) = workspace.split_at_mut(phases.channels());
    match b {
        Some(b) => convert_slice(b, bias),
        None => bias.fill(T::ZERO),
    }
    let is_product = !source.is_empty() && !w.is_empty();
    let Some(first) = phases_with_taps(phases).next().filter(|_| is_product) else {
        for (plane, y) in y.chunks_exact_mut(phases.plane_len()).enumerate() {
            y.fill(bias[plane % bias.len()].cast());
        }
        return;
    };
    let units = output_units::<E, T>(phases, &first);
    let weights_len: usize =
        phases_with_taps(phases).map(|phase| phases.channels() * phase.k_len()).sum();
    let (packed, tiles) = workspace.split_at_mut(weights_len);
    let mut rest = &mut *packed;
    for phase in phases_with_taps(phases) {
        let own;
        (own, rest) = rest.split_at_mut(phases.channels() * phase.k_len());
        for_each_chunk(pool, own, units.channels * phase.k_len(), |part, to| {
            let first = part * units.channels;
            let order = phase.order;
            dispatch(are_pairs, PackWeights { w, order, first, channels: units.channels, to });
        });
    }
    let scratch_len = phases_with_taps(phases)
        .map(|phase| output_units::<E, T>(phases, &phase).scratch_len)
        .max()
        .unwrap_or_default();
    let unit_len = units.channels * phases.plane_len();
    for_each_chunk2(
        pool,
        Chunked::new(y, units.per_task * unit_len),
        Chunked::new(tiles, scratch_len),
        |task, y, scratch| {
            for (index, y) in y.chunks_exact_mut(unit_len).enumerate() {
                let unit = units.at(task * units.per_task + index);
                let mut rest = &*packed;
                for phase in phases.iter() {
                    let own;
                    (own, rest) = rest.split_at(phases.channels() * phase.k_len());
                    let (k_len, channels) = (phase.k_len(), units.channels);
                    let tiling = match k_len {
                        0 => None,
                        _ if phases.is_one() => Some(units.tiling),
                        _ => Some(output_units::<E, T>(phases, &phase).tiling),
                    };
                    let product = UnitProduct {
                        phase,
                        unit: &unit,
                        source,
                        w: &own[unit.first_channel * k_len..][..channels * k_len],
                        b: &bias[unit.first_channel..][..channels],
                        size: phases.size(),
                    };
                    match tiling {
                        Some(tiling) => product.write(&tiling, phases.is_one(), y, scratch),
                        None => product.write_bias(y),
                    }
                }
            }
        },
    );
}

/// Rows of a phase, and where their sums go.
struct Rows {
    first_row: usize,
    row_count: usize,
    /// Sums from one channel to the next, and before the first of each.
    out_len: usize,
    first_pixel: usize,
}

/// A phase of what a unit computes.
struct UnitProduct<'a, E, T> {
    phase: Phase,
    unit: &'a Unit,
    source: &'a [E],
    /// The unit's weights, and a bias for each of its channels.
    w: &'a [T],
    b: &'a [T],
    /// Rows and columns of a plane of the result.
    size: [usize; 2],
}

impl<E: Element, T: SimdFloat> UnitProduct<'_, E, T> {
    /// The outputs of a phase without a tap in y, the planes of the unit.
    fn write_bias(&self, y: &mut [E]) {
        let [height, width] = self.phase.geometry.out_size;
        for (y, b) in y.chunks_exact_mut(self.size[0] * self.size[1]).zip(self.b) {
            for row in 0..height {
                let y = y[self.phase.row_start(self.size, row)..].iter_mut();
                y.step_by(self.phase.step[1]).take(width).for_each(|y| *y = b.cast());
            }
        }
    }

    /// The outputs of the phase in y, the planes of the unit.
    fn write(&self, tiling: &Tiling, is_one: bool, y: &mut [E], scratch: &mut [T]) {
        let Phase { geometry, first, step, .. } = self.phase;
        let (width, piece_len) = (geometry.out_size[1], geometry.first_piece().out_size[1]);
        let mut offsets = TapOffsets::new();
        for column in (0..width).step_by(piece_len) {
            let geometry = geometry.columns(column, piece_len.min(width - column));
            let first = [first[0], first[1] + column * step[1]];
            let piece = UnitProduct { phase: Phase { geometry, first, ..self.phase }, ..*self };
            piece.write_piece(column, tiling, is_one, &mut offsets, y, scratch);
        }
    }

    /// Some columns of the phase, from its column `column` on.
    fn write_piece(
        &self,
        column: usize,
        tiling: &Tiling,
        is_one: bool,
        offsets: &mut TapOffsets,
        y: &mut [E],
        scratch: &mut [T],
    ) {
        let [height, width] = self.phase.geometry.out_size;
        let plane_len = self.size[0] * self.size[1];
        let are_pairs = self.phase.geometry.plane_channels == 2;
        let (tile, scratch) = scratch.split_at_mut(tiling.len(1));
        let joined_len = self.phase.geometry.joined_len(tiling.row_count);
        let (joined, sums) = scratch.split_at_mut(joined_len);
        for first_row in (0..height).step_by(tiling.row_count) {
            let row_count = tiling.row_count.min(height - first_row);
            // All columns, unless there is one row.
            let first_pixel = first_row * width + column;
            let mut product = |y: &mut [T], out_len, first_pixel| {
                let to = Rows { first_row, row_count, out_len, first_pixel };
                self.add_rows(tiling, to, [tile, joined], offsets, y);
            };
            if is_same_type::<E, T>() && is_one {
                product(bytemuck::cast_slice_mut(y), plane_len, first_pixel);
                continue;
            }
            let pixel_count = row_count * width;
            let sums = &mut sums[..self.b.len() * pixel_count];
            product(sums, pixel_count, 0);
            for (y, sums) in y.chunks_exact_mut(plane_len).zip(sums.chunks_exact(pixel_count)) {
                if is_one {
                    let to = &mut y[first_pixel..][..pixel_count];
                    dispatch(are_pairs, RoundSlice { from: sums, to });
                    continue;
                }
                let place = Place { phase: &self.phase, size: self.size, first_row, sums, y };
                dispatch(are_pairs, place);
            }
        }
    }

    /// The sums of some rows, from their biases on.
    fn add_rows(
        &self,
        tiling: &Tiling,
        rows: Rows,
        [tile, joined]: [&mut [T]; 2],
        offsets: &mut TapOffsets,
        sums: &mut [T],
    ) {
        let Rows { first_row, row_count, out_len, first_pixel } = rows;
        let geometry = &self.phase.geometry;
        let taps_len = geometry.tap_count();
        let are_pairs = geometry.plane_channels == 2;
        for first_plane in (0..geometry.tile_planes()).step_by(tiling.plane_count) {
            let plane_count = tiling.plane_count.min(geometry.tile_planes() - first_plane);
            let first_channel = first_plane * geometry.plane_channels;
            let channel_count =
                (plane_count * geometry.plane_channels).min(geometry.in_channels - first_channel);
            let from =
                source_channels(geometry, self.unit.images.start, self.unit.group, first_channel);
            let source = &self.source[from..][..channel_count * geometry.in_plane_len()];
            fill_planes(geometry, tiling, source, first_row, [tile, joined]);
            for first_tap in (0..plane_count * taps_len).step_by(TAP_COUNT_MAX) {
                let first_k = first_plane * taps_len + first_tap;
                let product = OutputTile {
                    w: self.w,
                    k_len: self.phase.k_len(),
                    first_k,
                    tile,
                    offsets: offsets.of(geometry, tiling, plane_count, first_tap),
                    b: self.b,
                    y: &mut *sums,
                    out_len,
                    first_pixel,
                    runs: tiling.runs(geometry, row_count),
                    start: if first_k == 0 { WriteMode::Overwrite } else { WriteMode::Accumulate },
                };
                dispatch(are_pairs, product);
            }
        }
    }
}

/// Writes sums of rows of a phase to their places in a plane.
struct Place<'a, E, T> {
    phase: &'a Phase,
    /// Rows and columns of the plane.
    size: [usize; 2],
    first_row: usize,
    sums: &'a [T],
    y: &'a mut [E],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for Place<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let Place { phase, size, first_row, sums, y } = self;
        // Rounded in vectors first, since the places are no neighbours.
        let mut rounded = [E::ZERO; 4 * LANE_COUNT_MAX];
        let step = phase.step[1];
        for (row, sums) in sums.chunks_exact(phase.geometry.out_size[1]).enumerate() {
            let mut at = phase.row_start(size, first_row + row);
            for sums in sums.chunks(rounded.len()) {
                let rounded = &mut rounded[..sums.len()];
                narrow(simd, sums, rounded);
                let y = y[at..].iter_mut().step_by(step);
                y.zip(rounded).for_each(|(y, rounded)| *y = *rounded);
                at += step * sums.len();
            }
        }
    }
}

/// Runs what packs or multiplies weights, in pairs or one by one.
fn dispatch<T: SimdFloat>(are_pairs: bool, kernel: impl SimdKernel<T>) {
    if are_pairs { T::dispatch_pairs(kernel) } else { T::dispatch(kernel) }
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
