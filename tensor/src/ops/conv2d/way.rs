//! The table of ways. It alone decides the way to compute a product of a convolution, its scratch
//! memory, and its rate.

use super::columns::Columns;
use super::depthwise::Depthwise;
use super::patches::Patches;
use super::shape::Conv2dShape;
use super::tensor_cores::ChannelsLast;
use super::tiles::Tiles;
use super::{Conv2d, Product};
use crate::cost::OpClass;
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::dtype::Element;

/// Largest number of tasks of a product; the workspace grows with this number. A constant, because
/// results must not depend on the number of threads.
pub(super) const TASK_COUNT_MAX: usize = 16;

/// Elements that all partial sums of dw may take, unless one copy of dw needs more.
pub(super) const PARTIALS_LEN_MAX: usize = 512 * 1024;

/// The memory of one product on the processor.
pub(super) struct Slices<'a, E, T> {
    /// x and w for y, dy and w for dx, dy and x for dw.
    pub(super) factors: [&'a [E]; 2],
    /// The bias of each channel of the result.
    pub(super) bias: Option<&'a [E]>,
    /// The result, which is overwritten.
    pub(super) to: &'a mut [E],
    /// Scratch of at least [`workspace_len`] elements.
    pub(super) workspace: &'a mut [T],
}

/// The ways on the processor.
enum CpuWay {
    Depthwise(Depthwise),
    Columns(Columns),
    Patches(Patches),
    Tiles(Tiles),
}

impl CpuWay {
    /// The first way of the table that the sizes allow and that pays.
    fn of(shape: &Conv2dShape, product: Product) -> Self {
        /// Pixels of a plane of y that are too few to fill vectors.
        const SMALL: usize = 49;
        /// Pixels of a plane of y up to which tiles are slower, if rows have gaps, weights need a
        /// transposed dy, or there are many weights.
        const SMALL_FOR_SLOW_TILES: usize = 64;
        /// Number of weights above which they do not stay in a second-level cache.
        const WEIGHTS_MANY: usize = 256 * 1024;
        /// Pixels of a plane of y up to which tiles are slower, if rows have gaps and weights need
        /// a transposed dy.
        const SMALL_FOR_SLOWEST_TILES: usize = 256;
        /// Smallest number of taps of all channels for which columns of larger planes pay.
        const TAPS_MIN: usize = 96;

        let is_strided = shape.stride != [1, 1];
        // Tiles read all weights again for each image.
        let are_many = shape.w_len() > WEIGHTS_MANY;
        let is_wide = shape.in_channels * shape.kernel[0] * shape.kernel[1] > TAPS_MIN;
        let transposes_dy = product == Product::BackwardWeight && is_wide;
        let is_slow = is_strided || are_many || transposes_dy;
        let small = if is_slow { SMALL_FOR_SLOW_TILES } else { SMALL };
        if let Some(depthwise) = Depthwise::of(shape) {
            return CpuWay::Depthwise(depthwise);
        }
        if let Some(columns) = Columns::of(shape, small) {
            return CpuWay::Columns(columns);
        }
        if let Some(patches) = Patches::of(shape) {
            return CpuWay::Patches(patches);
        }
        match Columns::of(shape, SMALL_FOR_SLOWEST_TILES) {
            Some(columns) if is_strided && transposes_dy => CpuWay::Columns(columns),
            _ => CpuWay::Tiles(Tiles::of(shape)),
        }
    }
}

/// Elements of scratch that [`run`] needs. They depend on the sizes and types alone, so that a
/// simulation can ask for them.
pub(super) fn workspace_len<E: Element, T: SimdFloat>(
    shape: &Conv2dShape,
    product: Product,
) -> usize {
    match CpuWay::of(shape, product) {
        CpuWay::Depthwise(way) => way.workspace_len(product),
        CpuWay::Columns(way) => way.workspace_len::<E, T>(product),
        CpuWay::Patches(way) => way.workspace_len::<E, T>(product),
        CpuWay::Tiles(way) => way.workspace_len::<E, T>(product),
    }
}

