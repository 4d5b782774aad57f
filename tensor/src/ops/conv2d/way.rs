//! Which way a product of a convolution is computed on the processor: by its shape alone.

use super::Product;
use super::columns::Columns;
use super::depthwise::Depthwise;
use super::patches::Patches;
use super::shape::Conv2dShape;

/// How a product is computed.
pub(super) enum Way {
    /// Channels are groups of their own.
    Depthwise(Depthwise),
    /// Planes are small.
    Columns(Columns),
    /// Nothing of x is met twice.
    Patches(Patches),
    /// As products with tiles of the source (`tile.rs`), where no other way is better.
    Tiles,
}

impl Way {
    pub(super) fn of(shape: &Conv2dShape, product: Product) -> Self {
        /// Pixels of a plane of y that fill too few vectors.
        const SMALL: usize = 49;
        /// The same where tiles are slower: rows with gaps, weights, which need dy turned, or many
        /// weights.
        const SMALL_FOR_SLOW_TILES: usize = 64;
        /// Weights that do not stay in a second-level cache.
        const WEIGHTS_MANY: usize = 256 * 1024;
        /// The same where they are slowest, of both.
        const SMALL_FOR_SLOWEST_TILES: usize = 256;
        /// Taps of all channels, at least, for columns of larger planes to pay.
        const TAPS_MIN: usize = 96;

        let is_strided = shape.stride != [1, 1];
        let is_of_weight = matches!(product, Product::BackwardWeight);
        // Tiles read all weights again for each image.
        let are_many = shape.w_len() > WEIGHTS_MANY;
        let is_wide = shape.in_channels * shape.kernel[0] * shape.kernel[1] > TAPS_MIN;
        let small = match is_strided || are_many || (is_of_weight && is_wide) {
            true => SMALL_FOR_SLOW_TILES,
            false => SMALL,
        };
        if let Some(depthwise) = Depthwise::of(shape) {
            return Way::Depthwise(depthwise);
        }
        if let Some(columns) = Columns::of(shape, small) {
            return Way::Columns(columns);
        }
        if let Some(patches) = Patches::of(shape) {
            return Way::Patches(patches);
        }
        match Columns::of(shape, SMALL_FOR_SLOWEST_TILES) {
            Some(columns) if is_strided && is_of_weight && is_wide => Way::Columns(columns),
            _ => Way::Tiles,
        }
    }
}
