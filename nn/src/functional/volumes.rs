//! Convolutions and pools of volumes, `[B, C, D, H, W]`, made of convolutions and pools of images.

use std::num::NonZeroUsize;

use lowtide_autograd::Var;
use lowtide_tensor::{
    AvgPool, Conv2dGeometry, Divisor, MaxPool, PadMode, Pool2dGeometry, Shape, SizeRounding,
    TensorError,
};

use crate::error::Result;

/// Options of a convolution of volumes, in the order depth, height, width, with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv3dGeometry {
    /// Distance between two windows.
    pub stride: [usize; 3],
    /// Number of zeros on each side.
    pub padding: [usize; 3],
    /// Distance between two elements of a window.
    pub dilation: [usize; 3],
    /// Number of groups that the channels are split into. Each group computes its own outputs.
    pub groups: usize,
}

impl Default for Conv3dGeometry {
    fn default() -> Self {
        Conv3dGeometry { stride: [1; 3], padding: [0; 3], dilation: [1; 3], groups: 1 }
    }
}

/// The cross-correlation of volumes with `w`, plus `b` for each output channel,
/// `torch.nn.functional.conv3d`. Each slice of the kernel is a convolution of images; its batch
/// holds the slices of the volume under that slice of the kernel.
///
/// # Shapes
/// `x: [B, I, D, H, W]`, `w: [O, I / groups, KD, KH, KW]`, `b: [O]`, `→ [B, O, D', H', W']`
///
/// # Errors
/// `Shape`, also where the kernel is larger than the padded input; `DType`, `OutOfMemory`.
pub fn conv3d(x: Var, w: Var, b: Option<Var>, geometry: Conv3dGeometry) -> Result<Var> {
    let dtype = x.value().dtype();
    if dtype.is_float() && dtype != dtype.computed() && w.value().dtype() == dtype {
        // The sum over the slices is rounded once.
        let wide = |x: Var| x.to_dtype(dtype.computed());
        let (x, w, b) = (wide(x)?, wide(w)?, b.map(wide).transpose()?);
        return Ok(conv3d(x, w, b, geometry)?.to_dtype(dtype)?);
    }
    let (op, left, right) = ("conv3d", *x.shape(), *w.shape());
    let unfit = || TensorError::Shape { op, left, right };
    let &[batch, channels, depth, height, width] = &left[..] else { return Err(unfit().into()) };
    let &[outputs, _, kernel, ..] = &right[..] else { return Err(unfit().into()) };
    let Conv3dGeometry { stride, padding, dilation, groups } = geometry;
    let depth = depth + 2 * padding[0];
    let span = dilation[0] * kernel.max(1).saturating_sub(1) + 1;
    if right.len() != 5 || kernel == 0 || stride[0] == 0 || dilation[0] == 0 || span > depth {
        return Err(unfit().into());
    }
    let slices = (depth - span) / stride[0] + 1;
    let x = match padding[0] {
        0 => x,
        zeros => x.pad(&[[zeros; 2], [0; 2], [0; 2]], PadMode::Constant(0.0))?,
    };
    let x = x.transpose(1, 2)?;
    let images = Conv2dGeometry {
        stride: [stride[1], stride[2]],
        padding: [padding[1], padding[2]],
        dilation: [dilation[1], dilation[2]],
        groups,
    };
    let mut bias = b;
    let mut sum: Option<Var> = None;
    for slice in 0..kernel {
        let first = slice * dilation[0];
        let end = first + (slices - 1) * stride[0] + 1;
        let below = x.clone().slice(1, first..end, stride[0])?;
        let below = below.reshape([batch * slices, channels, height, width])?;
        let part = below.conv2d(w.clone().select(2, slice)?, bias.take(), images)?;
        sum = Some(match sum {
            Some(sum) => sum.add(part)?,
            None => part,
        });
    }
    let sum = sum.ok_or_else(unfit)?;
    let (rows, columns) = (sum.shape()[2], sum.shape()[3]);
    Ok(sum.reshape([batch, slices, outputs, rows, columns])?.transpose(1, 2)?)
}

/// Size, stride and padding of the windows of a pool, in the order depth, height, width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool3dGeometry {
    /// Size of a window.
    pub kernel: [usize; 3],
    /// Distance between two windows.
    pub stride: [usize; 3],
    /// Number of places on each side.
    pub padding: [usize; 3],
}

impl Pool3dGeometry {
    /// Adjacent cubes with edges of `kernel` places.
    pub fn cube(kernel: usize) -> Self {
        Pool3dGeometry { kernel: [kernel; 3], stride: [kernel; 3], padding: [0; 3] }
    }

    /// The windows of the slices, as images.
    pub(crate) fn flat(self) -> Pool2dGeometry {
        let [kernel, stride, padding] =
            [self.kernel, self.stride, self.padding].map(|[_, rows, columns]| [rows, columns]);
        Pool2dGeometry { kernel, stride, padding }
    }