/// Computes a product on the processor, from elements of E by sums in T. Overwrites the result:
/// - y = conv(x, w) + b
/// - dx = the convolution of dy with the kernel turned around, plus b
/// - dw, summed over the batch
///
/// # Panics
/// If the slices are not as long as the sizes say.
pub(super) fn run<E: Element, T: SimdFloat>(
    pool: &Pool,
    shape: &Conv2dShape,
    product: Product,
    slices: Slices<'_, E, T>,
) {
    let [x, w, y] = [shape.x_len(), shape.w_len(), shape.y_len()];
    let expected = match product {
        Product::Forward => [x, w, y],
        Product::BackwardInput => [y, w, x],
        Product::BackwardWeight => [y, x, w],
    };
    let [first, second] = slices.factors.map(<[E]>::len);
    assert_eq!([first, second, slices.to.len()], expected);
    match CpuWay::of(shape, product) {
        CpuWay::Depthwise(way) => way.run(product, pool, slices),
        CpuWay::Columns(way) => way.run(product, pool, slices),
        CpuWay::Patches(way) => way.run(product, pool, slices),
        CpuWay::Tiles(way) => way.run(product, pool, slices),
    }
}

/// The ways on an NVIDIA device.
pub(super) enum CudaWay {
    /// One product of matrices for each image, by the device's library.
    Library,
    /// Tensor cores, on copies with the channels of a pixel side by side.
    TensorCores(ChannelsLast),
    /// An implicit product of matrices in the type of the computation; see `conv2d.cu`.
    Implicit,
}

impl CudaWay {
    /// The first way of the table that takes the product.
    pub(super) fn of(conv: &Conv2d) -> Self {
        let is_for_tensor_cores = ChannelsLast::takes(conv);
        // If rows of pixels are aligned, the library reads them faster than any convolution does.
        let row_bytes = conv.shape.in_height * conv.shape.in_width * conv.dtype.size_bytes();
        let are_rows_aligned = !is_for_tensor_cores || row_bytes.is_multiple_of(8);
        if is_matrix_product(conv) && are_rows_aligned {
            CudaWay::Library
        } else if is_for_tensor_cores {
            CudaWay::TensorCores(ChannelsLast::of(conv))
        } else {
            CudaWay::Implicit
        }
    }

    /// Elements of scratch in the type of the sums.
    pub(super) fn workspace_len(&self, conv: &Conv2d) -> usize {
        match (self, conv.product) {
            (CudaWay::Library, _) => 0,
            (CudaWay::TensorCores(sizes), _) => sizes.scratch_len(),
            (CudaWay::Implicit, Product::BackwardWeight) => match conv.shape.weight_parts() {
                1 => 0,
                parts => parts * conv.shape.w_len(),
            },
            (CudaWay::Implicit, _) => 0,
        }
    }
}

/// True if each image is one product of matrices: one tap at each pixel, and no bias.
fn is_matrix_product(conv: &Conv2d) -> bool {
    let Conv2dShape { batch, kernel, stride, padding, groups, .. } = conv.shape;
    let is_of_pixels = [kernel, stride] == [[1, 1]; 2] && padding == [0, 0] && groups == 1;
    // Gradients of weights sum over images.
    let is_of_images = conv.product != Product::BackwardWeight;
    is_of_pixels && is_of_images && !conv.has_bias && batch > 0
}

/// The class of a convolution's rate, for any way.
pub(super) fn op_class(shape: &Conv2dShape) -> OpClass {
    /// Pixels of a plane of the result below which a convolution is slower than others, as it is
    /// with a stride. Forward ran at 0.7 of the rate with 2 x 2 pixels, and at 0.6 to 0.9 with a
    /// stride of 2 (one core of an Intel Xeon with AVX-512, 2026-11-27).
    const PIXELS_MIN: usize = 16;
    let pixels = shape.out_height() * shape.out_width();
    if shape.stride == [1, 1] && pixels >= PIXELS_MIN {
        OpClass::Convolution
    } else {
        OpClass::CoarseConvolution
    }
}
