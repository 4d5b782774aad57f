//! Copies of a source into tiles; see `tiling.rs` for the order of elements.

use super::tiling::{Layout, Tiling};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::{Element, convert_slice};
use crate::ops::conv2d::geometry::Geometry;
use crate::ops::conv2d::rows::{fill_row, lane};

/// Fills the tile of output rows from `first_row` on from `source`, the planes of its channels. If
/// channels are multiplied in pairs, two planes become one plane of the tile; `joined` has room for
/// their rows.
pub(super) fn fill_planes<E: Element, T: SimdFloat>(
    geometry: &Geometry,
    tiling: &Tiling,
    source: &[E],
    first_row: usize,
    [tile, joined]: [&mut [T]; 2],
) {
    if geometry.plane_channels == 1 {
        return fill(geometry, tiling, source, first_row, tile);
    }
    let (start, cut) = geometry.cut(first_row, tiling.row_count);
    let len = cut.in_plane_len();
    let pairs = source.chunks(2 * geometry.in_plane_len());
    for (pair, tile) in pairs.zip(tile.chunks_exact_mut(tiling.plane_len)) {
        if len == 0 {
            tile.fill(T::ZERO);
            continue;
        }
        let (low, high) = pair.split_at(geometry.in_plane_len());
        let [low, high] = [low, high].map(|plane| plane.get(start..start + len).unwrap_or(&[]));
        T::dispatch(JoinRows { low, high, to: &mut joined[..len] });
        fill(&cut, tiling, &joined[..len], 0, tile);
    }
}

/// Joins two channels: each lane gets one number of each channel. The numbers of a missing second
/// channel are 0.
struct JoinRows<'a, E, T> {
    low: &'a [E],
    high: &'a [E],
    to: &'a mut [T],
}

impl<E: Element, T: SimdFloat> SimdKernel<T> for JoinRows<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let JoinRows { low, high, to } = self;
        match high {
            [] => to.iter_mut().zip(low).for_each(|(to, &low)| *to = lane([low, E::ZERO])),
            _ => {
                for ((to, &low), &high) in to.iter_mut().zip(low).zip(high) {
                    *to = lane([low, high]);
                }
            }
        }
    }
}

/// Fills the tile of output rows from `first_row` on from `source`, the planes of its channels.
pub(super) fn fill<E: Element, T: Element>(
    geometry: &Geometry,
    tiling: &Tiling,
    source: &[E],
    first_row: usize,
    tile: &mut [T],
) {
    let fill = Fill { geometry, tiling, source, first_row, tile };
    match (tiling.layout, geometry.stride[1]) {
        (Layout::PaddedRows, _) => fill.padded_rows(),
        // Rows are copied by a function for the instruction set of the processor.
        (Layout::Copies, 1) => fill.planes(),
        (Layout::Copies, _) => f32::dispatch(fill),
    }
}

/// A tile to fill.
struct Fill<'a, E, T> {
    geometry: &'a Geometry,
    tiling: &'a Tiling,
    source: &'a [E],
    first_row: usize,
    tile: &'a mut [T],
}

impl<E: Element, T: Element> SimdKernel<f32> for Fill<'_, E, T> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
        self.planes();
    }
}

impl<E: Element, T: Element> Fill<'_, E, T> {
    fn padded_rows(self) {
        let Fill { geometry, tiling, source, first_row, tile } = self;
        let in_width = geometry.in_size[1];
        let planes = source
            .chunks_exact(geometry.in_plane_len().max(1))
            .zip(tile.chunks_exact_mut(tiling.plane_len));
        for (plane, tile) in planes {
            for (row, to) in tile.chunks_exact_mut(geometry.padded_width()).enumerate() {
                match source_row(geometry, first_row, row) {
                    Some(from) => {
                        fill_row(
                            &plane[from * in_width..][..in_width],
                            1,
                            -geometry.padding[1],
                            to,
                        );
                    }
                    None => to.fill(T::ZERO),
                }
            }
        }
    }

    #[inline(always)]
    fn planes(self) {
        let Fill { geometry, tiling, source, first_row, tile } = self;
        let (in_len, width) = (geometry.in_plane_len(), geometry.out_size[1]);
        let phase_rows = geometry.phase_rows(tiling.row_count);
        let column_len = geometry.stride[0] * phase_rows * width;
        let unit = geometry.stride == [1, 1];
        let planes =
            source.chunks_exact(in_len.max(1)).zip(tile.chunks_exact_mut(tiling.plane_len));
        for (plane, tile) in planes {
            for (kw, tile) in tile.chunks_exact_mut(column_len).enumerate() {
                let shift = (kw * geometry.dilation[1]).cast_signed() - geometry.padding[1];
                if unit && width == geometry.in_size[1] {
                    fill_shifted(geometry, plane, first_row, shift, tile);
                    continue;
                }
                for row in 0..phase_rows * geometry.stride[0] {
                    let at = (row % geometry.stride[0]) * phase_rows + row / geometry.stride[0];
                    let to = &mut tile[at * width..][..width];
                    match source_row(geometry, first_row, row) {
                        Some(from) => {
                            let from = &plane[from * geometry.in_size[1]..][..geometry.in_size[1]];
                            fill_row(from, geometry.stride[1], shift, to);
                        }
                        None => to.fill(T::ZERO),
                    }
                }
            }
        }
    }
}

/// The source row of row `row` of a tile; `None` in the padding.
fn source_row(geometry: &Geometry, first_row: usize, row: usize) -> Option<usize> {
    let row = (first_row * geometry.stride[0] + row).checked_add_signed(-geometry.padding[0])?;
    (row < geometry.in_size[0]).then_some(row)
}

/// [`fill`] for kernels of one column whose input and output rows have the same length. The whole
/// plane is one copy, displaced by `shift`; then the columns that wrapped around are cleared. Row
/// by row, small images would spend more time in calls to copy than in arithmetic.
fn fill_shifted<E: Element, T: Element>(
    geometry: &Geometry,
    plane: &[E],
    first_row: usize,
    shift: isize,
    tile: &mut [T],
) {
    let width = geometry.out_size[1];
    let rows = tile.len() / width;
    let top = geometry.padding[0] - first_row.cast_signed();
    let clamp = |row: isize| row.clamp(0, rows.cast_signed()).cast_unsigned();
    let (begin, end) = (clamp(top), clamp(top + geometry.in_size[0].cast_signed()));
    tile[..begin * width].fill(T::ZERO);
    tile[end * width..].fill(T::ZERO);
    let tile = &mut tile[begin * width..end * width];
    if tile.is_empty() {
        return;
    }
    if shift.unsigned_abs() >= width {
        tile.fill(T::ZERO);
        return;
    }
    // `from` may start before the plane or end after it. All columns outside are cleared below.
    let from = (begin.cast_signed() - top) * width.cast_signed() + shift;
    let skip = (-from).max(0).cast_unsigned();
    let from = from.max(0).cast_unsigned();
    let copied = (tile.len() - skip).min(plane.len() - from);
    convert_slice(&plane[from..from + copied], &mut tile[skip..skip + copied]);
    let edge = shift.unsigned_abs();
    for row in tile.chunks_exact_mut(width) {
        let wrapped = if shift < 0 { &mut row[..edge] } else { &mut row[width - edge..] };
        wrapped.fill(T::ZERO);
    }
}
