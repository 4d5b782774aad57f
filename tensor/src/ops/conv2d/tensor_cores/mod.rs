//! The products of half types, and of f32 as tf32, on NVIDIA devices. Operands are copied into
//! scratch memory with the channels of a pixel side by side (NHWC), so that tensor cores read their
//! factors in whole packs; see `channels_last.cu`. Sizes are the same with and without a device.

#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::shape::Conv2dShape;
use super::{Conv2d, Product};
use crate::dtype::DType;

/// Bytes of a pack, the unit of copies.
const PACK_BYTES: usize = 16;

/// Rows and columns of a tile of the result.
const TILE: [usize; 2] = [64, 128];

/// Rows of a tall tile.
const TALL_TILE: usize = 128;

/// Blocks that keep a large device busy: two on each of its multiprocessors.
const BLOCKS_WANTED: usize = 264;

/// The sizes of a product in the terms of the kernels.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only the length is asked for"))]
pub(super) struct ChannelsLast {
    /// Channels of a group of the source: of x or, for dx, of dy.
    source_channels: usize,
    /// Channels of a group of the result: of y or dx or, for dw, of y.
    result_channels: usize,
    /// Rows and columns of the source.
    source_size: [usize; 2],
    /// Rows and columns of the result or, for dw, of y.
    result_size: [usize; 2],
    /// Rows and columns of the result or, for dx, of each phase.
    places: [usize; 2],
    /// The product of the strides for dx, else 1.
    phases: usize,
    /// Tiles of a group's result, across and down.
    tiles: [usize; 2],
    /// Rows of a tile.
    tile_rows: usize,
    /// Number of parts of the pixels for dw, else 1.
    parts: usize,
    /// Elements of w with its channels in whole packs.
    filters_len: usize,
    /// Elements of a pack.
    pack: usize,
    /// Elements of the two copied operands.
    copies: [usize; 2],
    /// Elements of the parts' sums in f32.
    sums: usize,
}

impl ChannelsLast {
    /// True if tensor cores take the product. Several groups with fewer channels than a pack are
    /// refused: the zeros that fill up their packs would be most of the work.
    pub(super) fn takes(conv: &Conv2d) -> bool {
        let Conv2dShape { in_channels, out_channels, groups, .. } = conv.shape;
        let pack = PACK_BYTES / conv.dtype.size_bytes();
        let are_packs = [in_channels, out_channels].iter().all(|count| count / groups >= pack);
        let is_for_tensor_cores = match conv.dtype {
            DType::F32 => conv.is_in_tf32,
            dtype => dtype.size_bytes() == 2,
        };
        is_for_tensor_cores && (groups == 1 || are_packs)
    }

    pub(super) fn of(conv: &Conv2d) -> Self {
        let shape = &conv.shape;
        let pack = PACK_BYTES / conv.dtype.size_bytes();
        let [ins, outs] = [shape.in_channels, shape.out_channels].map(|count| count / shape.groups);
        let in_size = [shape.in_height, shape.in_width];
        let out_size = [shape.out_height(), shape.out_width()];
        let is_of_input = conv.product == Product::BackwardInput;
        let is_of_weight = conv.product == Product::BackwardWeight;
        let (source_channels, result_channels) =
            if is_of_input { (outs, ins) } else { (ins, outs) };
        let (source_size, result_size) =
            if is_of_input { (out_size, in_size) } else { (in_size, out_size) };
        let stride = if is_of_input { shape.stride } else { [1, 1] };
        let places = [0, 1].map(|axis| result_size[axis].div_ceil(stride[axis]));
        // Phases may be too many for a grid: `check` refuses such a product.
        let phases = stride[0].saturating_mul(stride[1]);

        let taps = shape.kernel[0] * shape.kernel[1];
        let filter_len = taps * source_channels.next_multiple_of(pack);
        let pixels = shape.batch * places[0] * places[1];
        let columns = if is_of_weight { filter_len } else { pixels };
        let across = columns.div_ceil(TILE[1]);
        let layers = shape.groups.saturating_mul(phases);
        let blocks = |tile_rows: usize| {
            (result_channels.div_ceil(tile_rows) * across).saturating_mul(layers)
        };
        let parts = |tile_rows: usize| {
            if is_of_weight { parts(shape, filter_len, blocks(tile_rows)) } else { 1 }
        };
        // Tall tiles load less for each product.
        let is_busy = blocks(TALL_TILE).saturating_mul(parts(TALL_TILE)) >= BLOCKS_WANTED;
        let is_tall = result_channels > TILE[0] && is_busy;
        let tile_rows = if is_tall { TALL_TILE } else { TILE[0] };
        let parts = parts(tile_rows);

        let images = |channels: usize, size: [usize; 2]| {
            shape.batch * size[0] * size[1] * shape.groups * channels.next_multiple_of(pack)
        };
        let filters = shape.groups * result_channels * filter_len;
        let second = if is_of_weight { images(outs, out_size) } else { filters };
        ChannelsLast {
            source_channels,
            result_channels,
            source_size,
            result_size,
            places,
            phases,
            tiles: [across, result_channels.div_ceil(tile_rows)],
            tile_rows,
            parts,
            filters_len: filters,
            pack,
            copies: [images(source_channels, source_size), second],
            sums: if is_of_weight { parts * filters } else { 0 },
        }
    }

    /// Offsets in scratch memory of the source, the other factor and the parts' sums, and the end,
    /// in elements of f32.
    fn scratch(&self) -> [usize; 4] {
        // A pack is four elements of f32.
        let [source, other] = self.copies.map(|len| len / self.pack * 4);
        [0, source, source + other, source + other + self.sums]
    }

    /// Elements of scratch, in f32.
    pub(super) fn scratch_len(&self) -> usize {
        let [.., len] = self.scratch();
        len
    }

    /// Channels filled up to whole packs.
    #[cfg(feature = "cuda")]
    fn in_packs(&self, channels: usize) -> usize {
        channels.next_multiple_of(self.pack)
    }
}

/// Number of parts of the pixels for dw that gives a whole device work.
fn parts(shape: &Conv2dShape, filter_len: usize, blocks: usize) -> usize {
    /// Smallest number of pixels of a part. Each part costs writing its sums and reading them
    /// again.
    const PIXELS_MIN: usize = 512;
    /// Largest number of elements of all parts.
    const PARTS_LEN_MAX: usize = 8 << 20;
    let pixels = shape.batch * shape.out_height() * shape.out_width();
    let len = shape.out_channels * filter_len;
    let most = (pixels / PIXELS_MIN).min(PARTS_LEN_MAX / len.max(1));
    BLOCKS_WANTED.div_ceil(blocks.max(1)).min(most).max(1)
}