    /// The windows along the depth, for images whose rows are flattened slices.
    pub(crate) fn deep(self) -> Pool2dGeometry {
        let Pool3dGeometry { kernel: [kernel, ..], stride: [stride, ..], padding: [padding, ..] } =
            self;
        Pool2dGeometry { kernel: [kernel, 1], stride: [stride, 1], padding: [padding, 0] }
    }
}

/// Pools volumes in two steps: all slices as images, then along the depth. The maximum of a box is
/// the maximum of its slices' maxima, and the same holds for means.
fn in_turns(
    op: &'static str,
    x: Var,
    of_images: impl Fn(Var) -> Result<Var>,
    along_depth: impl Fn(Var) -> Result<Var>,
) -> Result<Var> {
    let (left, dtype) = (*x.shape(), x.value().dtype());
    let &[batch, channels, depth, height, width] = &left[..] else {
        return Err(TensorError::Shape { op, left, right: Shape::new(&[1; 5]) }.into());
    };
    // The result and its gradient are rounded to a half type once.
    let x = if dtype.is_float() { x.to_dtype(dtype.computed())? } else { x };
    let y = of_images(x.reshape([batch, channels * depth, height, width])?)?;
    let (rows, columns) = (y.shape()[2], y.shape()[3]);
    let y = along_depth(y.reshape([batch, channels, depth, rows * columns])?)?;
    let depth = y.shape()[2];
    let y = y.reshape([batch, channels, depth, rows, columns])?;
    if dtype.is_float() { Ok(y.to_dtype(dtype)?) } else { Ok(y) }
}

/// Options of [`max_pool3d`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool3dOptions {
    /// Distance between two places of a window, in the order depth, height, width.
    pub dilation: [usize; 3],
    /// Rounding of the output size: down, or up with windows that end outside of the padded input.
    pub rounding: SizeRounding,
}

impl Default for MaxPool3dOptions {
    fn default() -> Self {
        MaxPool3dOptions { dilation: [1; 3], rounding: SizeRounding::Down }
    }
}

/// The largest value of each window, `torch.nn.functional.max_pool3d`.
///
/// # Shapes
/// `x: [B, C, D, H, W] → [B, C, D', H', W']`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`.
pub fn max_pool3d(x: Var, window: Pool3dGeometry, options: MaxPool3dOptions) -> Result<Var> {
    let MaxPool3dOptions { dilation: [deep, rows, columns], rounding } = options;
    let pool = |x: Var, window, dilation| -> Result<Var> {
        Ok(x.max_pool2d_with(window, MaxPool { dilation, rounding })?)
    };
    let of_images = |x| pool(x, window.flat(), [rows, columns]);
    in_turns("max_pool3d", x, of_images, |x| pool(x, window.deep(), [deep, 1]))
}

/// The mean of each window, `torch.nn.functional.avg_pool3d`.
///
/// # Shapes
/// `x: [B, C, D, H, W] → [B, C, D', H', W']`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`.
pub fn avg_pool3d(x: Var, window: Pool3dGeometry, options: AvgPool) -> Result<Var> {
    let pool = |x: Var, window, options| -> Result<Var> { Ok(x.avg_pool2d(window, options)?) };
    // A fixed divisor divides only the final sum.
    let of_images = match options.divisor {
        Divisor::Exactly(_) => AvgPool { divisor: Divisor::Exactly(NonZeroUsize::MIN), ..options },
        _ => options,
    };
    let along_depth = |x| pool(x, window.deep(), options);
    in_turns("avg_pool3d", x, |x| pool(x, window.flat(), of_images), along_depth)
}

/// The mean of each of `size` windows that cover x, `torch.nn.functional.adaptive_avg_pool3d`.
///
/// # Shapes
/// `x: [B, C, D, H, W] → [B, C, size[0], size[1], size[2]]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`.
pub fn adaptive_avg_pool3d(x: Var, size: [usize; 3]) -> Result<Var> {
    let of_images = |x: Var| Ok(x.adaptive_avg_pool2d([size[1], size[2]])?);
    let along = |x: Var| {
        let pixels = x.shape()[3];
        Ok(x.adaptive_avg_pool2d([size[0], pixels])?)
    };
    in_turns("adaptive_avg_pool3d", x, of_images, along)
}

/// The largest value of each of `size` windows that cover x,
/// `torch.nn.functional.adaptive_max_pool3d`.
///
/// # Shapes
/// `x: [B, C, D, H, W] → [B, C, size[0], size[1], size[2]]`
///
/// # Errors
/// `Shape`, `DType`, `OutOfMemory`.
pub fn adaptive_max_pool3d(x: Var, size: [usize; 3]) -> Result<Var> {
    let of_images = |x: Var| Ok(x.adaptive_max_pool2d([size[1], size[2]])?);
    let along = |x: Var| {
        let pixels = x.shape()[3];
        Ok(x.adaptive_max_pool2d([size[0], pixels])?)
    };
    in_turns("adaptive_max_pool3d", x, of_images, along)
}
