//! The part of an image that a block of outputs reads, laid out so that every tap of the kernel
//! is one contiguous run of outputs.
//!
//! Where rows of outputs are whole vectors, a tile has the rows once, with the zeros beside them:
//! `[C][rows][OW + (KW - 1) · dilation]`. A row of outputs and a tap are one run then.
//!
//! Elsewhere a tile holds, for each channel c, each kernel column and each input row, the
//! `out_width` values that this kernel column meets along the row: `[C][KW][rows][OW]`. Output
//! pixel p of the tile (row by row) and tap (kh, kw) then meet at `p + offset(kh, kw)`: no index
//! arithmetic per pixel, no branch at the border, no lanes lost between rows. It costs KW copies of
//! the rows instead of the KH·KW of im2col. With a row stride S, rows are sorted by their remainder
//! mod S so that the rows of one tap stay adjacent.
//!
//! Where bf16 is multiplied in pairs, two channels of the source share a plane of the tile: an
//! element is a lane of 32 bits that holds a number of each.

use super::shape::Conv2dShape;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use crate::dtype::{Element, convert_slice, is_same_type};

/// Elements a tile may have if one channel of [`PIXELS_ENOUGH`] outputs does not need more: 128 KiB
/// of f32, which stays in a second-level cache next to the weights.
const TILE_LEN_MAX: usize = 32 * 1024;

/// Outputs that a tile has if the image does, however many channels there are: the rows around a
/// tile are copied once more for each tile, so rather than low ones it takes fewer channels.
pub(super) const PIXELS_ENOUGH: usize = 256;

/// Taps, of all channels together, whose offsets are held at once; more take several passes.
pub(super) const TAP_COUNT_MAX: usize = 1024;

/// A convolution as the tile sees it: one group, source and destination of any role.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Channels of the source, per group.
    pub(super) in_channels: usize,
    pub(super) in_size: [usize; 2],
    /// Channels of the destination, per group.
    pub(super) out_channels: usize,
    pub(super) out_size: [usize; 2],
    pub(super) kernel: [usize; 2],
    pub(super) stride: [usize; 2],
    pub(super) dilation: [usize; 2],
    /// Negative where the border of the source is never read.
    pub(super) padding: [isize; 2],
    /// Channels of the source that share a plane of a tile: 2 if they are multiplied in pairs.
    pub(super) plane_channels: usize,
}

impl Geometry {
    /// y from x and w.
    pub(super) fn forward(shape: &Conv2dShape) -> Self {
        Self {
            batch: shape.batch,
            groups: shape.groups,
            in_channels: shape.in_channels / shape.groups,
            in_size: [shape.in_height, shape.in_width],
            out_channels: shape.out_channels / shape.groups,
            out_size: [shape.out_height(), shape.out_width()],
            kernel: shape.kernel,
            stride: shape.stride,
            dilation: shape.dilation,
            padding: shape.padding.map(usize::cast_signed),
            plane_channels: 1,
        }
    }

    /// Planes of a tile that the channels of the source fill.
    pub(super) fn tile_planes(&self) -> usize {
        self.in_channels.div_ceil(self.plane_channels)
    }

