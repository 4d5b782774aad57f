//! Tiles: the part of an image that a block of outputs reads, in an order in which each tap of the
//! kernel reads one contiguous run of elements.
//!
//! If rows of outputs are whole vectors, a tile has each row once, with zeros on both sides:
//! `[C][rows][OW + (KW - 1) · dilation]`. A tap then reads one run for each row of outputs.
//!
//! Otherwise a tile holds, for each channel c, each kernel column and each input row, the
//! `out_width` values that this kernel column meets along the row: `[C][KW][rows][OW]`. Tap (kh,
//! kw) then meets output pixel p of the tile (row by row) at `p + offset(kh, kw)`. Pixels need no
//! index arithmetic, borders need no branch, and no lanes are lost between rows. The cost is KW
//! copies of the rows, instead of the KH·KW of im2col. With a row stride S, rows are sorted by
//! their remainder modulo S so that the rows of one tap stay adjacent.
//!
//! If bf16 is multiplied in pairs, two source channels share a plane of the tile: an element is a
//! lane of 32 bits that holds one number of each channel.

use crate::cpu::simd::LANE_COUNT_MAX;
use crate::dtype::Element;
use crate::ops::conv2d::geometry::Geometry;

/// Elements of a tile, unless one channel of [`PIXELS_ENOUGH`] outputs needs more: 128 KiB of f32,
/// which stay in a second-level cache next to the weights.
const TILE_LEN_MAX: usize = 32 * 1024;

/// Outputs of a tile, if the image has as many. Each tile copies the rows around it once more, so a
/// tile of fewer channels is better than a tile of fewer rows.
pub(super) const PIXELS_ENOUGH: usize = 256;

/// Largest number of taps of all channels whose offsets are stored at once. More taps take several
/// passes.
pub(super) const TAP_COUNT_MAX: usize = 1024;

/// The order of a channel's rows in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Each row is stored once, with zeros on both sides.
    PaddedRows,
    /// Each row is stored once for each column of the kernel, with nothing between rows.
    Copies,
}

impl Layout {
    /// The layout for `geometry`: padded rows, if outputs fill whole vectors.
    pub(super) fn of(geometry: &Geometry) -> Self {
        let width = geometry.out_size[1];
        // A single vector of outputs would take as many loads as products.
        let fills_vectors = width >= 2 * LANE_COUNT_MAX && width.is_multiple_of(LANE_COUNT_MAX);
        if fills_vectors && geometry.stride == [1, 1] && geometry.kernel[1] > 1 {
            Layout::PaddedRows
        } else {
            Layout::Copies
        }
    }
}

impl Geometry {
    /// Rows of the source grid that `row_count` rows of outputs span, with the rows in between.
    fn span(&self, row_count: usize) -> usize {
        (row_count - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0] + 1
    }

    /// Elements of the rows of two planes that are joined to lanes; 0 unless channels are in pairs.
    pub(super) fn joined_len(&self, row_count: usize) -> usize {
        match self.plane_channels {
            1 => 0,
            _ => self.span(row_count).min(self.in_size[0]) * self.in_size[1],
        }
    }

    /// The convolution of the first piece, if there is a single row of outputs and tiles of all its
    /// channels would be too large. Otherwise the convolution of all outputs.
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

    /// The part of a source plane for a tile of output rows from `first_row` on: its first element,
    /// and the convolution with the part as source. The part is some rows of the plane, or some
    /// columns if there is only one row.
    pub(super) fn cut(&self, first_row: usize, row_count: usize) -> (usize, Geometry) {
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

    /// Rows with the same remainder by the stride.
    pub(super) fn phase_rows(&self, row_count: usize) -> usize {
        self.span(row_count).div_ceil(self.stride[0])
    }

    /// Elements of a padded source row, as far as a row of outputs reads.
    pub(super) fn padded_width(&self) -> usize {
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

/// Runs of outputs: each tap reads one contiguous run of the tile for each of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    pub(super) count: usize,
    /// Outputs of a run.
    pub(super) len: usize,
    /// Elements of the tile between neighbouring runs.
    pub(super) step: usize,
}

/// The cut of an output plane into tiles: a function of the geometry alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiling {
    pub(super) layout: Layout,
    /// Output rows of a tile; the last tile of a plane may have fewer.
    pub(super) row_count: usize,
    /// Planes of a tile, one for each source channel or pair of channels; the last tile of a group
    /// may have fewer.
    pub(super) plane_count: usize,
    /// Elements between neighbouring planes.
    pub(super) plane_len: usize,
    /// Elements of one whole image in a tile.
    pub(super) image_len: usize,
}

impl Tiling {
    /// Tiles of at least `pixels_enough` outputs. Each output takes `pixel_len` further elements,
    /// which share the cache with the tile.
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

    /// The runs of `row_count` rows of outputs.
    pub(super) fn runs(&self, geometry: &Geometry, row_count: usize) -> Runs {
        let width = geometry.out_size[1];
        match self.layout {
            Layout::PaddedRows => {
                Runs { count: row_count, len: width, step: geometry.padded_width() }
            }
            Layout::Copies => Runs { count: 1, len: row_count * width, step: 0 },
        }
    }

    /// Number of images whose tiles together do not exceed the largest size of a tile; at least 1.
    pub(super) fn images_that_fit(&self) -> usize {
        (TILE_LEN_MAX / self.image_len.max(1)).max(1)
    }

    /// Elements of a tile of `image_count` images, with slack for whole vectors.
    pub(super) fn len(&self, image_count: usize) -> usize {
        image_count * self.image_len + LANE_COUNT_MAX
    }
}

/// Taps of a tile of some images: the taps whose offsets are stored at once.
#[derive(Clone, Copy)]
pub(super) struct Taps<'a, E> {
    pub(super) tile: &'a [E],
    pub(super) image_count: usize,
    /// Elements of the tile between neighbouring images.
    pub(super) image_len: usize,
    /// The first element of each tap in the tile of an image.
    pub(super) offsets: &'a [usize],
    /// The index of the first tap among the taps of all channels.
    pub(super) first_k: usize,
}

impl<'a, T: Element> Taps<'a, T> {
    /// These taps, with the elements of the tile reinterpreted as the stored type `E`.
    pub(super) fn of_stored<E: Element>(self) -> Taps<'a, E> {
        let Taps { tile, image_count, image_len, offsets, first_k } = self;
        Taps { tile: bytemuck::cast_slice(tile), image_count, image_len, offsets, first_k }
    }
}

/// The first element of each tap in a tile.
pub(super) struct TapOffsets([usize; TAP_COUNT_MAX]);

impl TapOffsets {
    pub(super) fn new() -> Self {
        TapOffsets([0; TAP_COUNT_MAX])
    }

    /// The offsets of at most [`TAP_COUNT_MAX`] taps of `plane_count` planes, plane by plane, from
    /// tap `first` on. One list for all planes makes the innermost loop long: with a list for each
    /// channel, 3x3 kernels took 5 % longer.
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
