//! y and dx by tiles: y`[O, P]` = w`[O, K]` · tile`[K, P]`, overwritten. dx is a convolution of dy
//! in phases (`phases.rs`), with the kernel turned around.
//!
//! E is the type in memory, T the type of the computation: tiles, weights and sums are of T. If the
//! processor multiplies bf16 in pairs, an element of a tile and of the weights is a pair of two
//! source channels. Sums are then equally accurate, but subnormal numbers count as 0.

use super::fill::fill_planes;
use super::output_tile::{OutputTile, PackWeights};
use super::tiling::{TAP_COUNT_MAX, TapOffsets, Tiling};
use super::units::{Role, Unit, Units};
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel, has_pairs};
use crate::cpu::stored::{RoundSlice, narrow};
use crate::dtype::{DType, Element, convert_slice, is_same_type};
use crate::ops::conv2d::geometry::Geometry;
use crate::ops::conv2d::phases::{Phase, Phases};
use crate::ops::conv2d::way::Slices;
use crate::write_mode::WriteMode;

/// The cut of a phase into units. The phases of a result differ in nothing but their tiles.
fn output_units<E: Element, T: SimdFloat>(phases: &Phases, phase: &Phase) -> Units {
    let is_in_place = is_same_type::<E, T>() && phases.is_one();
    let role = if is_in_place { Role::Output } else { Role::PlacedOutput };
    Units::of_output(&phase.geometry.first_piece(), role)
}

/// The phases with a tap, in the order of their packed weights.
fn phases_with_taps(phases: &Phases) -> impl Iterator<Item = Phase> {
    phases.iter().filter(|phase| phase.geometry.tap_count() > 0)
}

/// Elements of scratch that suffice on any processor, with or without products in pairs.
pub(super) fn workspace_len<E: Element, T: SimdFloat>(phases: Phases) -> usize {
    let len = phases_workspace_len::<E, T>(&phases);
    match E::DTYPE {
        DType::BF16 => len.max(phases_workspace_len::<E, T>(&phases.in_pairs())),
        _ => len,
    }
}

/// Elements of scratch: a bias for each channel, the weights in the order of their use, and the
/// tasks' tiles.
fn phases_workspace_len<E: Element, T: SimdFloat>(phases: &Phases) -> usize {
    let mut weights_len = 0;
    let mut tiles_len = 0;
    for phase in phases_with_taps(phases) {
        weights_len += phases.channels() * phase.k_len();
        tiles_len = tiles_len.max(output_units::<E, T>(phases, &phase).workspace_len());
    }
    phases.channels() + weights_len + tiles_len
}

/// Overwrites y with the product of w and the tiles of the source, plus the bias.
pub(super) fn convolve<E: Element, T: SimdFloat>(
    pool: &Pool,
    phases: Phases,
    slices: Slices<'_, E, T>,
) {
    let Slices { factors: [source, w], bias, to: y, workspace } = slices;
    if y.is_empty() {
        return;
    }
    let are_pairs = E::DTYPE == DType::BF16 && has_pairs();
    let phases = if are_pairs { phases.in_pairs() } else { phases };
    let (biases, workspace) = workspace.split_at_mut(phases.channels());
    match bias {
        Some(bias) => convert_slice(bias, biases),
        None => biases.fill(T::ZERO),
    }
    let is_product = !source.is_empty() && !w.is_empty();
    let Some(first) = phases_with_taps(&phases).next().filter(|_| is_product) else {
        for (plane, y) in y.chunks_exact_mut(phases.plane_len()).enumerate() {
            y.fill(biases[plane % biases.len()].cast());
        }
        return;
    };
    let units = output_units::<E, T>(&phases, &first);
    let weights_len: usize =
        phases_with_taps(&phases).map(|phase| phases.channels() * phase.k_len()).sum();
    let (packed, tiles) = workspace.split_at_mut(weights_len);
    pack_weights(pool, &phases, units.channels, w, packed);
    let scratch_len = phases_with_taps(&phases)
        .map(|phase| output_units::<E, T>(&phases, &phase).scratch_len)
        .max()
        .unwrap_or_default();
    let unit_len = units.channels * phases.plane_len();
    let operands = Operands { phases, units, source, packed, biases };
    for_each_chunk2(
        pool,
        Chunked::new(y, units.per_task * unit_len),
        Chunked::new(tiles, scratch_len),
        |task, y, scratch| {
            for (index, y) in y.chunks_exact_mut(unit_len).enumerate() {
                operands.write_unit(&units.at(task * units.per_task + index), y, scratch);
            }
        },
    );
}