    pub(super) fn tap_count(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    pub(super) fn in_plane_len(&self) -> usize {
        self.in_size[0] * self.in_size[1]
    }

    pub(super) fn out_plane_len(&self) -> usize {
        self.out_size[0] * self.out_size[1]
    }

    /// Rows of the source grid that `row_count` rows of outputs span.
    fn span(&self, row_count: usize) -> usize {
        (row_count - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0] + 1
    }

    /// Elements of the rows of a plane of the source that are joined with those of another.
    pub(super) fn joined_len(&self, row_count: usize) -> usize {
        match self.plane_channels {
            1 => 0,
            _ => self.span(row_count).min(self.in_size[0]) * self.in_size[1],
        }
    }

    /// A single row of outputs in pieces, if tiles of all channels are too large: the first of
    /// them. Else all of it.
    pub(super) fn first_piece(&self) -> Self {
        let piece = |len: usize| Geometry { out_size: [self.out_size[0], len], ..*self };
        let is_too_long = |len: usize| {
            let piece = piece(len);
            let tile_len = piece.tile_planes() * piece.plane_len(Layout::of(&piece), 1);
            len > PIXELS_ENOUGH && tile_len > TILE_LEN_MAX
        };
        let mut len = self.out_size[1];
        if [self.in_size[0], self.out_size[0]] == [1, 1] && is_too_long(len) {
            len = 1 << len.ilog2();
            while is_too_long(len) {
                len /= 2;
            }
        }
        piece(len)
    }

    /// `len` columns of the outputs, from `first` on.
    pub(super) fn columns(&self, first: usize, len: usize) -> Self {
        let skipped = (first * self.stride[1]).cast_signed();
        let padding = [self.padding[0], self.padding[1] - skipped];
        Geometry { out_size: [self.out_size[0], len], padding, ..*self }
    }

    /// Where what a tile of output rows `first_row..` shows begins in a plane of the source, and
    /// the convolution as one of that alone: of rows, or of columns if there is only one row.
    fn cut(&self, first_row: usize, row_count: usize) -> (usize, Geometry) {
        let [height, width] = self.in_size;
        let first = (first_row * self.stride[0]).cast_signed() - self.padding[0];
        let shown = |first: isize, span: usize, len: usize| {
            let inside = |at: isize| at.clamp(0, len.cast_signed()).cast_unsigned();
            inside(first)..inside(first + span.cast_signed())
        };
        let rows = shown(first, self.span(row_count), height);
        let columns = match height {
            1 => {
                let span = (self.out_size[1] - 1) * self.stride[1]
                    + (self.kernel[1] - 1) * self.dilation[1]
                    + 1;
                shown(-self.padding[1], span, width)
            }
            _ => 0..width,
        };
        let padding =
            [rows.start.cast_signed() - first, self.padding[1] + columns.start.cast_signed()];
        let start = rows.start * width + columns.start;
        (start, Geometry { in_size: [rows.len(), columns.len()], padding, ..*self })
    }

    /// Rows of one remainder mod the stride.
    fn phase_rows(&self, row_count: usize) -> usize {
        self.span(row_count).div_ceil(self.stride[0])
    }

    /// Elements of a source row with the zeros beside it, as far as a row of outputs reads.
    fn padded_width(&self) -> usize {
        self.out_size[1] + (self.kernel[1] - 1) * self.dilation[1]
    }

    /// Elements of one channel of a tile.
    fn plane_len(&self, layout: Layout, row_count: usize) -> usize {
        match layout {
            Layout::PaddedRows => self.span(row_count) * self.padded_width(),
            Layout::Copies => {
                self.kernel[1] * self.stride[0] * self.phase_rows(row_count) * self.out_size[1]
            }
        }
    }
}

/// How the rows of a channel lie in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Each once, with zeros beside it.
    PaddedRows,
    /// Once for each column of the kernel, without anything between them.
    Copies,
}

impl Layout {
    /// The one whose outputs fill vectors.
    pub(super) fn of(geometry: &Geometry) -> Self {
        let width = geometry.out_size[1];
        // A single vector of outputs would load as much as it multiplies.
        let fills_vectors = width >= 2 * LANE_COUNT_MAX && width.is_multiple_of(LANE_COUNT_MAX);
        if fills_vectors && geometry.stride == [1, 1] && geometry.kernel[1] > 1 {
            Layout::PaddedRows
        } else {
            Layout::Copies
        }
    }
}

/// Outputs of a tile whose taps are neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    /// How many there are, and outputs of each.
    pub(super) count: usize,
    pub(super) len: usize,
    /// Elements of the tile from one to the next.
    pub(super) step: usize,
}

/// How an output plane is cut into tiles: a function of the geometry only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiling {
    layout: Layout,
    /// Output rows of a tile; the last of a plane may have fewer.
    pub(super) row_count: usize,
    /// Planes of a tile, each of a source channel or a pair; the last of a group may have fewer.
    pub(super) plane_count: usize,
    /// Elements from one plane to the next.
    pub(super) plane_len: usize,
    /// Elements of one whole image in a tile.
    pub(super) image_len: usize,
}

impl Tiling {
    /// Tiles of `pixels_enough` outputs that share the cache with `pixel_len` further elements per
    /// output.
    pub(super) fn new(
        geometry: &Geometry,
        layout: Layout,
        pixel_len: usize,
        pixels_enough: usize,
    ) -> Self {
        let (height, planes) = (geometry.out_size[0].max(1), geometry.tile_planes().max(1));
        let fits = |rows: usize| {
            let pixels_len = rows * geometry.out_size[1] * pixel_len;
            planes * geometry.plane_len(layout, rows) + pixels_len <= TILE_LEN_MAX
        };
        let mut row_count = height;
        while row_count > 1 && !fits(row_count) {
            let halved = row_count.div_ceil(2);
            if halved * geometry.out_size[1] < pixels_enough {
                break;
            }
            row_count = halved;
        }
        let plane_len = geometry.plane_len(layout, row_count);
        let planes_max = (TILE_LEN_MAX / plane_len.max(1)).clamp(1, planes);
        let plane_count = planes.div_ceil(planes.div_ceil(planes_max));
        let image_len = plane_count * plane_len;
        Self { layout, row_count, plane_count, plane_len, image_len }
    }

    /// The runs of so many rows of outputs.
    pub(super) fn runs(&self, geometry: &Geometry, row_count: usize) -> Runs {
        let width = geometry.out_size[1];
        match self.layout {
            Layout::PaddedRows => {
                Runs { count: row_count, len: width, step: geometry.padded_width() }
            }
            Layout::Copies => Runs { count: 1, len: row_count * width, step: 0 },
        }
    }

    /// Images that the tile of one could grow to; at least 1.
    pub(super) fn images_that_fit(&self) -> usize {
        (TILE_LEN_MAX / self.image_len.max(1)).max(1)
    }

    /// Elements of a tile of `image_count` images, with the slack that whole vectors need.
    pub(super) fn len(&self, image_count: usize) -> usize {
        image_count * self.image_len + LANE_COUNT_MAX
    }
}

/// Where taps begin in a tile.
pub(super) struct TapOffsets([usize; TAP_COUNT_MAX]);

impl TapOffsets {
    pub(super) fn new() -> Self {
        TapOffsets([0; TAP_COUNT_MAX])
    }

    /// Those of the taps `first..` of `plane_count` planes, plane by plane, as many as are held at
    /// once. One list for all planes, so that the innermost loop is long: where it began anew for
    /// each channel, 3x3 kernels took 5 % more.
    pub(super) fn of(
        &mut self,
        geometry: &Geometry,
        tiling: &Tiling,
        plane_count: usize,
        first: usize,
    ) -> &[usize] {
        let taps = geometry.tap_count();
        let offsets = &mut self.0[..(plane_count * taps - first).min(TAP_COUNT_MAX)];
        for index in 0..offsets.len() {
            offsets[index] = match index.checked_sub(taps) {
                Some(same_tap) => offsets[same_tap] + tiling.plane_len,
                None => tap_offset(geometry, tiling, first + index),
            };
        }
        offsets
    }
}

fn tap_offset(geometry: &Geometry, tiling: &Tiling, index: usize) -> usize {
    let (plane, tap) = (index / geometry.tap_count(), index % geometry.tap_count());
    let (kh, kw) = (tap / geometry.kernel[1], tap % geometry.kernel[1]);
    let (stride, phase_rows) = (geometry.stride[0], geometry.phase_rows(tiling.row_count));
    let row = kh * geometry.dilation[0];
    if tiling.layout == Layout::PaddedRows {
        let column = kw * geometry.dilation[1];
        return plane * tiling.plane_len + row * geometry.padded_width() + column;
    }
    let rows = (kw * stride + row % stride) * phase_rows + row / stride;
    plane * tiling.plane_len + rows * geometry.out_size[1]
}

/// Fills the tile of output rows `first_row..` from `source`, the planes of its channels, two of
/// which become one of the tile if they are multiplied in pairs. `joined` has room for the rows of
/// a pair.
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

/// A number of each of two channels in every lane, or 0 where there is no second channel.
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

/// A lane that holds a pair of numbers of half its size.
#[inline(always)]
pub(super) fn lane<E: Element, T: Element>(pair: [E; 2]) -> T {
    bytemuck::cast(pair)
}