/// Runs a kernel that packs or multiplies weights, in pairs of channels or one by one.
fn dispatch<T: SimdFloat>(geometry: &Geometry, kernel: impl SimdKernel<T>) {
    match geometry.plane_channels {
        1 => T::dispatch(kernel),
        _ => T::dispatch_pairs(kernel),
    }
}

/// Packs the weights phase by phase. The weights of a phase are in parts of a unit's channels.
fn pack_weights<E: Element, T: SimdFloat>(
    pool: &Pool,
    phases: &Phases,
    channels: usize,
    w: &[E],
    packed: &mut [T],
) {
    let mut rest = packed;
    for phase in phases_with_taps(phases) {
        let own;
        (own, rest) = rest.split_at_mut(phases.channels() * phase.k_len());
        for_each_chunk(pool, own, channels * phase.k_len(), |part, to| {
            let (order, first) = (phase.order, part * channels);
            dispatch(&phase.geometry, PackWeights { w, order, first, channels, to });
        });
    }
}

/// The operands of all units.
struct Operands<'a, E, T> {
    phases: Phases,
    units: Units,
    source: &'a [E],
    /// The weights of all phases with taps.
    packed: &'a [T],
    /// A bias for each channel of the result.
    biases: &'a [T],
}

impl<E: Element, T: SimdFloat> Operands<'_, E, T> {
    /// Overwrites y, the planes of a unit.
    fn write_unit(&self, unit: &Unit, y: &mut [E], scratch: &mut [T]) {
        let Operands { phases, units, source, packed, biases } = self;
        let b = &biases[unit.first_channel..][..units.channels];
        let mut rest = *packed;
        for phase in phases.iter() {
            let k_len = phase.k_len();
            let own;
            (own, rest) = rest.split_at(phases.channels() * k_len);
            if k_len == 0 {
                write_biases(&phase, phases.size(), b, y);
                continue;
            }
            let is_whole = phases.is_one();
            let tiling =
                if is_whole { units.tiling } else { output_units::<E, T>(phases, &phase).tiling };
            let w = &own[unit.first_channel * k_len..][..units.channels * k_len];
            let size = phases.size();
            UnitProduct { phase, is_whole, size, tiling, unit, source, w, b }.write(y, scratch);
        }
    }
}

/// Writes the outputs of a phase without a tap to y: planes of `size`, with one bias each.
fn write_biases<E: Element, T: SimdFloat>(
    phase: &Phase,
    size: [usize; 2],
    biases: &[T],
    y: &mut [E],
) {
    let [height, width] = phase.geometry.out_size;
    for (y, b) in y.chunks_exact_mut(size[0] * size[1]).zip(biases) {
        for row in 0..height {
            let y = y[phase.row_start(size, row)..].iter_mut();
            y.step_by(phase.step[1]).take(width).for_each(|y| *y = b.cast());
        }
    }
}

/// Rows of a phase, and the place of their sums.
struct OutputRows {
    first_row: usize,
    row_count: usize,
    /// Sums between neighbouring channels.
    out_len: usize,
    /// Sums before the first sum of each channel.
    first_pixel: usize,
}

/// The product that computes one phase of the result for one unit.
struct UnitProduct<'a, E, T> {
    phase: Phase,
    /// True if the phase is the whole result.
    is_whole: bool,
    /// Rows and columns of a plane of the result.
    size: [usize; 2],
    tiling: Tiling,
    unit: &'a Unit,
    source: &'a [E],
    /// The unit's weights.
    w: &'a [T],
    /// A bias for each of the unit's channels.
    b: &'a [T],
}

impl<E: Element, T: SimdFloat> UnitProduct<'_, E, T> {
    /// Writes the outputs of the phase to y, the planes of the unit.
    fn write(&self, y: &mut [E], scratch: &mut [T]) {
        let Phase { geometry, first, step, .. } = self.phase;
        let (width, piece_len) = (geometry.out_size[1], geometry.first_piece().out_size[1]);
        let mut offsets = TapOffsets::new();
        for column in (0..width).step_by(piece_len) {
            let geometry = geometry.columns(column, piece_len.min(width - column));
            let first = [first[0], first[1] + column * step[1]];
            let piece = UnitProduct { phase: Phase { geometry, first, ..self.phase }, ..*self };
            piece.write_piece(column, &mut offsets, y, scratch);
        }
    }

    /// Writes some columns of the phase, from its column `column` on.
    fn write_piece(&self, column: usize, offsets: &mut TapOffsets, y: &mut [E], scratch: &mut [T]) {
        let [height, width] = self.phase.geometry.out_size;
        let (plane_len, tiling) = (self.size[0] * self.size[1], &self.tiling);
        let (tile, scratch) = scratch.split_at_mut(tiling.len(1));
        let joined_len = self.phase.geometry.joined_len(tiling.row_count);
        let (joined, sums) = scratch.split_at_mut(joined_len);
        for first_row in (0..height).step_by(tiling.row_count) {
            let row_count = tiling.row_count.min(height - first_row);
            // A piece has all columns, unless there is only one row.
            let first_pixel = first_row * width + column;
            let mut product = |y: &mut [T], out_len, first_pixel| {
                let rows = OutputRows { first_row, row_count, out_len, first_pixel };
                self.add_rows(&rows, [tile, joined], offsets, y);
            };
            if is_same_type::<E, T>() && self.is_whole {
                product(bytemuck::cast_slice_mut(y), plane_len, first_pixel);
                continue;
            }
            let pixel_count = row_count * width;
            let sums = &mut sums[..self.b.len() * pixel_count];
            product(sums, pixel_count, 0);
            for (y, sums) in y.chunks_exact_mut(plane_len).zip(sums.chunks_exact(pixel_count)) {
                if self.is_whole {
                    let to = &mut y[first_pixel..][..pixel_count];
                    dispatch(&self.phase.geometry, RoundSlice { from: sums, to });
                    continue;
                }
                let (phase, size) = (&self.phase, self.size);
                dispatch(&phase.geometry, PlaceSums { phase, size, first_row, sums, y });
            }
        }
    }

    /// Overwrites the sums of some rows with the products of all taps.
    fn add_rows(
        &self,
        rows: &OutputRows,
        [tile, joined]: [&mut [T]; 2],
        offsets: &mut TapOffsets,
        sums: &mut [T],
    ) {
        let &OutputRows { first_row, row_count, out_len, first_pixel } = rows;
        let (geometry, tiling) = (&self.phase.geometry, &self.tiling);
        let taps_len = geometry.tap_count();
        for first_plane in (0..geometry.tile_planes()).step_by(tiling.plane_count) {
            let plane_count = tiling.plane_count.min(geometry.tile_planes() - first_plane);
            let first_channel = first_plane * geometry.plane_channels;
            let channel_count =
                (plane_count * geometry.plane_channels).min(geometry.in_channels - first_channel);
            let Unit { group, ref images, .. } = *self.unit;
            let from = geometry.source_start(images.start, group, first_channel);
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
                dispatch(geometry, product);
            }
        }
    }
}

/// Writes the sums of a phase's rows to their places in a plane.
struct PlaceSums<'a, E, T> {
    phase: &'a Phase,
    /// Rows and columns of the plane.
    size: [usize; 2],
    first_row: usize,
    sums: &'a [T],
    y: &'a mut [E],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for PlaceSums<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let PlaceSums { phase, size, first_row, sums, y } = self;
        // Vectors round the sums, before the sums are spread.
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