/// Fills the tile of output rows `first_row..` from `source`, the planes of its channels.
pub(super) fn fill<E: Element, T: Element>(
    geometry: &Geometry,
    tiling: &Tiling,
    source: &[E],
    first_row: usize,
    tile: &mut [T],
) {
    let fill = Fill { geometry, tiling, source, first_row, tile };
    match geometry.stride[1] {
        // Rows are copied, by a function that knows its processor.
        _ if tiling.layout == Layout::PaddedRows => fill.padded_rows(),
        1 => fill.planes(),
        _ => f32::dispatch(fill),
    }
}

/// A tile that is to be filled.
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

/// The source row that grid row `row` of a tile shows, if it is not padding.
fn source_row(geometry: &Geometry, first_row: usize, row: usize) -> Option<usize> {
    let row = (first_row * geometry.stride[0] + row).checked_add_signed(-geometry.padding[0])?;
    (row < geometry.in_size[0]).then_some(row)
}

/// Every `stride`-th element of `from`, from number `shift` on, and zeros beyond its ends.
#[inline(always)]
pub(super) fn fill_row<E: Element, T: Element>(
    from: &[E],
    stride: usize,
    shift: isize,
    to: &mut [T],
) {
    let left = (-shift).max(0).cast_unsigned().div_ceil(stride).min(to.len());
    let start = (left * stride).saturating_add_signed(shift);
    let from = from.get(start..).unwrap_or_default();
    let count = from.len().div_ceil(stride).min(to.len() - left);
    to[..left].fill(T::ZERO);
    to[left + count..].fill(T::ZERO);
    let to = &mut to[left..][..count];
    match stride {
        1 => convert_slice(&from[..count], to),
        // The most usual one, in a form that is compiled to vectors.
        2 => {
            let (pairs, last) = from.as_chunks::<2>();
            let len = pairs.len().min(to.len());
            match len {
                16.. => firsts_of::<E, T, 16>(&pairs[..len], &mut to[..len]),
                8.. => firsts_of::<E, T, 8>(&pairs[..len], &mut to[..len]),
                4.. => firsts_of::<E, T, 4>(&pairs[..len], &mut to[..len]),
                _ => to.iter_mut().zip(pairs).for_each(|(to, &pair)| *to = first_of(pair)),
            }
            if let (&[last], Some(to)) = (last, to.get_mut(pairs.len())) {
                *to = converted(last);
            }
        }
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, &x)| *to = converted(x)),
    }
}

/// The first of each pair, `N` or more, in blocks of `N`: the last of a row are not copied one by
/// one, but with some before them again.
#[inline(always)]
fn firsts_of<E: Element, T: Element, const N: usize>(pairs: &[[E; 2]], to: &mut [T]) {
    for at in (0..to.len()).step_by(N) {
        let at = at.min(to.len() - N);
        let (pairs, to) = (&pairs[at..][..N], &mut to[at..][..N]);
        for index in 0..N {
            to[index] = first_of(pairs[index]);
        }
    }
}

/// [`Element::cast`], but for a half type that stays one, which would be rounded on its way.
#[inline(always)]
fn converted<E: Element, T: Element>(x: E) -> T {
    if is_same_type::<E, T>() { bytemuck::cast(x) } else { x.cast() }
}

/// The first of two, converted. Of halves that stay as they are it is the lower half of a word:
/// there are vectors of words, but not of halves, on every processor with AVX-512.
#[inline(always)]
fn first_of<E: Element, T: Element>(pair: [E; 2]) -> T {
    if is_same_type::<E, T>() && size_of::<E>() == 2 && cfg!(target_endian = "little") {
        bytemuck::cast(bytemuck::cast::<[E; 2], u32>(pair) as u16)
    } else {
        converted(pair[0])
    }
}

/// [`fill`] for one kernel column when input and output rows have the same length: the whole
/// plane is one copy, displaced by `shift`, and only the columns that wrapped around are cleared.
/// Small images would otherwise spend more time in calls to copy than in arithmetic.
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
    // `from` may start before the plane or end after it, but only by columns cleared below.
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
